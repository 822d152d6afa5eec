//! The worker process: loads one ONNX model within limits and embeds the images that arrive on standard input. Start
//! with [`serve`].
//!
//! The main thread reads requests, so it notices when the parent is gone and ends the process whatever the model is
//! doing. A thread with a large stack loads the model: rten's planner recurses once per node of the longest path. The
//! number of embedding threads is the largest number of simultaneous requests.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::MAX_MODEL_BYTES;
use super::model::{LoadedModel, single_thread_pool};
use super::process_limits::ProcessLimits;
use super::protocol::{self, LoadRequest};

/// The stack of the thread that loads and plans. A chain of nodes takes less than 1 KiB per node, and the file check
/// allows at most [`super::file_check::MAX_NODES`] of them.
const STACK_BYTES: usize = 256 << 20;
/// Memory for a model, as a multiple of its file: one for the file, one for its tensors, and, since f16 weights double
/// in size as f32, two for them as f32 and two for their copy in the order of the matrix product.
const MODEL_COPIES: u64 = 6;

/// The main function of a worker process: serves one model over standard input and output until the input ends, and
/// returns the exit status.
///
/// A program that opens ONNX models must be able to start itself as a worker: see [`super::run_models_in`].
pub fn serve() -> u8 {
    match serve_requests(io::stdin().lock()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

/// Follows the protocol: writes the greeting, loads the model within limits, and answers requests until the input ends.
fn serve_requests(mut requests: impl Read) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(protocol::GREETING)?;
    stdout.flush()?;
    drop(stdout);
    let request: LoadRequest = protocol::read_json(&mut requests)?;
    if request.bytes > MAX_MODEL_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let limits = ProcessLimits::new(
        request.bytes.saturating_mul(MODEL_COPIES) + STACK_BYTES as u64,
        request.memory,
        request.seconds,
    );
    limits.apply(1, 1)?;
    let mut bytes = vec![0; request.bytes as usize];
    requests.read_exact(&mut bytes)?;

    let (sender, loaded) = channel();
    thread::Builder::new().name("load".into()).stack_size(STACK_BYTES).spawn(move || {
        let (model, answer) = match LoadedModel::load(bytes, &request) {
            Ok((model, description)) => (Some(model), Ok(description)),
            Err(problem) => (None, Err(problem)),
        };
        // The model is sent to the main thread before the reply, because requests arrive after the reply. If loading
        // failed, the sender is dropped instead.
        let _ = model.map(|model| sender.send(Arc::new(model)));
        let _ = protocol::write_json(&mut io::stdout().lock(), &answer);
    })?;
    let Some(first) = protocol::read_request_number(&mut requests)? else { return Ok(()) };
    let model = loaded.recv().map_err(|_| io::ErrorKind::InvalidData)?;
    dispatch_requests(requests, first, &model, &limits)
}

/// An image to embed, and the number of its request.
type ImageRequest = (u64, Vec<f32>);

/// Reads requests and passes them to the embedding threads. Before each, sets the limits for the images that are being
/// processed. `first` is the number of the first request, whose image has not been read yet.
fn dispatch_requests(
    mut requests: impl Read,
    first: u64,
    model: &Arc<LoadedModel>,
    limits: &ProcessLimits,
) -> io::Result<()> {
    let (sender, receiver) = channel::<ImageRequest>();
    let receiver = Arc::new(Mutex::new(receiver));
    // The number of requests without a reply. If they are more than the threads, another thread is started.
    let busy = Arc::new(AtomicUsize::new(0));
    let (mut threads, mut number) = (0, first);
    loop {
        let image = protocol::read_image(&mut requests, model.input_len())?;
        let images = busy.fetch_add(1, Ordering::SeqCst) + 1;
        let needs_thread = images > threads;
        threads = threads.max(images);
        limits.apply(threads, images)?;
        if needs_thread {
            let (model, receiver, busy) = (model.clone(), receiver.clone(), busy.clone());
            thread::Builder::new().spawn(move || embed_requests(&model, &receiver, &busy))?;
        }
        if sender.send((number, image)).is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match protocol::read_request_number(&mut requests)? {
            Some(next) => number = next,
            None => return Ok(()),
        }
    }
}

/// An embedding thread: takes requests, runs the model and writes replies, until the channel is closed.
fn embed_requests(model: &LoadedModel, requests: &Mutex<Receiver<ImageRequest>>, busy: &AtomicUsize) {
    let pool = single_thread_pool();
    loop {
        let next = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, image)) = next else { return };
        let row = model.run(&image, &pool);
        // Before the reply: the next request may follow at once and must find this thread free.
        busy.fetch_sub(1, Ordering::SeqCst);
        if protocol::write_reply(&mut io::stdout().lock(), number, &row).is_err() {
            return;
        }
    }
}
