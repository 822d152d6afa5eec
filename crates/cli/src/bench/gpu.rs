//! The workloads that run on a GPU, set up with the sessions that training and embedding use. `bench.rs` calls the four
//! public functions, each of which uploads the data and returns a workload that is ready to be timed.
//!
//! A call runs [`STEP_SLOTS`] training steps, as the training loop does; the reported time is per step. Images and rows
//! are on the GPU, and a step includes the augmentation of its images.

use trueshot::rng::{Purpose, Rng};
use trueshot_cuda::conv4::{
    Conv4Embedding, Conv4Options, Conv4Training, DeviceImages, ImageRequest, Prototypes, STEP_SLOTS,
    StepImages,
};
use trueshot_cuda::relabel::{self, RelabelTraining};
use trueshot_cuda::tranfs::{self, TranfsTraining};
use trueshot_cuda::{Device, conv4};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::Shape;

use super::{
    CLASSES, DIM, IMAGES, ITEMS_AND_QUERIES, ITEMS_PER_CLASS, RELABEL_EPISODES, TRANFS_EPISODES, Workload,
    fresh_backbone, given_labels, query_labels, random_embeddings, true_labels,
};

/// Scale and shift of pixel values in [0, 1], per channel: values from -2 to 2, as on the CPU.
const NORMALISATION: [[f32; 2]; 3] = [[4.0, -2.0]; 3];
/// The parts of a training step. The episodes of a part share a dropout seed.
const PARTS: usize = 4;

/// Prepares a workload on a GPU, which is not timed.
pub type GpuSetUp = fn(&Device) -> anyhow::Result<Workload>;

/// The pixels of [`IMAGES`] random images, one byte per value.
fn random_bytes(shape: Shape) -> Vec<u8> {
    let mut rng = Rng::new(0, Purpose::Items, 1);
    (0..IMAGES * shape.pixels()).map(|_| rng.below(256) as u8).collect()
}

/// The embedding of [`IMAGES`] images of 84 px with a Conv4.
pub fn embedding(device: &Device) -> anyhow::Result<Workload> {
    let shape = Shape { size: 84, channels: 3 };
    let bytes = random_bytes(shape);
    let mut network = Conv4Embedding::new(device, shape, IMAGES, &fresh_backbone(shape), NORMALISATION)?;
    let work = move |_| {
        std::hint::black_box(network.embed(&bytes)?);
        Ok(())
    };
    let (forward, _) = shape.operations();
    Ok(Workload { work: Box::new(work), per_call: 1, operations: Some(IMAGES as u64 * forward) })
}

/// Training steps of a Conv4 on an episode of [`IMAGES`] images of `size` px.
pub fn backbone_step(device: &Device, size: usize) -> anyhow::Result<Workload> {
    let shape = Shape { size, channels: 3 };
    let options = Conv4Options {
        shape,
        classes: 5,
        support: 25,
        queries: 75,
        prototypes: Prototypes::Mean,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
    };
    let bytes = random_bytes(shape);
    // Each image with its height and width.
    let images = bytes.chunks_exact(shape.pixels()).map(|pixels| (pixels, size, size));
    let images = DeviceImages::upload(device, images, NORMALISATION)?;
    let mut training = Conv4Training::new(device, options, &fresh_backbone(shape), Some(images))?;
    // The whole image, every second one mirrored, with colour changes that change nothing: the factors are 1, and the
    // hue is shifted by 0. Each pair of bits in `jitters` is the kind of one of the four changes.
    let request = |image: u32| ImageRequest {
        image,
        crop: [0, 0, size as u16, size as u16],
        flip: image % 2,
        jitters: 0b11_10_01_00,
        values: [1.0, 1.0, 1.0, 0.0],
    };
    let step = conv4::StepInput {
        rate: 1e-3,
        labels: [given_labels(), query_labels()].concat(),
        images: StepImages::Requests((0..IMAGES as u32).map(request).collect()),
    };
    let steps = vec![step; STEP_SLOTS];
    let (forward, backward) = shape.operations();
    Ok(Workload {
        work: Box::new(move |_| Ok(training.run(&steps).map(drop)?)),
        per_call: STEP_SLOTS,
        operations: Some(IMAGES as u64 * (forward + backward)),
    })
}

/// The row of the data for the support item or query `index` of an episode: consecutive rows, as on the CPU
/// (`episode_rows`), from the first row again after the last.
fn row(episode: usize, index: usize) -> u32 {
    ((episode * ITEMS_AND_QUERIES + index) % (CLASSES * ITEMS_PER_CLASS)) as u32
}

/// Training steps of TraNFS on [`TRANFS_EPISODES`] episodes each.
pub fn tranfs_step(device: &Device) -> anyhow::Result<Workload> {
    let (network, parameters) = super::tranfs()?;
    let data = random_embeddings()?;
    // The rows, in the memory of the GPU.
    let rows = device.upload(data.features().as_f32().expect("made in memory, as f32"))?;
    let limits = tranfs::Limits { episodes: TRANFS_EPISODES, support: 25, queries: 75 };
    let options = tranfs::TranfsOptions { optimiser: AdamWConfig::default(), clip: 0.0, limits };
    let mut training = TranfsTraining::new(device, &network, options, &parameters, rows)?;
    let episode = |number: usize| tranfs::EpisodeInput {
        classes: 5,
        support: given_labels()
            .into_iter()
            .zip(true_labels())
            .enumerate()
            .map(|(item, (given, truth))| tranfs::SupportItem {
                row: row(number, item),
                given,
                mislabelled: truth != Some(given),
            })
            .collect(),
        queries: query_labels()
            .into_iter()
            .enumerate()
            .map(|(query, class)| tranfs::Query { row: row(number, 25 + query), class })
            .collect(),
    };
    let part = |part: usize| tranfs::PartInput {
        dropout_seed: part as u64,
        episodes: (0..TRANFS_EPISODES / PARTS).map(|i| episode(part * TRANFS_EPISODES / PARTS + i)).collect(),
    };
    let step =
        tranfs::StepInput { rate: 5e-4, parts: (0..PARTS).map(part).collect(), extra_rows: Vec::new() };
    let steps = vec![step; STEP_SLOTS];
    let work = move |_| Ok(training.run(&steps).map(drop)?);
    Ok(Workload { work: Box::new(work), per_call: STEP_SLOTS, operations: None })
}

/// Training steps of Relabel on [`RELABEL_EPISODES`] episodes each.
pub fn relabel_step(device: &Device) -> anyhow::Result<Workload> {
    let (network, parameters) = super::relabel();
    let data = random_embeddings()?;
    let values = data.features().as_f32().expect("made in memory, as f32");
    let sets = [relabel::FeatureSet { values, dim: DIM }];
    let options = relabel::OptimiserOptions::default();
    let mut training = RelabelTraining::new(device, &network, options, &parameters, &sets)?;
    let episode = |number: usize| relabel::EpisodeInput {
        classes: 5,
        given: given_labels(),
        truth: true_labels(),
        query_classes: query_labels(),
        rows: relabel::EpisodeRows::Stored(
            (0..ITEMS_AND_QUERIES).map(|index| relabel::StoredRow::new(0, row(number, index))).collect(),
        ),
    };
    let part = |part: usize| relabel::PartInput {
        episodes: (0..RELABEL_EPISODES / PARTS)
            .map(|i| episode(part * RELABEL_EPISODES / PARTS + i))
            .collect(),
        seed: part as u64,
    };
    let step = relabel::StepInput { rate: 5e-4, parts: (0..PARTS).map(part).collect() };
    let steps = vec![step; STEP_SLOTS];
    let work = move |_| Ok(training.run(&steps).map(drop)?);
    Ok(Workload { work: Box::new(work), per_call: STEP_SLOTS, operations: None })
}
