//! MAML on a GPU: [`move_to_gpu`] replaces the MAML methods of an evaluation by ones that adapt on the GPU
//! ([`GpuMaml`]).
//!
//! `trueshot eval` calls [`move_to_gpu`] before it evaluates; validation during training uses [`GpuMaml`] directly.
//!
//! The images of the data set and of the outliers are copied to the GPU once ([`GpuImages`]). A task is then a
//! list of image numbers, and several tasks are adapted at once. Batch norm sees the same batches as on the CPU: the
//! support set of a task, and all of its queries together.

use std::any::Any;
use std::sync::{Arc, Mutex};

use rayon::prelude::*;
use trueshot::Error;
use trueshot::episode::{EpisodeSpec, Item};
use trueshot::method::{Fitted, ImageRows, Method, NamedMethod, RowClassifier, RowPrediction, RowTask};
use trueshot::rng::{Purpose, Rng};
use trueshot::task::{Queries, SupportSet, Task};
use trueshot_cuda::Device;
use trueshot_cuda::conv4::{DeviceImages, ImageRequest};
use trueshot_cuda::maml::{EvaluationOptions, MamlEvaluation, MamlTask};
use trueshot_nn::maml::Adaptation;

use super::{Maml, MamlConfig, model_size};
use crate::augment::DrawnAugmentation;
use crate::dataset::Dataset;
use crate::decoded_image::DecodedImage;
use crate::preprocess::Preprocessing;
use crate::training::upload_images;

/// The most adaptation steps on a GPU, where each step is a part of one CUDA graph.
const MAX_STEPS: usize = 1000;

/// The images of an evaluation on a GPU. Clones share the memory.
#[derive(Clone)]
pub struct GpuImages {
    device: Device,
    /// The images of the data set, then the outliers.
    images: DeviceImages,
    dataset: Arc<Dataset>,
    outliers: Option<Arc<Dataset>>,
}

impl GpuImages {
    /// Copies the images of a data set and of the outlier pool to the GPU.
    ///
    /// # Errors
    /// If the memory of the GPU does not suffice.
    pub fn upload(
        device: &Device,
        dataset: Arc<Dataset>,
        outliers: Option<Arc<Dataset>>,
        preprocessing: &Preprocessing,
    ) -> trueshot::Result<Self> {
        let images = upload_images(device, [Some(&dataset), outliers.as_ref()], preprocessing)?;
        Ok(GpuImages { device: device.clone(), images, dataset, outliers })
    }

    /// The image at a row of the data set (or of the outlier pool), and its number on the GPU.
    fn image(&self, row: u32, is_outlier: bool) -> (&DecodedImage, u32) {
        let images = self.dataset.images();
        match (&self.outliers, is_outlier) {
            (Some(outliers), true) => (&outliers.images()[row as usize], images.len() as u32 + row),
            _ => (&images[row as usize], row),
        }
    }

    /// The images of a task: support items, then queries.
    fn of_task(&self, task: &RowTask<'_>) -> impl Iterator<Item = (&DecodedImage, u32)> {
        // An item without a true class is an outlier.
        let support = task.support.iter().map(|item: &Item| self.image(item.row, item.truth.is_none()));
        support.chain(task.queries().map(|row| self.image(row, false)))
    }

    /// The task in the form that the GPU takes.
    fn request(&self, task: &RowTask<'_>) -> MamlTask {
        let request = |(image, number): (&DecodedImage, u32)| -> ImageRequest {
            DrawnAugmentation::identity(image.width, image.height).request(number)
        };
        let given = task.support.iter().map(|item| item.given).collect();
        MamlTask { given, images: self.of_task(task).map(request).collect() }
    }
}

/// The memory on a GPU for tasks of one shape (numbers of classes, support items and queries), with their images.
pub(crate) struct GpuTasks {
    images: GpuImages,
    evaluation: Mutex<MamlEvaluation>,
}

impl GpuTasks {
    /// Memory for tasks of this shape and for networks of this kind; `episodes` is the number of tasks in most calls.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the GPU cannot adapt to such tasks, or its memory does not suffice.
    pub fn new(
        images: &GpuImages,
        preprocessing: &Preprocessing,
        config: &MamlConfig,
        spec: &EpisodeSpec,
        episodes: u64,
    ) -> trueshot::Result<Self> {
        check_tasks(config, spec)?;
        let options = EvaluationOptions {
            size: model_size(preprocessing, config.ways),
            support: spec.ways * spec.shots.min,
            queries: spec.ways * spec.queries,
            tasks: usize::try_from(episodes).unwrap_or(usize::MAX),
            adaptation: Adaptation { rate: config.rate, steps: config.steps },
        };
        let on_device = images.images.with_normalisation(preprocessing.scale_and_shift(1.0));
        let evaluation = MamlEvaluation::new(&images.device, options, on_device)?;
        Ok(GpuTasks { images: images.clone(), evaluation: Mutex::new(evaluation) })
    }
}

/// Refuses tasks that only the CPU can adapt to.
fn check_tasks(config: &MamlConfig, spec: &EpisodeSpec) -> trueshot::Result<()> {
    let refuse = |message: String, hint: &str| {
        Err(Error::Gpu { message, hint: format!("use the CPU, or {hint}"), checkpoint: None })
    };
    if spec.shots.min != spec.shots.max {
        let message =
            format!("on a GPU, MAML needs the same number of shots for all classes, not {}", spec.shots);
        return refuse(message, "a fixed number of shots");
    }
    if spec.queries == 0 {
        return refuse("on a GPU, MAML needs queries".into(), "1 or more queries per class");
    }
    if !(1..=MAX_STEPS).contains(&config.steps) {
        let message = format!("on a GPU, MAML takes 1 to {MAX_STEPS} adaptation steps, not {}", config.steps);
        return refuse(message, "another number of steps");
    }
    Ok(())
}

/// MAML with the data of an evaluation on a GPU.
///
/// Numbers are 16-bit floats on the GPU. Tasks whose activations or gradients exceed their range are computed on the
/// CPU.
pub(crate) struct GpuMaml {
    maml: Maml,
    tasks: Arc<GpuTasks>,
}

impl GpuMaml {
    /// A network of the kind that `tasks` has memory for.
    pub fn new(maml: Maml, tasks: Arc<GpuTasks>) -> Self {
        GpuMaml { maml, tasks }
    }

    /// The predicted class of every query, computed on the CPU.
    fn classify_on_cpu(&self, task: &RowTask<'_>) -> trueshot::Result<Vec<u32>> {
        let pixels = |image: &DecodedImage| image.pixels.iter().map(|&byte| f32::from(byte)).collect();
        let rows: Vec<Vec<f32>> = self.tasks.images.of_task(task).map(|(image, _)| pixels(image)).collect();
        let mut support: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let queries = Queries::new(support.split_off(task.support.len()));
        let given = task.support.iter().map(|item| item.given).collect();
        let task = Task::new(SupportSet::new(support, given, task.classes.len()));
        // MAML draws no random numbers.
        let mut rng = Rng::new(0, Purpose::Method, 0);
        Ok(self.maml.fit(&task, &mut rng)?.classifier.classify(&task, &queries, &mut rng))
    }
}

impl RowClassifier for GpuMaml {
    fn classify(&self, tasks: &[RowTask<'_>]) -> trueshot::Result<Vec<RowPrediction>> {
        let GpuTasks { images, evaluation } = &*self.tasks;
        let requests: Vec<MamlTask> = tasks.par_iter().map(|task| images.request(task)).collect();
        // Per task the logits `[query][class]`; `None` if a value exceeded the range of 16-bit floats.
        let logits = {
            let mut evaluation = evaluation.lock().expect("no thread panics while it holds the lock");
            evaluation.logits(&self.maml.network.parameters, &requests)?
        };
        let ways = self.maml.network.size.ways;
        let classes = |(task, logits): (&RowTask<'_>, Option<Vec<f32>>)| match logits {
            Some(logits) => Ok(logits.chunks_exact(ways).map(argmax).collect()),
            None => self.classify_on_cpu(task),
        };
        tasks.par_iter().zip(logits).map(|task| classes(task).map(RowPrediction::from)).collect()
    }
}

/// The class with the largest logit; of equal ones, the first.
fn argmax(logits: &[f32]) -> u32 {
    (1..logits.len()).fold(0, |best, way| if logits[way] > logits[best] { way } else { best }) as u32
}

impl Method for GpuMaml {
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> trueshot::Result<Fitted> {
        self.maml.fit(task, rng)
    }

    fn image_rows(&self) -> Option<ImageRows> {
        self.maml.image_rows()
    }

    fn is_transductive(&self) -> bool {
        self.maml.is_transductive()
    }

    fn row_classifier(&self) -> Option<&dyn RowClassifier> {
        Some(self)
    }
}

/// Replaces the MAML methods of an evaluation by ones that adapt on the GPU that holds `images`. The episodes of the
/// evaluation must be drawn from these images and have the shape `spec`; `episodes` is their number, 1 or more.
///
/// # Errors
/// [`Error::Gpu`] if the GPU cannot adapt to such episodes or its memory does not suffice, and the error of the CPU if
/// the model has another number of classes.
pub fn move_to_gpu(
    methods: &mut [NamedMethod],
    images: &GpuImages,
    spec: &EpisodeSpec,
    episodes: u64,
) -> trueshot::Result<()> {
    for named in methods {
        let method: &dyn Any = &*named.method;
        let Some(maml) = method.downcast_ref::<Maml>() else { continue };
        let network = &maml.network;
        network.check(network.size.shape.pixels(), spec.ways)?;
        let tasks = GpuTasks::new(images, &network.preprocessing, &maml.config(), spec, episodes)?;
        named.method = Box::new(GpuMaml::new(maml.clone(), Arc::new(tasks)));
    }
    Ok(())
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
