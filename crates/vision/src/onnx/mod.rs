//! Image models in ONNX as backbones, executed by the library rten. Each model runs in a worker process.
//!
//! A program calls [`run_models_in`] once to say how a worker is started, and [`serve`] when it is started as a worker;
//! then [`Backbone::find`](crate::Backbone::find) opens models. In this module, `open` and `load` make an
//! `OnnxNetwork`; `process` is the parent's side of a worker, `worker` its main function, `protocol` their messages,
//! and `model` runs a model inside the worker.
//!
//! The layout of the channels and a fixed image size are read from the shape of the model's input. Mean, standard
//! deviation and the choice of the output are not in the file: they come from options, from a TOML file next to the
//! model, or else have the usual values of ImageNet. One image goes through the network at a time, on one thread,
//! so that an embedding depends on nothing but its image.
//!
//! # A process of its own
//!
//! A model is a program written by someone else. A file of two hundred bytes can allocate 110 GB: `ConstantOfShape`,
//! `Expand`, `Tile`, `Range`, `Pad`, `Resize` and others take the size of their output from a value, and rten evaluates
//! constants while it loads the file. A long chain of nodes overflows the stack of rten's planner, and a `Loop` need
//! not end. A process cannot catch running out of memory or stack.
//!
//! So a model is loaded and run in a worker process (`worker`): the same program with other arguments
//! ([`ModelProcess`]), limits on memory and processor time that the operating system enforces, and a large stack. A
//! model that exceeds a limit ends its worker, and this program reports which limit it was. All threads share one
//! worker, so the weights are in memory once; an image costs a copy through a pipe.
//!
//! The alternative, computing the shapes of all values in advance, would need a rule for each of the 150 operators of
//! rten, could not handle shapes that depend on values, and would still trust rten to allocate nothing else.
//!
//! If a worker ends, every image it was processing is tried again in a worker of its own, so that only the images that
//! cause the failure are lost. `file_check` checks a file first, because its errors are more precise.
//!
//! # Precision and files
//!
//! rten computes in f32: f16 weights are converted when they are loaded, and f16 inputs and outputs are f32. Weights in
//! other files are put into the model before anything else looks at it (`external_data`).

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

/// The largest model, including weights in other files: 2 GiB.
const MAX_MODEL_BYTES: u64 = 2 << 30;
/// Numbers of classes of common ImageNet classifiers. An output of this length is probably a score per class.
const CLASS_COUNTS: [usize; 5] = [1000, 1001, 21_841, 21_843, 11_221];

/// How workers are started; `None` until [`run_models_in`] is called.
static PROCESS: Mutex<Option<ModelProcess>> = Mutex::new(None);

/// Sets how to start the worker process that runs ONNX models. Required before the first ONNX model is opened; models
/// that are open already are not affected.
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

/// The worker process of a model, and what is needed to start it again.
struct OnnxWorker {
    process: ModelProcess,
    /// The model file, for a new worker.
    bytes: Vec<u8>,
    request: LoadRequest,
    description: ModelDescription,
    worker: Mutex<Arc<WorkerProcess>>,
    /// Held while an image is tried in its own worker, so that there is one such worker at a time.
    alone: Mutex<()>,
}

/// An opened model, from which [`Backbone`](crate::Backbone) is made.
pub(crate) struct OnnxModel {
    pub network: OnnxNetwork,
    pub preprocessing: Preprocessing,
    /// The differences of the preprocessing from the one without options, for the name of the backbone.
    pub differences: String,
    /// The name of the output.
    pub output: String,
    /// The first 16 hexadecimal digits of the hash of the file.
    pub hash: String,
    /// A warning for the user.
    pub warning: Option<String>,
}

/// Opens a model file. Options that are not given come from the TOML file next to it.
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

/// The options in `model.toml` next to `model.onnx`.
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

/// Refuses files that are not ONNX or claim more than they contain.
pub(crate) fn check(bytes: &[u8], path: &Path) -> Result<()> {
    file_check::check(bytes).map_err(|problem| bad(path, problem.to_string()))
}

/// Opens a model in memory; messages name it `path`.
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
    let without_options = preprocessing(&description, &BackboneOptions::default())?;
    let preprocessing = preprocessing(&description, options)?;
    let differences = preprocessing.differences(&without_options);
    let (output, warning) = (description.output.clone(), warning(&description));
    let worker = Mutex::new(Arc::new(worker));
    let worker = OnnxWorker { process, bytes, request, description, worker, alone: Mutex::default() };
    let network = OnnxNetwork(Arc::new(worker));
    Ok(OnnxModel { network, preprocessing, differences, output, hash, warning })
}

/// An error about a model.
fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::BadModel { path: path.into(), problem: problem.into(), hint: None }
}

/// The preprocessing of images for a model: from its input, the options, and otherwise the usual values.
fn preprocessing(model: &ModelDescription, options: &BackboneOptions) -> Result<Preprocessing> {
    let imagenet = Preprocessing::colour(model.size);
    let (channels, mean, std) = match model.channels {
        // Values from -1 to 1: ImageNet has no grey images.
        1 => (Channels::Grey, vec![0.5], vec![0.5]),
        _ => (Channels::Colour, imagenet.mean.clone(), imagenet.std.clone()),
    };
    let preprocessing = Preprocessing {
        channels,
        mean: options.mean.clone().unwrap_or(mean),
        std: options.std.clone().unwrap_or(std),
        fit: options.fit.unwrap_or_default(),
        resampling: options.resampling.unwrap_or_default(),
        ..imagenet
    };
    preprocessing.check()?;
    Ok(preprocessing)
}

/// A warning if the output looks like scores of classes rather than features.
fn warning(model: &ModelDescription) -> Option<String> {
    let ModelDescription { output, dim, .. } = model;
    let lower = output.to_lowercase();
    let is_named_so = ["logit", "prob", "softmax", "class"].iter().any(|word| lower.contains(word));
    (is_named_so || CLASS_COUNTS.contains(dim)).then(|| {
        format!(
            "output '{output}' ({dim} numbers) looks like a score per class; features from before the last layer are better"
        )
    })
}

impl OnnxNetwork {
    /// The parts of the model for an exported classifier. Messages name the model `name`.
    ///
    /// # Errors
    /// If its operator set is too old for the nodes of a classifier.
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
    /// The number of values in one input image.
    fn input_len(&self) -> usize {
        self.description.size * self.description.size * self.description.channels
    }

    /// Embeds one normalised image (`[row, column, channel]`). Any number of threads may call this at the same time.
    fn embed(&self, image: &[f32], out: &mut [f32]) -> Result<(), Unreadable> {
        let row = match self.shared_worker().and_then(|worker| worker.embed(image)) {
            Ok(row) => row,
            // There is no worker any more. The cause may be this image, or another that was processed at the same time.
            Err(_) => self.embed_in_own_worker(image),
        };
        let row = row.map_err(Unreadable::Network)?;
        if row.len() != out.len() {
            return Err(Unreadable::Network(format!("{} numbers instead of {}", row.len(), out.len())));
        }
        out.copy_from_slice(&row);
        Ok(())
    }

    /// The worker that all threads share; a new one if it has ended.
    fn shared_worker(&self) -> Result<Arc<WorkerProcess>, String> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.has_ended() {
            *worker = Arc::new(self.start()?);
        }
        Ok(worker.clone())
    }

    /// Embeds an image in a worker that processes nothing else, so that an error is that of this image.
    fn embed_in_own_worker(&self, image: &[f32]) -> protocol::EmbeddingReply {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        self.start()?.embed(image)?
    }

    /// Starts a worker with this model.
    fn start(&self) -> Result<WorkerProcess, String> {
        Ok(WorkerProcess::start(&self.process, &self.bytes, &self.request)?.0)
    }
}
