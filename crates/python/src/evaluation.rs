//! The functions `evaluate` and `sample_episodes`: evaluations of methods on noisy episodes drawn from arrays. The
//! episodes are those of `trueshot eval` with the same seed.
//!
//! An episode is a small classification task: `ways` classes, a support set with `shots` labelled rows per class, and
//! `queries` rows per class to classify. Under each noise setting, some labels of the support set are made wrong.
//! Methods and noise types may be Python functions ([`crate::user_functions`]). Names with `own` are those of
//! user-defined methods and noise types.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyBaseException, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::ffi::CString;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use trueshot::episode::{DefaultNoise, EpisodeSpec, Episodes, Item, Sampler, Shots};
use trueshot::evaluate::{self as library, Details, Experiment};
use trueshot::method::{NamedMethod, Registry};
use trueshot::noise::{self, ConfusionNoise, Noise, NoiseKind, NoiseLevels};
use trueshot::progress::Progress;
use trueshot::report::{self, Format, Tables};
use trueshot::rng::IndexSampler;
use trueshot::{Embeddings, Error};

use crate::audit::NumberedRows;
use crate::exceptions::{argument_exception, to_exception, value_error};
use crate::interruptible::{Channel, run_interruptible, run_keeping_results};
use crate::numpy_features;
use crate::thread_pools::{own_pool, run_on_pool, shared_pool};
use crate::user_functions::{Message, PythonMethod, PythonNoise, UserFunctions, UserMethod};

/// Labelled rows from the Python side: features `[rows, dimensions]`, class indices `[rows]`, class names, and the
/// names of the rows if they have any.
pub type LabelledArrays<'py> =
    (Bound<'py, PyAny>, PyReadonlyArray1<'py, i64>, Vec<String>, Option<Vec<String>>);

/// Takes over labelled rows: features without a copy, labels with one. Values are checked later, when they become
/// embeddings.
pub fn to_numbered_rows(given: LabelledArrays<'_>) -> PyResult<NumberedRows> {
    let (features, labels, classes, items) = given;
    let labels = labels.as_slice()?.to_vec();
    Ok(NumberedRows { features: numpy_features::features(&features)?, labels, classes, items })
}

/// The parameters of episodes, read from the attributes of a `_evaluation._Shape`.
#[derive(FromPyObject)]
pub struct EpisodeShape {
    /// Classes per episode.
    ways: usize,
    /// The smallest and the largest number of support rows per class.
    shots: (usize, usize),
    /// Queries per class.
    queries: usize,
    seed: u64,
    /// Built-in noise types with their levels, which are shares from 0 to below 1. If this and `own_noise` are empty,
    /// the default noise is used.
    noise: Vec<(String, Vec<f64>)>,
    own_noise: Vec<OwnNoise>,
}

/// A user-defined noise type: either a confusion matrix or a function.
#[derive(FromPyObject)]
struct OwnNoise {
    name: String,
    /// `[true class][given class]`, probabilities, for the classes of the data in sorted order.
    matrix: Option<Vec<Vec<f64>>>,
    /// Called as described at [`UserFunctions::noises`].
    run: Option<Py<PyAny>>,
}

impl EpisodeShape {
    fn spec(&self) -> EpisodeSpec {
        let shots = Shots { min: self.shots.0, max: self.shots.1 };
        EpisodeSpec { ways: self.ways, shots, queries: self.queries, seed: self.seed }
    }

    /// The built-in noise settings. Impossible levels among the defaults are left out, with a warning.
    fn noise(&self, py: Python<'_>) -> PyResult<Vec<Noise>> {
        if self.noise.is_empty() && self.own_noise.is_empty() {
            let (spec, default) = (self.spec(), DefaultNoise::of(&self.spec()));
            if let Some(note) = default.note(&spec).and_then(|note| CString::new(note).ok()) {
                PyErr::warn(py, &py.get_type::<PyUserWarning>(), &note, 2)?;
            }
            return Ok(default.settings);
        }
        let mut all = Vec::new();
        for (name, levels) in &self.noise {
            let kind = NoiseKind::built_in(name).map_err(|problem| {
                value_error(format!(
                    "{problem}. For a noise type of your own, give a function or a confusion matrix"
                ))
            })?;
            let levels = levels.iter().map(|&level| Noise::new(kind, level));
            all.push(NoiseLevels(levels.collect::<trueshot::Result<_>>().map_err(to_exception)?));
        }
        Ok(noise::settings(&all))
    }

    /// The functions of user-defined noise types, without the matrices among them.
    fn noise_functions(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        self.own_noise.iter().filter_map(|noise| noise.run.as_ref()).map(|run| run.clone_ref(py)).collect()
    }

    /// The names and matrices of user-defined noise types; without a matrix, the noise type is a function.
    fn take_own_noise(&mut self) -> Vec<(String, Option<Vec<Vec<f64>>>)> {
        self.own_noise.drain(..).map(|noise| (noise.name, noise.matrix)).collect()
    }
}

/// Adds user-defined noise types to a sampler. Functions are numbered in the order of
/// [`EpisodeShape::noise_functions`]; they get their requests through `sender`.
fn with_own_noise<'a>(
    sampler: Sampler<'a>,
    own_noise: Vec<(String, Option<Vec<Vec<f64>>>)>,
    sender: &Sender<Message>,
) -> trueshot::Result<Sampler<'a>> {
    let mut functions = 0;
    own_noise.into_iter().try_fold(sampler, |sampler, (name, matrix)| match matrix {
        Some(matrix) => sampler.with_noise(Box::new(ConfusionNoise::new(name, matrix)?)),
        None => {
            functions += 1;
            let (position, sender) = (functions - 1, sender.clone());
            sampler.with_noise(Box::new(PythonNoise { position, name, sender }))
        }
    })
}

/// Sends the number of finished episodes to Python.
struct EpisodeProgress<'a>(&'a Channel<'a, Message>);

impl Progress for EpisodeProgress<'_> {
    fn update(&self, done: u64, _total: u64) -> ControlFlow<()> {
        self.0.send(Message::Done(done));
        self.0.check_stopped()
    }
}

/// A method as Python passes it: the name of a built-in one with its parameters, or a user-defined one.
#[derive(FromPyObject)]
pub enum MethodArgument {
    BuiltIn(String),
    Own(UserMethod),
}

/// A parsed method: a built-in one, or the index of a user-defined one among the user-defined methods.
enum ParsedMethod {
    BuiltIn(NamedMethod),
    Own(usize),
}

/// Separates user-defined methods from built-in ones and keeps the order. An empty list stands for all default methods.
fn parse_methods(given: Vec<MethodArgument>) -> PyResult<(Vec<ParsedMethod>, Vec<UserMethod>)> {
    let registry = Registry::default();
    if given.is_empty() {
        let methods = registry.parse_all::<&str>(&[]).map_err(to_exception)?;
        return Ok((methods.into_iter().map(ParsedMethod::BuiltIn).collect(), Vec::new()));
    }
    let (mut parsed, mut own_methods, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for method in given {
        let label = match method {
            MethodArgument::BuiltIn(text) => {
                let method = registry.parse(&text).map_err(to_exception)?;
                let label = method.label.clone();
                parsed.push(ParsedMethod::BuiltIn(method));
                label
            }
            MethodArgument::Own(method) => {
                let label = method.name().to_string();
                parsed.push(ParsedMethod::Own(own_methods.len()));
                own_methods.push(method);
                label
            }
        };
        if labels.contains(&label) {
            return Err(match parsed.last() {
                Some(ParsedMethod::Own(_)) => value_error(format!(
                    "method '{label}' is given twice\nhint: rename one of them with trueshot.method(.., name=..)"
                )),
                _ => to_exception(Error::MethodTwice { label }),
            });
        }
        labels.push(label);
    }
    Ok((parsed, own_methods))
}

/// Checks that one of the methods has the name `baseline`: the method to which all others are compared.
fn check_baseline(baseline: &str, parsed: &[ParsedMethod], own_methods: &[UserMethod]) -> PyResult<()> {
    let labels: Vec<&str> = parsed
        .iter()
        .map(|method| match method {
            ParsedMethod::BuiltIn(method) => method.label.as_str(),
            ParsedMethod::Own(position) => own_methods[*position].name(),
        })
        .collect();
    match labels.contains(&baseline) {
        true => Ok(()),
        false => {
            Err(to_exception(Error::UnknownBaseline { baseline: baseline.into(), known: labels.join(", ") }))
        }
    }
}

/// The result of an evaluation; `trueshot.Evaluation` wraps it.
#[pyclass(frozen, module = "trueshot._native")]
pub struct Evaluation(library::Evaluation);

/// Evaluates methods on `episodes` episodes. `details` says whether to report accuracies per class, and the confusion
/// matrix; `callback` is called with the number of finished episodes.
///
/// Returns the evaluation, and the exception that ended it early, if any. The evaluation then has the results up to
/// that point, and is `None` if there are none.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn evaluate(
    py: Python<'_>,
    data: LabelledArrays<'_>,
    outliers: Option<LabelledArrays<'_>>,
    methods: Vec<MethodArgument>,
    mut shape: EpisodeShape,
    episodes: u64,
    baseline: Option<String>,
    details: (bool, bool),
    stop_on_failure: bool,
    threads: Option<i64>,
    callback: Option<Bound<'_, PyAny>>,
) -> PyResult<(Option<Evaluation>, Option<Py<PyBaseException>>)> {
    let (parsed, own_methods) = parse_methods(methods)?;
    if let Some(baseline) = &baseline {
        check_baseline(baseline, &parsed, &own_methods)?;
    }
    let (spec, noise) = (shape.spec(), shape.noise(py)?);
    let functions =
        UserFunctions { methods: own_methods, noises: shape.noise_functions(py), stop_on_failure };
    // The work on other threads gets names and matrices only: Python functions stay on this thread.
    let (own_methods, own_noise) = (&functions.methods, shape.take_own_noise());
    let data = to_numbered_rows(data)?;
    let outliers = checked_outliers(py, threads, outliers)?;
    let details = Details { per_class: details.0, confusion: details.1 };
    let baseline = baseline.as_deref().unwrap_or(library::DEFAULT_BASELINE);
    let run = |channel: &Channel<'_, Message>| {
        let data = Arc::new(check_rows(data)?);
        let named = |method: ParsedMethod| match method {
            ParsedMethod::BuiltIn(method) => method,
            ParsedMethod::Own(position) => {
                let rows = (&data, outliers.as_ref());
                let method = PythonMethod::new(position, &own_methods[position], rows, channel.sender());
                NamedMethod { label: own_methods[position].name().into(), method: Box::new(method) }
            }
        };
        let methods: Vec<NamedMethod> = parsed.into_iter().map(named).collect();
        let sampler = Sampler::new(&data, outliers.as_deref(), spec, noise)?;
        let sampler = with_own_noise(sampler, own_noise, &channel.sender())?;
        let experiment = Experiment {
            embeddings: &data,
            outliers: outliers.as_deref(),
            episodes: &sampler,
            count: episodes,
            methods: &methods,
            baseline,
            details,
        };
        library::evaluate(&experiment, &EpisodeProgress(channel))
    };
    let on_message = |message: Message| match message {
        Message::Done(done) => callback.iter().try_for_each(|callback| callback.call1((done,)).map(drop)),
        question => functions.answer(py, question),
    };
    match run_keeping_results(py, &own_pool(threads)?, run, on_message)? {
        (result, None) => Ok((Some(Evaluation(result?)), None)),
        (result, Some(error)) => Ok((result.ok().map(Evaluation), Some(error.into_value(py)))),
    }
}

/// Makes embeddings of rows and computes their fingerprint, a hash that results contain to name the data.
fn check_rows(rows: NumberedRows) -> trueshot::Result<Embeddings> {
    let mut data = rows.embeddings()?;
    data.check()?;
    Ok(data)
}

/// [`check_rows`] for an argument other than X; errors begin with its name.
pub fn check_argument(
    py: Python<'_>,
    threads: Option<i64>,
    argument: &str,
    rows: NumberedRows,
) -> PyResult<Embeddings> {
    run_on_pool(py, threads, || Ok(check_rows(rows)))?.map_err(|error| argument_exception(argument, error))
}

fn checked_outliers(
    py: Python<'_>,
    threads: Option<i64>,
    outliers: Option<LabelledArrays<'_>>,
) -> PyResult<Option<Arc<Embeddings>>> {
    let rows = outliers.map(to_numbered_rows).transpose()?;
    rows.map(|rows| check_argument(py, threads, "outliers", rows).map(Arc::new)).transpose()
}

#[pymethods]
impl Evaluation {
    /// The evaluation in one of the formats of `trueshot eval`; `significance` adds the differences between all pairs
    /// of methods.
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

/// Draws the episodes `first` to `first + count - 1`, each as a dictionary of arrays: `index`, `classes`, `queries`,
/// `query_labels`, and `supports` with one dictionary per noise setting (see `support_dict`).
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn sample_episodes<'py>(
    py: Python<'py>,
    data: LabelledArrays<'_>,
    outliers: Option<LabelledArrays<'_>>,
    mut shape: EpisodeShape,
    first: u64,
    count: u64,
) -> PyResult<Bound<'py, PyList>> {
    let (spec, noise) = (shape.spec(), shape.noise(py)?);
    let functions =
        UserFunctions { methods: Vec::new(), noises: shape.noise_functions(py), stop_on_failure: true };
    let own_noise = shape.take_own_noise();
    let data = to_numbered_rows(data)?;
    let outliers = checked_outliers(py, None, outliers)?;
    let draw = |channel: &Channel<'_, Message>| {
        let data = data.embeddings()?;
        let sampler = Sampler::new(&data, outliers.as_deref(), spec, noise)?;
        let sampler = with_own_noise(sampler, own_noise, &channel.sender())?;
        let mut index_sampler = IndexSampler::default();
        let draw = |index| {
            if channel.check_stopped().is_break() {
                return Err(Error::Interrupted);
            }
            sampler.draw(index, &mut index_sampler)
        };
        let drawn = (first..first.saturating_add(count)).map(draw).collect::<trueshot::Result<Vec<_>>>()?;
        Ok((drawn, sampler.noises().to_vec()))
    };
    let pool = if functions.noises.is_empty() { shared_pool(None)? } else { Arc::new(own_pool(None)?) };
    let (drawn, noise) = run_interruptible(py, &pool, draw, |message| functions.answer(py, message))?;
    let list = PyList::empty(py);
    for episode in drawn {
        let entry = PyDict::new(py);
        let classes = &episode.episode.classes;
        let queries: Vec<i64> =
            classes.iter().flat_map(|class| &class.queries).map(|row| i64::from(*row)).collect();
        // Queries are grouped by class, so every index is repeated once per query of its class.
        let query_labels =
            classes.iter().zip(0i64..).flat_map(|(class, n)| std::iter::repeat_n(n, class.queries.len()));
        entry.set_item("index", episode.episode.index)?;
        entry.set_item("classes", int_array(py, classes.iter().map(|class| i64::from(class.class))))?;
        entry.set_item("queries", PyArray1::from_vec(py, queries))?;
        entry.set_item("query_labels", int_array(py, query_labels))?;
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

/// The support set of an episode under one noise setting: the fields of the Python class `SupportSet`, one entry per
/// item. The level of user-defined noise is its measured share of wrong labels.
fn support_dict<'py>(py: Python<'py>, items: &[Item], noise: Noise) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    let is_outlier = |item: &Item| item.truth.is_none();
    let wrong_share = items.iter().filter(|item| item.is_wrong()).count() as f64 / items.len() as f64;
    let is_own = matches!(noise.kind, NoiseKind::Named(_));
    entry.set_item("noise", noise.kind.name())?;
    entry.set_item("level", if is_own { wrong_share } else { noise.level })?;
    entry.set_item("rows", int_array(py, items.iter().map(|item| i64::from(item.row))))?;
    entry.set_item("labels", int_array(py, items.iter().map(|item| i64::from(item.given))))?;
    entry.set_item("truth", int_array(py, items.iter().map(|item| item.truth.map_or(-1, i64::from))))?;
    entry.set_item("is_outlier", PyArray1::from_vec(py, items.iter().map(is_outlier).collect()))?;
    Ok(entry)
}
