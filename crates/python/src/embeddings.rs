//! Embeddings files: the functions behind `trueshot.Embeddings.save` and `load`.

use half::f16;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use trueshot::Embeddings;
use trueshot::embeddings::{Features, Precision};

use crate::evaluation::{LabelledArrays, to_numbered_rows};
use crate::thread_pools::run_on_pool;

/// The contents of a file: features `[rows, dimensions]`, the class index of every row, the names of the classes, the
/// names of the rows if they have any, and the name of the network that made the features (the backbone) if it is
/// known.
type EmbeddingsFile<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>, Vec<String>, Option<Vec<String>>, Option<String>);

/// Reads an embeddings file in any format that `trueshot` reads; rows are copied.
#[pyfunction]
pub fn read_embeddings<'py>(py: Python<'py>, path: &str) -> PyResult<EmbeddingsFile<'py>> {
    let (read, features) = run_on_pool(py, None, || {
        let read = Embeddings::open(path)?;
        let features = Values::of(read.features());
        Ok((read, features))
    })?;
    let labels = read.labels().iter().map(|&label| i64::from(label)).collect();
    let items =
        read.items().map(|_| (0..read.len()).map(|row| read.item(row).unwrap_or("").into()).collect());
    Ok((
        features.into_array(py, [read.len(), read.dim()])?,
        PyArray1::from_vec(py, labels),
        read.classes().to_vec(),
        items,
        read.backbone().map(Into::into),
    ))
}

/// Writes an embeddings file; the Python side has checked that its name ends in .safetensors.
#[pyfunction]
pub fn write_embeddings(
    py: Python<'_>,
    path: &str,
    data: LabelledArrays<'_>,
    backbone: Option<String>,
) -> PyResult<()> {
    let rows = to_numbered_rows(data)?;
    run_on_pool(py, None, || {
        let embeddings = rows.embeddings()?;
        let embeddings = match backbone {
            Some(backbone) => embeddings.with_backbone(backbone),
            None => embeddings,
        };
        embeddings.write(path)
    })
}

/// A copy of features: f16 stays f16, everything else becomes f32.
enum Values {
    Half(Vec<f16>),
    Single(Vec<f32>),
}

impl Values {
    /// Decodes features. Large ones are decoded on several threads, so this must run inside [`run_on_pool`]: rayon's
    /// global pool may come from the process that this one was forked from, and then has no threads.
    fn of(features: &Features) -> Self {
        let all = 0..features.rows();
        match features.precision() {
            Precision::F16 => {
                let bytes = features.bytes_of(all).as_chunks::<2>().0;
                Values::Half(bytes.iter().map(|&stored| f16::from_le_bytes(stored)).collect())
            }
            Precision::F32 | Precision::Bf16 => Values::Single(features.rows_between(all).into_owned()),
        }
    }

    /// The values as an array `[rows, dimensions]`.
    fn into_array(self, py: Python<'_>, shape: [usize; 2]) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Values::Half(values) => PyArray1::from_vec(py, values).reshape(shape)?.into_any(),
            Values::Single(values) => PyArray1::from_vec(py, values).reshape(shape)?.into_any(),
        })
    }
}
