//! Long work with progress and Ctrl-C: [`run_interruptible`], and [`run_keeping_results`] if partial results are of
//! use.
//!
//! The work runs on its own threads, because Python handles signals only on its main thread. Meanwhile the calling
//! thread passes messages of the work to Python, checks for signals, and asks the work to stop through a flag.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use rayon::ThreadPool;
use trueshot::guard::caught;
use trueshot::progress::Progress;

use crate::exceptions::{internal_error, to_exception};

/// The interval between checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The connection between work on its own threads and the Python thread that called it: messages `M` to the caller, and
/// the request to stop in the other direction.
pub struct Channel<'a, M> {
    sender: Mutex<Sender<M>>,
    /// Set by the calling thread, once, when the work must stop.
    stopped: &'a AtomicBool,
}

impl<M> Channel<'_, M> {
    /// A sender for parts of the work that keep one, such as a user-defined method. It must be dropped with the work:
    /// the calling thread waits until no sender is left.
    pub fn sender(&self) -> Sender<M> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a message to the calling thread. It is dropped if the calling thread no longer receives.
    pub fn send(&self, message: M) {
        if let Ok(sender) = self.sender.lock() {
            let _ = sender.send(message);
        }
    }

    /// [`ControlFlow::Break`] when the caller wants the work to stop.
    pub fn check_stopped(&self) -> ControlFlow<()> {
        if self.stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// For work that only needs to know when to stop.
impl Progress for Channel<'_, ()> {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        self.check_stopped()
    }
}

/// Runs `work` on `pool` and passes its messages to `on_message`. An exception of `on_message` stops the work, as
/// Ctrl-C does. If the work waits for answers to its messages or reads from Python objects, the pool must be an
/// [`own_pool`](crate::thread_pools::own_pool).
pub fn run_interruptible<T: Send, M: Send>(
    py: Python<'_>,
    pool: &ThreadPool,
    work: impl FnOnce(&Channel<'_, M>) -> trueshot::Result<T> + Send,
    on_message: impl FnMut(M) -> PyResult<()>,
) -> PyResult<T> {
    let (outcome, stop_reason) = run_keeping_results(py, pool, work, on_message)?;
    match stop_reason {
        Some(error) => Err(error),
        None => outcome,
    }
}

/// Like [`run_interruptible`], but returns the result of the work even if it was stopped, for work that then returns
/// what it has done so far. The second value is the exception that stopped it, if any.
pub fn run_keeping_results<T: Send, M: Send>(
    py: Python<'_>,
    pool: &ThreadPool,
    work: impl FnOnce(&Channel<'_, M>) -> trueshot::Result<T> + Send,
    mut on_message: impl FnMut(M) -> PyResult<()>,
) -> PyResult<(PyResult<T>, Option<PyErr>)> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let stopped = AtomicBool::new(false);
    let channel = Channel { sender: Mutex::new(sender), stopped: &stopped };
    let mut stop_reason = None;
    let outcome = std::thread::scope(|scope| {
        // The channel, with its sender, is dropped when the work is done. This disconnects the receiver and ends the
        // loop.
        let worker = scope.spawn(move || pool.install(|| caught(|| work(&channel))));
        loop {
            let next =
                py.detach(|| receiver.lock().ok().map(|receiver| receiver.recv_timeout(SIGNAL_INTERVAL)));
            let handled = match next {
                // After a request to stop, messages are not passed on.
                Some(Ok(_)) if stop_reason.is_some() => Ok(()),
                Some(Ok(message)) => on_message(message),
                Some(Err(RecvTimeoutError::Timeout)) => Ok(()),
                Some(Err(RecvTimeoutError::Disconnected)) | None => break,
            };
            if let Err(error) = handled.and_then(|()| py.check_signals()) {
                stopped.store(true, Ordering::Relaxed);
                stop_reason.get_or_insert(error);
            }
        }
        py.detach(|| worker.join())
    });
    let outcome = outcome.ok().flatten().ok_or_else(internal_error);
    Ok((outcome.and_then(|outcome| outcome.map_err(to_exception)), stop_reason))
}
