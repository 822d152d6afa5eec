//! The memory budget for request bodies and responses ([`BodyMemory`]). Memory is reserved as bytes arrive, never by
//! the length that a client announces: a client that announces much and sends little holds little.
//!
//! Uploads that take memory piece by piece could deadlock: each holds a part and needs more. So there is a reserve the
//! size of the largest body, which one upload at a time can use. That upload needs nothing from the others, and returns
//! the shared memory that it held before.

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
    /// The size of the reserve in bytes.
    largest: usize,
}

/// The memory that one request holds; returned on drop.
pub struct MemoryReservation {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    largest: usize,
    /// The units of shared memory that the request holds.
    units: Option<OwnedSemaphorePermit>,
    /// The permit to use the reserve, which suffices for the largest request.
    reserve_permit: Option<OwnedSemaphorePermit>,
    /// Bytes in use.
    used: usize,
}

impl BodyMemory {
    /// A budget of `total` bytes, for requests of at most `largest` bytes.
    pub fn new(total: usize, largest: usize) -> Self {
        let units = total.saturating_sub(largest).div_ceil(UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        BodyMemory { shared: Arc::new(Semaphore::new(units)), reserve: Arc::new(Semaphore::new(1)), largest }
    }

    /// A reservation for a request, of 0 bytes at first.
    pub fn reserve(&self) -> MemoryReservation {
        let (shared, reserve) = (self.shared.clone(), self.reserve.clone());
        MemoryReservation {
            shared,
            reserve,
            largest: self.largest,
            units: None,
            reserve_permit: None,
            used: 0,
        }
    }
}

impl MemoryReservation {
    /// Reserves more memory, and waits until it is free.
    pub async fn grow(&mut self, bytes: usize) {
        let used = self.used + bytes;
        // A request that has the reserve needs shared memory only for what exceeds it.
        let covered = if self.reserve_permit.is_some() { self.largest } else { 0 };
        let missing = used.saturating_sub(covered).div_ceil(UNIT_BYTES).saturating_sub(self.units());
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
                match &mut self.units {
                    Some(reservation) => reservation.merge(taken),
                    None => self.units = Some(taken),
                }
            }
            reserve_permit = self.reserve.clone().acquire_owned() => {
                self.reserve_permit = Some(reserve_permit.expect("the semaphore is never closed"));
                // The reserve suffices for the whole request.
                self.units = None;
            }
        }
    }

    /// The number of units of shared memory that the request holds.
    fn units(&self) -> usize {
        self.units.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Replaces the memory of the request by that of a response of `bytes` bytes.
    pub async fn resize(&mut self, bytes: usize) {
        if bytes > self.used {
            return self.grow(bytes - self.used).await;
        }
        self.used = bytes;
        let surplus = self.units().saturating_sub(bytes.div_ceil(UNIT_BYTES));
        if let Some(units) = &mut self.units {
            drop(units.split(surplus));
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
        let mut first = memory.reserve();
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
        let (mut first, mut second) = (memory.reserve(), memory.reserve());
        first.grow(2 * UNIT_BYTES).await;
        second.grow(2 * UNIT_BYTES).await;
        // No memory is free, and both need more: the first gets the reserve.
        first.grow(UNIT_BYTES).await;
        assert_eq!(memory.shared.available_permits(), 2, "the first has returned its shared memory");
        second.grow(2 * UNIT_BYTES).await;
        let mut third = memory.reserve();
        assert!(would_wait(third.grow(UNIT_BYTES)).await);
        first.grow(UNIT_BYTES).await;
        drop(first);
        third.grow(4 * UNIT_BYTES).await;
        assert_eq!(memory.reserve.available_permits(), 0, "the third has the reserve now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_holds_its_memory_until_its_last_copy_is_dropped() {
        let memory = BodyMemory::new(8 * UNIT_BYTES, UNIT_BYTES);
        let mut reservation = memory.reserve();
        reservation.grow(3 * UNIT_BYTES).await;
        let response = reservation.with_bytes(vec![1; 3 * UNIT_BYTES]);
        let part = response.slice(5..10);
        drop(response);
        assert_eq!(memory.shared.available_permits(), 4);
        drop(part);
        assert_eq!(memory.shared.available_permits(), 7);
    }
}
