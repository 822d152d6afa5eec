//! How long a step of training takes: 32 episodes of 5 classes with 1 to 10 shots and 75 queries, in parts of 8.
//!
//! `cargo run --release -p trueshot-nn --example relabel_step [threads]`

use std::time::Instant;

use trueshot_nn::Isa;
use trueshot_nn::head::{Episode, Head};
use trueshot_nn::relabel::{Config, ItemView, Relabel};

const CLASSES: usize = 5;
const DIM: usize = 1600;
const QUERIES: usize = 75;

struct Owned {
    support: Vec<Vec<f32>>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    queries: Vec<Vec<f32>>,
    query_classes: Vec<u32>,
}

fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1u64 << 31) as f64
}

fn episode(shots: usize, state: &mut u64) -> Owned {
    let mut row = || (0..DIM).map(|_| uniform(state) as f32).collect::<Vec<f32>>();
    let given: Vec<u32> = (0..CLASSES * shots).map(|item| (item / shots) as u32).collect();
    Owned {
        support: given.iter().map(|_| row()).collect(),
        truth: given.iter().map(|&class| Some(class)).collect(),
        given,
        queries: (0..QUERIES).map(|_| row()).collect(),
        query_classes: (0..QUERIES).map(|query| (query % CLASSES) as u32).collect(),
    }
}

fn main() {
    let threads: usize = std::env::args().nth(1).and_then(|given| given.parse().ok()).unwrap_or(1);
    let mut state = 1;
    let owned: Vec<Owned> = (0..32).map(|number| episode(1 + number % 10, &mut state)).collect();
    let slices = |rows: &'static [Vec<f32>]| rows.iter().map(Vec::as_slice).collect::<Vec<&'static [f32]>>();
    let owned: &'static [Owned] = owned.leak();
    let rows: Vec<_> = owned.iter().map(|owned| (slices(&owned.support), slices(&owned.queries))).collect();
    let episodes: Vec<Episode<'_>> = owned
        .iter()
        .zip(&rows)
        .map(|(owned, (support, queries))| Episode {
            classes: CLASSES,
            support,
            given: &owned.given,
            truth: &owned.truth,
            queries,
            query_classes: &owned.query_classes,
        })
        .collect();
    for (name, item_view) in [("relations", None), ("item view", Some(ItemView::new(DIM)))] {
        let head = Relabel::new(Config { item_view, ..Config::default() });
        let parameters = head.initial(&mut || uniform(&mut state));
        let mut times: Vec<f64> =
            (0..40).map(|seed| step(&head, &parameters, &episodes, seed, threads)).collect();
        times.sort_by(f64::total_cmp);
        let count = parameters.len();
        println!(
            "{name}: {count} parameters, {threads} threads: median {:.1} ms, best {:.1}",
            times[20], times[0]
        );
    }
}

/// Milliseconds of one step, its parts dealt out to threads.
fn step(head: &Relabel, parameters: &[f32], episodes: &[Episode<'_>], seed: u64, threads: usize) -> f64 {
    let parts: Vec<&[Episode<'_>]> = episodes.chunks(8).collect();
    let start = Instant::now();
    let work = |parts: &[&[Episode<'_>]]| {
        for part in parts {
            let mut gradient = vec![0.0; parameters.len()];
            std::hint::black_box(head.losses(Isa::current(), parameters, part, seed, &mut gradient));
        }
    };
    if threads <= 1 {
        work(&parts);
    } else {
        std::thread::scope(|scope| {
            for parts in parts.chunks(parts.len().div_ceil(threads)) {
                scope.spawn(move || work(parts));
            }
        });
    }
    start.elapsed().as_secs_f64() * 1e3
}
