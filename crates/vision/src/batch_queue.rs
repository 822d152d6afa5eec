//! [`BatchQueue`]: many threads submit images, and one thread embeds them in batches on a device. `gpu_network` starts
//! a queue for each network on a GPU, and [`Embedder`](crate::Embedder) submits the images. Start with
//! [`BatchQueue::start`].
//!
//! A GPU embeds faster than all cores can decode, but only in batches, one at a time. Decoding threads therefore
//! [submit](BatchQueue::submit) their images without waiting, and wait for the [`PendingRow`]s at the end. The queue
//! starts a batch when it is full or when a thread waits for one of its rows.
//!
//! The thread of the queue opens the device while images are decoded. The queue is bounded: submitting to a full queue
//! waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::error::Unreadable;

/// The most bytes of images in the queue, unless two batches are more: then two batches are allowed.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// Why a device has failed and embeds nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFailure {
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl From<DeviceFailure> for trueshot::Error {
    fn from(failure: DeviceFailure) -> Self {
        let DeviceFailure { message, hint } = failure;
        trueshot::Error::Gpu { message, hint, checkpoint: None }
    }
}

/// Embeds a batch on a device: takes the bytes of whole images, returns their rows, `[image, dim]`.
pub type EmbedBatch = Box<dyn FnMut(&[u8]) -> Result<Vec<f32>, DeviceFailure>>;

/// The images that a queue takes, and the rows that it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Bytes per image.
    pub image_len: usize,
    /// The length of a row.
    pub dim: usize,
    /// The largest number of images in a batch.
    pub batch: usize,
}

/// A queue of images for a device that embeds them in batches.
///
/// ```
/// use trueshot_vision::batch_queue::{BatchQueue, BatchShape, EmbedBatch};
///
/// let shape = BatchShape { image_len: 4, dim: 1, batch: 64 };
/// // "Embeds" an image as its first byte.
/// let queue = BatchQueue::start(shape, || {
///     let embed: EmbedBatch = Box::new(|images| Ok(images.iter().step_by(4).map(|&byte| byte.into()).collect()));
///     Ok(embed)
/// });
/// let rows: Vec<_> = (0..3).map(|value| queue.submit(vec![value; 4])).collect();
/// assert_eq!(rows.into_iter().map(|row| row.wait().unwrap()).collect::<Vec<_>>(), [[0.0], [1.0], [2.0]]);
/// ```
pub struct BatchQueue {
    shape: BatchShape,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the callers and the thread of the queue share.
struct Shared {
    state: Mutex<QueueState>,
    /// Wakes the thread of the queue: the queue has a full batch, a caller waits for a row, or the queue is dropped.
    work_changed: Condvar,
    /// Wakes the callers: a batch was taken from the queue, or its rows are finished.
    batch_changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// The images that are in no batch yet, in the order in which they were submitted.
    waiting: VecDeque<Request>,
    /// The number of the next image: images submitted so far.
    next_number: u64,
    /// Images with numbers below this are embedded even if they do not fill a batch, because a caller waits for the row
    /// of the last of them.
    urgent_end: u64,
    /// Set once; after that, no image is embedded.
    failure: Option<DeviceFailure>,
    /// Whether the queue has been dropped.
    is_closed: bool,
}

/// A submitted image.
struct Request {
    /// The number of the image, from 0.
    number: u64,
    image: Vec<u8>,
    row: Arc<Slot>,
}

/// Receives the row of an image when it has been computed.
type Slot = OnceLock<Result<Vec<f32>, Unreadable>>;

/// A row that is being computed.
pub struct PendingRow {
    number: u64,
    row: Arc<Slot>,
    shared: Arc<Shared>,
}

impl BatchQueue {
    /// Starts the thread of the queue, which calls `open` first.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn start(
        shape: BatchShape,
        open: impl FnOnce() -> Result<EmbedBatch, DeviceFailure> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work_changed: Condvar::new(),
            batch_changed: Condvar::new(),
        });
        let worker = Worker { shape, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("trueshot-gpu".into());
        let thread = thread.spawn(move || worker.run(open)).expect("a thread can be started");
        BatchQueue { shape, shared, thread: Some(thread) }
    }

    /// The images and rows of the queue.
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// Appends an image. Waits while too many images are in the queue.
    ///
    /// # Panics
    /// If the length of the image is not [`BatchShape::image_len`].
    pub fn submit(&self, image: Vec<u8>) -> PendingRow {
        assert_eq!(image.len(), self.shape.image_len, "bytes of an image");
        let max_waiting = (MAX_WAITING_BYTES / self.shape.image_len).max(2 * self.shape.batch);
        let row = Arc::new(Slot::new());
        let mut state = self.shared.state();
        while state.waiting.len() >= max_waiting && state.failure.is_none() {
            state = self.shared.batch_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let number = state.next_number;
        state.next_number += 1;
        match &state.failure {
            Some(failure) => drop(row.set(Err(failure.unreadable()))),
            None => state.waiting.push_back(Request { number, image, row: Arc::clone(&row) }),
        }
        if state.waiting.len() >= self.shape.batch {
            self.shared.work_changed.notify_one();
        }
        drop(state);
        PendingRow { number, row, shared: Arc::clone(&self.shared) }
    }

    /// Why the device has failed, if it has.
    pub fn failure(&self) -> Option<DeviceFailure> {
        self.shared.state().failure.clone()
    }
}

impl Drop for BatchQueue {
    /// Ends the thread after the current batch.
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.work_changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: errors are in the state.
            let _ = thread.join();
        }
    }
}

impl PendingRow {
    /// Waits for the row.
    ///
    /// # Errors
    /// If the device has failed; [`BatchQueue::failure`] then returns the reason.
    pub fn wait(self) -> Result<Vec<f32>, Unreadable> {
        let mut state = self.shared.state();
        if self.row.get().is_none() {
            state.urgent_end = state.urgent_end.max(self.number + 1);
            self.shared.work_changed.notify_one();
        }
        while self.row.get().is_none() {
            state = self.shared.batch_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Without a copy, unless the thread of the queue still holds its reference to the slot.
        match Arc::try_unwrap(self.row) {
            Ok(slot) => slot.into_inner().expect("the slot has been filled"),
            Err(slot) => slot.get().cloned().expect("the slot has been filled"),
        }
    }
}

impl DeviceFailure {
    /// The failure as the result of an image.
    fn unreadable(&self) -> Unreadable {
        Unreadable::Network(self.message.clone())
    }
}

impl Shared {
    /// Locks the state. Ignores poisoning: a thread that panicked left the state consistent.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of a queue.
struct Worker {
    shape: BatchShape,
    shared: Arc<Shared>,
}

impl Worker {
    /// Opens the device, and embeds batches until the queue is dropped.
    fn run(&self, open: impl FnOnce() -> Result<EmbedBatch, DeviceFailure>) {
        let mut opened = caught(open);
        let mut images = Vec::new();
        if let Err(failure) = &opened {
            self.fail(failure.clone());
        }
        while let Some(batch) = self.next_batch() {
            images.clear();
            batch.iter().for_each(|request| images.extend_from_slice(&request.image));
            let outcome = match &mut opened {
                Ok(embed) => caught(|| embed(&images)),
                Err(failure) => Err(failure.clone()),
            };
            let outcome = outcome.and_then(|rows| self.check_length(rows, batch.len()));
            // The failure is set before the rows: a thread that gets an error as its row may ask for it at once.
            if let Err(failure) = &outcome {
                self.fail(failure.clone());
                opened = Err(failure.clone());
            }
            self.answer(&batch, &outcome);
        }
        // Threads may still wait for rows.
        self.fail(broken("the queue has ended".into()));
    }

    /// Waits until there is a full batch or an urgent image, and takes a batch; `None` when the queue has been dropped.
    fn next_batch(&self) -> Option<Vec<Request>> {
        let mut state = self.shared.state();
        loop {
            if state.is_closed {
                return None;
            }
            let is_urgent = state.waiting.front().is_some_and(|request| request.number < state.urgent_end);
            if is_urgent || state.waiting.len() >= self.shape.batch {
                break;
            }
            state = self.shared.work_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let count = state.waiting.len().min(self.shape.batch);
        let batch = state.waiting.drain(..count).collect();
        self.shared.batch_changed.notify_all();
        Some(batch)
    }

    /// Checks that a batch of this number of images has resulted in one row per image.
    fn check_length(&self, rows: Vec<f32>, images: usize) -> Result<Vec<f32>, DeviceFailure> {
        let dim = self.shape.dim;
        if rows.len() != images * dim {
            return Err(broken(format!("{} numbers for {images} images of {dim} numbers each", rows.len())));
        }
        Ok(rows)
    }

    /// Gives each image of a batch its row, or the failure, and wakes the threads that wait.
    fn answer(&self, batch: &[Request], outcome: &Result<Vec<f32>, DeviceFailure>) {
        for (index, request) in batch.iter().enumerate() {
            let row = match outcome {
                Ok(rows) => Ok(rows[index * self.shape.dim..][..self.shape.dim].to_vec()),
                Err(failure) => Err(failure.unreadable()),
            };
            // Each request is in one batch only, so its slot is empty.
            let _ = request.row.set(row);
        }
        // With the lock no thread is between its check of the slot and its wait, where it would miss the notification.
        let _state = self.shared.state();
        self.shared.batch_changed.notify_all();
    }

    /// Answers all images in the queue, and all later ones, with the failure.
    fn fail(&self, failure: DeviceFailure) {
        let mut state = self.shared.state();
        let waiting: Vec<Request> = state.waiting.drain(..).collect();
        state.failure = Some(failure.clone());
        drop(state);
        self.answer(&waiting, &Err(failure));
    }
}

/// Calls `work`; a panic is a failure of the device.
fn caught<T>(work: impl FnOnce() -> Result<T, DeviceFailure>) -> Result<T, DeviceFailure> {
    let panicked = || Err(broken("the thread of the GPU panicked".into()));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| panicked())
}

/// The failure for a problem that should not happen.
fn broken(problem: String) -> DeviceFailure {
    let hint = "use the CPU, and report this as a bug in trueshot".into();
    DeviceFailure { message: format!("embedding on the GPU failed: {problem}"), hint }
}

#[cfg(test)]
mod tests;
