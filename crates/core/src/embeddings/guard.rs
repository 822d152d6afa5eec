//! The last net under other people's decoders.
//!
//! Every reader checks the structure of a file before it hands the bytes to a decoder, and those checks
//! are meant to be enough. The decoders of Arrow, Parquet and zip are large, though, and they assert where
//! they should refuse: a panic in there becomes an error about the file. The net does not help in
//! programs built with `panic = "abort"`, nor against running out of memory or stack: that is why the
//! checks come first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::source::Source;
use crate::error::Result;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder; its panic becomes an error about the file, and prints nothing.
pub(crate) fn guarded<T>(
    source: &Source,
    format: &'static str,
    decode: impl FnOnce() -> Result<T>,
) -> Result<T> {
    hush_guarded_panics();
    let before = QUIET.replace(true);
    // Whatever the decoder had borrowed mutably belongs to the closure and is dropped with it.
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    QUIET.set(before);
    outcome.unwrap_or_else(|_| Err(source.malformed(format, "its contents contradict each other")))
}

/// Puts a hook in front of the present one that is silent inside [`guarded`] and changes nothing elsewhere.
///
/// The hook is the process's, so it is set once, when the first such file is read: a user should not see
/// the backtrace of a panic that was caught and became an ordinary message.
fn hush_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() || fuzzer_wants(panic.location()) {
                previous(panic);
            }
        }));
    });
}

/// In a build for fuzzing, a panic of our own code is a finding even inside the net; a decoder's is listed.
fn fuzzer_wants(place: Option<&Location<'_>>) -> bool {
    let Some(place) = place.filter(|_| cfg!(fuzzing)) else { return false };
    eprintln!("caught: {place}");
    place.file().contains("embeddings/")
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
        assert!(!QUIET.get(), "later panics must be heard again");
    }
}
