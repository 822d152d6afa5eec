//! Evaluations of arrays, and their episodes: the same ones that `trueshot eval` draws with the same seed.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ops::ControlFlow;
use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Episodes, Item, Sampler, Shots};
use trueshot::evaluate::{self as library, Details, Experiment};
use trueshot::method::Registry;
use trueshot::noise::{self, Noise, NoiseKind, NoiseLevels};
use trueshot::progress::Progress;
use trueshot::report::{self, Format, Tables};
use trueshot::rng::IndexSampler;

use crate::audit::NumberedRows;
use crate::exceptions::{to_exception, value_error};
use crate::interruptible::{Channel, run_interruptible};
use crate::{numpy_features, thread_pools};

/// Labelled rows as the Python half hands them over: features, places of classes, names of classes, names of rows.
pub type LabelledArrays<'py> =
    (Bound<'py, PyAny>, PyReadonlyArray1<'py, i64>, Vec<String>, Option<Vec<String>>);

/// Takes labelled rows.
pub fn to_numbered_rows(given: LabelledArrays<'_>) -> PyResult<NumberedRows> {
    let (features, labels, classes, items) = given;
    let labels = labels.as_slice()?.to_vec();
    Ok(NumberedRows { features: numpy_features::features(&features)?, labels, classes, items })
}

/// What episodes are like.
#[derive(FromPyObject)]
pub struct EpisodeShape {
    ways: usize,
    shots: (usize, usize),
    queries: usize,
    seed: u64,
    noise: Vec<(String, Vec<f64>)>,
}

impl EpisodeShape {
    fn spec(&self) -> EpisodeSpec {
        let shots = Shots { min: self.shots.0, max: self.shots.1 };
        EpisodeSpec { ways: self.ways, shots, queries: self.queries, seed: self.seed }
    }

    fn noise(&self) -> PyResult<Vec<Noise>> {
        let mut all = Vec::new();
        for (name, levels) in &self.noise {
            let kind = NoiseKind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| {
                value_error(format!("unknown noise type '{name}'; known: symmetric, paired, outlier"))
            })?;
            let levels = levels.iter().map(|&level| Noise::new(kind, level));
            all.push(NoiseLevels(levels.collect::<trueshot::Result<_>>().map_err(to_exception)?));
        }
        Ok(match all.is_empty() {
            true => noise::settings(&[NoiseLevels::default()]),
            false => noise::settings(&all),
        })
    }
}

/// Sends the number of finished episodes to Python.
struct EpisodeProgress<'a>(&'a Channel<'a, u64>);

impl Progress for EpisodeProgress<'_> {
    fn update(&self, done: u64, _total: u64) -> ControlFlow<()> {
        self.0.send(done);
        self.0.check_stopped()
    }
}

/// What an evaluation found; `trueshot.Evaluation` wraps it.
#[pyclass(frozen, module = "trueshot._native")]
pub struct Evaluation(library::Evaluation);

/// Runs methods on episodes.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn evaluate(
    py: Python<'_>,
    data: LabelledArrays<'_>,
    outliers: Option<LabelledArrays<'_>>,
    names: Vec<String>,
    shape: EpisodeShape,
    episodes: u64,
    baseline: Option<String>,
    details: (bool, bool),
    threads: Option<i64>,
    callback: Option<Bound<'_, PyAny>>,
) -> PyResult<Evaluation> {
    let methods = Registry::default().parse_all(&names).map_err(to_exception)?;
    if let Some(baseline) = &baseline {
        library::check_baseline(baseline, &methods).map_err(to_exception)?;
    }
    let (spec, noise) = (shape.spec(), shape.noise()?);
    let (data, outliers) = (to_numbered_rows(data)?, outliers.map(to_numbered_rows).transpose()?);
    let details = Details { per_class: details.0, confusion: details.1 };
    let baseline = baseline.as_deref().unwrap_or(library::DEFAULT_BASELINE);
    let run = |channel: &Channel<'_, u64>| {
        let data = check_rows(data)?;
        let outliers = outliers.map(check_rows).transpose()?;
        let outliers = outliers.as_ref();
        let sampler = Sampler::new(&data, outliers, spec, noise)?;
        let experiment = Experiment {
            embeddings: &data,
            outliers,
            episodes: &sampler,
            count: episodes,
            methods: &methods,
            baseline,
            details,
        };
        library::evaluate(&experiment, &EpisodeProgress(channel))
    };
    let report = |done: u64| callback.iter().try_for_each(|callback| callback.call1((done,)).map(drop));
    Ok(Evaluation(run_interruptible(py, threads, run, report)?))
}

/// Rows with their fingerprint, which results name.
fn check_rows(rows: NumberedRows) -> trueshot::Result<Embeddings> {
    let mut data = rows.embeddings()?;
    data.check()?;
    Ok(data)
}

#[pymethods]
impl Evaluation {
    /// The evaluation in one of the formats of `trueshot eval`.
    fn render(&self, format: &str, significance: bool) -> PyResult<String> {
        let format = match format {
            "table" => Format::Table,
            "json" => Format::Json,
            "csv" => Format::Csv,
            "md" => Format::Markdown,
            "latex" => Format::Latex,
            "html" => Format::Html,
            other => {
                let known = "table, json, csv, md, latex, html";
                return Err(value_error(format!("unknown format '{other}'; known: {known}")));
            }
        };
        let tables = if significance { Tables::WithSignificance } else { Tables::Usual };
        Ok(report::evaluation(&self.0, format, tables))
    }
}

/// Draws some episodes: of every one a dictionary of arrays.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn sample_episodes<'py>(
    py: Python<'py>,
    data: LabelledArrays<'_>,
    outliers: Option<LabelledArrays<'_>>,
    shape: EpisodeShape,
    first: u64,
    count: u64,
) -> PyResult<Bound<'py, PyList>> {
    let (spec, noise) = (shape.spec(), shape.noise()?);
    let (data, outliers) = (to_numbered_rows(data)?, outliers.map(to_numbered_rows).transpose()?);
    let drawn = thread_pools::run_on_pool(py, None, || {
        let data = data.embeddings()?;
        let outliers = outliers.map(NumberedRows::embeddings).transpose()?;
        let sampler = Sampler::new(&data, outliers.as_ref(), spec, noise.clone())?;
        let mut urn = IndexSampler::default();
        (first..first.saturating_add(count))
            .map(|index| sampler.draw(index, &mut urn))
            .collect::<trueshot::Result<Vec<_>>>()
    })?;
    let list = PyList::empty(py);
    for episode in drawn {
        let entry = PyDict::new(py);
        let classes = &episode.episode.classes;
        let queries: Vec<i64> =
            classes.iter().flat_map(|class| &class.queries).map(|row| i64::from(*row)).collect();
        let truths =
            classes.iter().zip(0i64..).flat_map(|(class, n)| std::iter::repeat_n(n, class.queries.len()));
        entry.set_item("index", episode.episode.index)?;
        entry.set_item("classes", int_array(py, classes.iter().map(|class| i64::from(class.class))))?;
        entry.set_item("queries", PyArray1::from_vec(py, queries))?;
        entry.set_item("query_labels", int_array(py, truths))?;
        let supports =
            episode.supports.iter().zip(&noise).map(|(items, noise)| support_dict(py, items, *noise));
        entry.set_item("supports", supports.collect::<PyResult<Vec<_>>>()?)?;
        list.append(entry)?;
    }
    Ok(list)
}

fn int_array<'py>(py: Python<'py>, values: impl Iterator<Item = i64>) -> Bound<'py, PyArray1<i64>> {
    PyArray1::from_vec(py, values.collect())
}

fn support_dict<'py>(py: Python<'py>, items: &[Item], noise: Noise) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    let outlier = |item: &Item| noise.kind == NoiseKind::Outlier && item.truth.is_none();
    entry.set_item("noise", noise.kind.name())?;
    entry.set_item("level", noise.level)?;
    entry.set_item("rows", int_array(py, items.iter().map(|item| i64::from(item.row))))?;
    entry.set_item("labels", int_array(py, items.iter().map(|item| i64::from(item.given))))?;
    entry.set_item("truth", int_array(py, items.iter().map(|item| item.truth.map_or(-1, i64::from))))?;
    entry.set_item("is_outlier", PyArray1::from_vec(py, items.iter().map(outlier).collect()))?;
    Ok(entry)
}
