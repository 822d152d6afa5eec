//! How many are let in. A request takes a place (there are so many, then it is told to come again), memory for its body
//! (all bodies together have a budget), and then waits for its turn to compute. All three are given back when the work
//! has really ended, not when the client has lost patience: what is bounded is what the machine does.
//!
//! Work hears of a client that has gone, and of time that is over, wherever it asks whether to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use trueshot::evaluate::Watcher;

use crate::limits::Limits;
use crate::problem::Problem;

/// Memory is counted in pieces of so many bytes.
const PIECE: usize = 1 << 10;

/// The gate all work passes.
pub struct Gate {
    places: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    body: usize,
    time: Duration,
}

/// What a request that was let in holds.
pub struct Ticket {
    held: Held,
    turns: Arc<Semaphore>,
    watch: Watch,
    /// Tells the work when the request is dropped, which it is when the client goes.
    presence: Presence,
}

struct Held {
    _place: OwnedSemaphorePermit,
    _memory: OwnedSemaphorePermit,
}

/// Tells work whether anybody still waits for it.
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
            memory: semaphore(limits.bodies.max(limits.body).div_ceil(PIECE)),
            turns: semaphore(limits.at_once),
            body: limits.body,
            time: limits.time,
        }
    }

    /// Lets a request in that says how long its body is, or does not.
    pub async fn enter(&self, announced: Option<u64>) -> Result<Ticket, Problem> {
        let most = self.body as u64;
        if announced.is_some_and(|length| length > most) {
            return Err(over_limit(self.body));
        }
        let place = self.places.clone().try_acquire_owned().map_err(|_| Problem::busy())?;
        let watch = Watch {
            gone: Arc::new(AtomicBool::new(false)),
            deadline: Instant::now() + self.time,
            time: self.time,
        };
        let pieces = announced.unwrap_or(most).div_ceil(PIECE as u64) as u32;
        let memory = watch.within(self.memory.clone().acquire_many_owned(pieces)).await?;
        let held = Held { _place: place, _memory: memory.expect("the gate is never closed") };
        let presence = Presence(watch.gone.clone());
        Ok(Ticket { held, turns: self.turns.clone(), watch, presence })
    }
}

/// A body is too long.
pub fn over_limit(most: usize) -> Problem {
    let error = format!("the body is longer than the {most} bytes allowed");
    Problem::too_large(error).hint("send it in parts, or start the server with a larger --max-body")
}

impl Ticket {
    /// Waits for something, as long as there is time.
    pub async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        self.watch.within(future).await
    }

    /// Waits for a turn and does the work on a thread of its own.
    pub async fn work<T: Send + 'static>(
        self,
        work: impl FnOnce(&Watch) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let Ticket { held, turns, watch, presence } = self;
        let turn = watch.within(turns.acquire_owned()).await?.expect("the gate is never closed");
        let seen = watch.clone();
        let task = tokio::task::spawn_blocking(move || {
            let outcome = if seen.goes_on() { work(&seen) } else { Err(seen.late()) };
            drop((turn, held));
            outcome
        });
        let outcome = watch.within(task).await?;
        drop(presence);
        outcome.unwrap_or_else(|panic| Err(Problem::failed("the work", panic)))
    }
}

impl Watch {
    /// Whether somebody still waits.
    pub fn goes_on(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && Instant::now() < self.deadline
    }

    /// What is said when nobody waits any more.
    pub fn late(&self) -> Problem {
        Problem::late(self.time.as_secs())
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Problem> {
        tokio::time::timeout_at(self.deadline, future).await.map_err(|_| self.late())
    }
}

impl Watcher for Watch {
    fn progress(&self, _done: u64) -> bool {
        self.goes_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Limits {
        let time = Duration::from_millis(200);
        Limits { body: 1000, bodies: 1000, time, at_once: 1, waiting: 1, ..Limits::default() }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn whoever_finds_no_place_is_told_at_once_and_a_place_is_given_back() {
        run(async {
            let gate = Gate::new(&Limits { bodies: 10_000, ..small() });
            let first = gate.enter(Some(10)).await.unwrap();
            let _second = gate.enter(Some(10)).await.unwrap();
            assert_eq!(gate.enter(Some(10)).await.err().unwrap().status(), 429);
            drop(first);
            assert!(gate.enter(Some(10)).await.is_ok());
        });
    }

    #[test]
    fn memory_for_bodies_is_waited_for_and_time_ends_the_wait() {
        run(async {
            let gate = Gate::new(&small());
            let _all = gate.enter(None).await.unwrap();
            assert_eq!(gate.enter(Some(1000)).await.err().unwrap().status(), 503);
            assert_eq!(gate.enter(Some(1001)).await.err().unwrap().status(), 413);
        });
    }

    #[test]
    fn work_hears_that_its_client_has_gone_and_keeps_its_turn_until_it_ends() {
        run(async {
            let gate = Arc::new(Gate::new(&Limits { time: Duration::from_secs(60), ..small() }));
            let (told, heard) = std::sync::mpsc::channel();
            let ticket = gate.enter(Some(1)).await.unwrap();
            let work = ticket.work(move |watch| {
                while watch.goes_on() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                told.send(()).unwrap();
                Ok(())
            });
            let asked = tokio::time::timeout(Duration::from_millis(50), work).await;
            assert!(asked.is_err(), "the client gave up");
            heard.recv_timeout(Duration::from_secs(10)).expect("the work ended");
        });
    }

    #[test]
    fn a_panic_in_the_work_is_an_answer_and_frees_the_gate() {
        run(async {
            let gate = Gate::new(&Limits { time: Duration::from_secs(60), ..small() });
            for _ in 0..3 {
                let ticket = gate.enter(Some(1)).await.unwrap();
                let outcome = ticket.work(|_| -> Result<(), Problem> { panic!("a fault of ours") }).await;
                assert_eq!(outcome.unwrap_err().status(), 500);
            }
        });
    }
}
