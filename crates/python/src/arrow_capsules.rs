//! Arrow tables from and to Python by the PyCapsule interface: producer and consumer exchange pointers to structures of
//! the C data interface, so nothing is copied and no Arrow library for Python is needed. [`reader`] takes a table from
//! Python, [`Batches`] gives one back.
//!
//! A producer passes either a stream of batches (`__arrow_c_stream__`) or a single batch (`__arrow_c_array__`), each in
//! a capsule: a Python object that holds a pointer and the name of the structure behind it.

#![allow(
    unsafe_code,
    reason = "the C data interface is made of pointers; each is read once, as its specification says"
)]

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{
    Array, ArrayReader, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray,
    make_array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Fields, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use trueshot::guard::caught;

// The names of the capsules, which the specification of the interface fixes.
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// The batches of a table and their schema.
pub type Reader = Box<dyn RecordBatchReader + Send>;

/// Reads the batches of any object that exports an Arrow stream or array.
pub fn reader(given: &Bound<'_, PyAny>) -> PyResult<Reader> {
    if given.hasattr("__arrow_c_stream__")? {
        let capsule = given.call_method0("__arrow_c_stream__")?;
        return stream(capsule.cast::<PyCapsule>()?);
    }
    if given.hasattr("__arrow_c_array__")? {
        let (schema, array) = given.call_method0("__arrow_c_array__")?.extract()?;
        return single(&schema, &array);
    }
    let kind = given.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "expected a table of Arrow (anything with __arrow_c_stream__ or __arrow_c_array__: pyarrow, polars, arro3, \
         nanoarrow, duckdb), got {kind}"
    )))
}

/// The batches of a capsule with an Arrow stream, which is consumed.
fn stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<Reader> {
    let pointer = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds such a structure. `from_raw` moves it out and marks it as released, so that
    // the capsule does not free it again.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) };
    let arrays = caught(|| ArrayStreamReader::try_new(stream)).ok_or_else(not_arrow)?.map_err(not_a_table)?;
    // The reader of batches of `arrow_array` would ignore where the structs are null.
    let field = arrays.field().clone();
    let DataType::Struct(columns) = field.data_type() else { return Err(no_columns(field.data_type())) };
    let columns = if field.is_nullable() { nullable(columns) } else { columns.clone() };
    let batches = arrays.map(|array| to_batch(array?.as_struct().clone()));
    Ok(Box::new(RecordBatchIterator::new(batches, Arc::new(Schema::new(columns)))))
}

/// The batch of two capsules with an Arrow schema and an array, as a reader of one batch. The array is consumed.
fn single(schema: &Bound<'_, PyCapsule>, array: &Bound<'_, PyCapsule>) -> PyResult<Reader> {
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names hold such structures. The schema is only read, the array is taken.
    let (array, schema) = unsafe { (FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    if array.is_released() {
        return Err(PyTypeError::new_err(
            "this Arrow array was already consumed: its producer must make a new one",
        ));
    }
    // SAFETY: both come from one producer, which guarantees that they belong together.
    let data = caught(|| unsafe { from_ffi(array, schema) }).ok_or_else(not_arrow)?;
    let data = data.map_err(not_a_table)?;
    if !matches!(data.data_type(), DataType::Struct(_)) {
        return Err(no_columns(data.data_type()));
    }
    let batch = caught(|| to_batch(StructArray::from(data))).ok_or_else(not_arrow)?.map_err(not_a_table)?;
    let schema = batch.schema();
    Ok(Box::new(RecordBatchIterator::new([Ok(batch)], schema)))
}

/// The fields of a struct array as the columns of a batch. Where the struct is null, all columns become null, because a
/// batch has no nulls of its own.
fn to_batch(table: StructArray) -> Result<RecordBatch, ArrowError> {
    let Some(nulls) = table.nulls().filter(|nulls| nulls.null_count() > 0).cloned() else {
        let (fields, columns, _) = table.into_parts();
        return RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
    };
    let (fields, columns, _) = table.into_parts();
    let fields = nullable(&fields);
    let masked = |column: ArrayRef| -> Result<ArrayRef, ArrowError> {
        let all_nulls = NullBuffer::union(column.logical_nulls().as_ref(), Some(&nulls));
        Ok(make_array(column.to_data().into_builder().nulls(all_nulls).build()?))
    };
    let columns = columns.into_iter().map(masked).collect::<Result<_, _>>()?;
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// Fields that may have nulls: where a struct is null, its columns are too, even if they were declared without nulls.
fn nullable(fields: &Fields) -> Fields {
    fields.iter().map(|field| field.as_ref().clone().with_nullable(true)).collect()
}

fn no_columns(kind: &DataType) -> PyErr {
    PyTypeError::new_err(format!("expected a table with columns, got an array of {kind}"))
}

fn not_arrow() -> PyErr {
    PyTypeError::new_err("cannot read this Arrow data: it does not match its schema")
}

fn not_a_table(error: ArrowError) -> PyErr {
    PyTypeError::new_err(format!("cannot read this Arrow data: {error}"))
}

/// A table of results: batches that any Arrow library takes through the PyCapsule interface.
#[pyclass(frozen, module = "trueshot._native")]
pub struct Batches {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Batches {
    /// A table of batches with the same schema.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Batches { schema, batches }
    }
}

#[pymethods]
impl Batches {
    /// The table as a stream.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The specification allows a producer to ignore the requested schema.
        let _ = requested_schema;
        let batches: Vec<_> = self.batches.iter().cloned().map(Ok).collect();
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
    }

    /// The table as one array, if it came in one batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let batch = match &self.batches[..] {
            [batch] => batch.clone(),
            [] => RecordBatch::new_empty(self.schema.clone()),
            more => {
                let count = more.len();
                return Err(PyValueError::new_err(format!(
                    "the table has {count} batches, not one: use the stream"
                )));
            }
        };
        let array = FFI_ArrowArray::new(&StructArray::from(batch).to_data());
        Ok((self.__arrow_c_schema__(py)?, PyCapsule::new_with_value(py, array, ARRAY)?))
    }

    /// The types of the columns.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(Arc::clone(&self.schema).as_ref()).map_err(not_a_table)?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }
}
