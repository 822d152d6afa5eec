//! Long work that somebody watches: it runs on threads of its own, while the one that called hears of the progress, tells
//! Python of it, and looks whether somebody pressed Ctrl-C, which Python notices on its main thread only.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pyo3::prelude::*;
use trueshot::evaluate::Watcher;
use trueshot::guard::caught;

use crate::problem::{broken, raised};
use crate::work::pool;

/// How long Ctrl-C may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// How work tells of its progress, and learns that it should stop.
pub struct Wire<'a, M> {
    sender: Mutex<Sender<M>>,
    stopped: &'a AtomicBool,
}

impl<M> Wire<'_, M> {
    /// Tells something; nobody listening is fine.
    pub fn tell(&self, message: M) {
        if let Ok(sender) = self.sender.lock() {
            let _ = sender.send(message);
        }
    }

    /// Whether nobody wants it to stop.
    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }
}

/// Work that tells of no progress, and only learns that it should stop.
impl Watcher for Wire<'_, ()> {
    fn progress(&self, _done: u64) -> bool {
        self.goes_on()
    }
}

/// Runs work on so many threads. What `hear` raises ends it, as Ctrl-C does.
pub fn watched<T: Send, M: Send>(
    py: Python<'_>,
    threads: Option<i64>,
    work: impl FnOnce(&Wire<'_, M>) -> trueshot::Result<T> + Send,
    mut hear: impl FnMut(M) -> PyResult<()>,
) -> PyResult<T> {
    let pool = pool(threads)?;
    let (sender, receiver) = channel();
    let receiver = Mutex::new(receiver);
    let stopped = AtomicBool::new(false);
    let wire = Wire { sender: Mutex::new(sender), stopped: &stopped };
    let mut refused = None;
    let outcome = std::thread::scope(|scope| {
        // The wire goes when the work is done, and whoever waits at its other end knows at once.
        let worker = scope.spawn(move || pool.install(|| caught(|| work(&wire))));
        loop {
            let next = py.detach(|| receiver.lock().ok().map(|receiver| receiver.recv_timeout(PATIENCE)));
            let told = match next {
                // Whoever wanted it to stop hears no more.
                Some(Ok(_)) if refused.is_some() => Ok(()),
                Some(Ok(message)) => hear(message),
                Some(Err(RecvTimeoutError::Timeout)) => Ok(()),
                Some(Err(RecvTimeoutError::Disconnected)) | None => break,
            };
            if let Err(error) = told.and_then(|()| py.check_signals()) {
                stopped.store(true, Ordering::Relaxed);
                refused.get_or_insert(error);
            }
        }
        py.detach(|| worker.join())
    });
    if let Some(error) = refused {
        return Err(error);
    }
    outcome.ok().flatten().ok_or_else(broken)?.map_err(raised)
}
