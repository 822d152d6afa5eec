//! The parent's side of the worker process that runs an ONNX model: starts it, sends images, receives embeddings, and
//! reports why it ended. Start with [`WorkerProcess::start`] and [`WorkerProcess::embed`].
//!
//! Besides the threads that embed, two threads serve a worker: the *listener* passes its replies to the threads that
//! wait for them, and another one reads its standard error, from which [`exit_reason`] tells why it ended.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::protocol::{self, EmbeddingReply, LoadRequest, ModelDescription};

/// How to start the worker process that runs ONNX models, and its limits.
///
/// The program must call [`serve`](super::serve) when it is started with these arguments.
#[derive(Debug, Clone)]
pub struct ModelProcess {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Bytes of memory for each image that is processed at the same time, besides the model itself.
    pub memory: u64,
    /// Processor seconds for one image, and for loading the model.
    pub seconds: u64,
}

impl ModelProcess {
    /// The default of [`ModelProcess::memory`]: 4 GiB.
    pub const MEMORY: u64 = 4 << 30;
    /// The default of [`ModelProcess::seconds`]: five minutes.
    pub const SECONDS: u64 = 300;

    /// A worker that is started with this command, with the default limits.
    pub fn new(
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        ModelProcess {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            memory: Self::MEMORY,
            seconds: Self::SECONDS,
        }
    }

    /// Starts the program, with pipes to its standard streams.
    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt as _;
            // Ctrl-C in a terminal is meant for the parent, which ends its worker when it stops. The current folder is
            // `/` so that a Python interpreter does not import modules from the user's current folder.
            command.process_group(0).current_dir("/");
        }
        command.spawn()
    }
}

/// A worker that has loaded a model.
pub struct WorkerProcess {
    child: Arc<Mutex<Child>>,
    /// The pipe to the worker. A thread holds the lock while it writes a request.
    requests: Mutex<ChildStdin>,
    pending: Arc<Mutex<PendingRequests>>,
    /// The thread that receives replies; `None` only while this is dropped.
    listener: Option<JoinHandle<()>>,
}

/// Requests without a reply.
#[derive(Default)]
struct PendingRequests {
    /// The number of the last request, from 1.
    last_number: u64,
    /// By the number of the request, the channel to the thread that waits for the reply.
    senders: HashMap<u64, SyncSender<EmbeddingReply>>,
    /// Why there will be no more replies.
    ended: Option<String>,
}

/// Locks a mutex. Ignores poisoning: a thread that panicked left the state consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerProcess {
    /// Starts a worker and has it load a model.
    pub fn start(
        process: &ModelProcess,
        bytes: &[u8],
        request: &LoadRequest,
    ) -> Result<(Self, ModelDescription), String> {
        let mut child = process
            .spawn()
            .map_err(|error| format!("the process that runs it cannot be started: {error}"))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err("the process that runs it has no pipes".into());
        };
        let stderr = std::thread::spawn(move || first_bytes(stderr));
        let mut replies = BufReader::new(stdout);
        let reply = load_model(&mut stdin, &mut replies, bytes, request);
        let diagnosis = ExitDiagnosis { child: Arc::new(Mutex::new(child)), stderr, limits: process.clone() };
        let description = match reply {
            Ok(Ok(description)) => description,
            Ok(Err(problem)) => {
                // Ends the process. The reason is already known: the worker's message.
                diagnosis.exit_reason();
                return Err(problem);
            }
            // The worker has ended, or did not follow the protocol.
            Err(_) => return Err(diagnosis.exit_reason()),
        };
        let (child, pending) = (diagnosis.child.clone(), Arc::<Mutex<PendingRequests>>::default());
        let listener = std::thread::spawn({
            let pending = pending.clone();
            move || receive_replies(replies, &pending, diagnosis)
        });
        let worker = WorkerProcess { child, requests: Mutex::new(stdin), pending, listener: Some(listener) };
        Ok((worker, description))
    }

    /// Embeds one normalised image (`[row, column, channel]`). Any number of threads may call this at the same time.
    ///
    /// The inner result is that of the model for this image. The outer error says why the process ended, whichever
    /// image caused it.
    pub fn embed(&self, image: &[f32]) -> Result<EmbeddingReply, String> {
        let (sender, receiver) = sync_channel(1);
        let number = {
            let mut pending = lock(&self.pending);
            if let Some(reason) = &pending.ended {
                return Err(reason.clone());
            }
            pending.last_number += 1;
            let number = pending.last_number;
            pending.senders.insert(number, sender);
            number
        };
        // If the pipe is closed, the listener sets the reason in `ended` and drops the sender.
        let _ = protocol::write_request(&mut *lock(&self.requests), number, image);
        receiver.recv().map_err(|_| lock(&self.pending).ended.clone().unwrap_or_default())
    }

    /// Whether the process has ended, so that [`Self::embed`] would fail.
    pub fn has_ended(&self) -> bool {
        lock(&self.pending).ended.is_some()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = lock(&self.child).kill();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Sends the model to a new worker, and waits for its description. The inner error is the worker's message; the outer
/// one means that it ended or did not follow the protocol.
fn load_model(
    stdin: &mut ChildStdin,
    replies: &mut BufReader<ChildStdout>,
    bytes: &[u8],
    request: &LoadRequest,
) -> std::io::Result<Result<ModelDescription, String>> {
    use std::io::Write as _;
    protocol::skip_to_greeting(replies)?;
    protocol::write_json(stdin, request)?;
    stdin.write_all(bytes)?;
    protocol::read_json(replies)
}

/// The listener: passes replies to the threads that wait for them, until the process ends.
fn receive_replies(
    mut replies: BufReader<ChildStdout>,
    pending: &Mutex<PendingRequests>,
    diagnosis: ExitDiagnosis,
) {
    while let Ok(Some((number, row))) = protocol::read_reply(&mut replies) {
        let sender = lock(pending).senders.remove(&number);
        let _ = sender.map(|sender| sender.send(row));
    }
    let reason = diagnosis.exit_reason();
    let mut pending = lock(pending);
    pending.ended = Some(reason);
    // Threads that still wait see that their sender is gone.
    pending.senders.clear();
}

/// What is needed to report why a process ended.
struct ExitDiagnosis {
    child: Arc<Mutex<Child>>,
    /// The thread that reads standard error, and returns its first bytes.
    stderr: JoinHandle<String>,
    limits: ModelProcess,
}

impl ExitDiagnosis {
    /// Why the process ended. Kills it if it is still running; the exit status of one that has ended does not change.
    fn exit_reason(self) -> String {
        let status = {
            let mut child = lock(&self.child);
            let _ = child.kill();
            child.wait().ok()
        };
        let stderr = self.stderr.join().unwrap_or_default();
        exit_reason(status, &stderr, &self.limits)
    }
}

/// The first 8 KiB of standard error. Reads standard error to its end, so that the process never blocks on writing.
fn first_bytes(mut stderr: ChildStderr) -> String {
    let mut first = Vec::new();
    let _ = stderr.by_ref().take(1 << 13).read_to_end(&mut first);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    String::from_utf8_lossy(&first).into_owned()
}

/// A message for the user on why the process ended, from its exit status and its standard error.
fn exit_reason(status: Option<ExitStatus>, stderr: &str, limits: &ModelProcess) -> String {
    // The two texts are from messages of Rust's standard library before it aborts.
    if stderr.contains("has overflowed its stack") {
        return "its graph is too deep".into();
    }
    if stderr.contains("memory allocation of") {
        let memory = limits.memory as f64 / f64::from(1 << 30);
        return format!("it needs more than {memory} GiB of memory to be loaded or to embed one image");
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt as _;
        let signal = status.and_then(|status| status.signal());
        if signal == Some(rustix::process::Signal::XCPU.as_raw()) {
            let seconds = limits.seconds;
            return format!(
                "it takes more than {seconds} s of processor time to be loaded or to embed one image"
            );
        }
    }
    let status = status.map_or("no exit status".into(), |status| status.to_string());
    let last_line = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    format!("the process that runs it ended ({status}) {last_line}").trim_end().chars().take(300).collect()
}
