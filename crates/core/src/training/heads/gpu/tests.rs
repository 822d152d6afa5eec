//! Runs on the emulated device against runs on the CPU.

use trueshot_cuda::Device;

use super::super::configuration::{Configuration, CountRange};
use super::super::{HeadOptions, HeadTrainee};
use crate::Embeddings;
use crate::episode::EpisodeData;
use crate::error::Error;
use crate::method::{RelabelOptions, TranfsOptions};
use crate::rng::{Purpose, Rng};
use crate::training::{RunOptions, Start, Trainee, train};

/// The emulated device, without the rounding of TF32.
fn device() -> Device {
    Device::emulated(true)
}

/// Ten random rows per class, with larger values in the columns i of class c for which i % `classes` is c.
fn data(classes: usize, dim: usize, seed: u64) -> Embeddings {
    let mut rng = Rng::new(seed, Purpose::Items, 0);
    let labels = (0..classes * 10).map(|row| format!("{seed} {}", row / 10)).collect();
    let mut values = Vec::new();
    for row in 0..classes * 10 {
        values.extend((0..dim).map(|i| rng.uniform() + if row / 10 == i % classes { 1.0 } else { 0.0 }));
    }
    Embeddings::from_rows(values, dim, labels).unwrap()
}

/// Small episodes of different sizes, with blends, outliers and clipping.
fn small<M: HeadOptions>(mut configuration: Configuration<M>, model: M) -> Configuration<M> {
    let noise = |text: &str| text.parse().unwrap();
    configuration.data.train = vec!["train".into()];
    configuration.data.outliers = vec!["outliers".into()];
    configuration.seed = 5;
    configuration.steps = 4;
    configuration.parts = 2;
    configuration.episodes.per_step = 3;
    configuration.episodes.ways = vec![CountRange { min: 2, max: 3 }];
    configuration.episodes.shots = vec![CountRange::exactly(1), CountRange { min: 2, max: 3 }];
    configuration.episodes.queries = 2;
    configuration.episodes.noise = vec![noise("symmetric=0,40"), noise("outlier=0,50")];
    configuration.episodes.blended = 0.4;
    configuration.optimiser.clip = 0.5;
    configuration.validation.every = 4;
    configuration.validation.episodes = 5;
    configuration.validation.queries = 2;
    configuration.validation.ways = vec![CountRange::exactly(3)];
    configuration.validation.shots = vec![CountRange::exactly(2)];
    configuration.validation.noise = vec![noise("symmetric=0")];
    configuration.model = model;
    configuration
}

fn tranfs() -> Configuration<TranfsOptions> {
    let defaults = Configuration::<TranfsOptions>::tranfs();
    let model = TranfsOptions {
        layers: 1,
        width: 16,
        heads: 2,
        feed_forward: 24,
        dropout: 0.2,
        ..defaults.model.clone()
    };
    small(defaults, model)
}

fn relabel() -> Configuration<RelabelOptions> {
    let defaults = Configuration::<RelabelOptions>::relabel();
    let model = RelabelOptions {
        layers: 1,
        width: 16,
        heads: 2,
        hidden: 24,
        edge_hidden: 8,
        ..defaults.model.clone()
    };
    small(defaults, model)
}

/// Two data sets for training, each with outliers.
struct Sets {
    train: Embeddings,
    other: Embeddings,
    outliers: Embeddings,
    other_outliers: Embeddings,
}

impl Sets {
    /// The first data set has 8 dimensions, the second `dim`.
    fn new(dim: usize) -> Self {
        Sets {
            train: data(5, 8, 1),
            other: data(4, dim, 2),
            outliers: data(2, 8, 3),
            other_outliers: data(2, dim, 4),
        }
    }

    fn list(&self) -> Vec<EpisodeData<'_>> {
        vec![
            EpisodeData { embeddings: &self.train, outliers: Some(&self.outliers) },
            EpisodeData { embeddings: &self.other, outliers: Some(&self.other_outliers) },
        ]
    }
}

fn assert_close(gpu: &[f64], cpu: &[f64], what: &str) {
    assert_eq!(gpu.len(), cpu.len());
    for (gpu, cpu) in gpu.iter().zip(cpu) {
        assert!((gpu - cpu).abs() <= 1e-4 * (1.0 + cpu.abs()), "{what}: {gpu} on the GPU, {cpu} on the CPU");
    }
}

/// Four steps on both devices, with rows on the GPU and with rows that come with the steps; then the checkpoint of each
/// device is continued on the other.
fn check_against_the_cpu<M: HeadOptions>(configuration: &Configuration<M>, sets: &Sets) {
    // With a limit of 0 bytes, the rows are not stored on the GPU but streamed with the steps.
    let gpu = |most_bytes| {
        HeadTrainee::on_gpu_with(configuration, sets.list(), vec![], &device(), most_bytes).unwrap()
    };
    let (mut cpu, mut stored, mut streamed) =
        (HeadTrainee::new(configuration, sets.list(), vec![]).unwrap(), gpu(usize::MAX), gpu(0));
    assert_eq!((stored.warnings().len(), streamed.warnings().len()), (0, 1));
    assert!(streamed.warnings()[0].contains("1 MiB of GPU memory"), "{:?}", streamed.warnings());
    let losses: Vec<Vec<f64>> = (0..3).map(|step| cpu.step(step).unwrap()).collect();
    let on_gpu = stored.steps(0, 3).unwrap();
    assert_eq!(on_gpu.len(), 3);
    for (step, (gpu, cpu)) in on_gpu.iter().zip(&losses).enumerate() {
        assert_close(gpu, cpu, &format!("step {step}"));
    }
    let one_by_one: Vec<Vec<f64>> = (0..3).map(|step| streamed.step(step).unwrap()).collect();
    for (step, (streamed, stored)) in one_by_one.iter().zip(&on_gpu).enumerate() {
        assert_close(streamed, stored, &format!("step {step}, streamed"));
    }
    let (cpu_state, gpu_state) = (cpu.state().unwrap(), stored.state().unwrap());
    streamed.restore(&cpu_state).unwrap();
    let mut restored = HeadTrainee::new(configuration, sets.list(), vec![]).unwrap();
    restored.restore(&gpu_state).unwrap();
    assert_eq!(restored.parameters().unwrap(), stored.parameters().unwrap());
    assert_eq!(restored.state().unwrap().note("steps"), Some("3"));
    let next = cpu.step(3).unwrap();
    assert_close(&streamed.step(3).unwrap(), &next, "from a checkpoint of the CPU");
    assert_close(&restored.step(3).unwrap(), &next, "from a checkpoint of the GPU");
}

#[test]
fn tranfs_on_the_gpu_has_the_losses_of_the_cpu_and_checkpoints_move_between_them() {
    check_against_the_cpu(&tranfs(), &Sets::new(8));
}

#[test]
fn relabel_on_the_gpu_has_the_losses_of_the_cpu_with_data_of_two_dimensions() {
    check_against_the_cpu(&relabel(), &Sets::new(6));
}

#[test]
fn relabel_with_an_item_view_on_the_gpu_has_the_losses_of_the_cpu() {
    let mut configuration = relabel();
    configuration.model.item_width = 8;
    configuration.model.item_dropout = 0.2;
    check_against_the_cpu(&configuration, &Sets::new(8));
}

#[test]
fn relabel_with_a_training_centre_on_the_gpu_has_the_losses_of_the_cpu() {
    for blended in [0.0, 0.5] {
        let mut configuration = relabel();
        configuration.model.training_centre = true;
        configuration.model.item_width = 8;
        configuration.episodes.blended = blended;
        check_against_the_cpu(&configuration, &Sets::new(8));
    }
}

#[test]
fn a_run_names_its_gpu_in_the_metrics_and_the_model() {
    let (sets, folder) = (Sets::new(8), tempfile::tempdir().unwrap());
    let configuration = tranfs();
    let mut trainee = HeadTrainee::on_gpu(&configuration, sets.list(), sets.list(), &device()).unwrap();
    let options = RunOptions {
        output: folder.path().join("tranfs.safetensors"),
        title: "test".into(),
        steps: 4,
        validate_every: 4,
        record_every: 2,
        save_every: std::time::Duration::from_secs(60),
        configuration: String::new(),
        identity: Default::default(),
    };
    assert!(train(&mut trainee, &options, Start::Fresh, &mut ()).unwrap().finished);
    let metrics = std::fs::read_to_string(folder.path().join("tranfs.metrics.jsonl")).unwrap();
    assert_eq!(metrics.matches(r#""device":"emulator""#).count(), 2, "{metrics}");
    let model = crate::tensors::Tensors::open(&options.output).unwrap();
    assert_eq!(model.note("device"), Some("emulator"));
}

#[test]
fn episodes_that_the_gpu_cannot_hold_are_refused_before_the_first_step() {
    let train = data(400, 2, 1);
    let sets = vec![EpisodeData { embeddings: &train, outliers: None }];
    let mut configuration = relabel();
    configuration.data.outliers.clear();
    configuration.episodes.noise = vec!["symmetric=0,40".parse().unwrap()];
    configuration.episodes.ways = vec![CountRange::exactly(2), CountRange::exactly(400)];
    let error = HeadTrainee::on_gpu(&configuration, sets, vec![], &device()).err().unwrap();
    let Error::Gpu { message, hint, .. } = &error else { panic!("{error}") };
    assert!(message.contains("shared memory") && hint.contains("CPU"), "{message}; {hint}");
}
