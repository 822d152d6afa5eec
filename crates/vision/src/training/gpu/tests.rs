//! Training and embedding on the emulated device against the CPU.

use trueshot::training::Trainee;
use trueshot_cuda::Device;

use super::super::negmargin::{NegMarginConfiguration, NegMarginTrainee};
use super::super::{BackboneConfiguration, BackboneTrainee, Datasets};
use crate::backbone::{Backbone, BackboneOptions};
use crate::cache::CacheLocation;
use crate::dataset::Dataset;
use crate::drawing::Bitmap;
use crate::embedder::Embedder;
use crate::source::{Collection, SourceOptions};
use crate::split::Split;

/// The emulated device, with products rounded to f32 instead of to TF32 as on a GPU.
fn device() -> Device {
    Device::emulated(true)
}

/// A few drawings of each validation class.
fn drawings() -> Collection {
    let mut collection = Collection::open("omniglot", SourceOptions::default()).unwrap();
    collection.keep_split(&Split::omniglot("val").unwrap()).unwrap();
    collection.keep_first(3);
    collection
}

#[test]
fn a_backbone_whose_images_do_not_fit_into_the_gpu_trains_on_the_same_episodes() {
    let mut configuration = BackboneConfiguration::drawings();
    configuration.pictures.size = 16;
    configuration.steps = 1;
    configuration.episodes.ways = 2;
    configuration.episodes.shots = 1;
    configuration.episodes.queries = 1;
    let datasets = || {
        let train =
            Dataset::load(&drawings(), &configuration.preprocessing(), configuration.pictures.augment, &());
        Datasets::new(train.unwrap(), None)
    };
    // With 0 bytes, the images do not fit and are streamed.
    let on_gpu = |most_bytes| {
        BackboneTrainee::on_gpu_with(configuration.clone(), datasets(), &device(), most_bytes).unwrap()
    };
    let mut cpu = BackboneTrainee::new(configuration.clone(), datasets()).unwrap();
    let (mut stored, mut streamed) = (on_gpu(usize::MAX), on_gpu(0));
    assert!(stored.warnings().is_empty());
    assert!(streamed.warnings()[0].contains("MiB of GPU memory"), "{:?}", streamed.warnings());
    assert_eq!(streamed.device().as_deref(), Some("emulator"));
    let cpu = cpu.step(0).unwrap()[0];
    for trainee in [&mut stored, &mut streamed] {
        let gpu = trainee.steps(0, 1).unwrap()[0][0];
        assert!((gpu - cpu).abs() < 0.02 * (1.0 + cpu), "{gpu} on the GPU, {cpu} on the CPU");
    }
}

/// Four classes of five images with stripes, whose width depends on the class.
fn striped_images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, number) in (0..4).flat_map(|class| (0..5).map(move |number| (class, number))) {
        let path = folder.path().join(format!("class{class}"));
        std::fs::create_dir_all(&path).unwrap();
        let is_dark = |x: usize, y: usize| ((x + number * y) / (class + 1)).is_multiple_of(2);
        std::fs::write(path.join(format!("{number}.png")), Bitmap::from_fn(16, 16, is_dark).to_png())
            .unwrap();
    }
    folder
}

#[test]
fn negmargin_draws_the_same_batches_as_the_cpu_and_resumes_checkpoints_from_either_device() {
    let mut configuration = NegMarginConfiguration::drawings();
    configuration.pictures.size = 16;
    configuration.pictures.augment = true;
    configuration.steps = 4;
    configuration.loss.batch = 6;
    configuration.optimiser.clip = 1.0;
    let validation = &mut configuration.validation;
    (validation.ways, validation.shots, validation.queries, validation.episodes) = (3, 1, 1, 20);
    let folder = striped_images();
    let datasets = || {
        let preprocessing = configuration.pictures.preprocessing();
        let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
        let load = |augmented: bool| Dataset::load(&collection, &preprocessing, augmented, &()).unwrap();
        Datasets::new(load(true), Some(load(false)))
    };
    let on_cpu = || NegMarginTrainee::new(configuration.clone(), datasets()).unwrap();
    // With 0 bytes, the images do not fit and are streamed.
    let on_gpu = |most_bytes| {
        NegMarginTrainee::on_gpu_with(configuration.clone(), datasets(), &device(), most_bytes).unwrap()
    };
    let assert_close = |gpu: f64, cpu: f64| {
        assert!((gpu - cpu).abs() < 0.02 * (1.0 + cpu), "{gpu} on the GPU, {cpu} on the CPU");
    };
    let (mut cpu, mut stored, mut streamed) = (on_cpu(), on_gpu(usize::MAX), on_gpu(0));
    assert!(stored.warnings().is_empty());
    assert!(streamed.warnings()[0].contains("MiB of GPU memory"), "{:?}", streamed.warnings());
    assert_eq!(stored.device().as_deref(), Some("emulator"));
    let first = cpu.step(0).unwrap()[0];
    assert_close(streamed.step(0).unwrap()[0], first);
    let losses = stored.steps(0, 2).unwrap();
    assert_eq!(losses.len(), 2, "several steps at once");
    assert_close(losses[0][0], first);

    // From the GPU to another run on it, and to the CPU.
    let state = stored.state().unwrap();
    let (mut resumed, mut moved) = (on_gpu(usize::MAX), on_cpu());
    resumed.restore(&state).unwrap();
    moved.restore(&state).unwrap();
    let next = stored.step(2).unwrap()[0];
    assert_eq!(resumed.step(2).unwrap()[0], next);
    assert!(resumed.state().unwrap().to_bytes() == stored.state().unwrap().to_bytes());
    assert_close(next, moved.step(2).unwrap()[0]);
    // From the CPU to the GPU.
    resumed.restore(&cpu.state().unwrap()).unwrap();
    assert_close(resumed.step(1).unwrap()[0], cpu.step(1).unwrap()[0]);
    assert_eq!(resumed.parameters().unwrap().len(), cpu.parameters().unwrap().len());

    let score = |trainee: &mut NegMarginTrainee| {
        trainee.restore(&state).unwrap();
        trainee.validate().unwrap().unwrap().score
    };
    let (gpu, cpu) = (score(&mut stored), score(&mut cpu));
    assert!((gpu - cpu).abs() < 5.0, "{gpu} on the GPU, {cpu} on the CPU");
}

#[test]
fn a_conv4_embeds_on_the_gpu_nearly_as_on_the_cpu() {
    let find = |name: &str| Backbone::find(name, &BackboneOptions::default()).unwrap();
    let images = [3, 5, 9].map(|step| Bitmap::from_fn(28, 28, |x, y| (x + 2 * y) % step == 0).to_png());
    let embed = |backbone: Backbone| {
        let embedder = Embedder::new(backbone, &CacheLocation::Disabled);
        let rows = embedder.embed_bytes(&images).unwrap();
        rows.into_iter().map(|row| row.unwrap()).collect::<Vec<Vec<f32>>>()
    };
    let mut on_gpu = find("omniglot-conv4");
    on_gpu.move_to_gpu(&device()).unwrap();
    assert_eq!(on_gpu.device(), Some("emulator"));
    assert_ne!(on_gpu.identity(), find("omniglot-conv4").identity(), "each device has its own cache");
    let (gpu, cpu) = (embed(on_gpu), embed(find("omniglot-conv4")));
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    for (gpu, cpu) in gpu.iter().zip(&cpu) {
        let difference: Vec<f32> = gpu.iter().zip(cpu).map(|(gpu, cpu)| gpu - cpu).collect();
        assert!(norm(&difference) < 0.01 * norm(cpu), "{} of {}", norm(&difference), norm(cpu));
    }
}
