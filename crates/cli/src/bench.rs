//! `trueshot bench`: fixed workloads, timed, for comparison with other programs that do the same.

use std::time::{Duration, Instant};

use clap::Args;
use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Sampler};
use trueshot::evaluate::{self, Details, Experiment};
use trueshot::method::Registry;
use trueshot::noise::{Noise, NoiseKind};
use trueshot::rng::{Purpose, Rng};

use crate::output::print;
use crate::threads::Threads;

/// Time fixed workloads and print one line of JSON each
///
/// eval_mean, eval_median, eval_cosine: 1,000 episodes (5-way 5-shot, 15 queries, no noise) drawn from a bank of
/// 20 x 600 rows of 1600 numbers, sampling included. `bench/` holds the same in PyTorch.
#[derive(Args)]
pub struct Arguments {
    /// Workloads, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// How long to repeat each, at least
    #[arg(long, default_value_t = 3.0, value_name = "S")]
    seconds: f64,
    #[command(flatten)]
    threads: Threads,
}

const WORKLOADS: [(&str, &str); 3] =
    [("eval_mean", "protonet"), ("eval_median", "median"), ("eval_cosine", "cosine")];
const EPISODES: u64 = 1000;
const CLASSES: usize = 20;
const ITEMS: usize = 600;
const DIM: usize = 1600;

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let known = || WORKLOADS.iter().map(|(name, _)| *name);
    if let Some(unknown) = arguments.only.iter().find(|name| !known().any(|known| known == *name)) {
        anyhow::bail!("unknown workload '{unknown}'; known: {}", known().collect::<Vec<_>>().join(", "));
    }
    arguments.threads.run(|| {
        let bank = bank()?;
        let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|asked| asked == name);
        for (name, method) in WORKLOADS.into_iter().filter(|(name, _)| wanted(name)) {
            let mut times = repeat(arguments.seconds, |run| evaluate_once(&bank, method, run))?;
            times.sort_by(f64::total_cmp);
            let (median, min) = (times[times.len() / 2], times[0]);
            let line = serde_json::json!({ "name": name, "ms": rounded(median), "min_ms": rounded(min), "reps": times.len() });
            print(&format!("{line}\n"))?;
        }
        Ok(())
    })
}

/// Positive numbers like those behind a ReLU: half of them zero.
fn bank() -> anyhow::Result<Embeddings> {
    let mut rng = Rng::new(0, Purpose::Items, 0);
    // Twelve uniform numbers less six are close to a normal one, and drawing them needs no tables.
    let mut normal = || (0..12).map(|_| rng.uniform()).sum::<f32>() - 6.0;
    let values = (0..CLASSES * ITEMS * DIM).map(|_| normal().max(0.0)).collect();
    let labels = (0..CLASSES * ITEMS).map(|row| format!("class {:02}", row / ITEMS)).collect();
    Ok(Embeddings::from_rows(values, DIM, labels)?)
}

fn evaluate_once(bank: &Embeddings, method: &str, run: u64) -> anyhow::Result<()> {
    let spec = EpisodeSpec { seed: run, ..EpisodeSpec::default() };
    let clean = Noise { kind: NoiseKind::Symmetric, level: 0.0 };
    let sampler = Sampler::new(bank, None, spec, vec![clean])?;
    let methods = [Registry::default().parse(method)?];
    let experiment = Experiment {
        embeddings: bank,
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

/// Runs work three times unseen, then at least five times and for so long; milliseconds of each.
fn repeat(seconds: f64, mut work: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    (0..3).try_for_each(&mut work)?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed() < Duration::from_secs_f64(seconds) {
        let begin = Instant::now();
        work(3 + times.len() as u64)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1e4).round() / 1e4
}
