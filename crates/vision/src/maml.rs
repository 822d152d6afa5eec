//! MAML (Finn et al., ICML 2017) as a method ([`Maml`]): a network that is adapted to every support set, the labelled
//! items of an episode, by gradient descent. [`training::maml`](crate::training::maml) trains it.
//!
//! Its rows are images, not embeddings: pixels from [`Dataset::rows`](crate::Dataset::rows). [`register`] adds the
//! method to the registry of the core, which does not know images. `move_to_gpu` (feature `cuda`) adapts on a GPU
//! instead of the CPU.

#[cfg(feature = "cuda")]
mod gpu;

#[cfg(feature = "cuda")]
pub use gpu::{GpuImages, move_to_gpu};
#[cfg(feature = "cuda")]
pub(crate) use gpu::{GpuMaml, GpuTasks};

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use trueshot::classifier::{Classifier, Scorer};
use trueshot::method::{Fitted, ImageRows, Method, MethodInfo, Parameter, Parameters, Registry};
use trueshot::model::Model;
use trueshot::rng::Rng;
use trueshot::task::{Queries, Task};
use trueshot::tensors::Tensors;
use trueshot_nn::conv4::Shape;
use trueshot_nn::maml::{self, Adaptation, LabelledImages, MamlLearner, ModelSize};

use crate::backbone::{read_preprocessing_notes, write_preprocessing_notes};
use crate::error::Error;
use crate::preprocess::Preprocessing;

/// The kind in model files.
pub const KIND: &str = "maml";
/// The most classes of a model: limits the memory that an untrusted file can make this program allocate.
pub const MAX_WAYS: usize = 1000;

const INFO: MethodInfo = MethodInfo {
    name: KIND,
    summary: "a network adapted to the support set by gradient descent; takes images",
    parameters: &[
        Parameter { name: "model", default: "", meaning: "model file written by `trueshot train maml`" },
        Parameter {
            name: "steps",
            default: "trained",
            meaning: "adaptation steps, or 'trained': those of the model",
        },
        Parameter {
            name: "rate",
            default: "trained",
            meaning: "learning rate of the adaptation, or 'trained': that of the model",
        },
    ],
    transductive: true,
    build: |given: &Parameters| {
        let path = given.file("model", "the file of a trained maml model")?;
        let mut method = Maml::open(path)?;
        if given.text("steps") != "trained" {
            method.adaptation.steps = given.count("steps")?;
        }
        if given.text("rate") != "trained" {
            method.adaptation.rate = given.positive("rate")?;
        }
        Ok(Box::new(method))
    },
};

/// Adds the method to a registry.
pub fn register(registry: &mut Registry) {
    registry.register(INFO);
}

/// The configuration in a model file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MamlConfig {
    /// The number of classes.
    pub ways: usize,
    /// The learning rate of the adaptation.
    pub rate: f32,
    /// The number of adaptation steps.
    pub steps: usize,
}

/// The method. Clones share the network.
#[derive(Clone)]
pub struct Maml {
    network: Arc<MamlNetwork>,
    /// The rate and number of the steps of gradient descent.
    adaptation: Adaptation,
}

/// The network, with working memory for its threads.
struct MamlNetwork {
    /// The shape of the images and the number of classes.
    size: ModelSize,
    preprocessing: Preprocessing,
    /// The trained parameters, from which every adaptation starts.
    parameters: Vec<f32>,
    /// Working memory that no thread is using.
    learners: Mutex<Vec<MamlLearner>>,
    /// The model file, for errors.
    path: PathBuf,
}

impl Maml {
    /// Reads a model file.
    pub fn open(path: &Path) -> trueshot::Result<Self> {
        let model = Model::open(path)?;
        model.expect_kind(KIND)?;
        let config: MamlConfig = model.config()?;
        let bad =
            |problem: String| trueshot::Error::Malformed { path: path.into(), format: "model", problem };
        let rate_fits = config.rate > 0.0 && config.rate.is_finite();
        if !rate_fits || !(2..=MAX_WAYS).contains(&config.ways) {
            let allowed = format!("ways are 2 to {MAX_WAYS}, the rate is above 0");
            return Err(bad(format!("its configuration is {config:?}; {allowed}")));
        }
        let preprocessing = read_preprocessing_notes(model.tensors(), KIND).map_err(|error| match error {
            Error::Core(error) => error,
            Error::NotABackbone { problem, .. } => bad(problem),
            error => bad(error.to_string()),
        })?;
        let size = model_size(&preprocessing, config.ways);
        let parameters = model.parameters(&maml::layout(size))?;
        Ok(Self::new(preprocessing, config, parameters, path.into()))
    }

    /// Makes a method of parameters in memory, for instance during training. Errors name the model `path`.
    pub fn new(
        preprocessing: Preprocessing,
        config: MamlConfig,
        parameters: Vec<f32>,
        path: PathBuf,
    ) -> Self {
        let size = model_size(&preprocessing, config.ways);
        let network = MamlNetwork { size, preprocessing, parameters, learners: Mutex::default(), path };
        let adaptation = Adaptation { rate: config.rate, steps: config.steps };
        Maml { network: Arc::new(network), adaptation }
    }

    /// The number of classes and the adaptation.
    #[cfg(feature = "cuda")]
    fn config(&self) -> MamlConfig {
        let Adaptation { rate, steps } = self.adaptation;
        MamlConfig { ways: self.network.size.ways, rate, steps }
    }
}

/// The tensors and notes of a model file.
pub fn model_file(preprocessing: &Preprocessing, config: &MamlConfig, parameters: &[f32]) -> Tensors {
    let layout = maml::layout(model_size(preprocessing, config.ways));
    let mut tensors = Model::new(KIND, config, &layout, parameters).tensors().clone();
    write_preprocessing_notes(&mut tensors, preprocessing, KIND);
    tensors
}

/// The size of the network for images with this preprocessing.
pub fn model_size(preprocessing: &Preprocessing, ways: usize) -> ModelSize {
    ModelSize { shape: Shape { size: preprocessing.size, channels: preprocessing.channels.count() }, ways }
}

impl Method for Maml {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> trueshot::Result<Fitted> {
        let (network, support) = (&self.network, &task.support);
        network.check(support.dim(), support.classes())?;
        let images = network.normalise_rows(support.rows());
        let support = LabelledImages { images: &images, classes: support.given() };
        let adapted =
            network.with_learner(|learner| learner.adapt(&network.parameters, support, self.adaptation));
        let scorer = Adapted { network: Arc::clone(network), parameters: adapted };
        Ok(Fitted { classifier: Classifier::Scored(Arc::new(scorer)), assessments: None })
    }

    /// Batch normalisation uses the statistics of all queries.
    fn is_transductive(&self) -> bool {
        true
    }

    fn image_rows(&self) -> Option<ImageRows> {
        let Shape { size, channels } = self.network.size.shape;
        Some(ImageRows { size, channels })
    }
}

impl MamlNetwork {
    /// Checks that the network fits rows of length `dim` and episodes of this number of classes.
    fn check(&self, dim: usize, classes: usize) -> trueshot::Result<()> {
        let ModelSize { shape, ways } = self.size;
        if dim != shape.pixels() {
            let (path, model) = (self.path.clone(), shape.pixels());
            return Err(trueshot::Error::ModelDimension { path, features: dim, model });
        }
        if classes != ways {
            return Err(trueshot::Error::OutOfRange {
                what: "the number of ways",
                given: classes.to_string(),
                allowed: format!("{ways}, the classes of the model in {}", self.path.display()),
            });
        }
        Ok(())
    }

    /// Rows of pixels with values from 0 to 255 as normalised inputs of the network: `[row][column][channel]` of each.
    fn normalise_rows(&self, rows: &[&[f32]]) -> Vec<f32> {
        let pairs = self.preprocessing.scale_and_shift(255.0);
        let count = self.size.shape.channels;
        let mut out = Vec::with_capacity(rows.len() * self.size.shape.pixels());
        for pixel in rows.iter().flat_map(|row| row.chunks_exact(count)) {
            out.extend(pixel.iter().zip(pairs).map(|(value, [scale, shift])| value * scale + shift));
        }
        out
    }

    /// Calls `work` with a learner (the working memory of a thread) that no other thread is using.
    fn with_learner<T>(&self, work: impl FnOnce(&mut MamlLearner) -> T) -> T {
        let unused = self.learners.lock().expect("no thread panics while it holds the lock").pop();
        let mut learner = unused.unwrap_or_else(|| MamlLearner::new(self.size));
        let out = work(&mut learner);
        self.learners.lock().expect("no thread panics while it holds the lock").push(learner);
        out
    }
}

/// A network adapted to a support set.
struct Adapted {
    network: Arc<MamlNetwork>,
    parameters: Vec<f32>,
}

impl std::fmt::Debug for Adapted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapted").field("network", &self.network.path).finish_non_exhaustive()
    }
}

impl Scorer for Adapted {
    /// `[class][query]`, from logits of shape `[query][class]`.
    fn scores(&self, queries: &Queries<'_>) -> Vec<Vec<f32>> {
        let images = self.network.normalise_rows(queries.rows());
        let logits = self.network.with_learner(|learner| learner.logits(&self.parameters, &images));
        let ways = self.network.size.ways;
        (0..ways).map(|class| logits.iter().skip(class).step_by(ways).copied().collect()).collect()
    }
}
