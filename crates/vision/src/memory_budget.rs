//! The memory budget for decoded images, shared by all threads of the process.
//!
//! A small file can hold an image of many pixels, so the sum over all threads must be limited, not only each image.
//! [`decoded_images`] is the budget of the process. [`DecodedImage::decode_then`](crate::DecodedImage::decode_then)
//! takes a share of it before it decodes, and waits if the memory is not free. It returns the share when `then` has
//! returned, even if the image lives longer.
//!
//! Shares are granted in the order of the requests, so small images cannot starve a large one. A thread must not take a
//! second share while it holds one: two such threads could wait for each other.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// The default limit on a machine with few cores.
const MIN_LIMIT: u64 = 512 << 20;
/// Memory for a photograph of 20 megapixels. The default limit grows with the number of threads, so that none of them
/// has to wait for memory while it decodes ordinary photographs.
const BYTES_PER_THREAD: u64 = 64 << 20;

static DECODED_IMAGES: LazyLock<Budget> = LazyLock::new(|| {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    Budget::new(MIN_LIMIT.max(threads * BYTES_PER_THREAD))
});

/// The budget for the decoded images of this process: 512 MiB, or 64 MiB per core if that is more.
pub fn decoded_images() -> &'static Budget {
    &DECODED_IMAGES
}

/// A number of bytes of which threads take shares.
#[derive(Debug)]
pub struct Budget {
    state: Mutex<BudgetState>,
    /// The limit, the bytes taken or the turn has changed.
    changed: Condvar,
}

/// The limit, the shares and the queue of callers that wait for a share.
#[derive(Debug)]
struct BudgetState {
    /// In bytes.
    limit: u64,
    /// Bytes of all shares.
    taken: u64,
    /// The number that the next caller of [`Budget::take`] gets.
    next: u64,
    /// The number of the caller that gets its share next.
    turn: u64,
}

/// Part of a budget; returned on drop.
#[derive(Debug)]
pub struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        let state = BudgetState { limit, taken: 0, next: 0, turn: 0 };
        Budget { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.state().limit
    }

    /// Changes the limit. Shares that are taken already stay valid.
    pub fn set_limit(&self, limit: u64) {
        self.state().limit = limit;
        self.changed.notify_all();
    }

    /// Takes `bytes` and waits until they are free. A share larger than the whole budget waits until nothing else is
    /// taken and is then the only one.
    pub fn take(&self, bytes: u64) -> Share<'_> {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        while state.turn != number || !state.fits(bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        state.taken += bytes;
        self.changed.notify_all();
        Share { budget: self, bytes }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    /// Whether a share of `bytes` can be taken now; a share above the limit only as the only one.
    fn fits(&self, bytes: u64) -> bool {
        self.taken == 0 || self.taken.saturating_add(bytes) <= self.limit
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.state().taken -= self.bytes;
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn shares_of_many_threads_never_exceed_the_limit() {
        let budget = Budget::new(100);
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (budget, now, most) = (&budget, &now, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = 10 + (thread * 31 + round * 17) % 60;
                        let share = budget.take(bytes);
                        most.fetch_max(now.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(bytes, Ordering::SeqCst);
                        drop(share);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 100);
        assert_eq!(budget.state().taken, 0);
    }

    #[test]
    fn a_share_larger_than_the_budget_is_the_only_one() {
        let budget = Budget::new(100);
        let shares = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _share = budget.take(1000);
                        assert_eq!(shares.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        shares.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn a_large_share_is_not_overtaken_by_later_small_ones() {
        let budget = Budget::new(100);
        let first = budget.take(60);
        std::thread::scope(|scope| {
            let large = scope.spawn(|| drop(budget.take(90)));
            while budget.state().next < 2 {
                std::thread::yield_now();
            }
            let small = scope.spawn(|| {
                let _share = budget.take(10);
                assert!(budget.state().turn >= 3);
            });
            while budget.state().next < 3 {
                std::thread::yield_now();
            }
            assert_eq!(
                budget.state().turn,
                1,
                "the small share would fit, but it waits behind the large one"
            );
            drop(first);
            large.join().unwrap();
            small.join().unwrap();
        });
    }
}
