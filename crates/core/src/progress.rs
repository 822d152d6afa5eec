//! Progress reports and cancellation of long work: the trait [`Progress`], used by evaluations, audits, training,
//! embedding and repairs.
//!
//! Long work takes a [`&dyn Progress`](Progress) and calls [`Progress::update`] from time to time. The answer
//! [`ControlFlow::Break`] stops the work, which then returns [`Error::Interrupted`] or, where a shorter result is
//! meaningful, the part that is done. Pass `&()` for no progress reporting, or a closure:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use trueshot::progress::Progress;
//!
//! let last = AtomicU64::new(0);
//! let report = |done: u64, _total: u64| {
//!     last.store(done, Ordering::Relaxed);
//!     if done < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
//! };
//! let stopped_at = (1..=10).find(|&done| Progress::update(&report, done, 10).is_break());
//! assert_eq!(stopped_at, Some(3));
//! ```

use std::ops::ControlFlow;

use crate::error::{Error, Result};

/// Receives progress updates of long work and may stop it.
///
/// Updates may come from any thread and may repeat the same `done`: long phases call [`Progress::update`] only to ask
/// whether to continue.
pub trait Progress: Sync {
    /// `done` of `total` units of work have finished. Return [`ControlFlow::Break`] to stop.
    fn update(&self, done: u64, total: u64) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// [`Progress::update`] as a [`Result`].
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the work should stop.
    fn check(&self, done: u64, total: u64) -> Result<()> {
        match self.update(done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }
}

/// No progress reporting.
impl Progress for () {}

impl<F: Fn(u64, u64) -> ControlFlow<()> + Sync> Progress for F {
    fn update(&self, done: u64, total: u64) -> ControlFlow<()> {
        self(done, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_can_stop_the_work() {
        let stop =
            |done: u64, _: u64| if done < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let progress: &dyn Progress = &stop;
        assert!(progress.check(1, 5).is_ok());
        assert!(matches!(progress.check(2, 5), Err(Error::Interrupted)));
        let silent: &dyn Progress = &();
        assert!(silent.check(5, 5).is_ok());
    }
}
