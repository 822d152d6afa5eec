//! [`Loader`]: prepares the batches of the next training steps on its own threads while a step runs. A trainee calls
//! [`Loader::take`] before and [`Loader::give_back`] after each step; a [`BatchSource`] makes the batches.
//!
//! The batch of a step is a function of the step alone, so the result does not depend on timing. With `w` threads, each
//! makes the batches of every `w`-th step and holds a few ready in a bounded channel; used batches are returned to the
//! thread, so that their memory is reused. A few threads suffice: making a batch takes a twentieth of the work of a
//! step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Makes the batches of training steps.
pub trait BatchSource: Send + Sync + 'static {
    /// The input of a step.
    type Batch: Send + 'static;
    /// The working memory of one thread, which it keeps from batch to batch.
    type Scratch;

    /// Fresh working memory.
    fn scratch(&self) -> Self::Scratch;

    /// Makes the batch of a step; the memory of `old` may be reused.
    fn make(&self, step: u64, scratch: &mut Self::Scratch, old: Option<Self::Batch>) -> Self::Batch;
}

/// Batches in the order of the steps.
pub struct Loader<M: BatchSource> {
    source: Arc<M>,
    threads: usize,
    /// The number of batches that each thread holds ready.
    ready: usize,
    /// Empty until the first batch is taken.
    threads_running: Vec<LoaderThread<M::Batch>>,
    /// The step with which the threads started.
    first: u64,
    /// The step whose batch is expected to be taken next.
    next: u64,
}

/// The channels from and to one thread.
struct LoaderThread<B> {
    /// Finished batches, in the order of their steps.
    batches: Receiver<B>,
    /// Used batches, whose memory can be reused.
    used: Sender<B>,
}

impl<M: BatchSource> Loader<M> {
    /// A loader with `threads` threads, each of which holds `ready` batches ready. They start with the first call of
    /// [`Loader::take`].
    pub fn new(source: M, threads: usize, ready: usize) -> Self {
        Loader {
            source: Arc::new(source),
            threads: threads.max(1),
            ready,
            threads_running: Vec::new(),
            first: 0,
            next: 0,
        }
    }

    /// The batch of a step. Consecutive steps are fast; after any other step the threads start again.
    pub fn take(&mut self, step: u64) -> M::Batch {
        if self.threads_running.is_empty() || step != self.next {
            self.start(step);
        }
        self.next = step + 1;
        let worker = self.thread_of(step);
        self.threads_running[worker].batches.recv().expect("a thread of the loader panicked")
    }

    /// Returns the batch of a step, so that its memory can be reused.
    pub fn give_back(&mut self, step: u64, batch: M::Batch) {
        let worker = self.thread_of(step);
        // If the thread has ended, the memory is not needed.
        let _ = self.threads_running[worker].used.send(batch);
    }

    /// The index of the thread that makes the batch of a step.
    fn thread_of(&self, step: u64) -> usize {
        (step.wrapping_sub(self.first) % self.threads as u64) as usize
    }

    /// Starts all threads, the first of which begins with the batch of this step.
    fn start(&mut self, step: u64) {
        self.first = step;
        // Dropping the old channels ends the old threads.
        self.threads_running = (0..self.threads as u64)
            .map(|offset| {
                let (ready, batches) = sync_channel(self.ready);
                let (used, old) = channel();
                let (source, stride) = (Arc::clone(&self.source), self.threads);
                let first = step + offset;
                std::thread::Builder::new()
                    .name(format!("loader {offset}"))
                    .spawn(move || produce_batches(&*source, first, stride, &ready, &old))
                    .expect("the system has a thread left");
                LoaderThread { batches, used }
            })
            .collect();
    }
}

/// Makes the batches of every `stride`-th step from `first` on, until the channel `ready` is closed.
fn produce_batches<M: BatchSource>(
    source: &M,
    first: u64,
    stride: usize,
    ready: &SyncSender<M::Batch>,
    old: &Receiver<M::Batch>,
) {
    let mut scratch = source.scratch();
    for step in (first..).step_by(stride) {
        let batch = source.make(step, &mut scratch, old.try_recv().ok());
        if ready.send(batch).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Squares;

    impl BatchSource for Squares {
        type Batch = Vec<u64>;
        type Scratch = ();

        fn scratch(&self) {}

        fn make(&self, step: u64, (): &mut (), old: Option<Vec<u64>>) -> Vec<u64> {
            let mut batch = old.unwrap_or_default();
            batch.clear();
            batch.extend([step, step * step]);
            batch
        }
    }

    #[test]
    fn batches_come_in_order_whatever_the_threads_and_from_wherever_one_begins() {
        for threads in [1, 2, 3] {
            let mut loader = Loader::new(Squares, threads, 2);
            for step in (5..40).chain(2..9) {
                let batch = loader.take(step);
                assert_eq!(batch, [step, step * step]);
                loader.give_back(step, batch);
            }
        }
    }
}
