//! Batches of images for training steps, drawn, augmented and normalised: of one episode ([`EpisodeBatches`], to train
//! a backbone), of several episodes ([`TaskBatches`], MAML), or of all classes ([`ShuffledBatches`], NegMargin).
//!
//! Each is a [`BatchSource`]: threads of the [`Loader`](crate::loader::Loader) call its `make` for the next steps, and
//! a training session takes the batches. If a GPU prepares the images, a batch holds only their numbers and the drawn
//! augmentation. An image is given as a data set and the number of a row in it, because outliers, which outlier noise
//! puts into support sets under wrong labels, may come from a data set of their own.

use std::sync::Arc;

use trueshot::episode::{EpisodeSpec, Episodes, Sampler};
use trueshot::noise::Noise;
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot_nn::conv4::Shape;

use crate::augment::{Augmentation, Augmenter, DrawnAugmentation};
use crate::dataset::Dataset;
use crate::loader::BatchSource;
use crate::preprocess::Preprocessing;
use crate::training::configuration::ImageSettings;

/// Augments and normalises images for a network, on the CPU or as requests to a GPU.
pub(super) struct ImagePreparer {
    /// The images to train on.
    pub dataset: Arc<Dataset>,
    preprocessing: Preprocessing,
    /// `None`: images are not augmented.
    augmentation: Option<Augmentation>,
    /// The seed of the augmentation.
    seed: u64,
}

impl ImagePreparer {
    /// A preparer of the images of `dataset`. The augmentation is used only if the settings say so.
    pub fn new(
        dataset: Arc<Dataset>,
        settings: &ImageSettings,
        augmentation: &Augmentation,
        seed: u64,
    ) -> Self {
        let augmentation = settings.augment.then(|| augmentation.clone());
        ImagePreparer { dataset, preprocessing: settings.preprocessing(), augmentation, seed }
    }

    /// The shape of the prepared images.
    pub fn shape(&self) -> Shape {
        super::shape(&self.preprocessing)
    }

    /// Prepares images, each a row of a data set, with the augmentation of this step. Writes them to `inputs`, which is
    /// resized to `[image][row][column][channel]`.
    pub fn prepare(
        &self,
        rows: &[(&Dataset, u32)],
        step: u64,
        augmenter: &mut Augmenter,
        inputs: &mut Vec<f32>,
    ) {
        let input_len = self.preprocessing.input_len();
        inputs.resize(rows.len() * input_len, 0.0);
        for (&(dataset, row), input) in rows.iter().zip(inputs.chunks_exact_mut(input_len)) {
            let image = &dataset.images()[row as usize];
            match self.draw(dataset, row, step) {
                None => self.preprocessing.normalise(image, input),
                Some(drawn) => augmenter.apply(image, &drawn, &self.preprocessing, input),
            }
        }
    }

    /// Draws the augmentation of an image in this step; `None` if images are not augmented.
    fn draw(&self, dataset: &Dataset, row: u32, step: u64) -> Option<DrawnAugmentation> {
        let augmentation = self.augmentation.as_ref()?;
        let (image, key) = (&dataset.images()[row as usize], dataset.key(row as usize));
        Some(augmentation.draw(self.seed, key, step, image.width, image.height))
    }
}

#[cfg(feature = "cuda")]
impl ImagePreparer {
    /// The images that [`Self::prepare`] prepares, as requests for a GPU that holds the images of the data set to train
    /// on, followed by the outliers.
    pub fn requests(&self, rows: &[(&Dataset, u32)], step: u64) -> Vec<trueshot_cuda::conv4::ImageRequest> {
        let first_outlier = self.dataset.images().len() as u32;
        let request = |&(dataset, row): &(&Dataset, u32)| {
            let image = &dataset.images()[row as usize];
            let drawn = self.draw(dataset, row, step);
            let drawn = drawn.unwrap_or_else(|| DrawnAugmentation::identity(image.width, image.height));
            let is_outlier = !std::ptr::eq(dataset, &*self.dataset);
            drawn.request(if is_outlier { first_outlier + row } else { row })
        };
        rows.iter().map(request).collect()
    }
}

/// The prepared images and labels of one episode.
pub(super) struct EpisodeBatch {
    /// Support items, then queries: `[image][row][column][channel]`, normalised. Empty if a GPU prepares the images.
    pub images: Vec<f32>,
    /// The images that a GPU prepares, in the same order; an image is numbered by its position in the training data
    /// followed by the outliers. Empty if the CPU prepares the images.
    #[cfg(feature = "cuda")]
    pub requests: Vec<trueshot_cuda::conv4::ImageRequest>,
    /// The given label of each support item.
    pub given: Vec<u32>,
    /// The class of each query.
    pub query_classes: Vec<u32>,
}

/// Draws one episode per step and prepares its images.
pub(super) struct EpisodeBatches {
    pub preparer: ImagePreparer,
    /// The source of outlier noise; `None`: classes of the data set that are not in the episode.
    pub outliers: Option<Arc<Dataset>>,
    /// Numbers of classes, support items and queries.
    pub spec: EpisodeSpec,
    /// The noise settings, of which every episode gets one at random.
    pub noises: Vec<Noise>,
    /// Whether a GPU prepares the images.
    pub on_gpu: bool,
}

impl EpisodeBatches {
    /// Checks that every episode can be drawn.
    pub fn check(&self) -> trueshot::Result<()> {
        self.sampler(self.noises.clone()).map(drop)
    }

    /// The sampler of episodes with these noise settings.
    fn sampler(&self, noises: Vec<Noise>) -> trueshot::Result<Sampler<'_>> {
        let outliers = self.outliers.as_deref().map(Dataset::labels);
        Sampler::new(self.preparer.dataset.labels(), outliers, self.spec, noises)
    }

    /// The number of images in an episode.
    pub fn images(&self) -> usize {
        self.spec.ways * (self.spec.shots.max + self.spec.queries)
    }

    /// Draws the episode of a step: its images, support items first, the given label of each support item, and the
    /// class of each query.
    fn draw(
        &self,
        step: u64,
        index_sampler: &mut IndexSampler,
    ) -> (Vec<(&Dataset, u32)>, Vec<u32>, Vec<u32>) {
        // The noise setting depends on the seed and the step only.
        let noise_index = Rng::new(self.spec.seed, Purpose::Training, step).below(self.noises.len());
        let sampler = self.sampler(vec![self.noises[noise_index]]).expect("checked before");
        let drawn = sampler.draw(step, index_sampler).expect("a possible noise has a draw");
        let dataset = &*self.preparer.dataset;
        let outliers = self.outliers.as_deref().unwrap_or(dataset);
        let (mut rows, mut given, mut query_classes) = (Vec::new(), Vec::new(), Vec::new());
        // One support set, since the sampler has one noise setting. An item without a true class is an outlier.
        for item in &drawn.supports[0] {
            rows.push((item.truth.map_or(outliers, |_| dataset), item.row));
            given.push(item.given);
        }
        for (class, drawn_class) in drawn.episode.classes.iter().enumerate() {
            rows.extend(drawn_class.queries.iter().map(|&row| (dataset, row)));
            query_classes.extend(drawn_class.queries.iter().map(|_| class as u32));
        }
        (rows, given, query_classes)
    }
}

impl BatchSource for EpisodeBatches {
    type Batch = EpisodeBatch;
    type Scratch = (IndexSampler, Augmenter);

    fn scratch(&self) -> (IndexSampler, Augmenter) {
        (IndexSampler::default(), Augmenter::default())
    }

    fn make(
        &self,
        step: u64,
        (index_sampler, augmenter): &mut (IndexSampler, Augmenter),
        old: Option<EpisodeBatch>,
    ) -> EpisodeBatch {
        let (rows, given, query_classes) = self.draw(step, index_sampler);
        let mut images = old.map(|batch| batch.images).unwrap_or_default();
        if !self.on_gpu {
            self.preparer.prepare(&rows, step, augmenter, &mut images);
        }
        EpisodeBatch {
            images,
            #[cfg(feature = "cuda")]
            requests: if self.on_gpu { self.preparer.requests(&rows, step) } else { Vec::new() },
            given,
            query_classes,
        }
    }
}

/// Draws several episodes per step, which MAML calls tasks.
pub(super) struct TaskBatches {
    pub episodes: EpisodeBatches,
    /// Episodes per step.
    pub per_step: usize,
}

impl BatchSource for TaskBatches {
    type Batch = Vec<EpisodeBatch>;
    type Scratch = (IndexSampler, Augmenter);

    fn scratch(&self) -> (IndexSampler, Augmenter) {
        self.episodes.scratch()
    }

    fn make(
        &self,
        step: u64,
        scratch: &mut (IndexSampler, Augmenter),
        old: Option<Vec<EpisodeBatch>>,
    ) -> Vec<EpisodeBatch> {
        let mut old = old.unwrap_or_default().into_iter();
        // Episodes are numbered through all steps, so that no episode is repeated.
        let first = step * self.per_step as u64;
        let episodes = first..first + self.per_step as u64;
        episodes.map(|episode| self.episodes.make(episode, scratch, old.next())).collect()
    }
}

/// Shuffled batches of images of all classes. Every pass over the data has a new random order. The images at the end of
/// the order that do not fill a batch are left out of this pass.
pub(super) struct ShuffledBatches {
    pub preparer: ImagePreparer,
    /// Images per batch; at most the number of images.
    pub size: usize,
    /// Whether a GPU prepares the images.
    pub on_gpu: bool,
}

/// Images with their classes.
pub(super) struct LabelledBatch {
    /// `[image][row][column][channel]`, normalised. Empty if a GPU prepares the images.
    pub images: Vec<f32>,
    /// The images that a GPU prepares. Empty if the CPU prepares the images.
    #[cfg(feature = "cuda")]
    pub requests: Vec<trueshot_cuda::conv4::ImageRequest>,
    /// The class of each image.
    pub classes: Vec<u32>,
}

/// The random order of one pass over all images. A thread keeps the order of its last step, because consecutive steps
/// are mostly in the same pass.
pub(super) struct PassOrder {
    /// The number of the pass, from 0.
    pass: u64,
    /// The rows of the data set in this order.
    rows: Vec<u32>,
}

impl ShuffledBatches {
    /// Draws the order of a pass.
    fn order(&self, pass: u64) -> PassOrder {
        let mut rows: Vec<u32> = (0..self.preparer.dataset.images().len() as u32).collect();
        Rng::new(self.preparer.seed, Purpose::Training, pass).shuffle(&mut rows);
        PassOrder { pass, rows }
    }
}

impl BatchSource for ShuffledBatches {
    type Batch = LabelledBatch;
    type Scratch = (PassOrder, Augmenter);

    fn scratch(&self) -> (PassOrder, Augmenter) {
        (self.order(0), Augmenter::default())
    }

    fn make(
        &self,
        step: u64,
        (order, augmenter): &mut (PassOrder, Augmenter),
        old: Option<LabelledBatch>,
    ) -> LabelledBatch {
        // The pass that this step belongs to, and the batch in the pass.
        let batches_per_pass = (order.rows.len() / self.size).max(1) as u64;
        let (pass, batch) = (step / batches_per_pass, (step % batches_per_pass) as usize);
        if order.pass != pass {
            *order = self.order(pass);
        }
        let dataset = &*self.preparer.dataset;
        let batch_rows = &order.rows[batch * self.size..(batch + 1) * self.size];
        let rows: Vec<(&Dataset, u32)> = batch_rows.iter().map(|&row| (dataset, row)).collect();
        let mut images = old.map(|batch| batch.images).unwrap_or_default();
        if !self.on_gpu {
            self.preparer.prepare(&rows, step, augmenter, &mut images);
        }
        let labels = dataset.labels().labels();
        LabelledBatch {
            images,
            #[cfg(feature = "cuda")]
            requests: if self.on_gpu { self.preparer.requests(&rows, step) } else { Vec::new() },
            classes: batch_rows.iter().map(|&row| labels[row as usize]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_has_each_image_at_most_once_in_a_new_order_and_only_full_batches() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..11_u8 {
            let class = folder.path().join(format!("class {}", number % 2));
            std::fs::create_dir_all(&class).unwrap();
            let image = image::GrayImage::from_pixel(8, 8, image::Luma([20 * number]));
            image.save(class.join(format!("{number}.png"))).unwrap();
        }
        let mut configuration = crate::training::BackboneConfiguration::photographs();
        configuration.pictures =
            ImageSettings { size: 8, colour: false, augment: false, ..configuration.pictures };
        let collection = crate::Collection::open(folder.path(), crate::SourceOptions::default()).unwrap();
        let preprocessing = configuration.pictures.preprocessing();
        let dataset = Dataset::load(&collection, &preprocessing, false, &()).unwrap();
        let preparer =
            ImagePreparer::new(Arc::new(dataset), &configuration.pictures, &configuration.augmentation, 5);
        let batches = ShuffledBatches { preparer, size: 3, on_gpu: false };
        let mut scratch = batches.scratch();
        // Every image has its own colour, by which it is recognised.
        let mut pass = |pass: u64| -> Vec<u32> {
            let steps = 3 * pass..3 * pass + 3;
            let batch = |step| batches.make(step, &mut scratch, None).images;
            steps.flat_map(batch).step_by(64).map(f32::to_bits).collect()
        };
        let (first, second) = (pass(0), pass(1));
        for pass in [&first, &second] {
            assert_eq!(pass.len(), 9, "two of eleven images do not fill a batch of three");
            let distinct: std::collections::BTreeSet<&u32> = pass.iter().collect();
            assert_eq!(distinct.len(), 9, "no image is in a pass twice");
        }
        assert_ne!(first, second);
    }
}
