//! The last net under other people's decoders.
//!
//! Every reader checks the structure of a file before it hands the bytes to a decoder, and those checks
//! are meant to be enough. The decoders of Arrow, Parquet, zip and pictures are large, though, and they assert
//! where they should refuse: a panic in there becomes an error about the file. The net does not help in
//! programs built with `panic = "abort"`, nor against running out of memory or stack: that is why the
//! checks come first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder; `None` if it panicked, of which nothing is printed.
pub fn caught<T>(decode: impl FnOnce() -> T) -> Option<T> {
    hush_guarded_panics();
    let before = QUIET.replace(true);
    // Whatever the decoder had borrowed mutably belongs to the closure and is dropped with it.
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    QUIET.set(before);
    outcome.ok()
}

/// Puts a hook in front of the present one that is silent inside [`caught`] and changes nothing elsewhere.
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
    ["embeddings/", "vision/"].iter().any(|ours| place.file().contains(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_decoder_is_caught_and_later_ones_are_heard() {
        assert_eq!(caught(|| 3), Some(3));
        assert_eq!(caught(|| -> u8 { panic!("not for users") }), None);
        assert!(!QUIET.get(), "later panics must be heard again");
    }
}
