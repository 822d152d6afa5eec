//! Audits of NumPy arrays: the function [`audit`] and its result ([`Audit`]), whose properties are arrays with one
//! entry per row. `_audit.py` documents them for users.
//!
//! An audit estimates for every labelled row whether its label is wrong, and which class would be right.

use std::collections::HashMap;
use std::sync::Arc;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use trueshot::Embeddings;
use trueshot::audit::{self as library, Action, AuditedItem, Certainty, Options};
use trueshot::embeddings::{Features, Items};
use trueshot::repair::{CollectionKind, RepairPlan};
use trueshot::report::{self, AuditPage, AuditTable};

use crate::exceptions::{to_exception, value_error};
use crate::{numpy_features, thread_pools};

/// The result of an audit; `trueshot.Audit` wraps it.
#[pyclass(frozen, module = "trueshot._native")]
pub struct Audit {
    result: Arc<library::Audit>,
    /// The rows that were audited, for the HTML report.
    data: Arc<Embeddings>,
}

impl Audit {
    /// Wraps the result of the library for `data`.
    pub fn new(result: Arc<library::Audit>, data: Arc<Embeddings>) -> Self {
        Audit { result, data }
    }

    /// An array with one value per item.
    fn column<T: numpy::Element>(&self, py: Python<'_>, of: impl Fn(&AuditedItem) -> T) -> Py<PyArray1<T>> {
        PyArray1::from_vec(py, self.result.items.iter().map(of).collect()).unbind()
    }

    /// A value per neighbour of every item, `[items, neighbours]`. Items with fewer neighbours than others are padded
    /// with `padding`.
    fn neighbours<T: numpy::Element + Copy>(
        &self,
        py: Python<'_>,
        padding: T,
        of: impl Fn(&library::Neighbour) -> T,
    ) -> PyResult<Py<PyArray2<T>>> {
        let items = &self.result.items;
        let width = items.iter().map(|item| item.neighbours.len()).max().unwrap_or(0);
        let row = |item: &AuditedItem| {
            let values: Vec<T> = item.neighbours.iter().map(&of).collect();
            values.into_iter().chain(std::iter::repeat(padding)).take(width).collect::<Vec<T>>()
        };
        let flat = PyArray1::from_vec(py, items.iter().flat_map(row).collect());
        Ok(flat.reshape([items.len(), width])?.unbind())
    }
}

/// The options of an audit, checked. `certainty` is the probability that a planned action needs, `expected_noise` the
/// share of wrong labels if it is known, `neighbours` the number of similar rows to report per row.
pub fn options(certainty: Option<f32>, expected_noise: Option<f64>, neighbours: usize) -> PyResult<Options> {
    let certainty = certainty.map_or_else(Certainty::default, Certainty::of_actions);
    let options = Options { certainty, expected_noise, neighbours };
    options.validate().map_err(to_exception)?;
    Ok(options)
}

/// Labelled rows, with labels as class indices; the Python side has checked their shape.
pub struct NumberedRows {
    /// `[rows, dimensions]`.
    pub features: Features,
    /// Class indices.
    pub labels: Vec<i64>,
    pub classes: Vec<String>,
    /// The names of the rows.
    pub items: Option<Vec<String>>,
}

impl NumberedRows {
    /// Number of rows and dimensions.
    pub fn shape(&self) -> (usize, usize) {
        (self.features.rows(), self.features.dim())
    }

    /// The rows as embeddings of the library. Checks values, labels and names, on the current thread pool.
    pub fn embeddings(self) -> trueshot::Result<Embeddings> {
        let data = Embeddings::from_numbered(self.features, self.labels, self.classes)?;
        match self.items {
            Some(items) => data.with_items(Items::from_names(items)),
            None => Ok(data),
        }
    }
}

/// Audits labelled rows. `confirmed` marks labels that are known to be right; it is empty or has one entry per row.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn audit(
    py: Python<'_>,
    features: &Bound<'_, PyAny>,
    labels: PyReadonlyArray1<'_, i64>,
    classes: Vec<String>,
    items: Option<Vec<String>>,
    confirmed: Vec<bool>,
    certainty: Option<f32>,
    expected_noise: Option<f64>,
    neighbours: usize,
    threads: Option<i64>,
) -> PyResult<Audit> {
    let options = options(certainty, expected_noise, neighbours)?;
    let labels = labels.as_slice()?.to_vec();
    let rows = NumberedRows { features: numpy_features::features(features)?, labels, classes, items };
    if !confirmed.is_empty() && confirmed.len() != rows.labels.len() {
        let (rows, entries) = (rows.labels.len(), confirmed.len());
        return Err(value_error(format!("{rows} rows but {entries} entries in confirmed")));
    }
    thread_pools::run_on_matrix(py, threads, rows.shape(), |progress| {
        let data = rows.embeddings()?;
        let result =
            library::Audit::of(&data).options(options).confirmed(&confirmed).progress(progress).run()?;
        Ok(Audit::new(Arc::new(result), Arc::new(data)))
    })
}

#[pymethods]
impl Audit {
    fn __len__(&self) -> usize {
        self.result.items.len()
    }

    #[getter]
    fn p_wrong(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column(py, |item| item.p_wrong)
    }

    #[getter]
    fn p_outlier(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column(py, |item| item.p_outlier)
    }

    #[getter]
    fn weight(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column(py, |item| item.weight)
    }

    #[getter]
    fn verdict(&self) -> Vec<&'static str> {
        self.result.items.iter().map(|item| item.verdict.name()).collect()
    }

    #[getter]
    fn action(&self) -> Vec<&'static str> {
        self.result.items.iter().map(|item| item.action.name()).collect()
    }

    #[getter]
    fn counts(&self) -> HashMap<&'static str, usize> {
        let counts = &self.result.counts;
        let actions = Action::ALL.map(|action| (action.name(), counts.of(action)));
        let others = [
            ("items", counts.items),
            ("classes", counts.classes),
            ("confirmed", counts.confirmed),
            ("suspect", counts.suspect),
        ];
        actions.into_iter().chain(others).collect()
    }

    #[getter]
    fn suspect(&self, py: Python<'_>) -> Py<PyArray1<bool>> {
        self.column(py, AuditedItem::is_suspect)
    }

    /// The index of the suggested class of every item; -1 without a suggestion.
    #[getter]
    fn suggested(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        let indices: HashMap<&str, i64> = self.data.classes().iter().map(String::as_str).zip(0..).collect();
        self.column(py, |item| item.suggested.as_deref().map_or(-1, |name| indices[name]))
    }

    #[getter]
    fn advice(&self) -> Vec<Option<&str>> {
        self.result.items.iter().map(|item| item.advice.as_deref()).collect()
    }

    #[getter]
    fn items(&self) -> Vec<&str> {
        self.result.items.iter().map(|item| item.item.as_str()).collect()
    }

    /// The most similar rows of every item, padded with -1.
    #[getter]
    fn neighbour_rows(&self, py: Python<'_>) -> PyResult<Py<PyArray2<i64>>> {
        self.neighbours(py, -1, |neighbour| i64::from(neighbour.row))
    }

    #[getter]
    fn neighbour_similarities(&self, py: Python<'_>) -> PyResult<Py<PyArray2<f32>>> {
        self.neighbours(py, f32::NAN, |neighbour| neighbour.similarity)
    }

    /// The probabilities of all classes and, in the last column, of none of them, per item.
    #[getter]
    fn probabilities(&self, py: Python<'_>) -> PyResult<Py<PyArray2<f32>>> {
        let width = self.data.classes().len() + 1;
        let mut flat = numpy_features::allocate_results([self.result.shares.len(), width])?;
        flat.resize(self.result.shares.len() * width, 0.0);
        for (row, shares) in flat.chunks_exact_mut(width).zip(&self.result.shares) {
            // An item lists only the classes that were considered for it; `width - 1` stands for "none of the classes".
            shares.iter().for_each(|&(class, share)| row[class as usize] += share);
        }
        Ok(PyArray1::from_vec(py, flat).reshape([self.result.shares.len(), width])?.unbind())
    }

    #[getter]
    fn expected_wrong(&self) -> f64 {
        self.result.expected_wrong
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.result.warnings.clone()
    }

    /// Rows, the most suspicious first.
    #[getter]
    fn ranking(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        PyArray1::from_vec(py, self.result.ranking().into_iter().map(|row| row as i64).collect()).unbind()
    }

    fn to_json(&self) -> String {
        report::audit_json(&self.result)
    }

    fn to_csv(&self) -> String {
        report::audit_csv(&self.result)
    }

    fn text(&self) -> String {
        AuditTable::new(&self.result).render()
    }

    /// The HTML report. `thumbnails` are data URIs, one per row, or empty.
    fn page(&self, py: Python<'_>, title: &str, thumbnails: Vec<Option<String>>) -> PyResult<String> {
        let (audit, data, thumbnails) = (&self.result, &*self.data, &thumbnails);
        thread_pools::run_on_matrix(py, None, (data.len(), data.dim()), |progress| {
            let points = library::map(data, progress)?;
            let notes = Vec::new();
            // The report contains a plan of repairs, which names the file of the rows. An array has no file, so the
            // plan says "rows", and the user gives the file to `trueshot repair` with --root.
            let plan = &RepairPlan::new(audit, data, CollectionKind::Embeddings, "rows".as_ref(), Vec::new());
            Ok(AuditPage { title, audit, data, plan, thumbnails, points: &points, notes }.render())
        })
    }
}
