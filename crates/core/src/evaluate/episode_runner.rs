//! Runs one episode of an evaluation: all methods on all noise settings ([`EpisodeRunner::run`], called by
//! [`evaluate`](super::evaluate) on every thread).
//!
//! An episode is a small classification problem. It has one support set (labelled items, some with wrong labels) per
//! noise setting (type and level), and the same queries (items to classify) for all of them. The support sets share
//! most of their items. So rows are fetched once and inner products computed once for the union of all support sets,
//! and the task of a setting takes its part of them.
//!
//! Methods that hold the data themselves, for instance on a GPU, have a row classifier. They classify the episodes of a
//! round (up to 256 consecutive episodes) together, from row numbers ([`classify_rows`]).

use std::borrow::Cow;
use std::collections::HashMap;

use trueshot_nn::{memory, products};

use crate::embeddings::Features;
use crate::episode::{DrawnEpisode, EpisodeData, Item};
use crate::error::{Error, Result};
use crate::evaluate::FailedMethod;
use crate::method::{Fitted, Method, NamedMethod, RowPrediction, RowTask};
use crate::rng::{IndexSampler, Purpose, Rng};
use crate::task::{Queries, SupportSet, Task};

/// The maximum number of items in the union for which the inner products of all items with each other are computed in
/// advance: 4096² `f32` values, 64 MiB per thread. For more items, the tasks compute the products that their methods
/// need.
const MAX_SHARED_ITEMS: usize = 4096;

/// While a row is decoded, the row `PREFETCH_ROWS` rows later is prefetched into the processor's cache.
const PREFETCH_ROWS: usize = 4;

/// Runs episodes on one thread and keeps the buffers between them.
#[derive(Default)]
pub(super) struct EpisodeRunner {
    /// Scratch memory for drawing episodes.
    pub index_sampler: IndexSampler,
    /// The rows of the current episode, decoded, if the data is not stored as `f32`.
    decoded: Vec<f32>,
}

/// The result of one method under one noise setting of one episode.
pub(super) struct Outcome {
    /// The number of queries that were classified correctly.
    pub correct: u32,
    /// The suspicion score of each support item, if the method assesses labels: higher if the label is more likely
    /// wrong.
    pub suspicion: Option<Vec<f32>>,
    /// Whether the suspicion scores are probabilities that the label is wrong.
    pub are_probabilities: bool,
    /// The predicted class of each query, as an index into the classes of the episode.
    pub predictions: Vec<u32>,
}

/// The results of one episode.
pub(super) struct EpisodeOutcome {
    /// Indexed by noise setting, then method.
    pub outcomes: Vec<Vec<Outcome>>,
}

impl Outcome {
    /// The outcome of a row classifier.
    fn of_rows(prediction: RowPrediction, answers: &[u32]) -> Self {
        let RowPrediction { classes, p_wrong } = prediction;
        let (correct, are_probabilities) = (correct(&classes, answers), p_wrong.is_some());
        Outcome { correct, suspicion: p_wrong, are_probabilities, predictions: classes }
    }

    /// A placeholder for a method that failed, whose results are not reported.
    fn of_failure() -> Self {
        Outcome { correct: 0, suspicion: None, are_probabilities: false, predictions: Vec::new() }
    }
}

/// The number of predictions that are right.
fn correct(predictions: &[u32], answers: &[u32]) -> u32 {
    predictions.iter().zip(answers).filter(|(a, b)| a == b).count() as u32
}

/// The true class of every query of an episode, as an index into the classes of the episode. Queries are ordered class
/// after class.
fn answers(drawn: &DrawnEpisode) -> Vec<u32> {
    (0..).zip(&drawn.episode.classes).flat_map(|(class, draw)| vec![class; draw.queries.len()]).collect()
}

/// The union of the support sets of all noise settings, which share most of their items.
struct Union {
    /// The distinct items, in the order of their first use: row, and whether it is a row of the outlier pool.
    rows: Vec<(u32, bool)>,
    /// For every setting, the indices of its items in `rows`.
    settings: Vec<Vec<u32>>,
}

impl Union {
    fn new(supports: &[Vec<Item>]) -> Self {
        let mut rows = Vec::new();
        let mut indices = HashMap::new();
        let mut index_of = |item: &Item| {
            let row = (item.row, item.truth.is_none());
            *indices.entry(row).or_insert_with(|| {
                rows.push(row);
                rows.len() as u32 - 1
            })
        };
        let settings = supports.iter().map(|support| support.iter().map(&mut index_of).collect()).collect();
        Union { rows, settings }
    }
}

impl EpisodeRunner {
    /// Runs all methods under all noise settings of an episode, except methods that have a row classifier. `seed` is
    /// that of the experiment; a method gets the same random numbers under every noise setting.
    pub fn run(
        &mut self,
        data: &EpisodeData<'_>,
        drawn: &DrawnEpisode,
        methods: &[NamedMethod],
        seed: u64,
    ) -> Result<EpisodeOutcome> {
        let mut outcomes: Vec<Vec<Outcome>> = drawn.supports.iter().map(|_| Vec::new()).collect();
        let methods: Vec<&NamedMethod> =
            methods.iter().filter(|method| method.method.row_classifier().is_none()).collect();
        if methods.is_empty() {
            return Ok(EpisodeOutcome { outcomes });
        }
        // Fetch the rows of all support sets, then those of the queries, each as (row, whether it is in the outlier
        // pool).
        let union = Union::new(&drawn.supports);
        let query_rows =
            drawn.episode.classes.iter().flat_map(|class| class.queries.iter().map(|&row| (row, false)));
        let wanted: Vec<(u32, bool)> = union.rows.iter().copied().chain(query_rows).collect();
        let rows = fetch(data, &wanted, &mut self.decoded);
        let (support_rows, query_rows) = rows.split_at(union.rows.len());
        let queries = Queries::new(query_rows.to_vec());
        let shared = Shared::compute(support_rows, &queries, drawn.supports.len(), methods.len());
        let answers = answers(drawn);
        let truths: Vec<Vec<Option<u32>>> =
            drawn.supports.iter().map(|items| items.iter().map(|item| item.truth).collect()).collect();
        // One task per noise setting, with its part of the shared products.
        let settings = drawn.supports.iter().zip(&union.settings).zip(&truths);
        let prepared: Vec<_> = settings
            .map(|((items, indices), truth)| {
                let rows = indices.iter().map(|&index| support_rows[index as usize]).collect();
                let given = items.iter().map(|item| item.given).collect();
                let support = SupportSet::new(rows, given, drawn.episode.classes.len());
                shared.fill(Task::new(support).with_truth(truth), indices)
            })
            .collect();
        for method in methods {
            let outcomes_of_method =
                run_method(&*method.method, &prepared, &queries, &answers, (seed, drawn.episode.index))?;
            outcomes.iter_mut().zip(outcomes_of_method).for_each(|(setting, outcome)| setting.push(outcome));
        }
        Ok(EpisodeOutcome { outcomes })
    }
}

/// Adds the outcomes of the methods that have a row classifier to those of the other methods, for all episodes of a
/// round: each is inserted at the position of its method in `methods`. Methods that fail are added to `failed` and not
/// called again.
///
/// Each call of a classifier gets one noise setting, so its results do not depend on the other settings.
pub(super) fn classify_rows(
    methods: &[NamedMethod],
    round: &mut [(DrawnEpisode, EpisodeOutcome)],
    failed: &mut Vec<FailedMethod>,
) -> Result<()> {
    let settings = round.first().map_or(0, |(drawn, _)| drawn.supports.len());
    for (position, method) in methods.iter().enumerate() {
        let Some(classifier) = method.method.row_classifier() else { continue };
        for setting in 0..settings {
            let tasks: Vec<RowTask<'_>> =
                round.iter().map(|(drawn, _)| RowTask::new(drawn, setting)).collect();
            let predictions = match failed.iter().any(|failed| failed.method == method.label) {
                true => None,
                false => classify_or_fail(classifier.classify(&tasks), &method.label, failed)?,
            };
            // One prediction per episode; a failed method gets placeholders.
            let mut predictions = predictions.map(Vec::into_iter);
            for (drawn, outcome) in round.iter_mut() {
                let prediction = predictions.as_mut().and_then(Iterator::next);
                let of_method = prediction
                    .map_or_else(Outcome::of_failure, |rows| Outcome::of_rows(rows, &answers(drawn)));
                outcome.outcomes[setting].insert(position, of_method);
            }
        }
    }
    Ok(())
}

/// The predictions that a row classifier returned as `answer`; `None` if the method failed, which is then added to
/// `failed`.
fn classify_or_fail(
    answer: Result<Vec<RowPrediction>>,
    label: &str,
    failed: &mut Vec<FailedMethod>,
) -> Result<Option<Vec<RowPrediction>>> {
    match answer {
        Ok(predictions) => Ok(Some(predictions)),
        Err(Error::MethodFailed { episode, problem, .. }) => {
            failed.push(FailedMethod { method: label.into(), episode, problem });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A task, and the inner products of its items with the queries, `[items, queries]`, if they were computed in advance.
type Prepared<'a> = (Task<'a>, Option<Cow<'a, [f32]>>);

/// Fits one method to all noise settings of an episode and classifies the queries; returns one outcome per setting.
/// `answers` are the true classes of the queries. `seed` and `episode`, the number of the episode, select the random
/// stream of the method.
fn run_method(
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
        let correct = correct(&predictions, answers);
        let are_probabilities = fitted
            .assessments
            .as_ref()
            .is_some_and(|items| items.iter().all(|assessment| assessment.p_wrong.is_some()));
        let suspicion =
            fitted.assessments.map(|items| items.iter().map(|assessment| assessment.suspicion()).collect());
        Outcome { correct, suspicion, are_probabilities, predictions }
    };
    Ok(fitted.into_iter().zip(prepared).zip(&mut rngs).map(outcome).collect())
}

/// The `wanted` rows (row, and whether it is a row of the outlier pool), in the order of `wanted`: borrowed from the
/// data if it is stored as `f32`, otherwise decoded into `buffer`. The outlier pool and the data may be stored
/// differently.
pub(crate) fn fetch<'a>(
    data: &EpisodeData<'a>,
    wanted: &[(u32, bool)],
    buffer: &'a mut Vec<f32>,
) -> Vec<&'a [f32]> {
    let dim = data.embeddings.dim();
    let features = |outlier: bool| -> &'a Features {
        match outlier {
            true => data.outlier_rows().features(),
            false => data.embeddings.features(),
        }
    };
    // A row that can be borrowed.
    let direct = |&(row, outlier): &(u32, bool)| {
        features(outlier).as_f32().map(|all| &all[row as usize * dim..(row as usize + 1) * dim])
    };
    let undecoded: Vec<(u32, bool)> =
        wanted.iter().copied().filter(|wanted| direct(wanted).is_none()).collect();
    let decoded = cache_aligned(buffer, undecoded.len() * dim);
    for (index, (&(row, outlier), out)) in undecoded.iter().zip(decoded.chunks_exact_mut(dim)).enumerate() {
        if let Some(&(row, outlier)) = undecoded.get(index + PREFETCH_ROWS) {
            memory::prefetch(features(outlier).bytes_of(row as usize..row as usize + 1));
        }
        features(outlier).decode_row(row as usize, out);
    }
    let mut decoded = decoded.chunks_exact(dim);
    wanted.iter().filter_map(|wanted| direct(wanted).or_else(|| decoded.next())).collect()
}

/// A part of `buffer` with `count` numbers that starts on a cache line (64 bytes); the buffer grows if necessary.
fn cache_aligned(buffer: &mut Vec<f32>, count: usize) -> &mut [f32] {
    const LINE: usize = 64;
    let margin = LINE / size_of::<f32>();
    if buffer.len() < count + margin {
        buffer.resize(count + margin, 0.0);
    }
    // `min`: `align_offset` may return a huge number if it cannot align.
    let start = buffer.as_ptr().align_offset(LINE).min(margin);
    &mut buffer[start..start + count]
}

/// Inner products of the union of the support sets, which all noise settings of an episode share. Products that are
/// `None` are not computed in advance.
struct Shared {
    /// Items in the union.
    items: usize,
    /// The number of queries.
    queries: usize,
    /// Inner products of the items with each other, `[items, items]`.
    gram: Option<Vec<f32>>,
    /// Inner products of the items with the queries, `[items, queries]`.
    products: Option<Vec<f32>>,
}

impl Shared {
    /// Computes the products worth computing in advance; `rows` are the items of the union, `settings` and `methods`
    /// the numbers of noise settings and methods.
    fn compute(rows: &[&[f32]], queries: &Queries<'_>, settings: usize, methods: usize) -> Self {
        // Worth it only if several settings share it: a task computes just the products that its methods need.
        let gram = (settings > 1 && rows.len() <= MAX_SHARED_ITEMS).then(|| {
            let mut gram = vec![0.0; rows.len().pow(2)];
            products::gram(rows, &mut gram);
            gram
        });
        // A single method on a single setting needs the products of the queries with a few prototypes only.
        let products = (settings * methods > 1).then(|| queries.products(rows));
        Shared { items: rows.len(), queries: queries.len(), gram, products }
    }

    /// The task with its part of the Gram matrix, and its part of the products with the queries, `[items of
    /// the task, queries]`; `indices` are the indices of the task's items in the union.
    fn fill<'a>(&self, task: Task<'a>, indices: &[u32]) -> (Task<'a>, Option<Cow<'_, [f32]>>) {
        let task = match &self.gram {
            Some(gram) => {
                let row = |&index: &u32| &gram[index as usize * self.items..][..self.items];
                let part = indices.iter().flat_map(|i| indices.iter().map(|&j| row(i)[j as usize])).collect();
                task.with_gram(part)
            }
            None => task,
        };
        // A task whose items are the whole union in the same order borrows the products instead of copying them.
        let is_whole = indices.len() == self.items && indices.iter().zip(0..).all(|(&index, i)| index == i);
        let products = self.products.as_deref().map(|products| match is_whole {
            true => Cow::Borrowed(products),
            false => {
                let row = |&index: &u32| &products[index as usize * self.queries..][..self.queries];
                Cow::Owned(indices.iter().flat_map(row).copied().collect())
            }
        });
        (task, products)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::embeddings::Embeddings;
    use crate::episode::{EpisodeSpec, Sampler};
    use crate::evaluate::{Details, Experiment, evaluate};
    use crate::method::{Registry, RowClassifier};
    use crate::noise;

    /// ProtoNet as a row classifier, which holds the rows itself.
    struct HeldProtonet {
        rows: Embeddings,
        outliers: Embeddings,
        /// The number of tasks in every call.
        calls: Arc<Mutex<Vec<usize>>>,
    }

    impl HeldProtonet {
        fn classes(&self, task: &RowTask<'_>) -> Result<Vec<u32>> {
            let data = EpisodeData { embeddings: &self.rows, outliers: Some(&self.outliers) };
            let support = task.support.iter().map(|item| (item.row, item.truth.is_none()));
            let wanted: Vec<(u32, bool)> = support.chain(task.queries().map(|row| (row, false))).collect();
            let mut buffer = Vec::new();
            let mut rows = fetch(&data, &wanted, &mut buffer);
            let queries = Queries::new(rows.split_off(task.support.len()));
            let given = task.support.iter().map(|item| item.given).collect();
            let task = Task::new(SupportSet::new(rows, given, task.classes.len()));
            let mut rng = Rng::new(0, Purpose::Method, 0);
            let fitted = Registry::default().parse("protonet")?.method.fit(&task, &mut rng)?;
            Ok(fitted.classifier.classify(&task, &queries, &mut rng))
        }
    }

    impl Method for HeldProtonet {
        fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
            panic!("episodes are classified from row numbers")
        }

        fn row_classifier(&self) -> Option<&dyn RowClassifier> {
            Some(self)
        }
    }

    impl RowClassifier for HeldProtonet {
        fn classify(&self, tasks: &[RowTask<'_>]) -> Result<Vec<RowPrediction>> {
            self.calls.lock().unwrap().push(tasks.len());
            tasks.iter().map(|task| self.classes(task).map(RowPrediction::from)).collect()
        }
    }

    /// A method with a row classifier that fails in one episode, under the first setting with wrong labels.
    struct FailsLater {
        episode: u64,
        error: fn(u64) -> Error,
    }

    impl Method for FailsLater {
        fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
            panic!("episodes are classified from row numbers")
        }

        fn row_classifier(&self) -> Option<&dyn RowClassifier> {
            Some(self)
        }
    }

    impl RowClassifier for FailsLater {
        fn classify(&self, tasks: &[RowTask<'_>]) -> Result<Vec<RowPrediction>> {
            let is_noisy = |task: &RowTask<'_>| task.support.iter().any(|item| item.is_wrong());
            match tasks.iter().find(|task| task.episode == self.episode && is_noisy(task)) {
                Some(task) => Err((self.error)(task.episode)),
                None => Ok(tasks.iter().map(|task| vec![0; task.queries().count()].into()).collect()),
            }
        }
    }

    /// Six classes of 30 rows with 8 values; in rows of class c, value c is larger by `shift`.
    fn data(shift: f32) -> Embeddings {
        let value =
            |i: usize| ((i * 7919) % 997) as f32 / 400.0 + if i / (8 * 30) == i % 8 { shift } else { 0.0 };
        let labels = (0..180).map(|row| format!("class {} {shift}", row / 30)).collect();
        Embeddings::from_rows((0..180 * 8).map(value).collect(), 8, labels).unwrap()
    }

    /// The results of all methods as JSON.
    fn results(methods: &[NamedMethod]) -> Vec<String> {
        let result = evaluation(methods).unwrap();
        result.settings.iter().map(|setting| serde_json::to_string(setting).unwrap()).collect()
    }

    fn evaluation(methods: &[NamedMethod]) -> Result<crate::Evaluation> {
        let (rows, outliers) = (data(3.0), data(1.0));
        let spec = EpisodeSpec { ways: 3, shots: 4.into(), queries: 5, seed: 7 };
        let noises = noise::settings(&["symmetric=0,25".parse().unwrap(), "outlier=50".parse().unwrap()]);
        let sampler = Sampler::new(&rows, Some(&outliers), spec, noises).unwrap();
        let experiment = Experiment {
            embeddings: &rows,
            outliers: Some(&outliers),
            episodes: &sampler,
            count: 300,
            methods,
            baseline: "protonet",
            details: Details { per_class: true, confusion: true },
        };
        evaluate(&experiment, &())
    }

    #[test]
    fn a_method_that_fails_is_left_out_and_the_others_keep_their_results() {
        let parsed = || Registry::default().parse_all(&["median", "protonet"]).unwrap();
        let mut methods = parsed();
        let error = |episode| Error::MethodFailed { method: "x".into(), episode, problem: "no".into() };
        let failing = FailsLater { episode: 270, error };
        methods.insert(1, NamedMethod { label: "mine".into(), method: Box::new(failing) });
        let result = evaluation(&methods).unwrap();
        assert_eq!(result.failed.len(), 1);
        assert_eq!((result.failed[0].method.as_str(), result.failed[0].episode), ("mine", 270));
        assert!(!result.interrupted);
        assert_eq!(results(&methods), results(&parsed()));
        let alone = evaluation(&methods[1..2]).unwrap();
        assert!(alone.settings[0].methods.is_empty() && alone.settings[0].episodes == 300);
    }

    #[test]
    fn an_interrupted_method_ends_the_evaluation_with_the_rounds_before() {
        let mut methods = Registry::default().parse_all(&["protonet"]).unwrap();
        let interrupted = |episode| FailsLater { episode, error: |_| Error::Interrupted };
        methods.push(NamedMethod { label: "mine".into(), method: Box::new(interrupted(270)) });
        let result = evaluation(&methods).unwrap();
        assert!(result.interrupted && result.failed.is_empty());
        assert_eq!((result.settings[0].episodes, result.settings[0].methods.len()), (256, 2));
        // An interruption in the first round leaves no results.
        methods[1].method = Box::new(interrupted(3));
        assert!(matches!(evaluation(&methods), Err(Error::Interrupted)));
    }

    #[test]
    fn a_row_classifier_has_the_same_results_among_other_methods_as_the_method_on_rows() {
        let registry = Registry::default();
        let parsed = || registry.parse_all(&["median", "protonet", "nearest"]).unwrap();
        let calls = Arc::default();
        let mut methods = parsed();
        let held = HeldProtonet { rows: data(3.0), outliers: data(1.0), calls: Arc::clone(&calls) };
        methods[1].method = Box::new(held);
        assert_eq!(results(&methods), results(&parsed()));
        assert_eq!(*calls.lock().unwrap(), [256, 256, 256, 44, 44, 44], "one call per setting and round");
        assert_eq!(results(&methods[1..2]), results(&parsed()[1..2]));
    }
}
