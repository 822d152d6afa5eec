//! Compares the accuracies of the methods with those of an independent implementation, and with those of the paper.
//!
//! The reference data is not part of the repository; without it these tests are skipped.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Sampler, Shots};
use trueshot::evaluate::{Details, Evaluation, Experiment, SettingResult, evaluate};
use trueshot::method::{NamedMethod, Registry};
use trueshot::noise::{Noise, NoiseKind};

/// The reference data, in the folder `shared` next to the clone, if it exists.
struct Reference {
    folder: PathBuf,
    data: Embeddings,
    outliers: Embeddings,
}

impl Reference {
    fn open() -> Option<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
        if !folder.is_dir() {
            // Not `eprintln!`, whose output the test runner captures.
            let reason = format!("SKIPPED: no reference data, {} does not exist\n", folder.display());
            std::io::stderr().write_all(reason.as_bytes()).unwrap();
            return None;
        }
        let open = |name: &str| Embeddings::open(folder.join("reference").join(name)).unwrap();
        let (data, outliers) =
            (open("mini-test-features.safetensors"), open("mini-outlier-features.safetensors"));
        Some(Reference { folder, data, outliers })
    }

    /// The records of a CSV file without quoted fields, except the header.
    fn records(&self, name: &str) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(self.folder.join(name)).unwrap();
        text.lines().skip(1).map(|line| line.split(',').map(str::to_string).collect()).collect()
    }

    fn evaluate(
        &self,
        (ways, shots): (usize, usize),
        noises: Vec<Noise>,
        methods: &[&str],
        count: u64,
    ) -> Evaluation {
        let spec = EpisodeSpec { ways, shots: Shots::exactly(shots), queries: 15, seed: 0 };
        let sampler = Sampler::new(&self.data, Some(&self.outliers), spec, noises).unwrap();
        let registry = Registry::default();
        let methods: Vec<NamedMethod> = methods.iter().map(|name| registry.parse(name).unwrap()).collect();
        let experiment = Experiment {
            embeddings: &self.data,
            outliers: Some(&self.outliers),
            episodes: &sampler,
            count,
            methods: &methods,
            baseline: "protonet",
            details: Details::default(),
        };
        evaluate(&experiment, &()).unwrap()
    }
}

/// Expected accuracies as (method, accuracy in percent).
type Expected = Vec<(String, f64)>;

fn noise(kind: &str, level: f64) -> Noise {
    let kind = NoiseKind::ALL.into_iter().find(|known| known.name() == kind).unwrap();
    Noise::new(kind, level).unwrap()
}

fn name(setting: &SettingResult) -> String {
    format!("{} {}, {}-way {}-shot", setting.noise, setting.level, setting.ways, setting.shots)
}

/// The paired difference of a method to ProtoNet, in points.
fn difference(setting: &SettingResult, method: &str) -> f64 {
    let found = setting.methods.iter().find(|found| found.method == method).unwrap();
    found.difference.unwrap().mean
}

#[test]
fn closed_form_methods_agree_with_an_independent_implementation() {
    let Some(reference) = Reference::open() else { return };
    let records = reference.records("reference/closed-form.csv");
    // One evaluation per shape: the noise settings of a shape share their episodes.
    let mut shapes: BTreeMap<(usize, usize), BTreeMap<(String, String), Expected>> = BTreeMap::new();
    for record in &records {
        let shape = (record[2].parse().unwrap(), record[3].parse().unwrap());
        let setting = (record[0].clone(), record[1].clone());
        let expected = (record[4].clone(), record[5].parse().unwrap());
        shapes.entry(shape).or_default().entry(setting).or_default().push(expected);
    }
    let (mut compared, mut wrong) = (0, Vec::new());
    for (shape, settings) in shapes {
        let noises = settings.keys().map(|(kind, level)| noise(kind, level.parse().unwrap())).collect();
        let methods: Vec<&str> =
            settings.values().next().unwrap().iter().map(|(method, _)| method.as_str()).collect();
        let found = reference.evaluate(shape, noises, &methods, 2000);
        for (setting, expected) in found.settings.iter().zip(settings.values()) {
            for (entry, (method, accuracy)) in setting.methods.iter().zip(expected) {
                assert_eq!(&entry.method, method);
                let gap = entry.accuracy.unwrap() - accuracy;
                compared += 1;
                if gap.abs() > 1.0 {
                    wrong.push(format!("{}, {method}: {gap:+.2}", name(setting)));
                }
            }
        }
    }
    assert_eq!(compared, 18 * 16);
    assert!(wrong.is_empty(), "more than a point from the reference:\n{}", wrong.join("\n"));
}

#[test]
fn linear_and_rnnp_differ_from_protonet_as_in_an_independent_implementation() {
    let Some(reference) = Reference::open() else { return };
    let expected = [(0.0, -1.7), (0.2, -4.0), (0.4, -4.8), (0.6, -3.8)];
    let noises = expected.iter().map(|&(level, _)| noise("symmetric", level)).collect();
    let found = reference.evaluate((5, 5), noises, &["protonet", "linear", "rnnp"], 500);
    for (setting, (_, linear)) in found.settings.iter().zip(expected) {
        let (found, rnnp) = (difference(setting, "linear"), difference(setting, "rnnp"));
        assert!((found - linear).abs() <= 1.0, "{}, linear: {found:+.2}, not {linear:+.2}", name(setting));
        assert!(rnnp.abs() <= 1.3, "{}, rnnp: {rnnp:+.2}", name(setting));
    }
}

#[test]
fn baseline_plus_plus_differs_from_protonet_as_in_the_paper() {
    let Some(reference) = Reference::open() else { return };
    let tables = [("sym_swap_5w5k", "symmetric"), ("pair_swap_5w5k", "paired"), ("outlier_5w5k", "outlier")];
    let records = reference.records("paper/tables.csv");
    let accuracy = |table: &str, row: &str, percent: &str| {
        let same = |r: &&Vec<String>| r[..4] == [table, "miniimagenet", row, percent].map(String::from);
        records.iter().find(same).unwrap()[4].parse::<f64>().unwrap()
    };
    let (mut noises, mut expected) = (Vec::new(), Vec::new());
    for (table, kind) in tables {
        for record in
            records.iter().filter(|r| r[0] == table && r[1] == "miniimagenet" && r[2] == "Baseline++")
        {
            noises.push(noise(kind, record[3].parse::<f64>().unwrap() / 100.0));
            let protonet = accuracy(table, "Vanilla ProtoNet", &record[3]);
            expected.push(record[4].parse::<f64>().unwrap() - protonet);
        }
    }
    assert_eq!(expected.len(), 9);
    let found = reference.evaluate((5, 5), noises, &["protonet", "baseline++"], 500);
    for (setting, expected) in found.settings.iter().zip(expected) {
        let found = difference(setting, "baseline++");
        assert!((found - expected).abs() <= 1.0, "{}: {found:+.2}, not {expected:+.2}", name(setting));
    }
}
