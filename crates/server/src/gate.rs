//! How many requests are let in. A request takes memory as its body arrives, then a place (there are so many, then it is
//! told to come again), and then waits for its turn to compute. All of it is given back when the work has really ended,
//! not when the client has gone: what is bounded is what the machine does.
//!
//! A request takes its place only when its body is complete, so clients that send slowly keep nobody else from being
//! served. Work is told of a client that has gone, and of time that is over, wherever it asks whether to go on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use trueshot::progress::Progress;

use crate::limits::Limits;
use crate::memory::{Held, Memory};
use crate::problem::Problem;

/// What all requests pass.
pub struct Gate {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    memory: Memory,
    body: usize,
    time: Duration,
}

/// What a request that was let in holds.
pub struct Ticket {
    places: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    memory: Held,
    body: usize,
    watch: Watch,
    /// Tells the work when the request is dropped, which it is when the client goes.
    presence: Presence,
}

/// A request at work.
pub struct Job {
    /// Whether the client is still connected and the time for the request is not over.
    pub watch: Watch,
    memory: Option<Held>,
    body: usize,
}

/// Tells work whether its client still waits.
#[derive(Clone)]
pub struct Watch {
    gone: Arc<AtomicBool>,
    deadline: Instant,
    time: Duration,
}

struct Presence(Arc<AtomicBool>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Gate {
    /// A gate with such limits.
    pub fn new(limits: &Limits) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Gate {
            places: semaphore(limits.at_once + limits.waiting),
            turns: semaphore(limits.at_once),
            memory: Memory::new(limits.bodies.max(2 * limits.body), limits.body),
            body: limits.body,
            time: limits.time,
        }
    }

    /// Lets a request in, unless its body is announced to be too long or there is no place for it.
    pub fn enter(&self, announced: Option<u64>) -> Result<Ticket, Problem> {
        if announced.is_some_and(|length| length > self.body as u64) {
            return Err(over_limit(self.body));
        }
        if self.places.available_permits() == 0 {
            return Err(Problem::busy());
        }
        let gone = Arc::new(AtomicBool::new(false));
        let presence = Presence(gone.clone());
        let watch = Watch { gone, deadline: Instant::now() + self.time, time: self.time };
        let (places, turns) = (self.places.clone(), self.turns.clone());
        Ok(Ticket { places, turns, memory: self.memory.hold(), body: self.body, watch, presence })
    }
}

/// A body is too long.
pub fn over_limit(most: usize) -> Problem {
    let error = format!("the body is longer than the allowed {most} bytes");
    Problem::too_large(error)
        .hint("split it into several requests, or start the server with a larger --max-body")
}

impl Ticket {
    /// Waits for something, as long as there is time.
    pub async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        self.watch.within(future).await
    }

    /// Takes memory for bytes that have arrived or will be read, and waits until it is free.
    pub async fn hold(&mut self, bytes: usize) -> Result<(), Problem> {
        self.watch.within(self.memory.grow(bytes)).await
    }

    /// Waits for a turn and does the work on a thread of its own.
    pub async fn work<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Job) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let Ticket { places, turns, memory, body, watch, presence } = self;
        let place = places.try_acquire_owned().map_err(|_| Problem::busy())?;
        let turn = watch.within(turns.acquire_owned()).await?.expect("the gate is never closed");
        let mut job = Job { watch: watch.clone(), memory: Some(memory), body };
        let task = tokio::task::spawn_blocking(move || {
            let outcome = if job.watch.is_waiting() { work(&mut job) } else { Err(job.watch.late()) };
            drop((turn, place, job));
            outcome
        });
        let outcome = watch.within(task).await?;
        drop(presence);
        outcome.unwrap_or_else(|panic| Err(Problem::failed("the computation", panic)))
    }
}

impl Job {
    /// An answer as JSON.
    pub fn json(&mut self, answer: &impl Serialize) -> Result<Bytes, Problem> {
        let mut written = Limited { bytes: Vec::new(), most: self.body };
        match serde_json::to_writer(&mut written, answer) {
            Ok(()) => self.answer(written.bytes),
            Err(error) if error.is_io() => Err(answer_too_long(self.body)),
            Err(error) => Err(Problem::failed("writing the response", error)),
        }
    }

    /// Bytes of an answer; their memory is held until they have been sent.
    pub fn answer(&mut self, bytes: Vec<u8>) -> Result<Bytes, Problem> {
        let mut memory = self.memory.take().expect("there is one answer");
        let handle = tokio::runtime::Handle::current();
        // More than the longest body would never be free. Only a classifier's file can be longer.
        handle.block_on(self.watch.within(memory.resize(bytes.len().min(self.body))))?;
        Ok(memory.with_bytes(bytes))
    }
}

/// Bytes that may not become more than `most`.
struct Limited {
    bytes: Vec<u8>,
    most: usize,
}

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.bytes.len() + bytes.len() > self.most {
            true => Err(std::io::ErrorKind::FileTooLarge.into()),
            false => self.bytes.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An answer is too long.
pub fn answer_too_long(most: usize) -> Problem {
    let error = format!("the response would be longer than the allowed {most} bytes");
    Problem::too_large(error).hint("send fewer items per request, or ask for fewer neighbours")
}

impl Watch {
    /// Whether the client is still connected and the time for the request is not over.
    pub fn is_waiting(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && Instant::now() < self.deadline
    }

    /// The refusal of a request whose time is over.
    pub fn late(&self) -> Problem {
        Problem::late(self.time.as_secs())
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::time::timeout_at(self.deadline, future).await.map_err(|_| self.late())
    }
}

impl Progress for Watch {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        if self.is_waiting() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Limits {
        let time = Duration::from_millis(200);
        Limits { body: 10_000, bodies: 20_000, time, at_once: 1, waiting: 1, ..Limits::default() }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_request_without_a_place_is_refused_at_once_and_a_place_is_given_back() {
        run(async {
            let gate = Arc::new(Gate::new(&Limits { time: Duration::from_secs(60), ..small() }));
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let (started, mut has_started) = tokio::sync::mpsc::channel(1);
            let ticket = gate.enter(None).unwrap();
            let first = tokio::spawn(ticket.work(move |_| {
                started.blocking_send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            }));
            has_started.recv().await.unwrap();
            let (second, third) = (gate.enter(None).unwrap(), gate.enter(None).unwrap());
            let second = tokio::spawn(second.work(|_| Ok(())));
            while gate.places.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(gate.enter(None).err().unwrap().status(), 429, "before its body is received");
            assert_eq!(third.work(|_| Ok(())).await.unwrap_err().status(), 429, "after that");
            go.send(()).unwrap();
            first.await.unwrap().unwrap();
            second.await.unwrap().unwrap();
            assert!(gate.enter(None).unwrap().work(|_| Ok(())).await.is_ok());
        });
    }

    #[test]
    fn memory_for_bodies_is_waited_for_and_time_ends_the_wait() {
        run(async {
            let gate = Gate::new(&small());
            let (mut first, mut second) = (gate.enter(None).unwrap(), gate.enter(None).unwrap());
            first.hold(10_000).await.unwrap();
            second.hold(10_000).await.unwrap();
            let mut third = gate.enter(None).unwrap();
            assert_eq!(third.hold(10_000).await.unwrap_err().status(), 503);
            assert_eq!(gate.enter(Some(10_001)).err().unwrap().status(), 413);
        });
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        run(async {
            let gate = Gate::new(&small());
            let announced: Vec<Ticket> = (0..50).map(|_| gate.enter(Some(10_000)).unwrap()).collect();
            let mut last = gate.enter(Some(10_000)).unwrap();
            last.hold(10_000).await.unwrap();
            drop(announced);
        });
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused() {
        run(async {
            let gate = Gate::new(&Limits { time: Duration::from_secs(60), ..small() });
            let ask = |length: usize| {
                let ticket = gate.enter(None).unwrap();
                ticket.work(move |job| job.json(&"x".repeat(length)))
            };
            assert_eq!(ask(9_999).await.unwrap_err().status(), 413, "with its quotes it has 10,001 bytes");
            assert_eq!(ask(9_998).await.unwrap().len(), 10_000);
        });
    }

    #[test]
    fn work_hears_that_its_client_has_gone_and_keeps_its_turn_until_it_ends() {
        run(async {
            let gate = Arc::new(Gate::new(&Limits { time: Duration::from_secs(60), ..small() }));
            let (told, heard) = std::sync::mpsc::channel();
            let (end, may_end) = std::sync::mpsc::channel::<()>();
            let ticket = gate.enter(Some(1)).unwrap();
            let work = ticket.work(move |job| {
                while job.watch.is_waiting() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                told.send(()).unwrap();
                may_end.recv().unwrap();
                Ok(())
            });
            let asked = tokio::time::timeout(Duration::from_millis(50), work).await;
            assert!(asked.is_err(), "the client gave up");
            heard.recv_timeout(Duration::from_secs(10)).expect("the work hears of it");
            assert_eq!((gate.turns.available_permits(), gate.places.available_permits()), (0, 1));
            end.send(()).unwrap();
            while gate.turns.available_permits() == 0 {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_panic_in_the_work_is_an_answer_and_frees_the_gate() {
        run(async {
            let gate = Gate::new(&Limits { time: Duration::from_secs(60), ..small() });
            for _ in 0..3 {
                let ticket = gate.enter(Some(1)).unwrap();
                let outcome = ticket.work(|_| -> Result<(), Problem> { panic!("a fault of ours") }).await;
                assert_eq!(outcome.unwrap_err().status(), 500);
            }
        });
    }
}
