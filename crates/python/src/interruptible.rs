//! Long work with progress and Ctrl-C. It runs on its own threads, while the calling thread passes progress messages to
//! Python and checks for signals, which Python handles only on its main thread.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use trueshot::guard::caught;
use trueshot::progress::Progress;

use crate::exceptions::{internal_error, to_exception};
use crate::thread_pools::pool;

/// The interval between checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The connection between work on its own threads and the Python thread that called it: progress messages in one
/// direction, the request to stop in the other.
pub struct Channel<'a, M> {
    sender: Mutex<Sender<M>>,
    stopped: &'a AtomicBool,
}

impl<M> Channel<'_, M> {
    /// A sender for parts of the work that need an answer from the calling thread. It must not outlive the work.
    pub fn sender(&self) -> Sender<M> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a message; dropped if the receiver is gone.
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

/// Runs `work` on `threads` threads and passes its messages to `on_message`. An exception of `on_message` stops the work, as
/// Ctrl-C does.
pub fn run_interruptible<T: Send, M: Send>(
    py: Python<'_>,
    threads: Option<i64>,
    work: impl FnOnce(&Channel<'_, M>) -> trueshot::Result<T> + Send,
    on_message: impl FnMut(M) -> PyResult<()>,
) -> PyResult<T> {
    let (outcome, stop_reason) = run_keeping_results(py, threads, work, on_message)?;
    match stop_reason {
        Some(error) => Err(error),
        None => outcome,
    }
}

/// Like [`run_interruptible`], but if the work was stopped, also returns what it had done by then. The second value is the
/// exception that stopped it.
pub fn run_keeping_results<T: Send, M: Send>(
    py: Python<'_>,
    threads: Option<i64>,
    work: impl FnOnce(&Channel<'_, M>) -> trueshot::Result<T> + Send,
    mut on_message: impl FnMut(M) -> PyResult<()>,
) -> PyResult<(PyResult<T>, Option<PyErr>)> {
    let pool = pool(threads)?;
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let stopped = AtomicBool::new(false);
    let channel = Channel { sender: Mutex::new(sender), stopped: &stopped };
    let mut stop_reason = None;
    let outcome = std::thread::scope(|scope| {
        // The channel is dropped when the work is done, which wakes the receiving thread at once.
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
