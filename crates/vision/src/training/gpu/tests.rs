//! Training and embedding on the emulated device against the CPU.

use trueshot::training::Trainee;
use trueshot_cuda::Device;

use super::super::{BackboneConfiguration, BackboneTrainee, Datasets};
use crate::backbone::{Backbone, BackboneOptions};
use crate::cache::CacheLocation;
use crate::dataset::Dataset;
use crate::drawing::Bitmap;
use crate::embedder::Embedder;
use crate::source::{Collection, SourceOptions};
use crate::split::Split;

/// The emulated device.
fn device() -> Device {
    Device::emulated(true)
}

/// A few drawings of each of the classes to validate on.
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
    assert_ne!(on_gpu.identity(), find("omniglot-conv4").identity(), "the cache keeps devices apart");
    let (gpu, cpu) = (embed(on_gpu), embed(find("omniglot-conv4")));
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    for (gpu, cpu) in gpu.iter().zip(&cpu) {
        let difference: Vec<f32> = gpu.iter().zip(cpu).map(|(gpu, cpu)| gpu - cpu).collect();
        assert!(norm(&difference) < 0.01 * norm(cpu), "{} of {}", norm(&difference), norm(cpu));
    }
}
