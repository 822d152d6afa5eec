//! Catches panics in third-party file decoders: [`caught`] runs a decoder and turns a panic into `None`, which its
//! callers report as an invalid file. The Python package and the GPU queue run other work in it, too, so that a panic
//! becomes an error instead of ending the process.
//!
//! Every reader checks the structure of a file before it passes the bytes to a decoder, and these checks are meant to
//! be sufficient. But the decoders for Arrow, Parquet, zip and images are large, and some of them panic on invalid
//! input. Catching panics does not help in programs built with `panic = "abort"`, nor against running out of memory or
//! stack; therefore the checks come first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`caught`], where panics are not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder and returns its result, or `None` if it panicked. The message of the panic is not printed.
///
/// ```
/// let bytes = [1, 2];
/// assert_eq!(trueshot::guard::caught(|| bytes[0]), Some(1));
/// assert_eq!(trueshot::guard::caught(|| bytes[bytes.len()]), None);
/// ```
pub fn caught<T>(decode: impl FnOnce() -> T) -> Option<T> {
    silence_caught_panics();
    let before = QUIET.replace(true);
    // Everything that the decoder borrowed mutably belongs to the closure and is dropped with it.
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    QUIET.set(before);
    outcome.ok()
}

/// Installs a panic hook that prints nothing inside [`caught`] and calls the previous hook elsewhere.
///
/// The hook is global to the process and installed once, on the first call of [`caught`]. Without it a user would see
/// the message and backtrace of a panic that is reported as an ordinary error.
fn silence_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The hook runs on the thread that panics, so it reads the `QUIET` of that thread.
        let previous = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() || is_fuzzing_finding(panic.location()) {
                previous(panic);
            }
        }));
    });
}

/// Whether a caught panic is an error found by fuzzing, which the previous hook must report: in builds for fuzzing, a
/// panic in the readers of this workspace. In these builds, the locations of all caught panics are printed.
fn is_fuzzing_finding(location: Option<&Location<'_>>) -> bool {
    let Some(location) = location.filter(|_| cfg!(fuzzing)) else { return false };
    eprintln!("caught: {location}");
    ["embeddings/", "vision/"].iter().any(|own| location.file().contains(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_decoder_is_caught_and_later_panics_are_printed() {
        assert_eq!(caught(|| 3), Some(3));
        assert_eq!(caught(|| -> u8 { panic!("not for users") }), None);
        assert!(!QUIET.get(), "later panics must be printed");
    }
}
