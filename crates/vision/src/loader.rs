//! [`Loader`]: prepares the batches of the next training steps on its own threads while a step runs. A trainee calls
//! [`Loader::take`] before and [`Loader::give_back`] after each step; a [`BatchSource`] makes the batches.
//!
//! The batch of a step is a function of the step alone, so the result does not depend on timing. With `w` threads, each
//! makes the batches of every `w`-th step and holds a few ready in a bounded channel; used batches are returned to the
//! thread, so that their memory is reused. The caller chooses the number of threads. For training on the CPU a few
//! suffice: making a batch takes less than a tenth of the work of a training step.

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
pub struct Loader<S: BatchSource> {
    source: Arc<S>,
    thread_count: usize,
    /// The number of batches that each thread holds ready.
    ready_per_thread: usize,
    /// Empty until the first batch is taken; then `thread_count` threads.
    threads: Vec<LoaderThread<S::Batch>>,
    /// The step with which the threads started: the first one of the first thread.
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

impl<S: BatchSource> Loader<S> {
    /// A loader with `threads` threads (at least one), each of which holds up to `ready` finished batches. The threads
    /// start with the first call of [`Loader::take`].
    pub fn new(source: S, threads: usize, ready: usize) -> Self {
        Loader {
            source: Arc::new(source),
            thread_count: threads.max(1),
            ready_per_thread: ready,
            threads: Vec::new(),
            first: 0,
            next: 0,
        }
    }

    /// The batch of a step. If the step is not the one after the previous call's, the threads start again, and the
    /// batches that they hold ready are lost.
    pub fn take(&mut self, step: u64) -> S::Batch {
        if self.threads.is_empty() || step != self.next {
            self.start(step);
        }
        self.next = step + 1;
        let thread = self.thread_of(step);
        self.threads[thread].batches.recv().expect("a thread of the loader panicked")
    }

    /// Returns the batch of a step, so that its memory can be reused.
    pub fn give_back(&mut self, step: u64, batch: S::Batch) {
        let thread = self.thread_of(step);
        // If the thread has ended, the memory is not needed.
        let _ = self.threads[thread].used.send(batch);
    }

    /// The index of the thread that makes the batch of a step. A batch that is given back after a restart may be of a
    /// step before `first`; the subtraction then wraps, and any thread gets its memory.
    fn thread_of(&self, step: u64) -> usize {
        (step.wrapping_sub(self.first) % self.thread_count as u64) as usize
    }

    /// Starts all threads, the first of which begins with the batch of this step.
    fn start(&mut self, step: u64) {
        self.first = step;
        // Dropping the old channels ends the old threads.
        self.threads = (0..self.thread_count as u64)
            .map(|offset| {
                let (finished, batches) = sync_channel(self.ready_per_thread);
                let (used, old) = channel();
                let (source, stride) = (Arc::clone(&self.source), self.thread_count);
                let first = step + offset;
                std::thread::Builder::new()
                    .name(format!("loader {offset}"))
                    .spawn(move || produce_batches(&*source, first, stride, &finished, &old))
                    .expect("a thread can be started");
                LoaderThread { batches, used }
            })
            .collect();
    }
}

/// Makes the batches of every `stride`-th step from `first` on, until the channel `finished` is closed. Reuses the
/// memory of the batches in `old`.
fn produce_batches<S: BatchSource>(
    source: &S,
    first: u64,
    stride: usize,
    finished: &SyncSender<S::Batch>,
    old: &Receiver<S::Batch>,
) {
    let mut scratch = source.scratch();
    for step in (first..).step_by(stride) {
        let batch = source.make(step, &mut scratch, old.try_recv().ok());
        if finished.send(batch).is_err() {
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
    fn batches_are_in_order_for_any_number_of_threads_and_any_first_step() {
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
