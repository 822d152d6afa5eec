//! `trueshot bench`: times fixed workloads, for comparison with other programs that run the same workloads. Start with
//! [`run`]; [`WORKLOADS`] lists the workloads and the functions that set them up.
//!
//! All inputs are random numbers, because only the time matters; the last argument of [`Rng::new`] is the number of a
//! random stream. An episode has 5 classes with 5 support items and 15 queries each: 25 support items, then 75 queries,
//! both ordered by class.

mod gpu;

use std::time::{Duration, Instant};

use clap::Args;
use rayon::prelude::*;
use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Sampler};
use trueshot::evaluate::{self, Details, Experiment};
use trueshot::method::Registry;
use trueshot::noise::{Noise, NoiseKind};
use trueshot::rng::{Purpose, Rng};
use trueshot_cuda::DeviceChoice;
use trueshot_nn::adamw::{AdamW, AdamWConfig};
use trueshot_nn::conv4::{self, Conv4Embedder, Shape, TrainingPass};
use trueshot_nn::head::{Episode, Head};
use trueshot_nn::maml::{self, Adaptation, GradientOrder, LabelledImages, MamlLearner, ModelSize};
use trueshot_nn::relabel::{self, Relabel};
use trueshot_nn::tranfs::{self, Tranfs};
use trueshot_vision::training::{Aggregate, EpisodeLabels, loss};

use crate::device_argument::open_device;
use crate::messages::hinted;
use crate::output::print_escaped;
use crate::threads::Threads;
use crate::time_limit::parse_seconds;

/// Measure the time of fixed workloads and print one line of JSON per workload
///
/// The same workloads in PyTorch are in `bench/peers/torch_workloads.py` and `bench/peers/torch_relabel.py`.
///
/// With --device cuda, embed84 and the steps of proto84, proto32, tranfs16 and relabel32 run on the GPU, 64 steps per call
/// as in training, and a step of Conv4 includes cropping and augmenting its images. The other workloads are skipped.
#[derive(Args)]
#[command(after_long_help = WORKLOADS_HELP)]
pub struct Arguments {
    /// Run these workloads, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Repeat each workload for at least this time, in seconds
    #[arg(long, default_value = "3", value_name = "S", value_parser = parse_seconds)]
    seconds: Duration,
    /// Compute on cpu, cuda (the first NVIDIA GPU), cuda:N, or auto (a GPU if there is one)
    #[arg(long, default_value_t = DeviceChoice::Cpu, value_name = "DEVICE")]
    device: DeviceChoice,
    #[command(flatten)]
    threads: Threads,
}

const WORKLOADS_HELP: &str = "\
Workloads (embeddings have 1600 dimensions, episodes 5 classes with 5 shots
and 15 queries):
  peak          the multiply-add rate of the cores; no other workload on the
                CPU can have more gflops
  eval_mean     evaluation of ProtoNet on 1,000 episodes from 20 classes of
                600 embeddings
  eval_median   the same with median prototypes
  eval_cosine   the same with similarity-weighted prototypes
  embed84       100 images of 84 px through Conv4
  proto84       a training step of Conv4 on an episode of 100 images of 84 px,
                with AdamW
  proto32       the same with images of 32 px
  maml32        a step of second-order MAML on 4 episodes of 100 images of
                32 px, 5 adaptation steps, with Adam
  fomaml32      the same with first-order MAML
  tranfs16      a training step of a three-layer TraNFS on 16 episodes
  relabel32     a training step of Relabel on 32 episodes
  tranfs_fwd64  the TraNFS prototypes of 64 episodes

Each line has the name, ms (median) and min_ms per work item, such as a step;
reps, how often the workload ran; the device; and for some workloads gflops,
10⁹ operations per second.";

/// Runs a workload once; the argument is the number of the run, from 0.
type WorkloadFn = Box<dyn FnMut(u64) -> anyhow::Result<()>>;
/// Prepares the data and networks of a workload, which is not timed.
type SetUp = fn() -> anyhow::Result<Workload>;

/// A workload that is ready to run.
struct Workload {
    work: WorkloadFn,
    /// Work items per call of `work`, such as training steps. The reported times are per work item; `reps` counts calls.
    per_call: usize,
    /// Additions and multiplications per work item; `None` leaves `gflops` out of the output.
    operations: Option<u64>,
}

/// Name and setup of the workloads on the CPU.
const WORKLOADS: [(&str, SetUp); 12] = [
    ("peak", || Ok(peak())),
    ("eval_mean", || evaluation("protonet")),
    ("eval_median", || evaluation("median")),
    ("eval_cosine", || evaluation("cosine")),
    ("embed84", || Ok(embedding(Shape { size: 84, channels: 3 }))),
    ("proto84", || Ok(backbone_step(Shape { size: 84, channels: 3 }))),
    ("proto32", || Ok(backbone_step(Shape { size: 32, channels: 3 }))),
    ("maml32", || Ok(maml_step(GradientOrder::Second))),
    ("fomaml32", || Ok(maml_step(GradientOrder::First))),
    ("tranfs16", || Ok(head_step(tranfs()?, TRANFS_EPISODES, random_embeddings()?))),
    ("relabel32", || Ok(head_step(relabel(), RELABEL_EPISODES, random_embeddings()?))),
    ("tranfs_fwd64", tranfs_prototypes),
];
/// Name and setup of the workloads that can run on a GPU.
const GPU_WORKLOADS: [(&str, gpu::GpuSetUp); 5] = [
    ("embed84", gpu::embedding),
    ("proto84", |device| gpu::backbone_step(device, 84)),
    ("proto32", |device| gpu::backbone_step(device, 32)),
    ("tranfs16", gpu::tranfs_step),
    ("relabel32", gpu::relabel_step),
];
/// Episodes per run of the workloads that evaluate a method.
const EPISODES: u64 = 1000;
/// Classes of the random embeddings; with the following two constants, the size of miniImageNet's test split after
/// Conv4.
const CLASSES: usize = 20;
const ITEMS_PER_CLASS: usize = 600;
/// The dimension of the random embeddings.
const DIM: usize = 1600;
/// Images per batch: those of one episode.
const IMAGES: usize = 100;

/// Runs `trueshot bench`: times the chosen workloads on the chosen device, one after the other.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let list = |names: &[&str]| names.join(", ");
    let known = WORKLOADS.map(|(name, _)| name);
    if let Some(unknown) = arguments.only.iter().find(|name| !known.contains(&name.as_str())) {
        anyhow::bail!("unknown workload '{unknown}'; known: {}", list(&known));
    }
    let (device, _) = open_device(arguments.device)?;
    let on_gpu = GPU_WORKLOADS.map(|(name, _)| name);
    let cpu_only = arguments.only.iter().find(|name| !on_gpu.contains(&name.as_str()));
    if let Some(name) = cpu_only.filter(|_| device.is_some()) {
        let message =
            format!("the workload '{name}' does not run on a GPU; those that do: {}", list(&on_gpu));
        return Err(hinted(message, "measure it with --device cpu"));
    }
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    arguments.threads.run(|| match &device {
        None => WORKLOADS
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .try_for_each(|(name, set_up)| arguments.measure(name, set_up()?, "cpu")),
        Some(device) => GPU_WORKLOADS
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .try_for_each(|(name, set_up)| arguments.measure(name, set_up(device)?, device.name())),
    })
}

impl Arguments {
    /// Times a workload and prints its line.
    fn measure(&self, name: &str, mut workload: Workload, device: &str) -> anyhow::Result<()> {
        // Milliseconds per call of `work`, then per work item.
        let mut times = time_runs(self.seconds, &mut workload.work)?;
        times.iter_mut().for_each(|time| *time /= workload.per_call as f64);
        times.sort_by(f64::total_cmp);
        let (median, min) = (times[times.len() / 2], times[0]);
        let mut line = serde_json::json!({
            "name": name,
            "ms": round_time(median),
            "min_ms": round_time(min),
            "reps": times.len(),
            "device": device,
        });
        if let Some(operations) = workload.operations {
            // Operations per millisecond divided by 1e6 are 1e9 operations per second.
            line["gflops"] = (operations as f64 / median / 1e6).round().into();
        }
        print_escaped(&format!("{line}\n"))
    }
}

/// The evaluation of a method on [`EPISODES`] episodes of random embeddings.
fn evaluation(method: &'static str) -> anyhow::Result<Workload> {
    let data = random_embeddings()?;
    Ok(Workload {
        work: Box::new(move |run| evaluate_once(&data, method, run)),
        per_call: 1,
        operations: None,
    })
}

/// The workload that measures the maximum multiply-add rate: independent operations in registers, on all threads.
fn peak() -> Workload {
    let threads = rayon::current_num_threads();
    let run_all = || rayon::broadcast(|_| trueshot_nn::peak::busy()).iter().sum::<u64>();
    // `busy` returns the number of its operations, which is the same on every thread.
    let operations = trueshot_nn::peak::busy() * threads as u64;
    Workload {
        work: Box::new(move |_| {
            std::hint::black_box(run_all());
            Ok(())
        }),
        per_call: 1,
        operations: Some(operations),
    }
}

/// [`IMAGES`] images with values from -2 to 2, about the range of normalised pixels.
fn random_images(shape: Shape) -> Vec<f32> {
    let mut rng = Rng::new(0, Purpose::Items, 1);
    (0..IMAGES * shape.pixels()).map(|_| 4.0 * rng.uniform() - 2.0).collect()
}

/// The parameters of a Conv4 before training.
fn fresh_backbone(shape: Shape) -> Vec<f32> {
    let mut rng = Rng::new(0, Purpose::Items, 2);
    conv4::initial(shape.channels, &mut || f64::from(rng.uniform()))
}

/// The embedding of [`IMAGES`] images with a Conv4. Each thread takes four images at a time.
fn embedding(shape: Shape) -> Workload {
    let (images, embedder) = (random_images(shape), Conv4Embedder::new(shape, &fresh_backbone(shape)));
    let mut features = vec![0.0; IMAGES * shape.features()];
    let work = move |_| {
        let parts = images.par_chunks(4 * shape.pixels()).zip(features.par_chunks_mut(4 * shape.features()));
        parts.for_each_init(|| embedder.session(), |session, (images, out)| session.embed(images, out));
        Ok(())
    };
    let (forward, _) = shape.operations();
    Workload { work: Box::new(work), per_call: 1, operations: Some(IMAGES as u64 * forward) }
}

/// [`CLASSES`] times [`ITEMS_PER_CLASS`] embeddings of dimension [`DIM`], ordered by class. As after a ReLU, half of
/// the values are zero.
fn random_embeddings() -> anyhow::Result<Embeddings> {
    let mut rng = Rng::new(0, Purpose::Items, 0);
    // The sum of twelve uniform numbers minus six is nearly normal.
    let mut normal = || (0..12).map(|_| rng.uniform()).sum::<f32>() - 6.0;
    let values = (0..CLASSES * ITEMS_PER_CLASS * DIM).map(|_| normal().max(0.0)).collect();
    let labels =
        (0..CLASSES * ITEMS_PER_CLASS).map(|row| format!("class {:02}", row / ITEMS_PER_CLASS)).collect();
    Ok(Embeddings::from_rows(values, DIM, labels)?)
}

/// Evaluates a method on [`EPISODES`] episodes without noise. `run` is the seed, so that every run has other episodes.
fn evaluate_once(data: &Embeddings, method: &str, run: u64) -> anyhow::Result<()> {
    let spec = EpisodeSpec { seed: run, ..EpisodeSpec::default() };
    let clean = Noise { kind: NoiseKind::Symmetric, level: 0.0 };
    let sampler = Sampler::new(data, None, spec, vec![clean])?;
    let methods = [Registry::default().parse(method)?];
    let experiment = Experiment {
        embeddings: data,
        outliers: None,
        episodes: &sampler,
        count: EPISODES,
        methods: &methods,
        baseline: method,
        details: Details::default(),
    };
    evaluate::evaluate(&experiment, &())?;
    Ok(())
}

/// One training step on an episode of 100 images: forward, the loss of nearest prototypes, backward, AdamW.
fn backbone_step(shape: Shape) -> Workload {
    let images = random_images(shape);
    let mut parameters = fresh_backbone(shape);
    let mut training = TrainingPass::new(shape, IMAGES);
    let mut optimiser = AdamW::new(&conv4::layout(shape.channels), AdamWConfig::default());
    let mut gradients = [vec![0.0; parameters.len()]];
    let mut d_features = vec![0.0; IMAGES * shape.features()];
    let (given, query_classes) = (given_labels(), query_labels());
    // The arithmetic of a step of `train backbone`, without loading and augmenting images.
    let work = move |_| {
        let labels = EpisodeLabels { classes: 5, given: &given, query_classes: &query_classes };
        loss(training.forward(&parameters, &images), labels, Aggregate::Mean, &mut d_features);
        training.backward(&d_features, &mut gradients[0]);
        training.update_running(&mut parameters);
        // Learning rate 0.001, and gradients as they are (factor 1).
        optimiser.step(1e-3, 1.0, &mut parameters, &mut gradients);
        Ok(())
    };
    let (forward, backward) = shape.operations();
    Workload { work: Box::new(work), per_call: 1, operations: Some(IMAGES as u64 * (forward + backward)) }
}

/// One step of MAML on four tasks of 25 support images and 75 queries of 32 px, all with the same images.
fn maml_step(order: GradientOrder) -> Workload {
    const TASKS: usize = 4;
    let size = ModelSize { shape: Shape { size: 32, channels: 3 }, ways: 5 };
    let mut rng = Rng::new(0, Purpose::Items, 4);
    let mut parameters = maml::initial(size, &mut || rng.fraction());
    // AdamW without weight decay is Adam.
    let config = AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() };
    let mut optimiser = AdamW::new(&maml::layout(size), config);
    let mut gradients = vec![vec![0.0; parameters.len()]; TASKS];
    let mut learners: Vec<MamlLearner> = (0..TASKS).map(|_| MamlLearner::new(size)).collect();
    let images = random_images(size.shape);
    let (given, query_classes) = (given_labels(), query_labels());
    let work = move |_| {
        let (support, queries) = images.split_at(25 * size.shape.pixels());
        let support = LabelledImages { images: support, classes: &given };
        let queries = LabelledImages { images: queries, classes: &query_classes };
        let adaptation = Adaptation { rate: 0.01, steps: 5 };
        learners.par_iter_mut().zip(&mut gradients).for_each(|(learner, gradient)| {
            learner.meta_gradient(&parameters, support, queries, adaptation, order, gradient);
        });
        // Learning rate 0.003, and the mean of the gradients of all tasks.
        optimiser.step(3e-3, 1.0 / TASKS as f64, &mut parameters, &mut gradients);
        Ok(())
    };
    Workload { work: Box::new(work), per_call: 1, operations: None }
}

/// Episodes per training step of TraNFS.
const TRANFS_EPISODES: usize = 16;
/// Episodes per training step of Relabel.
const RELABEL_EPISODES: usize = 32;
/// Rows of an episode: 25 support items and 75 queries.
const ITEMS_AND_QUERIES: usize = 100;

/// A TraNFS (a transformer that computes prototypes from a noisy support set) and its parameters before training.
fn tranfs() -> anyhow::Result<(Tranfs, Vec<f32>)> {
    let network = Tranfs::new(tranfs::Config::new(DIM)).map_err(anyhow::Error::msg)?;
    let mut rng = Rng::new(0, Purpose::Items, 3);
    let parameters = network.initial(&mut || f64::from(rng.uniform()));
    Ok((network, parameters))
}

/// `rows_per_episode` consecutive rows of the data per episode, from the first row again after the last.
fn episode_rows(data: &Embeddings, episodes: usize, rows_per_episode: usize) -> Vec<Vec<&[f32]>> {
    let values = data.features().as_f32().expect("made in memory, as f32");
    let row = |number: usize| {
        let start = number % (CLASSES * ITEMS_PER_CLASS) * DIM;
        &values[start..start + DIM]
    };
    let rows = |episode: usize| {
        let first = episode * rows_per_episode;
        (first..first + rows_per_episode).map(row).collect::<Vec<_>>()
    };
    (0..episodes).map(rows).collect()
}

/// A Relabel (a network that estimates the true class of every support item) and its parameters before training.
fn relabel() -> (Relabel, Vec<f32>) {
    let network = Relabel::new(relabel::Config::default());
    let mut rng = Rng::new(0, Purpose::Items, 3);
    let parameters = network.initial(&mut || f64::from(rng.uniform()));
    (network, parameters)
}

/// The given labels of the 25 support items of an episode: five of each class.
fn given_labels() -> Vec<u32> {
    (0..25).map(|item| item / 5).collect()
}

/// The true classes of the support items. For 9 of the 25 it is the class after the given one: those whose number ends
/// in 0, 1 or 2.
fn true_labels() -> Vec<Option<u32>> {
    let wrong = |item: u32| item % 10 < 3;
    (0..25).map(|item| Some(if wrong(item) { (item / 5 + 1) % 5 } else { item / 5 })).collect()
}

/// The classes of the 75 queries of an episode: 15 of each class.
fn query_labels() -> Vec<u32> {
    (0..75).map(|query| query / 15).collect()
}

/// One training step of a head (a network on embeddings, here TraNFS or Relabel) on `count` episodes, in four parallel
/// parts with a gradient and a dropout seed each. The first argument is the network with its parameters.
fn head_step<H: Head + 'static>(
    (network, mut parameters): (H, Vec<f32>),
    count: usize,
    data: Embeddings,
) -> Workload {
    const PARTS: usize = 4;
    let mut optimiser = AdamW::new(network.layout(), AdamWConfig::default());
    let mut gradients = vec![vec![0.0; parameters.len()]; PARTS];
    let (given, truth, query_classes) = (given_labels(), true_labels(), query_labels());
    let work = move |run: u64| {
        let rows = episode_rows(&data, count, ITEMS_AND_QUERIES);
        let (given, truth, query_classes) = (&given[..], &truth[..], &query_classes[..]);
        let mut episodes = Vec::new();
        for rows in &rows {
            let (support, queries) = rows.split_at(25);
            episodes.push(Episode { classes: 5, support, given, truth, queries, query_classes });
        }
        let parts = episodes.par_chunks(count / PARTS).zip(&mut gradients).enumerate();
        parts.for_each(|(part, (episodes, gradient))| {
            let seed = run * PARTS as u64 + part as u64;
            network.losses(&parameters, episodes, seed, gradient);
        });
        // The losses are sums over the episodes: the factor makes the gradient that of the mean. Learning rate 0.0005.
        let scale = 1.0 / count as f64;
        // The update runs in parallel too, on 16,384 parameters at a time.
        let chunks = optimiser.chunks(5e-4, scale, &mut parameters, &mut gradients, 1 << 14);
        chunks.into_par_iter().for_each(|chunk| chunk.apply());
        Ok(())
    };
    Workload { work: Box::new(work), per_call: 1, operations: None }
}

/// The prototypes of 64 episodes, in four parallel parts.
fn tranfs_prototypes() -> anyhow::Result<Workload> {
    let (network, parameters) = tranfs()?;
    let data = random_embeddings()?;
    let given = given_labels();
    let work = move |_| {
        let rows = episode_rows(&data, 64, 25);
        let inputs: Vec<tranfs::TranfsInput<'_>> = rows
            .iter()
            .map(|items| tranfs::TranfsInput { classes: 5, items, given: &given, order: None })
            .collect();
        inputs.par_chunks(16).for_each(|inputs| {
            std::hint::black_box(network.prototypes(&parameters, inputs));
        });
        Ok(())
    };
    Ok(Workload { work: Box::new(work), per_call: 1, operations: None })
}

/// Runs `work` three times to warm up, then at least five times and for `at_least`; returns milliseconds per
/// run.
fn time_runs(
    at_least: Duration,
    mut work: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    (0..3).try_for_each(&mut work)?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed() < at_least {
        let run_start = Instant::now();
        work(3 + times.len() as u64)?;
        times.push(run_start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Rounds to a tenth of a microsecond.
fn round_time(milliseconds: f64) -> f64 {
    (milliseconds * 1e4).round() / 1e4
}
