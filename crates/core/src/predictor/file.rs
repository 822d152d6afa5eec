//! The classifier file: reading and writing a [`Predictor`] as a safetensors file.
//!
//! Tensors hold the support set, the prototypes and the novelty vectors; notes hold the classes, labels, item names,
//! the method, the scoring rule, the embedder and the audit. The names of tensors and notes are part of the file
//! format, so some differ from the names in the code (`placed` is a centred prototype, `unknown` is novelty).
//!
//! Files of version 1 are read too. They have another novelty score, so the probability of "none of the classes" is
//! calibrated from their support set when they are opened.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::calibration::LabelPosterior;
use super::novelty::{Calibration, Novelty, unit_rows};
use super::scoring_rule::ScoringRule;
use super::similarity::{ClassSimilarity, MEASURES};
use super::{Predictor, UncalibratedPredictor};
use crate::classifier::Classifier;
use crate::embeddings::{Embeddings, Features, Items, Labels, Parts};
use crate::error::Result;
use crate::tensors::{CLASSIFIER, Tensors, check_contents};

/// The version of the file format, in the note `format`.
const VERSION: &str = "trueshot-classifier/2";
/// The version whose novelty score had no discriminants and no calibration by left-out classes.
const VERSION_1: &str = "trueshot-classifier/1";
/// Length of the tensor `numbers`: the sharpness, the threshold, and the middle and width of every similarity.
const NUMBERS: usize = 2 + 2 * MEASURES;

/// Maximum number of classes of a file, which limits the memory that is allocated for an untrusted file.
const MAX_CLASSES: usize = 100_000;
/// Maximum number of classes times dimension of a file of version 1, whose class vectors are computed. Files of version
/// 2 contain them.
const MAX_VECTOR_VALUES: usize = 1 << 26;

impl Predictor {
    /// Reads a classifier file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_tensors(&Tensors::open_if(path.as_ref(), check_version)?)
    }

    /// Reads the bytes of a classifier file; error messages call it `name`.
    pub fn read_bytes(bytes: Vec<u8>, name: &str) -> Result<Self> {
        let tensors = Tensors::read_bytes(bytes, name)?;
        check_version(&tensors)?;
        Self::from_tensors(&tensors)
    }

    /// Writes the classifier file atomically: if writing fails, an existing file stays unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.to_tensors().write(path)
    }

    /// The bytes of the classifier file. Equal classifiers give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_tensors().to_bytes()
    }

    /// The bytes of a classifier file without the names of the examples and without the audit, which names them too.
    pub fn to_anonymous_bytes(&self) -> Vec<u8> {
        let mut file = self.to_tensors();
        file.remove_note("items");
        file.remove_note("audit");
        file.to_bytes()
    }

    /// All notes and tensors of the file; `from_tensors` reads them.
    fn to_tensors(&self) -> Tensors {
        let mut file = Tensors::default();
        file.set_note("format", VERSION);
        file.set_note("method", self.method());
        file.set_note("classes", json!(self.classes()).to_string());
        file.set_note("labels", json!(self.support().labels()).to_string());
        if let Some(items) = self.support().items() {
            let name = |row: usize| items.get(row).unwrap_or_default().to_string();
            let names: Vec<String> = (0..items.len()).map(name).collect();
            file.set_note("items", json!(names).to_string());
        }
        if let Some(embedder) = self.embedder() {
            file.set_note("embedder", embedder);
        }
        if let Some(audit) = &self.audit {
            file.set_note("audit", audit);
        }
        let dim = self.dim();
        file.insert("support", &[self.support().len(), dim], self.support().all_rows().into_owned());
        let Novelty { similarity, calibration } = &self.novelty;
        file.insert("mean", &[dim], similarity.mean.clone());
        let tables = [
            ("unknown.plain", &similarity.plain),
            ("unknown.placed", &similarity.centred),
            ("unknown.discriminants", &similarity.discriminants),
        ];
        tables
            .into_iter()
            .for_each(|(name, vectors)| file.insert(name, &[vectors.len(), dim], vectors.concat()));
        file.insert("unknown.biases", &[similarity.biases.len()], similarity.biases.clone());
        let numbers =
            [&[self.sharpness, calibration.threshold][..], &calibration.middle, &calibration.width].concat();
        file.insert("numbers", &[NUMBERS], numbers);
        self.write_rule(&mut file);
        file
    }

    /// Writes the scoring rule: its name as the note `rule`, its vectors as the tensor `vectors` and, for some rules,
    /// one more tensor.
    fn write_rule(&self, file: &mut Tensors) {
        let (name, vectors) = match &self.uncalibrated.rule {
            ScoringRule::Vectors(Classifier::Vectors(vectors)) => ("nearest".into(), Some(vectors)),
            ScoringRule::Vectors(Classifier::CosineVectors(vectors)) => ("cosine".into(), Some(vectors)),
            ScoringRule::Vectors(Classifier::Linear { weights, bias }) => {
                file.insert("bias", &[bias.len()], bias.clone());
                ("linear".into(), Some(weights))
            }
            ScoringRule::Vectors(Classifier::CentredVectors { mean, vectors }) => {
                file.insert("centre", &[mean.len()], mean.clone());
                ("placed".into(), Some(vectors))
            }
            ScoringRule::Items(Classifier::Neighbours(k)) => (format!("neighbours {k}"), None),
            _ => ("matching".into(), None),
        };
        file.set_note("rule", name);
        if let Some(vectors) = vectors {
            file.insert("vectors", &[vectors.len(), self.dim()], vectors.concat());
        }
    }

    /// Reads what `to_tensors` wrote, and checks all lengths and numbers that predictions rely on.
    fn from_tensors(file: &Tensors) -> Result<Self> {
        // Classes and support set.
        let classes: Vec<String> = note(file, "classes")?;
        if classes.len() < 2 || classes.len() > MAX_CLASSES {
            return Err(file.malformed(format!("it has {} classes", classes.len())));
        }
        let support = support(file, classes.clone())?;
        let dim = support.dim();
        let vectors = |name: &str| -> Result<Vec<Vec<f32>>> {
            Ok(file.values(name, classes.len() * dim)?.chunks_exact(dim).map(<[f32]>::to_vec).collect())
        };
        // The scoring rule, such as "nearest" or "neighbours 5".
        let rule_note = file.note("rule").unwrap_or_default();
        let rule = match rule_note.split_once(' ').unwrap_or((rule_note, "")) {
            ("nearest", _) => ScoringRule::Vectors(Classifier::Vectors(vectors("vectors")?)),
            ("cosine", _) => ScoringRule::Vectors(Classifier::CosineVectors(vectors("vectors")?)),
            ("linear", _) => {
                let bias = file.values("bias", classes.len())?.to_vec();
                ScoringRule::Vectors(Classifier::Linear { weights: vectors("vectors")?, bias })
            }
            ("placed", _) => ScoringRule::Vectors(Classifier::CentredVectors {
                mean: file.values("centre", dim)?.to_vec(),
                vectors: vectors("vectors")?,
            }),
            ("neighbours", k) => match k.parse() {
                Ok(k) if k > 0 => ScoringRule::Items(Classifier::Neighbours(k)),
                _ => return Err(file.malformed(format!("its number of neighbours is {k}"))),
            },
            ("matching", _) => ScoringRule::Items(Classifier::Matching),
            (other, _) => return Err(file.malformed(format!("its rule is '{other}', which is unknown"))),
        };
        // The sharpness and the model of "none of the classes". Version 1 has three numbers, of which only the
        // sharpness is used.
        let is_version_1 = file.note("format") == Some(VERSION_1);
        let numbers = file.values("numbers", if is_version_1 { 3 } else { NUMBERS })?;
        let is_positive = |number: &f32| *number > 0.0;
        let widths = if is_version_1 { &[][..] } else { &numbers[2 + MEASURES..] };
        if !is_positive(&numbers[0]) || !widths.iter().all(is_positive) {
            return Err(file.malformed("its sharpness or a width is not positive"));
        }
        let novelty = if is_version_1 {
            if classes.len().saturating_mul(dim) > MAX_VECTOR_VALUES {
                let problem = format!("{} classes of {dim} dimensions are too many", classes.len());
                return Err(file.malformed(problem));
            }
            let values = support.all_rows();
            let rows: Vec<&[f32]> = values.chunks_exact(dim).collect();
            Novelty::new(&rows, &LabelPosterior::new(&support, None))
        } else {
            let similarity = ClassSimilarity {
                mean: file.values("mean", dim)?.to_vec(),
                plain: vectors("unknown.plain")?,
                centred: vectors("unknown.placed")?,
                items: unit_rows(&support),
                discriminants: vectors("unknown.discriminants")?,
                biases: file.values("unknown.biases", classes.len())?.to_vec(),
            };
            let measures = |start: usize| std::array::from_fn(|measure| numbers[start + measure]);
            let calibration =
                Calibration { threshold: numbers[1], middle: measures(2), width: measures(2 + MEASURES) };
            Novelty { similarity, calibration }
        };
        let sharpness = numbers[0];
        let audit = file.note("audit").map(str::to_string);
        let method = file.note("method").unwrap_or("unknown").to_string();
        let support = Arc::new(support);
        let reduced_posterior = None;
        let uncalibrated = UncalibratedPredictor { method, classes, rule, support, reduced_posterior };
        Ok(Predictor { uncalibrated: Arc::new(uncalibrated), sharpness, novelty, audit })
    }
}

/// Checks that this is a classifier file of a version that can be read.
fn check_version(file: &Tensors) -> Result<()> {
    check_contents(file.path(), file.note("format"), CLASSIFIER)?;
    match file.note("format") {
        Some(VERSION | VERSION_1) => Ok(()),
        Some(other) => Err(file.malformed(format!("its format is '{other}', not '{VERSION}'"))),
        None => Err(file.malformed("it is not a classifier written by `trueshot fit`")),
    }
}

/// Parses a note that must exist and contain JSON.
fn note<T: serde::de::DeserializeOwned>(file: &Tensors, key: &str) -> Result<T> {
    let text = file.note(key).ok_or_else(|| file.malformed(format!("it has no metadata '{key}'")))?;
    serde_json::from_str(text).map_err(|problem| file.malformed(format!("its metadata '{key}': {problem}")))
}

/// The support set: rows from the tensor `support`, labels and item names from notes.
fn support(file: &Tensors, classes: Vec<String>) -> Result<Embeddings> {
    let tensor = file.get("support").ok_or_else(|| file.malformed("it has no tensor 'support'"))?;
    let &[rows, dim] = &tensor.shape[..] else {
        return Err(file.malformed("its tensor 'support' is not a table"));
    };
    let labels: Vec<i64> = note(file, "labels")?;
    if rows == 0 || dim == 0 || labels.len() != rows {
        return Err(file.malformed(format!("{} labels for {rows} rows of {dim} numbers", labels.len())));
    }
    let items = match file.note("items") {
        None => None,
        Some(_) => Some(Items::from_names(note::<Vec<String>>(file, "items")?)),
    };
    let parts = Parts {
        features: Features::from_f32(tensor.values.clone(), dim),
        labels: Labels::Indexed { labels, classes },
        items,
        backbone: file.note("embedder").map(str::to_string),
    };
    let mut support = Embeddings::from_parts(parts, None)?;
    support.check()?;
    Ok(support)
}
