//! Measures the quality of audits and classifiers on small labelled sets whose true labels are known.
//!
//! Each set is the support set of an episode: 5 classes drawn from DATA with K labelled items each, some of them with a
//! wrong label (`--noise`). The audit must find these, and a classifier fitted to the set is asked about 50 queries of
//! the 5 classes and as many items of other classes, which it should recognise as unknown.
//!
//! `audit_quality DATA [OUTLIERS] [--shots K] [--sets N] [--noise TYPE=LEVELS]... [--head FILE] [--write FOLDER]`
//! prints one JSON object per noise setting: detection of wrong labels, correctness of verdicts, accuracy and
//! calibration of predictions, and detection of unknown classes. Without OUTLIERS, or if it is the same file, outliers
//! and unknown queries come from the classes of DATA that are not in the support set. `--write` writes the support sets
//! to FOLDER as `.npy` files, for comparison with other programs (`bench/measure/audit.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::json;
use trueshot::audit::{self, Audit, Verdict};
use trueshot::embeddings::Embeddings;
use trueshot::episode::{DrawnEpisode, EpisodeSpec, Episodes, Sampler, Shots};
use trueshot::evaluate::Detection;
use trueshot::method::Registry;
use trueshot::noise::{Noise, NoiseLevels};
use trueshot::predictor::Predictor;
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot::task::{SupportSet, Task};

/// The command line.
struct Arguments {
    data: Embeddings,
    outliers: Option<Embeddings>,
    /// Labelled items per class.
    shots: usize,
    /// The number of sets per noise setting.
    sets: u64,
    noises: Vec<Noise>,
    /// The file of a trained Relabel head to classify with; by default, the one that is built in.
    head: Option<PathBuf>,
    /// The folder to write the sets to.
    write: Option<PathBuf>,
}

/// The results on one support set. Vectors have one entry per support item unless stated otherwise.
#[derive(Default)]
struct SetResult {
    /// The probability of a wrong label in the audit.
    suspicion: Vec<f32>,
    /// The suspicion by the method `cosine`, for comparison.
    cosine: Vec<f32>,
    /// Whether the given label is wrong.
    wrong: Vec<bool>,
    /// The verdict of the audit, and whether it is correct.
    verdicts: Vec<(Verdict, bool)>,
    /// For every query of the set's classes: the probability of the predicted class, and whether it is correct.
    predictions: Vec<(f32, bool)>,
    /// For every query: its probability of "none of the classes", and whether its class is unknown.
    unknown: Vec<(f32, bool)>,
    /// The support rows, `[items, dim]`.
    rows: Vec<f32>,
    /// The given class, 0 to 4.
    given: Vec<u32>,
}

fn main() {
    let arguments = Arguments::parse();
    let pool = arguments.outliers.as_ref().unwrap_or(&arguments.data);
    let spec = EpisodeSpec { ways: 5, shots: Shots::exactly(arguments.shots), queries: 10, seed: 0 };
    for &noise in &arguments.noises {
        let sampler = Sampler::new(&arguments.data, Some(pool), spec, vec![noise]).expect("possible sets");
        let results: Vec<SetResult> = (0..arguments.sets)
            .into_par_iter()
            .map(|index| {
                let drawn = sampler.draw(index, &mut IndexSampler::default()).expect("an episode");
                measure(&arguments, pool, &drawn, index)
            })
            .collect();
        if let Some(folder) = &arguments.write {
            write_sets(
                &folder.join(noise.to_string().replace([' ', '%'], "")),
                &results,
                arguments.data.dim(),
            );
        }
        println!("{}", report(&arguments, noise, &results));
    }
}

/// Audits the support set of an episode, fits a classifier to it and predicts known and unknown queries.
fn measure(arguments: &Arguments, pool: &Embeddings, drawn: &DrawnEpisode, index: u64) -> SetResult {
    let data = &arguments.data;
    let read_row = |embeddings: &Embeddings, row: u32| embeddings.row(row as usize).into_owned();
    // The audit of the support set; its classes are named by their numbers in the episode.
    let items = &drawn.supports[0];
    let rows: Vec<f32> = items
        .iter()
        .flat_map(|item| read_row(if item.truth.is_none() { pool } else { data }, item.row))
        .collect();
    let labels = items.iter().map(|item| item.given.to_string()).collect();
    let set = Embeddings::from_rows(rows.clone(), data.dim(), labels).expect("rows");
    let audit = Audit::of(&set).run().expect("an audit");
    let mut result = SetResult {
        suspicion: audit.items.iter().map(|item| item.p_wrong).collect(),
        cosine: cosine_suspicion(&set),
        wrong: items.iter().map(|item| item.is_wrong()).collect(),
        given: items.iter().map(|item| item.given).collect(),
        rows,
        ..SetResult::default()
    };
    result.verdicts = verdicts(&audit, items.iter().map(|item| item.truth));
    // The classifier, and its predictions for the queries.
    let queries = drawn.episode.classes.iter().zip(0u32..);
    let queries = queries.flat_map(|(draw, class)| draw.queries.iter().map(move |&row| (row, class)));
    let queries: Vec<(Vec<f32>, u32)> = queries.map(|(row, class)| (read_row(data, row), class)).collect();
    let method = match &arguments.head {
        Some(path) => format!("relabel:model={}", path.display()),
        None => "relabel".into(),
    };
    let method = Registry::default().parse(&method).expect("a method");
    let predictor = Predictor::fit(set, &method, Some(&audit)).expect("a classifier");
    let rows: Vec<&[f32]> = queries.iter().map(|(row, _)| &row[..]).collect();
    for (prediction, (_, class)) in predictor.predict(&rows).expect("predictions").iter().zip(&queries) {
        let probability = prediction.probabilities_if_known()[prediction.class as usize];
        result.predictions.push((probability, prediction.class == *class));
        result.unknown.push((prediction.unknown, false));
    }
    // Its predictions for as many rows of other classes.
    let unknown: Vec<Vec<f32>> = unknown_rows(pool, data, drawn, queries.len(), index, read_row);
    let rows: Vec<&[f32]> = unknown.iter().map(Vec::as_slice).collect();
    let predictions = predictor.predict(&rows).expect("predictions");
    result.unknown.extend(predictions.iter().map(|prediction| (prediction.unknown, true)));
    result
}

/// `count` random rows of classes that are not in the episode; `index` is the number of the episode, and `read_row`
/// reads a row.
fn unknown_rows(
    pool: &Embeddings,
    data: &Embeddings,
    drawn: &DrawnEpisode,
    count: usize,
    index: u64,
    read_row: impl Fn(&Embeddings, u32) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    // Another seed than that of the episodes, 0.
    let mut rng = Rng::new(7, Purpose::Items, index);
    // Rows of a separate pool are never of a class of the episode.
    let is_known = |row: usize| {
        std::ptr::eq(pool, data)
            && drawn.episode.classes.iter().any(|class| class.class == data.labels()[row])
    };
    let mut rows = std::iter::repeat_with(|| rng.below(pool.len())).filter(|&row| !is_known(row));
    (0..count).filter_map(|_| rows.next()).map(|row| read_row(pool, row as u32)).collect()
}

/// The verdicts of an audit, and whether each is correct.
fn verdicts(audit: &Audit, truths: impl Iterator<Item = Option<u32>>) -> Vec<(Verdict, bool)> {
    let checked = |(item, truth): (&audit::AuditedItem, Option<u32>)| {
        let truth = truth.map(|class| class.to_string());
        let is_correct = match item.verdict {
            Verdict::Keep => truth.as_deref() == Some(&item.given[..]),
            Verdict::Relabel => truth.is_some() && truth == item.suggested,
            Verdict::Outlier => truth.is_none(),
            Verdict::Wrong => truth.as_deref() != Some(&item.given[..]),
            Verdict::Unsure => false,
        };
        (item.verdict, is_correct)
    };
    audit.items.iter().zip(truths).map(checked).collect()
}

/// The suspicion of every item by the weights of the method `cosine`.
fn cosine_suspicion(set: &Embeddings) -> Vec<f32> {
    let values = set.all_rows();
    let rows = values.chunks_exact(set.dim()).collect();
    let task = Task::new(SupportSet::new(rows, set.labels().to_vec(), set.classes().len()));
    let method = Registry::default().parse("cosine").expect("it exists");
    let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0)).expect("it fits");
    fitted.assessments.into_iter().flatten().map(|assessment| assessment.suspicion()).collect()
}

/// The summary of all sets under one noise setting.
fn report(arguments: &Arguments, noise: Noise, results: &[SetResult]) -> serde_json::Value {
    let all = |field: fn(&SetResult) -> &Vec<f32>| {
        results.iter().flat_map(|result| field(result).iter().copied()).collect::<Vec<f32>>()
    };
    let wrong: Vec<bool> = results.iter().flat_map(|result| result.wrong.iter().copied()).collect();
    // `relabel` is the suspicion of the audit.
    let relabel = Detection::score(&all(|result| &result.suspicion), &wrong, true);
    let cosine = Detection::score(&all(|result| &result.cosine), &wrong, false);
    // For every verdict its number, and how many of these are correct.
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (verdict, is_correct) in results.iter().flat_map(|result| &result.verdicts) {
        let entry = counts.entry(serde_json::to_value(verdict).expect("a word").to_string()).or_default();
        *entry = (entry.0 + 1, entry.1 + usize::from(*is_correct));
    }
    let total: usize = counts.values().map(|(count, _)| count).sum();
    // The number of verdicts other than "unsure", and how many of them are correct.
    let of_decided = counts.iter().filter(|(name, _)| !name.contains("unsure")).map(|(_, counts)| counts);
    let (decided, correct) = of_decided.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    let (confidences, are_correct): (Vec<f32>, Vec<bool>) =
        results.iter().flat_map(|result| result.predictions.iter().copied()).unzip();
    let (novelties, are_unknown): (Vec<f32>, Vec<bool>) =
        results.iter().flat_map(|result| result.unknown.iter().copied()).unzip();
    json!({
        "noise": noise.to_string(),
        "shots": arguments.shots,
        "sets": results.len(),
        "relabel": relabel,
        "cosine": cosine,
        "decided": decided as f64 / total as f64,
        "decided_right": correct as f64 / decided.max(1) as f64,
        "calls": counts,
        "accuracy": are_correct.iter().filter(|&&correct| correct).count() as f64 / are_correct.len() as f64,
        "confidence": confidences.iter().map(|&p| f64::from(p)).sum::<f64>() / confidences.len() as f64,
        "answer_calibration_error":
            Detection::score(&confidences, &are_correct, true).and_then(|detection| detection.calibration_error),
        "unknown_auroc": Detection::score(&novelties, &are_unknown, false).map(|detection| detection.auroc),
        "unknown_auroc_within_sets": results.iter().filter_map(unknown_auroc).sum::<f64>() / results.len() as f64,
    })
}

/// The AUROC of detecting unknown queries within one set.
fn unknown_auroc(result: &SetResult) -> Option<f64> {
    let (novelties, are_unknown): (Vec<f32>, Vec<bool>) = result.unknown.iter().copied().unzip();
    Detection::score(&novelties, &are_unknown, false).map(|detection| detection.auroc)
}

/// Writes all support sets as NumPy arrays: `x.npy` `[sets, items, dim]`, `given.npy` and `wrong.npy` `[sets, items]`.
fn write_sets(folder: &Path, results: &[SetResult], dim: usize) {
    std::fs::create_dir_all(folder).expect("a folder");
    let (sets, items) = (results.len(), results[0].given.len());
    let write = |name: &str, descr: &str, shape: &str, bytes: Vec<u8>| {
        // The header of the `.npy` format, padded so that the data starts at a multiple of 64 bytes. In front of it are
        // 10 bytes (magic bytes, version and length), and it ends with a line end.
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
        header.push_str(&" ".repeat(length - header.len() - 1));
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((length as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(bytes);
        std::fs::write(folder.join(name), file).expect("a file");
    };
    let rows = results.iter().flat_map(|r| r.rows.iter().flat_map(|value| value.to_le_bytes())).collect();
    write("x.npy", "<f4", &format!("({sets}, {items}, {dim})"), rows);
    let given = results
        .iter()
        .flat_map(|r| r.given.iter().flat_map(|&class| i64::from(class).to_le_bytes()))
        .collect();
    write("given.npy", "<i8", &format!("({sets}, {items})"), given);
    let wrong = results.iter().flat_map(|r| r.wrong.iter().map(|&wrong| u8::from(wrong))).collect();
    write("wrong.npy", "|u1", &format!("({sets}, {items})"), wrong);
}

impl Arguments {
    /// Reads the arguments of the process; panics if they are not valid.
    fn parse() -> Self {
        let (mut files, mut noises) = (Vec::new(), Vec::new());
        let (mut shots, mut sets, mut head, mut write) = (5, 1000, None, None);
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("a value after {word}"));
            match word.as_str() {
                "--shots" => shots = value().parse().expect("a number of shots"),
                "--sets" => sets = value().parse().expect("a number of sets"),
                "--head" => head = Some(value().into()),
                "--write" => write = Some(value().into()),
                "--noise" => noises.extend(value().parse::<NoiseLevels>().expect("noise").0),
                // OUTLIERS that are the same file as DATA are not opened a second time.
                _ if files.contains(&word) => (),
                _ => files.push(word),
            }
        }
        let mut files = files.into_iter().map(|path| Embeddings::open(&path).expect("embeddings"));
        let data = files.next().expect("a file of embeddings");
        Arguments { data, outliers: files.next(), shots, sets, noises, head, write }
    }
}
