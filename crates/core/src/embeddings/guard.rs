//! [`guarded`] runs a decoder of another crate and turns its panic into an error about the file it was reading.
//!
//! See [`crate::guard`] for why decoders may panic although files are checked before.

use super::source::Source;
use crate::error::Result;
use crate::guard::caught;

/// The result of `decode`, which calls a decoder of another crate. If the decoder panics, nothing is printed and the
/// result is [`Error::Malformed`](crate::Error::Malformed).
pub(crate) fn guarded<T>(
    source: &Source,
    format: &'static str,
    decode: impl FnOnce() -> Result<T>,
) -> Result<T> {
    caught(decode).unwrap_or_else(|| Err(source.malformed(format, "its contents are inconsistent")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_panic_in_a_decoder_becomes_an_error_about_the_file() {
        let source = Source::in_memory(Vec::new(), "arrow");
        let caught: Result<()> = guarded(&source, "Arrow", || panic!("not for users"));
        assert!(matches!(caught, Err(Error::Malformed { format: "Arrow", .. })));
    }
}
