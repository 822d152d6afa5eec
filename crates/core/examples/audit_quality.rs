//! How good audits and kept classifiers are, on support sets whose truth is known.
//!
//! `audit_quality DATA [OUTLIERS] [--shots K] [--sets N] [--noise TYPE=LEVELS]... [--head FILE] [--write FOLDER]` prints one JSON
//! object a noise setting. Without OUTLIERS, or if they are the same file, outliers and strangers are of the classes of DATA that a set has not.
//! `--write` puts the sets into FOLDER as .npy files for other programs to look at (`bench/measure/audit.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::json;
use trueshot::audit::{self, Audit, Verdict};
use trueshot::embeddings::Embeddings;
use trueshot::episode::{DrawnEpisode, EpisodeSpec, Episodes, Sampler, Shots};
use trueshot::evaluate::Detection;
use trueshot::method::{Registry, TrainedRelabel};
use trueshot::noise::{Noise, NoiseLevels};
use trueshot::predictor::Predictor;
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot::task::{SupportSet, Task};

struct Arguments {
    data: Embeddings,
    outliers: Option<Embeddings>,
    shots: usize,
    sets: u64,
    noises: Vec<Noise>,
    head: Option<PathBuf>,
    write: Option<PathBuf>,
}

/// What came of one set.
#[derive(Default)]
struct Looked {
    suspicion: Vec<f32>,
    cosine: Vec<f32>,
    wrong: Vec<bool>,
    /// Verdict, and whether it is right.
    calls: Vec<(Verdict, bool)>,
    /// How sure an answer was, and whether it was right.
    answers: Vec<(f32, bool)>,
    /// How strange a query was called, and whether it was a stranger.
    unknown: Vec<(f32, bool)>,
    rows: Vec<f32>,
    given: Vec<u32>,
}

fn main() {
    let arguments = Arguments::parse();
    let pool = arguments.outliers.as_ref().unwrap_or(&arguments.data);
    let spec = EpisodeSpec { ways: 5, shots: Shots::exactly(arguments.shots), queries: 10, seed: 0 };
    let head = match &arguments.head {
        Some(path) => TrainedRelabel::open(path),
        None => TrainedRelabel::built_in(),
    };
    let head = head.expect("a head");
    for &noise in &arguments.noises {
        let sampler = Sampler::new(&arguments.data, Some(pool), spec, vec![noise]).expect("possible sets");
        let looked: Vec<Looked> = (0..arguments.sets)
            .into_par_iter()
            .map(|index| {
                let drawn = sampler.draw(index, &mut IndexSampler::default()).expect("a set");
                look(&arguments, pool, &head, &drawn, index)
            })
            .collect();
        if let Some(folder) = &arguments.write {
            write_sets(
                &folder.join(noise.to_string().replace([' ', '%'], "")),
                &looked,
                arguments.data.dim(),
            );
        }
        println!("{}", report(&arguments, noise, &looked));
    }
}

fn look(
    arguments: &Arguments,
    pool: &Embeddings,
    head: &TrainedRelabel,
    drawn: &DrawnEpisode,
    index: u64,
) -> Looked {
    let data = &arguments.data;
    let row = |bank: &Embeddings, row: u32| {
        let mut values = vec![0.0; bank.dim()];
        bank.features().decode_row(row as usize, &mut values);
        values
    };
    let items = &drawn.supports[0];
    let rows: Vec<f32> =
        items.iter().flat_map(|item| row(if item.truth.is_none() { pool } else { data }, item.row)).collect();
    let labels = items.iter().map(|item| item.given.to_string()).collect();
    let set = Embeddings::from_rows(rows.clone(), data.dim(), labels).expect("rows");
    let found = Audit::of(&set).head(head).run().expect("an audit");
    let mut looked = Looked {
        suspicion: found.items.iter().map(|item| item.p_wrong).collect(),
        cosine: cosine_suspicion(&set),
        wrong: items.iter().map(|item| item.is_wrong()).collect(),
        given: items.iter().map(|item| item.given).collect(),
        rows,
        ..Looked::default()
    };
    looked.calls = calls(&found, items.iter().map(|item| item.truth));
    let queries = drawn.episode.classes.iter().zip(0u32..);
    let queries = queries.flat_map(|(class, number)| class.queries.iter().map(move |&row| (row, number)));
    let queries: Vec<(Vec<f32>, u32)> = queries.map(|(place, class)| (row(data, place), class)).collect();
    let method = match &arguments.head {
        Some(path) => format!("relabel:model={}", path.display()),
        None => "relabel".into(),
    };
    let method = Registry::default().parse(&method).expect("a method");
    let predictor = Predictor::fit(set, &method, Some(&found)).expect("a classifier");
    let asked: Vec<&[f32]> = queries.iter().map(|(row, _)| &row[..]).collect();
    for (answer, (_, class)) in predictor.predict(&asked).expect("answers").iter().zip(&queries) {
        looked.answers.push((answer.probability, answer.class == *class));
        looked.unknown.push((answer.unknown, false));
    }
    let strangers: Vec<Vec<f32>> = strangers(pool, data, drawn, queries.len(), index, row);
    let asked: Vec<&[f32]> = strangers.iter().map(Vec::as_slice).collect();
    looked
        .unknown
        .extend(predictor.predict(&asked).expect("answers").iter().map(|answer| (answer.unknown, true)));
    looked
}

/// Rows of classes that the set has not.
fn strangers(
    pool: &Embeddings,
    data: &Embeddings,
    drawn: &DrawnEpisode,
    count: usize,
    index: u64,
    row: impl Fn(&Embeddings, u32) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(7, Purpose::Items, index);
    let is_inside = |place: usize| {
        std::ptr::eq(pool, data)
            && drawn.episode.classes.iter().any(|class| class.class == data.labels()[place])
    };
    let mut places = std::iter::repeat_with(|| rng.below(pool.len())).filter(|&place| !is_inside(place));
    (0..count).filter_map(|_| places.next()).map(|place| row(pool, place as u32)).collect()
}

fn calls(found: &Audit, truths: impl Iterator<Item = Option<u32>>) -> Vec<(Verdict, bool)> {
    let call = |(item, truth): (&audit::AuditedItem, Option<u32>)| {
        let truth = truth.map(|class| class.to_string());
        let right = match item.verdict {
            Verdict::Keep => truth.as_deref() == Some(&item.given[..]),
            Verdict::Relabel => truth.is_some() && truth == item.suggested,
            Verdict::Outlier => truth.is_none(),
            Verdict::Unsure => false,
        };
        (item.verdict, right)
    };
    found.items.iter().zip(truths).map(call).collect()
}

/// What the weights of the method `cosine` say.
fn cosine_suspicion(set: &Embeddings) -> Vec<f32> {
    let mut values = vec![0.0; set.len() * set.dim()];
    values.chunks_exact_mut(set.dim()).enumerate().for_each(|(row, out)| set.features().decode_row(row, out));
    let rows = values.chunks_exact(set.dim()).collect();
    let task = Task::new(SupportSet::new(rows, set.labels().to_vec(), set.classes().len()));
    let method = Registry::default().parse("cosine").expect("it exists");
    let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0)).expect("it fits");
    fitted.assessments.into_iter().flatten().map(|assessment| assessment.suspicion()).collect()
}

fn report(arguments: &Arguments, noise: Noise, looked: &[Looked]) -> serde_json::Value {
    let all = |part: fn(&Looked) -> &Vec<f32>| {
        looked.iter().flat_map(|l| part(l).iter().copied()).collect::<Vec<f32>>()
    };
    let wrong: Vec<bool> = looked.iter().flat_map(|l| l.wrong.iter().copied()).collect();
    let relabel = Detection::score(&all(|l| &l.suspicion), &wrong, true);
    let cosine = Detection::score(&all(|l| &l.cosine), &wrong, false);
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (verdict, right) in looked.iter().flat_map(|l| &l.calls) {
        let entry = counts.entry(serde_json::to_value(verdict).expect("a word").to_string()).or_default();
        *entry = (entry.0 + 1, entry.1 + usize::from(*right));
    }
    let total: usize = counts.values().map(|(count, _)| count).sum();
    let decided: Vec<&(usize, usize)> =
        counts.iter().filter(|(name, _)| !name.contains("unsure")).map(|(_, counts)| counts).collect();
    let (said, right) = decided.iter().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    let (sure, answered): (Vec<f32>, Vec<bool>) =
        looked.iter().flat_map(|l| l.answers.iter().copied()).unzip();
    let (strange, stranger): (Vec<f32>, Vec<bool>) =
        looked.iter().flat_map(|l| l.unknown.iter().copied()).unzip();
    json!({
        "noise": noise.to_string(),
        "shots": arguments.shots,
        "sets": looked.len(),
        "relabel": relabel,
        "cosine": cosine,
        "decided": said as f64 / total as f64,
        "decided_right": right as f64 / said.max(1) as f64,
        "calls": counts,
        "accuracy": answered.iter().filter(|&&right| right).count() as f64 / answered.len() as f64,
        "confidence": sure.iter().map(|&p| f64::from(p)).sum::<f64>() / sure.len() as f64,
        "answer_calibration_error": Detection::score(&sure, &answered, true).and_then(|d| d.calibration_error),
        "unknown_auroc": Detection::score(&strange, &stranger, false).map(|d| d.auroc),
        "unknown_auroc_within_sets": looked.iter().filter_map(unknown_within).sum::<f64>() / looked.len() as f64,
    })
}

/// How well strangers are told within one set.
fn unknown_within(looked: &Looked) -> Option<f64> {
    let (strange, stranger): (Vec<f32>, Vec<bool>) = looked.unknown.iter().copied().unzip();
    Detection::score(&strange, &stranger, false).map(|detection| detection.auroc)
}

fn write_sets(folder: &Path, looked: &[Looked], dim: usize) {
    std::fs::create_dir_all(folder).expect("a folder");
    let (sets, items) = (looked.len(), looked[0].given.len());
    let write = |name: &str, descr: &str, shape: &str, bytes: Vec<u8>| {
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
    let rows = looked.iter().flat_map(|l| l.rows.iter().flat_map(|value| value.to_le_bytes())).collect();
    write("x.npy", "<f4", &format!("({sets}, {items}, {dim})"), rows);
    let given = looked
        .iter()
        .flat_map(|l| l.given.iter().flat_map(|&class| i64::from(class).to_le_bytes()))
        .collect();
    write("given.npy", "<i8", &format!("({sets}, {items})"), given);
    let wrong = looked.iter().flat_map(|l| l.wrong.iter().map(|&wrong| u8::from(wrong))).collect();
    write("wrong.npy", "|u1", &format!("({sets}, {items})"), wrong);
}

impl Arguments {
    fn parse() -> Self {
        let (mut files, mut noises) = (Vec::new(), Vec::new());
        let (mut shots, mut sets, mut head, mut write) = (5, 1000, None, None);
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("a value behind {word}"));
            match word.as_str() {
                "--shots" => shots = value().parse().expect("a number of shots"),
                "--sets" => sets = value().parse().expect("a number of sets"),
                "--head" => head = Some(value().into()),
                "--write" => write = Some(value().into()),
                "--noise" => noises.extend(value().parse::<NoiseLevels>().expect("noise").0),
                _ if files.contains(&word) => (),
                _ => files.push(word),
            }
        }
        let mut files = files.into_iter().map(|path| Embeddings::open(&path).expect("embeddings"));
        let data = files.next().expect("a file of embeddings");
        Arguments { data, outliers: files.next(), shots, sets, noises, head, write }
    }
}
