//! One episode, all its settings, all methods.
//!
//! The settings of an episode share most of their items and all of their queries, so rows are fetched once and
//! inner products computed once for the union of all support sets; a setting's task is a selection from them.

use std::borrow::Cow;
use std::collections::HashMap;

use trueshot_nn::{memory, products};

use crate::embeddings::Features;
use crate::episode::{DrawnEpisode, EpisodeData, Item};
use crate::error::Result;
use crate::method::{Fitted, Method, NamedMethod};
use crate::rng::{IndexSampler, Purpose, Rng};
use crate::task::{Queries, SupportSet, Task};

/// Above so many items in the union, products are left to the methods: most need few of them, and all of
/// them would not fit.
const SHARED_ITEMS: usize = 4096;

/// How many rows before its turn a row is called in from memory.
const ROWS_AHEAD: usize = 4;

/// Scratch space of one thread.
#[derive(Default)]
pub(super) struct EpisodeRunner {
    pub urn: IndexSampler,
    decoded: Vec<f32>,
}

/// What a method did in one setting of one episode.
pub(super) struct Outcome {
    pub correct: u32,
    pub suspicion: Option<Vec<f32>>,
    pub are_probabilities: bool,
    pub predictions: Vec<u32>,
}

/// All settings of one episode; the rows of a setting are its methods.
pub(super) struct EpisodeOutcome {
    pub outcomes: Vec<Vec<Outcome>>,
}

/// The items of all settings, each once.
struct Union {
    /// Row, and whether it is in the outlier pool.
    rows: Vec<(u32, bool)>,
    /// For every setting the places of its items in `rows`.
    settings: Vec<Vec<u32>>,
}

impl Union {
    fn of(supports: &[Vec<Item>]) -> Self {
        let mut rows = Vec::new();
        let mut places = HashMap::new();
        let mut place = |item: &Item| {
            let row = (item.row, item.truth.is_none());
            *places.entry(row).or_insert_with(|| {
                rows.push(row);
                rows.len() as u32 - 1
            })
        };
        let settings = supports.iter().map(|support| support.iter().map(&mut place).collect()).collect();
        Union { rows, settings }
    }
}

impl EpisodeRunner {
    /// Runs all methods in all settings of an episode.
    pub fn run(
        &mut self,
        banks: &EpisodeData<'_>,
        drawn: &DrawnEpisode,
        methods: &[NamedMethod],
        seed: u64,
    ) -> Result<EpisodeOutcome> {
        let union = Union::of(&drawn.supports);
        let query_rows =
            drawn.episode.classes.iter().flat_map(|class| class.queries.iter().map(|&row| (row, false)));
        let wanted: Vec<(u32, bool)> = union.rows.iter().copied().chain(query_rows).collect();
        let rows = fetch(banks, &wanted, &mut self.decoded);
        let (support_rows, query_rows) = rows.split_at(union.rows.len());
        let queries = Queries::new(query_rows.to_vec());
        let shared = Shared::compute(support_rows, &queries, drawn.supports.len(), methods.len());
        let answers: Vec<u32> =
            (0..).zip(&drawn.episode.classes).flat_map(|(c, d)| vec![c; d.queries.len()]).collect();
        let truths: Vec<Vec<Option<u32>>> =
            drawn.supports.iter().map(|items| items.iter().map(|item| item.truth).collect()).collect();
        let settings = drawn.supports.iter().zip(&union.settings).zip(&truths);
        let prepared: Vec<_> = settings
            .map(|((items, places), truth)| {
                let rows = places.iter().map(|&place| support_rows[place as usize]).collect();
                let given = items.iter().map(|item| item.given).collect();
                let support = SupportSet::new(rows, given, drawn.episode.classes.len());
                shared.fill(Task::new(support).with_truth(truth), places)
            })
            .collect();
        let mut outcomes: Vec<Vec<Outcome>> = prepared.iter().map(|_| Vec::new()).collect();
        for method in methods {
            let found = attempt(&*method.method, &prepared, &queries, &answers, (seed, drawn.episode.index))?;
            outcomes.iter_mut().zip(found).for_each(|(setting, outcome)| setting.push(outcome));
        }
        Ok(EpisodeOutcome { outcomes })
    }
}

/// A task, and the products of its items with the queries where they are at hand.
type Prepared<'a> = (Task<'a>, Option<Cow<'a, [f32]>>);

/// One method in all settings of an episode.
fn attempt(
    method: &dyn Method,
    prepared: &[Prepared<'_>],
    queries: &Queries<'_>,
    answers: &[u32],
    (seed, episode): (u64, u64),
) -> Result<Vec<Outcome>> {
    let tasks: Vec<&Task<'_>> = prepared.iter().map(|(task, _)| task).collect();
    let mut rngs: Vec<Rng> = tasks.iter().map(|_| Rng::new(seed, Purpose::Method, episode)).collect();
    let fitted = method.fit_batch(&tasks, &mut rngs)?;
    let outcome = |((fitted, (task, products)), rng): ((Fitted, &Prepared<'_>), &mut Rng)| {
        let predictions = match products {
            Some(products) => fitted.classifier.classify_with(task, queries, products, rng),
            None => fitted.classifier.classify(task, queries, rng),
        };
        let correct = predictions.iter().zip(answers).filter(|(a, b)| a == b).count() as u32;
        let are_probabilities = fitted
            .assessments
            .as_ref()
            .is_some_and(|v| v.iter().all(|assessment| assessment.p_wrong.is_some()));
        let suspicion =
            fitted.assessments.map(|v| v.iter().map(|assessment| assessment.suspicion()).collect());
        Outcome { correct, suspicion, are_probabilities, predictions }
    };
    Ok(fitted.into_iter().zip(prepared).zip(&mut rngs).map(outcome).collect())
}

/// The rows asked for: as they lie in the bank if they are `f32`, else decoded into `buffer`.
pub(crate) fn fetch<'a>(
    banks: &EpisodeData<'a>,
    wanted: &[(u32, bool)],
    buffer: &'a mut Vec<f32>,
) -> Vec<&'a [f32]> {
    let dim = banks.embeddings.dim();
    let features = |outlier: bool| -> &'a Features {
        let bank =
            if outlier { banks.outliers.expect("the sampler asked for the pool") } else { banks.embeddings };
        bank.features()
    };
    let direct = |&(row, outlier): &(u32, bool)| {
        features(outlier).as_f32().map(|all| &all[row as usize * dim..(row as usize + 1) * dim])
    };
    let undecoded: Vec<(u32, bool)> =
        wanted.iter().copied().filter(|wanted| direct(wanted).is_none()).collect();
    let decoded = cache_aligned(buffer, undecoded.len() * dim);
    for (place, (&(row, outlier), out)) in undecoded.iter().zip(decoded.chunks_exact_mut(dim)).enumerate() {
        if let Some(&(row, outlier)) = undecoded.get(place + ROWS_AHEAD) {
            memory::prefetch(features(outlier).bytes_of(row as usize..row as usize + 1));
        }
        features(outlier).decode_row(row as usize, out);
    }
    let mut decoded = decoded.chunks_exact(dim);
    wanted.iter().filter_map(|wanted| direct(wanted).or_else(|| decoded.next())).collect()
}

/// Part of a buffer that begins on a cache line.
fn cache_aligned(buffer: &mut Vec<f32>, count: usize) -> &mut [f32] {
    const LINE: usize = 64;
    let margin = LINE / size_of::<f32>();
    if buffer.len() < count + margin {
        buffer.resize(count + margin, 0.0);
    }
    let start = buffer.as_ptr().align_offset(LINE).min(margin);
    &mut buffer[start..start + count]
}

/// Products of the union with itself and with the queries.
struct Shared {
    items: usize,
    queries: usize,
    gram: Option<Vec<f32>>,
    products: Option<Vec<f32>>,
}

impl Shared {
    fn compute(rows: &[&[f32]], queries: &Queries<'_>, settings: usize, methods: usize) -> Self {
        // A single setting's task computes what its methods ask for, and a single method's classifier asks
        // about a few prototypes rather than all items: both may be little.
        let gram = (settings > 1 && rows.len() <= SHARED_ITEMS).then(|| {
            let mut gram = vec![0.0; rows.len().pow(2)];
            products::gram(rows, &mut gram);
            gram
        });
        let products = (settings * methods > 1).then(|| queries.products(rows));
        Shared { items: rows.len(), queries: queries.len(), gram, products }
    }

    /// Gives a task its part of the products.
    fn fill<'a>(&self, task: Task<'a>, places: &[u32]) -> (Task<'a>, Option<Cow<'_, [f32]>>) {
        let task = match &self.gram {
            Some(gram) => {
                let row = |&place: &u32| &gram[place as usize * self.items..][..self.items];
                let part = places.iter().flat_map(|i| places.iter().map(|&j| row(i)[j as usize])).collect();
                task.with_gram(part)
            }
            None => task,
        };
        let is_whole = places.len() == self.items && places.iter().zip(0..).all(|(&place, i)| place == i);
        let products = self.products.as_deref().map(|products| match is_whole {
            true => Cow::Borrowed(products),
            false => {
                let row = |&place: &u32| &products[place as usize * self.queries..][..self.queries];
                Cow::Owned(places.iter().flat_map(row).copied().collect())
            }
        });
        (task, products)
    }
}
