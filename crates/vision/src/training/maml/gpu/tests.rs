//! Training of MAML on the emulated device against the CPU.

use trueshot::training::Trainee;
use trueshot_cuda::Device;

use super::super::{GradientOrderSetting, MamlConfiguration, MamlTrainee};
use crate::dataset::Dataset;
use crate::source::{Collection, SourceOptions};
use crate::split::Split;
use crate::training::Datasets;

/// A few drawings of each class of a split.
fn drawings(split: &str, configuration: &MamlConfiguration) -> Dataset {
    let mut collection = Collection::open("omniglot", SourceOptions::default()).unwrap();
    collection.keep_split(&Split::omniglot(split).unwrap()).unwrap();
    collection.keep_first(4);
    let pictures = &configuration.pictures;
    Dataset::load(&collection, &pictures.preprocessing(), pictures.augment, &()).unwrap()
}

/// A configuration of small episodes and images, since the emulator is slow.
fn configuration(order: GradientOrderSetting) -> MamlConfiguration {
    let mut configuration = MamlConfiguration::drawings();
    configuration.pictures.size = 16;
    configuration.steps = 4;
    configuration.episodes.per_step = 2;
    (configuration.episodes.ways, configuration.episodes.shots, configuration.episodes.queries) = (2, 1, 1);
    (configuration.adaptation.inner_steps, configuration.adaptation.test_steps) = (2, 1);
    configuration.adaptation.order = order;
    let validation = &mut configuration.validation;
    (validation.ways, validation.shots, validation.queries, validation.episodes) = (2, 1, 2, 5);
    configuration
}

#[test]
fn a_step_has_nearly_the_loss_of_the_cpu_with_stored_and_with_streamed_images() {
    let configuration = configuration(GradientOrderSetting::Second);
    let datasets = || Datasets::new(drawings("val", &configuration), None);
    let on_gpu = |most_bytes| {
        MamlTrainee::on_gpu_with(configuration.clone(), datasets(), &Device::emulated(true), most_bytes)
            .unwrap()
    };
    let mut cpu = MamlTrainee::new(configuration.clone(), datasets()).unwrap();
    let (mut stored, mut streamed) = (on_gpu(None), on_gpu(Some(0)));
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
fn a_resumed_run_has_the_same_bits_and_the_cpu_continues_it() {
    let configuration = configuration(GradientOrderSetting::First);
    let datasets = || Datasets::new(drawings("val", &configuration), None);
    let on_gpu = || MamlTrainee::on_gpu(configuration.clone(), datasets(), &Device::emulated(true)).unwrap();
    let mut uninterrupted = on_gpu();
    uninterrupted.steps(0, 2).unwrap();
    let checkpoint = uninterrupted.state().unwrap();
    let losses = uninterrupted.steps(2, 1).unwrap();
    let mut resumed = on_gpu();
    resumed.restore(&checkpoint).unwrap();
    assert_eq!(resumed.steps(2, 1).unwrap(), losses);
    assert_eq!(resumed.parameters().unwrap(), uninterrupted.parameters().unwrap());
    let mut cpu = MamlTrainee::new(configuration.clone(), datasets()).unwrap();
    cpu.restore(&checkpoint).unwrap();
    let (loss, expected) = (cpu.step(2).unwrap()[0], losses[0][0]);
    assert!((loss - expected).abs() < 0.02 * (1.0 + loss), "{loss} on the CPU, {expected} on the GPU");
    let mut from_cpu = on_gpu();
    from_cpu.restore(&cpu.state().unwrap()).unwrap();
    assert_eq!(from_cpu.parameters().unwrap(), cpu.parameters().unwrap());
}

/// Drawings of horizontal and vertical stripes, with some random dots.
fn stripes(configuration: &MamlConfiguration) -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 1_u32;
    for number in 0..16_u32 {
        let class = folder.path().join(["horizontal", "vertical"][number as usize % 2]);
        std::fs::create_dir_all(&class).unwrap();
        let image = image::GrayImage::from_fn(16, 16, |x, y| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let position = if number % 2 == 0 { y } else { x } + number / 2;
            image::Luma([if position % 4 < 2 || state >> 28 == 0 { 0 } else { 255 }])
        });
        image.save(class.join(format!("{number}.png"))).unwrap();
    }
    let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
    Dataset::load(&collection, &configuration.pictures.preprocessing(), false, &()).unwrap()
}

#[test]
fn validation_has_nearly_the_accuracy_of_the_cpu() {
    let mut configuration = configuration(GradientOrderSetting::First);
    (configuration.adaptation.inner_rate, configuration.adaptation.test_steps) = (0.05, 3);
    let datasets = || Datasets::new(drawings("val", &configuration), Some(stripes(&configuration)));
    let mut cpu = MamlTrainee::new(configuration.clone(), datasets()).unwrap();
    let mut gpu = MamlTrainee::on_gpu(configuration.clone(), datasets(), &Device::emulated(true)).unwrap();
    let (cpu, gpu) = (cpu.validate().unwrap().unwrap(), gpu.validate().unwrap().unwrap());
    assert_eq!(gpu.figures.len(), cpu.figures.len());
    assert_eq!(gpu.figures[0].0, cpu.figures[0].0);
    // One of the 20 queries may be classified differently.
    assert!((gpu.score - cpu.score).abs() < 5.1, "{} on the GPU, {} on the CPU", gpu.score, cpu.score);
    assert!(cpu.score > 70.0, "far from chance: {}", cpu.score);
}
