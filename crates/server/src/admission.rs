//! Admission control: limits on the requests that wait, the requests that compute and the memory of their bodies. Start
//! with [`Admission::admit`], then [`AdmittedRequest::run`].
//!
//! A request reserves memory as its body arrives. When the body is complete, it takes one of the queue slots (if none
//! is free, it is refused with 429) and then waits for one of the compute slots. All of these are released when the
//! work has ended, not when the client disconnects, so the limits apply to what the machine really does. Clients that
//! send slowly hold no slot. The [`Cancellation`] of a request tells the work that the client has disconnected or the
//! deadline has passed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use trueshot::progress::Progress;

use crate::body_memory::{BodyMemory, MemoryReservation};
use crate::limits::Limits;
use crate::problem::Problem;

/// The slots and the memory that all requests share.
pub struct Admission {
    /// One permit per request that waits or computes.
    queue_slots: Arc<Semaphore>,
    /// One permit per request that computes.
    compute_slots: Arc<Semaphore>,
    memory: BodyMemory,
    /// The maximum length of a body or response in bytes.
    max_bytes: usize,
    /// The maximum duration of a request.
    time_limit: Duration,
}

/// A request that was admitted, with the memory of its body.
pub struct AdmittedRequest {
    queue_slots: Arc<Semaphore>,
    compute_slots: Arc<Semaphore>,
    memory: MemoryReservation,
    max_bytes: usize,
    cancellation: Cancellation,
    /// Cancels the work when the request is dropped, which happens when the client disconnects.
    client_guard: ClientGuard,
}

/// A request that has a compute slot.
pub struct RunningRequest {
    /// Whether the work should stop.
    pub cancellation: Cancellation,
    /// The memory of the body, until the response takes it over.
    memory: Option<MemoryReservation>,
    max_bytes: usize,
}

/// Whether a request is cancelled: its client has disconnected, or its deadline has passed.
#[derive(Clone)]
pub struct Cancellation {
    client_gone: Arc<AtomicBool>,
    deadline: Instant,
    /// The time from the start of the request to the deadline, for the error message.
    time_limit: Duration,
}

/// Marks the client as gone on drop.
struct ClientGuard(Arc<AtomicBool>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Admission {
    /// Admission with these limits.
    pub fn new(limits: &Limits) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Admission {
            // A request keeps its queue slot while it computes.
            queue_slots: semaphore(limits.concurrent_requests + limits.queued_requests),
            compute_slots: semaphore(limits.concurrent_requests),
            // `BodyMemory` sets the size of the largest body aside as a reserve. With at least twice that size, a body
            // of this length also fits into the shared part.
            memory: BodyMemory::new(limits.bodies.max(2 * limits.body), limits.body),
            max_bytes: limits.body,
            time_limit: limits.request_time,
        }
    }

    /// Admits a request, unless its announced body is too long or all queue slots are taken. `announced` is the length
    /// of the body in bytes, if the client sent it. No slot is taken yet: [`AdmittedRequest::run`] does that.
    pub fn admit(&self, announced: Option<u64>) -> Result<AdmittedRequest, Problem> {
        if announced.is_some_and(|length| length > self.max_bytes as u64) {
            return Err(body_too_long(self.max_bytes));
        }
        if self.queue_slots.available_permits() == 0 {
            return Err(Problem::busy());
        }
        let client_gone = Arc::new(AtomicBool::new(false));
        let client_guard = ClientGuard(client_gone.clone());
        let deadline = Instant::now() + self.time_limit;
        let cancellation = Cancellation { client_gone, deadline, time_limit: self.time_limit };
        let (queue_slots, compute_slots) = (self.queue_slots.clone(), self.compute_slots.clone());
        Ok(AdmittedRequest {
            queue_slots,
            compute_slots,
            memory: self.memory.reservation(),
            max_bytes: self.max_bytes,
            cancellation,
            client_guard,
        })
    }
}

/// The error for a request with a body of more than `max_bytes` bytes.
pub fn body_too_long(max_bytes: usize) -> Problem {
    let error = format!("the body is longer than the allowed {max_bytes} bytes");
    Problem::too_large(error)
        .hint("split it into several requests, or start the server with a larger --max-body")
}

impl AdmittedRequest {
    /// Waits for a future until the deadline.
    pub async fn before_deadline<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        self.cancellation.before_deadline(future).await
    }

    /// Reserves memory for bytes that have arrived or will be read, and waits until it is free.
    pub async fn reserve_memory(&mut self, bytes: usize) -> Result<(), Problem> {
        self.cancellation.before_deadline(self.memory.grow(bytes)).await
    }

    /// Takes a queue slot, waits for a compute slot and runs the work on a blocking thread. If the client disconnects,
    /// this future is dropped, which cancels the work; its slots are released when it has really ended.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut RunningRequest) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let AdmittedRequest { queue_slots, compute_slots, memory, max_bytes, cancellation, client_guard } =
            self;
        let queue_slot = queue_slots.try_acquire_owned().map_err(|_| Problem::busy())?;
        let compute_slot = cancellation
            .before_deadline(compute_slots.acquire_owned())
            .await?
            .expect("the semaphore is never closed");
        let mut running =
            RunningRequest { cancellation: cancellation.clone(), memory: Some(memory), max_bytes };
        let task = tokio::task::spawn_blocking(move || {
            // All threads may have been busy until now. If the client has disconnected, the error reaches no one, so
            // only the passed deadline needs a message.
            let outcome = if running.cancellation.is_cancelled() {
                Err(running.cancellation.timed_out())
            } else {
                work(&mut running)
            };
            // Naming the slots moves them into this task, so they are released here, when the work has ended.
            drop((compute_slot, queue_slot, running));
            outcome
        });
        let outcome = cancellation.before_deadline(task).await?;
        // The guard had to live until here: if this future is dropped or fails before, the guard cancels the work.
        drop(client_guard);
        outcome.unwrap_or_else(|panic| Err(Problem::failed("the computation", panic)))
    }
}

impl RunningRequest {
    /// Serialises a JSON response. Fails if it would be longer than the largest body, which also limits responses.
    pub fn json_response(&mut self, answer: &impl Serialize) -> Result<Bytes, Problem> {
        let mut written = LimitedBuffer { bytes: Vec::new(), max_bytes: self.max_bytes };
        match serde_json::to_writer(&mut written, answer) {
            Ok(()) => self.response(written.bytes),
            // The only error of the buffer is its limit.
            Err(error) if error.is_io() => Err(response_too_long(self.max_bytes)),
            Err(error) => Err(Problem::failed("writing the response", error)),
        }
    }

    /// The bytes of a response. The memory that was reserved for the body is resized to the response and stays reserved
    /// until the response has been sent, so that clients that read slowly count too.
    pub fn response(&mut self, bytes: Vec<u8>) -> Result<Bytes, Problem> {
        let mut memory = self.memory.take().expect("a request has one response");
        let handle = tokio::runtime::Handle::current();
        // The memory budget is made for at most `max_bytes` per request. Only the file of a classifier can be longer;
        // what exceeds the limit is not counted.
        let reserved = bytes.len().min(self.max_bytes);
        // The work runs on a blocking thread, so it may block until the memory is free.
        handle.block_on(self.cancellation.before_deadline(memory.resize(reserved)))?;
        Ok(memory.with_bytes(bytes))
    }
}

/// A buffer that refuses to grow beyond `max_bytes`.
struct LimitedBuffer {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl std::io::Write for LimitedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max_bytes {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The error for a request whose response would have more than `max_bytes` bytes.
pub fn response_too_long(max_bytes: usize) -> Problem {
    let error = format!("the response would be longer than the allowed {max_bytes} bytes");
    Problem::too_large(error).hint(
        "send fewer items per request, ask for fewer neighbours, or start the server with a larger --max-body",
    )
}

impl Cancellation {
    /// Whether the client has disconnected or the deadline has passed.
    pub fn is_cancelled(&self) -> bool {
        self.client_gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    /// The error for a request whose deadline has passed.
    pub fn timed_out(&self) -> Problem {
        Problem::late(self.time_limit.as_secs())
    }

    async fn before_deadline<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::time::timeout_at(self.deadline, future).await.map_err(|_| self.timed_out())
    }
}

impl Progress for Cancellation {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_limits() -> Limits {
        let request_time = Duration::from_millis(200);
        Limits {
            body: 10_000,
            bodies: 20_000,
            request_time,
            concurrent_requests: 1,
            queued_requests: 1,
            ..Limits::default()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_request_without_a_free_queue_slot_is_refused_at_once_and_slots_are_released() {
        let admission =
            Arc::new(Admission::new(&Limits { request_time: Duration::from_secs(60), ..small_limits() }));
        let (finish, may_finish) = std::sync::mpsc::channel::<()>();
        let (started, mut has_started) = tokio::sync::mpsc::channel(1);
        let admitted = admission.admit(None).unwrap();
        let first = tokio::spawn(admitted.run(move |_| {
            started.blocking_send(()).unwrap();
            may_finish.recv().unwrap();
            Ok(())
        }));
        has_started.recv().await.unwrap();
        let (second, third) = (admission.admit(None).unwrap(), admission.admit(None).unwrap());
        let second = tokio::spawn(second.run(|_| Ok(())));
        while admission.queue_slots.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(admission.admit(None).err().unwrap().status(), 429, "before its body is received");
        assert_eq!(third.run(|_| Ok(())).await.unwrap_err().status(), 429, "after its body was received");
        finish.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        assert!(admission.admit(None).unwrap().run(|_| Ok(())).await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_wait_for_body_memory_until_their_deadline() {
        let admission = Admission::new(&small_limits());
        let (mut first, mut second) = (admission.admit(None).unwrap(), admission.admit(None).unwrap());
        first.reserve_memory(10_000).await.unwrap();
        second.reserve_memory(10_000).await.unwrap();
        let mut third = admission.admit(None).unwrap();
        assert_eq!(third.reserve_memory(10_000).await.unwrap_err().status(), 503);
        assert_eq!(admission.admit(Some(10_001)).err().unwrap().status(), 413);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_announced_length_takes_no_memory() {
        let admission = Admission::new(&small_limits());
        let announced: Vec<AdmittedRequest> =
            (0..50).map(|_| admission.admit(Some(10_000)).unwrap()).collect();
        let mut last = admission.admit(Some(10_000)).unwrap();
        last.reserve_memory(10_000).await.unwrap();
        drop(announced);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_response_that_is_too_long_is_refused() {
        let admission = Admission::new(&Limits { request_time: Duration::from_secs(60), ..small_limits() });
        let respond = |length: usize| {
            let admitted = admission.admit(None).unwrap();
            admitted.run(move |job| job.json_response(&"x".repeat(length)))
        };
        assert_eq!(respond(9_999).await.unwrap_err().status(), 413, "with its quotes it has 10,001 bytes");
        assert_eq!(respond(9_998).await.unwrap().len(), 10_000);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_is_cancelled_when_the_client_disconnects_and_holds_its_slot_until_it_ends() {
        let admission =
            Arc::new(Admission::new(&Limits { request_time: Duration::from_secs(60), ..small_limits() }));
        let (cancelled, is_cancelled) = std::sync::mpsc::channel();
        let (finish, may_finish) = std::sync::mpsc::channel::<()>();
        let admitted = admission.admit(Some(1)).unwrap();
        let work = admitted.run(move |job| {
            while !job.cancellation.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancelled.send(()).unwrap();
            may_finish.recv().unwrap();
            Ok(())
        });
        // The timeout drops the future of the request, as when a client disconnects.
        let response = tokio::time::timeout(Duration::from_millis(50), work).await;
        assert!(response.is_err(), "the work must not end before the client disconnects");
        is_cancelled.recv_timeout(Duration::from_secs(10)).expect("the work is cancelled");
        assert_eq!(
            (admission.compute_slots.available_permits(), admission.queue_slots.available_permits()),
            (0, 1)
        );
        finish.send(()).unwrap();
        while admission.compute_slots.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_panic_in_the_work_gives_status_500_and_releases_the_slots() {
        let admission = Admission::new(&Limits { request_time: Duration::from_secs(60), ..small_limits() });
        for _ in 0..3 {
            let admitted = admission.admit(Some(1)).unwrap();
            let outcome = admitted.run(|_| -> Result<(), Problem> { panic!("a bug") }).await;
            assert_eq!(outcome.unwrap_err().status(), 500);
        }
    }
}
