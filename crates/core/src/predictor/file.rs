//! The file of a classifier: tensors for what it computes with, notes for everything else. The support set is in it, so
//! that more can be added to it later.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::novelty::Novelty;
use super::scoring_rule::ScoringRule;
use super::{Predictor, UncalibratedPredictor};
use crate::classifier::Classifier;
use crate::embeddings::{Embeddings, Features, Items, Labels, Parts};
use crate::error::Result;
use crate::tensors::Tensors;

/// The version of the file format.
const VERSION: &str = "trueshot-classifier/1";

/// The most classes a file may have: sizes from outside decide what is allocated.
const MOST_CLASSES: usize = 100_000;

impl Predictor {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_tensors(&Tensors::open_if(path.as_ref(), check_version)?)
    }

    /// Reads the bytes of a file; `name` stands for it in messages.
    pub fn read_bytes(bytes: Vec<u8>, name: &str) -> Result<Self> {
        let tensors = Tensors::read_bytes(bytes, name)?;
        check_version(&tensors)?;
        Self::from_tensors(&tensors)
    }

    /// Writes a file that appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.to_tensors().write(path)
    }

    /// The file's bytes: the same for the same classifier.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_tensors().to_bytes()
    }

    fn to_tensors(&self) -> Tensors {
        let mut file = Tensors::default();
        file.set_note("format", VERSION);
        file.set_note("method", self.method());
        file.set_note("classes", json!(self.classes()).to_string());
        file.set_note("labels", json!(self.support().labels()).to_string());
        let names = |items: &Items| {
            (0..items.len()).map(|row| items.get(row).unwrap_or_default().to_string()).collect()
        };
        if let Some(items) = self.support().items() {
            let names: Vec<String> = names(items);
            file.set_note("items", json!(names).to_string());
        }
        if let Some(embedder) = self.embedder() {
            file.set_note("embedder", embedder);
        }
        if let Some(audit) = &self.audit {
            file.set_note("audit", audit);
        }
        let dim = self.dim();
        file.insert("support", &[self.support().len(), dim], super::all_rows(self.support()));
        let Novelty { mean, plain, placed, items: _, usual, spread } = &self.novelty;
        file.insert("mean", &[dim], mean.clone());
        file.insert("unknown.plain", &[plain.len(), dim], plain.concat());
        file.insert("unknown.placed", &[placed.len(), dim], placed.concat());
        file.insert("numbers", &[3], vec![self.sharpness, *usual, *spread]);
        self.rule_into(&mut file);
        file
    }

    fn rule_into(&self, file: &mut Tensors) {
        let mut vectors = |vectors: &Vec<Vec<f32>>| {
            file.insert("vectors", &[vectors.len(), self.dim()], vectors.concat());
        };
        let (rule, more) = match &self.learned.rule {
            ScoringRule::Vectors(Classifier::Vectors(all)) => (vectors(all), ("nearest".into(), None)).1,
            ScoringRule::Vectors(Classifier::CosineVectors(all)) => (vectors(all), ("cosine".into(), None)).1,
            ScoringRule::Vectors(Classifier::Linear { weights, bias }) => {
                vectors(weights);
                ("linear".into(), Some(("bias", bias.clone())))
            }
            ScoringRule::Placed { mean, vectors: all } => {
                vectors(all);
                ("placed".into(), Some(("centre", mean.clone())))
            }
            ScoringRule::Items(Classifier::Neighbours(k)) => (format!("neighbours {k}"), None),
            _ => ("matching".into(), None),
        };
        file.set_note("rule", rule);
        if let Some((name, values)) = more {
            file.insert(name, &[values.len()], values);
        }
    }

    fn from_tensors(file: &Tensors) -> Result<Self> {
        let classes: Vec<String> = note(file, "classes")?;
        if classes.len() < 2 || classes.len() > MOST_CLASSES {
            return Err(file.malformed(format!("it has {} classes", classes.len())));
        }
        let support = support(file, classes.clone())?;
        let dim = support.dim();
        let vectors = |name: &str| -> Result<Vec<Vec<f32>>> {
            Ok(file.values(name, classes.len() * dim)?.chunks_exact(dim).map(<[f32]>::to_vec).collect())
        };
        let rule = match file
            .note("rule")
            .unwrap_or_default()
            .split_once(' ')
            .unwrap_or((file.note("rule").unwrap_or_default(), ""))
        {
            ("nearest", _) => ScoringRule::Vectors(Classifier::Vectors(vectors("vectors")?)),
            ("cosine", _) => ScoringRule::Vectors(Classifier::CosineVectors(vectors("vectors")?)),
            ("linear", _) => {
                let bias = file.values("bias", classes.len())?.to_vec();
                ScoringRule::Vectors(Classifier::Linear { weights: vectors("vectors")?, bias })
            }
            ("placed", _) => ScoringRule::Placed {
                mean: file.values("centre", dim)?.to_vec(),
                vectors: vectors("vectors")?,
            },
            ("neighbours", k) => match k.parse() {
                Ok(k) if k > 0 => ScoringRule::Items(Classifier::Neighbours(k)),
                _ => return Err(file.malformed(format!("its number of neighbours is {k}"))),
            },
            ("matching", _) => ScoringRule::Items(Classifier::Matching),
            (other, _) => return Err(file.malformed(format!("its rule is '{other}', which is unknown"))),
        };
        let &[sharpness, usual, spread] = file.values("numbers", 3)? else {
            unreachable!("three were asked for")
        };
        let novelty = Novelty {
            mean: file.values("mean", dim)?.to_vec(),
            plain: vectors("unknown.plain")?,
            placed: vectors("unknown.placed")?,
            items: super::novelty::units(&support),
            usual,
            spread,
        };
        let audit = file.note("audit").map(str::to_string);
        let method = file.note("method").unwrap_or("unknown").to_string();
        let support = Arc::new(support);
        let learned = Arc::new(UncalibratedPredictor { method, classes, rule, support, chosen_by: None });
        Ok(Predictor { learned, sharpness, novelty, audit })
    }
}

fn check_version(file: &Tensors) -> Result<()> {
    match file.note("format") {
        Some(VERSION) => Ok(()),
        Some(other) => Err(file.malformed(format!("its format is '{other}', not '{VERSION}'"))),
        None => Err(file.malformed("it is not a classifier written by `trueshot fit`")),
    }
}

fn note<T: serde::de::DeserializeOwned>(file: &Tensors, key: &str) -> Result<T> {
    let text = file.note(key).ok_or_else(|| file.malformed(format!("it has no metadata '{key}'")))?;
    serde_json::from_str(text).map_err(|problem| file.malformed(format!("its metadata '{key}': {problem}")))
}

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
