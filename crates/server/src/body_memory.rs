//! The memory budget for request bodies and responses ([`BodyMemory`]). Memory is reserved as bytes arrive, never by
//! the length that a client announces: a client that announces much and sends little holds little.
//!
//! Uploads that take memory piece by piece could deadlock: each holds a part and needs more. So a part of the budget,
//! the reserve, is set aside: it has the size of the largest body, and one upload at a time can use it, as a whole.
//! That upload needs nothing from the others, and returns the shared memory that it held before.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit in which memory is counted, in bytes.
const UNIT_BYTES: usize = 1 << 10;

/// The memory that all requests share.
pub struct BodyMemory {
    /// One permit per unit of memory outside the reserve.
    shared: Arc<Semaphore>,
    /// One permit: the whole reserve.
    reserve: Arc<Semaphore>,
    reserve_bytes: usize,
}

/// The memory that one request holds; returned on drop.
pub struct MemoryReservation {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    reserve_bytes: usize,
    /// The units of shared memory that the request holds.
    shared_permit: Option<OwnedSemaphorePermit>,
    /// The permit to use the reserve, which suffices for the largest request.
    reserve_permit: Option<OwnedSemaphorePermit>,
    /// Bytes that the request has asked for.
    used: usize,
}

impl BodyMemory {
    /// A budget of `total` bytes, for requests of at most `largest` bytes.
    pub fn new(total: usize, largest: usize) -> Self {
        let units = total.saturating_sub(largest).div_ceil(UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        BodyMemory {
            shared: Arc::new(Semaphore::new(units)),
            reserve: Arc::new(Semaphore::new(1)),
            reserve_bytes: largest,
        }
    }

    /// A reservation for a request, of 0 bytes at first.
    pub fn reservation(&self) -> MemoryReservation {
        let (shared, reserve) = (self.shared.clone(), self.reserve.clone());
        MemoryReservation {
            shared,
            reserve,
            reserve_bytes: self.reserve_bytes,
            shared_permit: None,
            reserve_permit: None,
            used: 0,
        }
    }
}

impl MemoryReservation {
    /// Reserves `bytes` more bytes, and waits until they are free.
    pub async fn grow(&mut self, bytes: usize) {
        let used = self.used + bytes;
        // A request that has the reserve needs shared memory only for what exceeds it.
        let covered = if self.reserve_permit.is_some() { self.reserve_bytes } else { 0 };
        let missing = used.saturating_sub(covered).div_ceil(UNIT_BYTES).saturating_sub(self.shared_units());
        if missing > 0 {
            self.take(missing as u32).await;
        }
        self.used = used;
    }

    /// Takes shared memory, or the reserve if that is free first.
    async fn take(&mut self, units: u32) {
        tokio::select! {
            // If both are free, the shared memory is taken.
            biased;
            taken = self.shared.clone().acquire_many_owned(units) => {
                let taken = taken.expect("the semaphore is never closed");
                match &mut self.shared_permit {
                    Some(held) => held.merge(taken),
                    None => self.shared_permit = Some(taken),
                }
            }
            reserve_permit = self.reserve.clone().acquire_owned() => {
                self.reserve_permit = Some(reserve_permit.expect("the semaphore is never closed"));
                // The reserve suffices for the whole request: return the shared memory.
                self.shared_permit = None;
            }
        }
    }

    /// The number of units of shared memory that the request holds.
    fn shared_units(&self) -> usize {
        self.shared_permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Replaces the memory of the request by that of a response of `bytes` bytes in total. A request that has the
    /// reserve keeps all of it, however short the response.
    pub async fn resize(&mut self, bytes: usize) {
        if bytes > self.used {
            return self.grow(bytes - self.used).await;
        }
        self.used = bytes;
        let surplus = self.shared_units().saturating_sub(bytes.div_ceil(UNIT_BYTES));
        if let Some(held) = &mut self.shared_permit {
            drop(held.split(surplus));
        }
    }

    /// The bytes of a response, which hold the reservation until they have been sent.
    pub fn with_bytes(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(ResponseBytes { bytes, _reservation: self })
    }
}

struct ResponseBytes {
    bytes: Vec<u8>,
    _reservation: MemoryReservation,
}

impl AsRef<[u8]> for ResponseBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn would_wait(future: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_secs(1), future).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_holds_as_much_memory_as_has_arrived() {
        // Of 8 units, 2 are the reserve and 6 are shared.
        let memory = BodyMemory::new(8 * UNIT_BYTES, 2 * UNIT_BYTES);
        let mut first = memory.reservation();
        for _ in 0..2 * UNIT_BYTES {
            first.grow(1).await;
        }
        assert_eq!(memory.shared.available_permits(), 4);
        first.resize(UNIT_BYTES).await;
        assert_eq!(memory.shared.available_permits(), 5);
        drop(first);
        assert_eq!(memory.shared.available_permits(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn uploads_that_together_exceed_the_budget_finish_one_after_the_other() {
        let memory = BodyMemory::new(8 * UNIT_BYTES, 4 * UNIT_BYTES);
        let (mut first, mut second) = (memory.reservation(), memory.reservation());
        first.grow(2 * UNIT_BYTES).await;
        second.grow(2 * UNIT_BYTES).await;
        // No memory is free, and both need more: the first gets the reserve.
        first.grow(UNIT_BYTES).await;
        assert_eq!(memory.shared.available_permits(), 2, "the first has returned its shared memory");
        second.grow(2 * UNIT_BYTES).await;
        let mut third = memory.reservation();
        assert!(would_wait(third.grow(UNIT_BYTES)).await);
        first.grow(UNIT_BYTES).await;
        drop(first);
        third.grow(4 * UNIT_BYTES).await;
        assert_eq!(memory.reserve.available_permits(), 0, "the third has the reserve now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_holds_its_memory_until_its_last_copy_is_dropped() {
        let memory = BodyMemory::new(8 * UNIT_BYTES, UNIT_BYTES);
        let mut reservation = memory.reservation();
        reservation.grow(3 * UNIT_BYTES).await;
        let response = reservation.with_bytes(vec![1; 3 * UNIT_BYTES]);
        let part = response.slice(5..10);
        drop(response);
        assert_eq!(memory.shared.available_permits(), 4);
        drop(part);
        assert_eq!(memory.shared.available_permits(), 7);
    }
}
