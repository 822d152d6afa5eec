//! Classifiers for Python ([`Classifier`]), from labelled rows or from a file.
//!
//! Fitting takes microseconds, because it computes only what is needed to predict classes. Two slower results are
//! computed when they are first requested, and kept: the audit of the support set (which of its labels are wrong), and
//! the calibration, which cross-validates the classifier on the support set so that it can give probabilities.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use trueshot::Embeddings;
use trueshot::audit as library;
use trueshot::embeddings::Features;
use trueshot::method::NamedMethod;
use trueshot::predictor::{Prediction, Predictor, UncalibratedPredictor, is_large};
use trueshot::progress::Progress;

use crate::audit::{Audit, NumberedRows};
use crate::exceptions::to_exception;
use crate::{methods, numpy_features, thread_pools};

/// Rows that a thread predicts at a time.
const ROWS_PER_CHUNK: usize = 256;

/// The prototypes `[classes, dimensions]`; the vector `[dimensions]` that is subtracted from rows before they are
/// compared, if the method centres them; and whether the nearest prototype is the one with the largest cosine rather
/// than the smallest distance.
type PrototypeArrays = (Py<PyArray2<f32>>, Option<Py<PyArray1<f32>>>, bool);

/// A fitted classifier; `trueshot.FewShotClassifier` wraps it.
#[pyclass(frozen, module = "trueshot._native")]
pub struct Classifier {
    /// Predicts classes, without probabilities.
    learned: Arc<UncalibratedPredictor>,
    /// The method and the rows it was fitted to; `None` for a classifier from a file.
    origin: Option<(Arc<NamedMethod>, Arc<Embeddings>)>,
    /// The audit of the support set, once it has been computed.
    audit: OnceLock<Arc<library::Audit>>,
    /// The calibrated classifier, once it has been computed; a classifier from a file has it from the start.
    predictor: OnceLock<Predictor>,
}

/// The audit of a support set, with default options.
fn audit_support(data: &Embeddings, progress: &dyn Progress) -> trueshot::Result<Arc<library::Audit>> {
    Ok(Arc::new(library::Audit::of(data).progress(progress).run()?))
}

impl Classifier {
    /// Fits the method to a support set. A large one is audited first, because only its most typical rows are kept.
    fn fit_rows(
        data: Embeddings,
        method: Arc<NamedMethod>,
        progress: &dyn Progress,
    ) -> trueshot::Result<Self> {
        let data = Arc::new(data);
        let audit = OnceLock::new();
        if is_large(data.len()) {
            let _ = audit.set(audit_support(&data, progress)?);
        }
        let learned = UncalibratedPredictor::fit(data.clone(), &method, audit.get().map(AsRef::as_ref))?;
        let (learned, origin) = (Arc::new(learned), Some((method, data)));
        Ok(Classifier { learned, origin, audit, predictor: OnceLock::new() })
    }

    /// A classifier from a file, which is calibrated.
    fn from_predictor(predictor: Predictor) -> Self {
        let learned = predictor.uncalibrated().clone();
        Classifier { learned, origin: None, audit: OnceLock::new(), predictor: predictor.into() }
    }

    /// The audit of the support set, computed on the first call. If two threads call this at once, one result is
    /// discarded.
    fn audit_result(
        &self,
        data: &Embeddings,
        progress: &dyn Progress,
    ) -> trueshot::Result<&Arc<library::Audit>> {
        if let Some(audit) = self.audit.get() {
            return Ok(audit);
        }
        let audit = audit_support(data, progress)?;
        Ok(self.audit.get_or_init(|| audit))
    }

    /// The calibrated classifier, as `trueshot fit` would write it.
    fn predictor(&self, progress: &dyn Progress) -> trueshot::Result<&Predictor> {
        if let Some(predictor) = self.predictor.get() {
            return Ok(predictor);
        }
        let (method, data) = self.origin.as_ref().expect("a classifier from a file has its predictor");
        let predictor = self.learned.clone().calibrated(method, Some(self.audit_result(data, progress)?))?;
        Ok(self.predictor.get_or_init(|| predictor))
    }

    /// Applies a function to rows in chunks, on all threads of the current pool; the results are in the order of the
    /// rows.
    fn map_rows<T: Send>(
        &self,
        features: &Features,
        answer: impl Fn(&[&[f32]]) -> trueshot::Result<Vec<T>> + Sync,
    ) -> trueshot::Result<Vec<T>> {
        features.check()?;
        let dim = features.dim();
        let chunk = |start: usize| {
            let rows = start..(start + ROWS_PER_CHUNK).min(features.rows());
            let values = features.rows_between(rows);
            answer(&values.chunks_exact(dim).collect::<Vec<_>>())
        };
        let starts: Vec<usize> = (0..features.rows()).step_by(ROWS_PER_CHUNK).collect();
        let parts: Vec<Vec<T>> = starts.into_par_iter().map(chunk).collect::<trueshot::Result<_>>()?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// The calibrated prediction of every row.
    fn predictions(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        threads: Option<i64>,
    ) -> PyResult<Vec<Prediction>> {
        let features = numpy_features::features(features)?;
        // The first call also calibrates the classifier on the support set.
        let calibrated_rows = if self.predictor.get().is_some() { 0 } else { self.learned.support().len() };
        let rows = features.rows().saturating_add(calibrated_rows);
        let dim = features.dim().max(self.learned.dim());
        thread_pools::run_on_matrix(py, threads, (rows, dim), |progress| {
            let predictor = self.predictor(progress)?;
            self.map_rows(&features, |rows| predictor.predict(rows))
        })
    }
}

#[pymethods]
impl Classifier {
    /// Fits to labelled rows.
    #[staticmethod]
    fn fit(
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        labels: PyReadonlyArray1<'_, i64>,
        classes: Vec<String>,
        method: &str,
        threads: Option<i64>,
    ) -> PyResult<Self> {
        let method = methods::method(method).map_err(to_exception)?;
        // A copy: later calls must not depend on changes of the array.
        let (features, labels) = (numpy_features::copied_features(features)?, labels.as_slice()?.to_vec());
        let rows = NumberedRows { features, labels, classes, items: None };
        thread_pools::run_on_matrix(py, threads, rows.shape(), |progress| {
            Classifier::fit_rows(rows.embeddings()?, method, progress)
        })
    }

    /// Reads a file written by `trueshot fit`.
    #[staticmethod]
    fn open(py: Python<'_>, path: &str) -> PyResult<Self> {
        Ok(Classifier::from_predictor(thread_pools::run_on_pool(py, None, || Predictor::open(path))?))
    }

    /// Reads the bytes of a classifier file.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: Vec<u8>) -> PyResult<Self> {
        Ok(Classifier::from_predictor(thread_pools::run_on_pool(py, None, || {
            Predictor::read_bytes(bytes, "the bytes given")
        })?))
    }

    /// The bytes of the file that `trueshot fit` writes.
    #[pyo3(signature = (threads=None))]
    fn to_bytes<'py>(&self, py: Python<'py>, threads: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let shape = (self.learned.support().len(), self.learned.dim());
        let bytes = thread_pools::run_on_matrix(py, threads, shape, |progress| {
            Ok(self.predictor(progress)?.to_bytes())
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes the file that `trueshot fit` writes, atomically.
    fn write(&self, py: Python<'_>, path: PathBuf, threads: Option<i64>) -> PyResult<()> {
        let shape = (self.learned.support().len(), self.learned.dim());
        thread_pools::run_on_matrix(py, threads, shape, |progress| self.predictor(progress)?.write(&path))
    }

    /// For pickle: the bytes of the classifier file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let from_bytes = py.get_type::<Classifier>().getattr("from_bytes")?;
        Ok((from_bytes, (self.to_bytes(py, None)?,)))
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.learned.classes().to_vec()
    }

    #[getter]
    fn dim(&self) -> usize {
        self.learned.dim()
    }

    #[getter]
    fn method(&self) -> String {
        self.learned.method().to_string()
    }

    /// The class index of every row.
    fn predict(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        threads: Option<i64>,
    ) -> PyResult<Py<PyArray1<i64>>> {
        let features = numpy_features::features(features)?;
        let shape = (features.rows(), features.dim());
        let answers = thread_pools::run_on_matrix(py, threads, shape, |_| {
            self.map_rows(&features, |rows| self.learned.classify(rows))
        })?;
        Ok(PyArray1::from_vec(py, answers.into_iter().map(i64::from).collect()).unbind())
    }

    /// The probabilities of all classes, given that a row belongs to one of them: `[rows, classes]`.
    fn predict_proba(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        threads: Option<i64>,
    ) -> PyResult<Py<PyArray2<f32>>> {
        let answers = self.predictions(py, features, threads)?;
        let shape = [answers.len(), self.learned.classes().len()];
        let mut flat = numpy_features::allocate_results(shape)?;
        flat.extend(answers.iter().flat_map(Prediction::probabilities_if_known));
        Ok(PyArray1::from_vec(py, flat).reshape(shape)?.unbind())
    }

    /// The probabilities of all classes and of none: `[rows, classes + 1]`.
    fn predict_distribution(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        threads: Option<i64>,
    ) -> PyResult<Py<PyArray2<f32>>> {
        let answers = self.predictions(py, features, threads)?;
        let shape = [answers.len(), self.learned.classes().len() + 1];
        let mut flat = numpy_features::allocate_results(shape)?;
        for Prediction { probabilities, unknown, .. } in answers {
            flat.extend(probabilities);
            flat.push(unknown);
        }
        Ok(PyArray1::from_vec(py, flat).reshape(shape)?.unbind())
    }

    /// The probability that a row belongs to none of the classes, per row.
    fn unknown(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        threads: Option<i64>,
    ) -> PyResult<Py<PyArray1<f32>>> {
        let answers = self.predictions(py, features, threads)?;
        Ok(PyArray1::from_vec(py, answers.iter().map(|answer| answer.unknown).collect()).unbind())
    }

    /// The audit of the support set. A file has only some of the rows of a large set; the Python side does not ask
    /// then.
    fn audit(&self, py: Python<'_>, threads: Option<i64>) -> PyResult<Audit> {
        let data = self.origin.as_ref().map_or(self.learned.support(), |(_, data)| data);
        let shape = (data.len(), data.dim());
        let audit = thread_pools::run_on_matrix(py, threads, shape, |progress| {
            self.audit_result(data, progress).cloned()
        })?;
        Ok(Audit::new(audit, data.clone()))
    }

    /// The prototypes and how rows are compared with them; `None` if the method does not have one vector per class.
    fn prototypes(&self, py: Python<'_>) -> PyResult<Option<PrototypeArrays>> {
        let Some(prototypes) = self.learned.prototypes() else { return Ok(None) };
        let flat = PyArray1::from_vec(py, prototypes.vectors.concat());
        let vectors = flat.reshape([prototypes.vectors.len(), self.learned.dim()])?.unbind();
        let centre = prototypes.centre.map(|centre| PyArray1::from_slice(py, centre).unbind());
        Ok(Some((vectors, centre, prototypes.by_cosine)))
    }
}
