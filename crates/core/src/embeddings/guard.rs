//! A decoder's panic as an error about the file it came from.

use super::source::Source;
use crate::error::Result;
use crate::guard::caught;

/// Runs a decoder; its panic becomes an error about the file, and prints nothing.
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
