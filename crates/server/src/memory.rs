//! The memory for bodies of requests and for answers. It is taken as bytes arrive, never by the length that a client
//! announces: a client that announces much and sends little holds little.
//!
//! Uploads that take memory piece by piece could wait for each other for ever: each holds a part and needs more. So one
//! body's worth is kept in reserve, for one upload at a time. The upload that has the reserve needs nothing more from the
//! others, and gives back what it took before.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in pieces of so many bytes.
const PIECE: usize = 1 << 10;

/// The memory that all requests share.
pub struct Memory {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    /// Bytes that the reserve stands for.
    largest: usize,
}

/// The memory that one request holds; it is given back on drop.
pub struct Held {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    largest: usize,
    pieces: Option<OwnedSemaphorePermit>,
    /// The right to use the reserve, which is enough for the largest request.
    last: Option<OwnedSemaphorePermit>,
    /// Bytes that are in use.
    used: usize,
}

impl Memory {
    /// `total` bytes, of which no request takes more than `largest`.
    pub fn new(total: usize, largest: usize) -> Self {
        let pieces = total.saturating_sub(largest).div_ceil(PIECE).clamp(1, Semaphore::MAX_PERMITS);
        Memory { shared: Arc::new(Semaphore::new(pieces)), reserve: Arc::new(Semaphore::new(1)), largest }
    }

    /// Memory for a request, empty at first.
    pub fn hold(&self) -> Held {
        let (shared, reserve) = (self.shared.clone(), self.reserve.clone());
        Held { shared, reserve, largest: self.largest, pieces: None, last: None, used: 0 }
    }
}

impl Held {
    /// Takes more memory, and waits until it is free.
    pub async fn grow(&mut self, bytes: usize) {
        let used = self.used + bytes;
        let covered = if self.last.is_some() { self.largest } else { 0 };
        let missing = used.saturating_sub(covered).div_ceil(PIECE).saturating_sub(self.pieces());
        if missing > 0 {
            self.take(missing as u32).await;
        }
        self.used = used;
    }

    async fn take(&mut self, pieces: u32) {
        tokio::select! {
            biased;
            taken = self.shared.clone().acquire_many_owned(pieces) => {
                let taken = taken.expect("the semaphore is never closed");
                match &mut self.pieces {
                    Some(held) => held.merge(taken),
                    None => self.pieces = Some(taken),
                }
            }
            last = self.reserve.clone().acquire_owned() => {
                self.last = Some(last.expect("the semaphore is never closed"));
                // The reserve is enough for the whole request.
                self.pieces = None;
            }
        }
    }

    fn pieces(&self) -> usize {
        self.pieces.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Holds as much as an answer of `bytes` takes, instead of what the request took.
    pub async fn resize(&mut self, bytes: usize) {
        if bytes > self.used {
            return self.grow(bytes - self.used).await;
        }
        self.used = bytes;
        let surplus = self.pieces().saturating_sub(bytes.div_ceil(PIECE));
        if let Some(pieces) = &mut self.pieces {
            drop(pieces.split(surplus));
        }
    }

    /// The bytes of an answer, whose memory stays held until they have been sent.
    pub fn with_bytes(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Answer { bytes, _held: self })
    }
}

struct Answer {
    bytes: Vec<u8>,
    _held: Held,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(future)
    }

    async fn waits(future: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_secs(1), future).await.is_err()
    }

    #[test]
    fn what_is_held_is_what_has_arrived() {
        run(async {
            let memory = Memory::new(8 * PIECE, 2 * PIECE);
            let mut first = memory.hold();
            for _ in 0..2 * PIECE {
                first.grow(1).await;
            }
            assert_eq!(memory.shared.available_permits(), 4);
            first.resize(PIECE).await;
            assert_eq!(memory.shared.available_permits(), 5);
            drop(first);
            assert_eq!(memory.shared.available_permits(), 6);
        });
    }

    #[test]
    fn uploads_that_need_more_than_there_is_finish_one_after_the_other() {
        run(async {
            let memory = Memory::new(8 * PIECE, 4 * PIECE);
            let (mut first, mut second) = (memory.hold(), memory.hold());
            first.grow(2 * PIECE).await;
            second.grow(2 * PIECE).await;
            // Nothing is left, and both need more: the first gets the reserve.
            first.grow(PIECE).await;
            assert_eq!(memory.shared.available_permits(), 2, "the first has given back what it took before");
            second.grow(2 * PIECE).await;
            let mut third = memory.hold();
            assert!(waits(third.grow(PIECE)).await);
            first.grow(PIECE).await;
            drop(first);
            third.grow(4 * PIECE).await;
            assert_eq!(memory.reserve.available_permits(), 0, "the third has the reserve now");
        });
    }

    #[test]
    fn an_answer_holds_its_memory_until_its_last_copy_is_gone() {
        run(async {
            let memory = Memory::new(8 * PIECE, PIECE);
            let mut held = memory.hold();
            held.grow(3 * PIECE).await;
            let answer = held.with_bytes(vec![1; 3 * PIECE]);
            let part = answer.slice(5..10);
            drop(answer);
            assert_eq!(memory.shared.available_permits(), 4);
            drop(part);
            assert_eq!(memory.shared.available_permits(), 7);
        });
    }
}
