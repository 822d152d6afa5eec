//! Image models in ONNX as backbones. Each model runs in a worker process.
//!
//! What a model wants is found from the shape of its input: which axis the channels are on, and the size of an image if
//! it is fixed. What is not in the file (mean, deviation, which output) comes from options or from a TOML file next to
//! the model, and has ImageNet's usual values otherwise. One image goes through the network at a time, on one thread,
//! so that an embedding depends on nothing but its image.
//!
//! # A process of its own
//!
//! A model is a program written by someone else. Two hundred bytes can ask for 110 GB (`ConstantOfShape`, `Expand`,
//! `Tile`, `Range`, `Pad`, `Resize` and others take the size of their output from a value, and rten evaluates whatever is
//! constant while it loads the file), a long chain of nodes overflows the stack of rten's planner, and a `Loop` need not
//! end. Neither running out of memory nor of stack can be caught within a process.
//!
//! So a model is loaded and run in a worker process (`worker`): the same program, started with other arguments
//! ([`ModelProcess`]), with limits on memory and processor time that the operating system keeps, and a large stack. A
//! model that exceeds a limit ends its worker, and this program reports which limit it was. One worker serves all
//! threads, so the weights are in memory once; an image costs a copy through a pipe.
//!
//! The alternative, to compute the shapes of all values before anything is run, would need a rule for each of the 150
//! operators that rten knows, would have to refuse all shapes that depend on values, and would still trust rten to
//! allocate nothing else.
//!
//! If a worker ends, every image that was in work is tried again in a worker of its own, so only the images that
//! are to blame are lost. `file_check` looks at a file first, because it can say more precisely what is wrong.
//!
//! # Precision and files
//!
//! rten computes in f32: f16 weights are converted when they are loaded, and f16 inputs and outputs are f32. Weights in other
//! files are put into the model before anything else looks at it (`external_data`).

mod export;
mod external_data;
mod file_check;
mod model;
mod process;
mod process_limits;
mod protocol;
mod worker;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use export::ExportedModel;
pub use process::ModelProcess;
use process::WorkerProcess;
use protocol::{LoadRequest, ModelDescription};
pub use worker::serve;

use crate::backbone::BackboneOptions;
use crate::decoded_image::Channels;
use crate::error::{Error, Result, Unreadable};
use crate::network::{EmbeddingNetwork, EmbeddingSession};
use crate::preprocess::Preprocessing;

/// The largest model, with weights in other files.
const MAX_MODEL_BYTES: u64 = 2 << 30;
/// Numbers of classes that ImageNet's classifiers have: with or without a background, of 1k, 21k and 22k.
const CLASS_COUNTS: [usize; 5] = [1000, 1001, 21_841, 21_843, 11_221];

static PROCESS: Mutex<Option<ModelProcess>> = Mutex::new(None);

/// Says how to start the worker process that runs ONNX models. Without it no ONNX model can be opened. A model that is
/// open already is not affected.
///
/// A program usually starts itself:
///
/// ```
/// use trueshot_vision::onnx::{self, ModelProcess};
///
/// if std::env::args().nth(1).as_deref() == Some("onnx-worker") {
///     std::process::exit(onnx::serve().into());
/// }
/// onnx::run_models_in(ModelProcess::new(std::env::current_exe()?, ["onnx-worker"]));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn run_models_in(process: ModelProcess) {
    *PROCESS.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
}

/// A model that runs in a worker process, as a network.
#[derive(Clone)]
pub(crate) struct OnnxNetwork(Arc<OnnxWorker>);

/// A session of an [`OnnxNetwork`]. The memory of the computation is in the worker process.
struct OnnxSession(Arc<OnnxWorker>);

/// The worker process of a model, and what is needed to start another one.
struct OnnxWorker {
    process: ModelProcess,
    /// The file, for a new worker when one has ended.
    bytes: Vec<u8>,
    request: LoadRequest,
    description: ModelDescription,
    worker: Mutex<Arc<WorkerProcess>>,
    /// Held while an image is tried in a worker of its own, so that there is one such worker at a time.
    alone: Mutex<()>,
}

/// What a model turned out to be.
pub(crate) struct OnnxModel {
    pub network: OnnxNetwork,
    pub preprocessing: Preprocessing,
    /// The name of the output.
    pub output: String,
    /// The first 16 digits of the hash of the file.
    pub hash: String,
    /// What the user should know.
    pub warning: Option<String>,
}

/// Reads a file, with the options beside it for what is not given.
pub(crate) fn open(path: &Path, given: &BackboneOptions) -> Result<OnnxModel> {
    let failed = |source| trueshot::Error::Read { path: path.into(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MAX_MODEL_BYTES {
        return Err(bad(path, format!("it has {length} bytes; the maximum is {MAX_MODEL_BYTES}")));
    }
    let options = given.clone().or(options_beside(path)?);
    let bytes = std::fs::read(path).map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let bytes = external_data::inline(bytes, folder, MAX_MODEL_BYTES).map_err(|problem| Error::BadModel {
        path: path.into(),
        problem: problem.to_string(),
        hint: Some(
            "keep the files of a model together, or make one file of them: \
             onnx.save(onnx.load('model.onnx'), 'one-file.onnx') in Python"
                .into(),
        ),
    })?;
    load(bytes, path, &options)
}

/// What stands in `model.toml` beside `model.onnx`.
fn options_beside(path: &Path) -> Result<BackboneOptions> {
    let path = path.with_extension("toml");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BackboneOptions::default()),
        Err(source) => return Err(trueshot::Error::Read { path, source }.into()),
    };
    toml::from_str(&text).map_err(|problem| Error::BadModel {
        problem: trueshot::training::configuration::toml_message(&problem),
        hint: Some("allowed keys: size, mean, std, fit, resampling and output".into()),
        path,
    })
}

/// Refuses what is not an ONNX file or claims what it does not hold.
pub(crate) fn check(bytes: &[u8], path: &Path) -> Result<()> {
    file_check::check(bytes).map_err(|problem| bad(path, problem.to_string()))
}

/// Opens a model in memory; `path` stands for it in messages.
pub(crate) fn load(bytes: Vec<u8>, path: &Path, options: &BackboneOptions) -> Result<OnnxModel> {
    check(&bytes, path)?;
    let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let process = process.ok_or_else(|| Error::BadModel {
        path: path.into(),
        problem:
            "ONNX models run in a process of their own, and this program does not define how to start it"
                .into(),
        hint: Some("call trueshot_vision::onnx::run_models_in first".into()),
    })?;
    let hash = blake3::hash(&bytes).to_hex()[..16].to_owned();
    let request = LoadRequest {
        bytes: bytes.len() as u64,
        size: options.size,
        output: options.output.clone(),
        memory: process.memory,
        seconds: process.seconds,
    };
    let (worker, description) =
        WorkerProcess::start(&process, &bytes, &request).map_err(|problem| bad(path, problem))?;
    let preprocessing = preprocessing(&description, options)?;
    let (output, warning) = (description.output.clone(), warning(&description));
    let worker = Mutex::new(Arc::new(worker));
    let worker = OnnxWorker { process, bytes, request, description, worker, alone: Mutex::default() };
    let network = OnnxNetwork(Arc::new(worker));
    Ok(OnnxModel { network, preprocessing, output, hash, warning })
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::BadModel { path: path.into(), problem: problem.into(), hint: None }
}

fn preprocessing(model: &ModelDescription, options: &BackboneOptions) -> Result<Preprocessing> {
    let usual = Preprocessing::colour(model.size);
    let (channels, mean, std) = match model.channels {
        1 => (Channels::Grey, vec![0.5], vec![0.5]),
        _ => (Channels::Colour, usual.mean.clone(), usual.std.clone()),
    };
    let preprocessing = Preprocessing {
        channels,
        mean: options.mean.clone().unwrap_or(mean),
        std: options.std.clone().unwrap_or(std),
        fit: options.fit.unwrap_or_default(),
        resampling: options.resampling.unwrap_or_default(),
        ..usual
    };
    preprocessing.check()?;
    Ok(preprocessing)
}

fn warning(model: &ModelDescription) -> Option<String> {
    let ModelDescription { output, dim, .. } = model;
    let lower = output.to_lowercase();
    let named = ["logit", "prob", "softmax", "class"].iter().any(|word| lower.contains(word));
    (named || CLASS_COUNTS.contains(dim)).then(|| {
        format!(
            "output '{output}' ({dim} numbers) looks like a score per class; features from before the last layer are better"
        )
    })
}

impl OnnxNetwork {
    /// The model for an exported classifier. `name` stands for the file in messages.
    ///
    /// # Errors
    /// If its operators are too old for the nodes of a classifier.
    pub fn export(&self, name: &str) -> Result<ExportedModel<'_>> {
        self.0.export(name)
    }
}

impl EmbeddingNetwork for OnnxNetwork {
    fn dim(&self) -> usize {
        self.0.description.dim
    }

    fn input_len(&self) -> usize {
        self.0.input_len()
    }

    fn batch_size(&self) -> usize {
        1
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn session(&self) -> Box<dyn EmbeddingSession> {
        Box::new(OnnxSession(Arc::clone(&self.0)))
    }
}

impl EmbeddingSession for OnnxSession {
    fn embed(&mut self, images: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        let (pixels, dim) = (self.0.input_len(), self.0.description.dim);
        assert_eq!(images.len() / pixels * pixels, images.len(), "whole images");
        assert_eq!(images.len() / pixels * dim, out.len(), "one embedding per image");
        let mut pairs = images.chunks_exact(pixels).zip(out.chunks_exact_mut(dim));
        pairs.try_for_each(|(image, row)| self.0.embed(image, row))
    }
}

impl OnnxWorker {
    /// Values of one input image.
    fn input_len(&self) -> usize {
        self.description.size * self.description.size * self.description.channels
    }

    /// Embeds one normalised image (`[row, column, channel]`). Any number of threads may call this at the same time.
    fn embed(&self, image: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        let row = match self.shared_worker().and_then(|worker| worker.embed(image)) {
            Ok(row) => row,
            // This image may be to blame, or another that was in work at the same time.
            Err(_) => self.embed_in_own_worker(image),
        };
        let row = row.map_err(Unreadable::Network)?;
        if row.len() != out.len() {
            return Err(Unreadable::Network(format!("{} numbers instead of {}", row.len(), out.len())));
        }
        out.copy_from_slice(&row);
        Ok(())
    }

    /// The worker of all threads; a new one if it has ended.
    fn shared_worker(&self) -> Result<Arc<WorkerProcess>, String> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.has_ended() {
            *worker = Arc::new(self.start()?);
        }
        Ok(worker.clone())
    }

    fn embed_in_own_worker(&self, image: &[f32]) -> protocol::EmbeddingReply {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        self.start()?.embed(image)?
    }

    fn start(&self) -> Result<WorkerProcess, String> {
        Ok(WorkerProcess::start(&self.process, &self.bytes, &self.request)?.0)
    }
}
