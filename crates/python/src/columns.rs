//! The columns of a table of tasks: one row per task, with its support set in two list columns (features and labels).
//! An entry of `features` holds all rows of a task, as a list of lists or as one flat list; an entry of `labels` holds
//! one label per row. [`crate::batch`] finds the columns once ([`TaskSchema::find`]), takes them from every Arrow batch
//! ([`TaskSchema::columns`]), and reads one task after the other ([`TaskColumns::support`]).
//!
//! All kinds of Arrow lists are supported (plain, large, of fixed size, views), and contiguous numbers of a task are
//! used without a copy. A problem with a column concerns all tasks and raises an exception; a problem with one task is
//! an error in its row.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use trueshot::Embeddings;
use trueshot::embeddings::{Features, Precision};

/// Why a task fails, as text for the `error` of its row.
pub type Refusal = String;

/// The two columns of one Arrow batch, with one entry per task.
pub struct TaskColumns {
    features: ArrayRef,
    labels: ArrayRef,
}

/// Where the two columns are in a table.
pub struct TaskSchema {
    /// The index of the column of features.
    features: usize,
    /// The index of the column of labels.
    labels: usize,
}

impl TaskSchema {
    /// Finds the columns with these names and checks their types; `Err` describes the problem of the table.
    pub fn find(schema: &Schema, features: &str, labels: &str) -> Result<Self, String> {
        let index_of = |name: &str| {
            schema.index_of(name).map_err(|_| {
                let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                format!("the table has no column '{name}'; it has: {}", known.join(", "))
            })
        };
        let task_schema = TaskSchema { features: index_of(features)?, labels: index_of(labels)? };
        let kind = |column: usize| schema.field(column).data_type();
        // A list of numbers is flat; a list of lists has one list per row.
        let row = element_type(kind(task_schema.features))
            .ok_or_else(|| not_features(features, kind(task_schema.features)))?;
        if !is_number(row) && !element_type(row).is_some_and(is_number) {
            return Err(not_features(features, kind(task_schema.features)));
        }
        match element_type(kind(task_schema.labels)) {
            Some(label) if is_label(label) => Ok(task_schema),
            _ => Err(format!(
                "column '{labels}' is {}; expected a list of strings, integers or booleans",
                kind(task_schema.labels)
            )),
        }
    }

    /// The two columns of a batch of the table.
    pub fn columns(&self, batch: &RecordBatch) -> TaskColumns {
        TaskColumns {
            features: batch.column(self.features).clone(),
            labels: batch.column(self.labels).clone(),
        }
    }
}

/// The problem of a column of features with another type.
fn not_features(name: &str, kind: &DataType) -> String {
    format!("column '{name}' is {kind}; expected a list of lists of float, half or double, one list per row")
}

/// The type of the elements of a list type; `None` if it is not a list.
fn element_type(kind: &DataType) -> Option<&DataType> {
    match kind {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

fn is_number(kind: &DataType) -> bool {
    matches!(kind, DataType::Float16 | DataType::Float32 | DataType::Float64)
}

fn is_label(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, values) => is_label(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean => true,
        kind => kind.is_integer(),
    }
}

impl TaskColumns {
    /// The support set of the task in this row of the batch.
    pub fn support(&self, task: usize) -> Result<Embeddings, Refusal> {
        let labels = list_entry(&self.labels, task).ok_or("the labels are null")?;
        let (labels, classes) = labels_of(&labels)?;
        let features = list_entry(&self.features, task).ok_or("the features are null")?;
        let features = features_of(&features, labels.len())?;
        Embeddings::from_numbered(features, labels, classes)
            .map_err(|error| crate::exceptions::error_text(&error))
    }
}

/// The entry of a list column of any kind in this row; `None` if it is null.
fn list_entry(list: &ArrayRef, row: usize) -> Option<ArrayRef> {
    if list.is_null(row) {
        return None;
    }
    Some(match list.data_type() {
        DataType::List(_) => list.as_list::<i32>().value(row),
        DataType::LargeList(_) => list.as_list::<i64>().value(row),
        DataType::ListView(_) => list.as_list_view::<i32>().value(row),
        DataType::LargeListView(_) => list.as_list_view::<i64>().value(row),
        DataType::FixedSizeList(_, _) => list.as_fixed_size_list().value(row),
        _ => unreachable!("TaskSchema::find has checked that it is a list"),
    })
}

/// The features of a task with this number of labels, from one list of numbers per row or from one flat list of all
/// numbers.
fn features_of(rows: &ArrayRef, labels: usize) -> Result<Features, Refusal> {
    if is_number(rows.data_type()) {
        let fits = labels > 0 && !rows.is_empty() && rows.len().is_multiple_of(labels);
        let dim = fits.then(|| rows.len() / labels);
        let dim = dim.ok_or_else(|| format!("{} values cannot be divided into {labels} rows", rows.len()))?;
        return contiguous_features(rows, dim);
    }
    if rows.is_empty() {
        return Err("the data has no rows".into());
    }
    if rows.len() != labels {
        return Err(format!("{} rows of features but {labels} labels", rows.len()));
    }
    if let Some(row) = (0..rows.len()).find(|&row| rows.is_null(row)) {
        return Err(format!("row {row} of the features is null"));
    }
    if let DataType::FixedSizeList(_, dim) = rows.data_type() {
        let list = rows.as_fixed_size_list();
        let start = list.value_offset_at(0);
        return contiguous_features(&list.values().slice(start, rows.len() * *dim as usize), *dim as usize);
    }
    let (starts, dim) = row_starts(rows)?;
    let values = inner_values(rows);
    // Rows that follow each other without gaps are used in place.
    if starts.iter().enumerate().all(|(row, start)| *start == starts[0] + row * dim) {
        contiguous_features(&values.slice(starts[0], rows.len() * dim), dim)
    } else {
        gather_rows(values, &starts, dim)
    }
}

/// The start of every row in the inner values, and the length that all rows have. `rows` is a list of lists of varying
/// size.
fn row_starts(rows: &ArrayRef) -> Result<(Vec<usize>, usize), Refusal> {
    let row_bounds = |row: usize| -> (usize, usize) {
        match rows.data_type() {
            DataType::List(_) => start_and_length(rows.as_list::<i32>().value_offsets(), row),
            DataType::LargeList(_) => start_and_length(rows.as_list::<i64>().value_offsets(), row),
            DataType::ListView(_) => {
                let list = rows.as_list_view::<i32>();
                (list.value_offset(row) as usize, list.value_size(row) as usize)
            }
            _ => {
                let list = rows.as_list_view::<i64>();
                (list.value_offset(row) as usize, list.value_size(row) as usize)
            }
        }
    };
    let (_, dim) = row_bounds(0);
    let mut starts = Vec::with_capacity(rows.len());
    for row in 0..rows.len() {
        let (start, length) = row_bounds(row);
        if length != dim {
            return Err(format!("row {row} of the features has {length} numbers, row 0 has {dim}"));
        }
        starts.push(start);
    }
    if dim == 0 {
        return Err("the rows of the features have no numbers".into());
    }
    Ok((starts, dim))
}

/// Start and length of a list from the offsets of a list array, of which entry `row + 1` is the end of list `row`.
fn start_and_length<O: Copy + TryInto<usize>>(offsets: &[O], row: usize) -> (usize, usize) {
    // Offsets are never negative, so the conversion does not fail.
    let at = |index: usize| offsets[index].try_into().unwrap_or(0);
    (at(row), at(row + 1) - at(row))
}

/// The numbers of all rows, into which the starts of [`row_starts`] point.
fn inner_values(rows: &ArrayRef) -> &ArrayRef {
    match rows.data_type() {
        DataType::List(_) => rows.as_list::<i32>().values(),
        DataType::LargeList(_) => rows.as_list::<i64>().values(),
        DataType::ListView(_) => rows.as_list_view::<i32>().values(),
        _ => rows.as_list_view::<i64>().values(),
    }
}

/// Copies rows of length `dim` that are not contiguous, such as those of list views.
fn gather_rows(values: &ArrayRef, starts: &[usize], dim: usize) -> Result<Features, Refusal> {
    // List views may overlap: a few numbers could stand for millions of rows, whose copy would not fit into memory.
    if starts.len().saturating_mul(dim) > values.len() {
        let (rows, stored) = (starts.len(), values.len());
        return Err(format!("the rows of the features overlap: {rows} rows of {dim} numbers among {stored}"));
    }
    let mut all = Vec::with_capacity(starts.len() * dim);
    for (row, &start) in starts.iter().enumerate() {
        let part = values.slice(start, dim);
        check_no_nulls(&part, dim).map_err(|_| format!("a number in row {row} of the features is null"))?;
        let mut copied = vec![0.0; dim];
        let features = contiguous_features(&part, dim)?;
        features.decode_row(0, &mut copied);
        all.extend(copied);
    }
    Ok(Features::from_f32(all, dim))
}

/// Contiguous numbers as rows of length `dim`, without a copy unless they are doubles, which become f32.
fn contiguous_features(values: &ArrayRef, dim: usize) -> Result<Features, Refusal> {
    if dim == 0 {
        return Err("the rows of the features have no numbers".into());
    }
    check_no_nulls(values, dim)?;
    let rows = values.len() / dim;
    let shared =
        |buffer: &Buffer, precision| Features::new(Bytes::from_owner(buffer.clone()), precision, rows, dim);
    Ok(match values.data_type() {
        DataType::Float32 => shared(values.as_primitive::<Float32Type>().values().inner(), Precision::F32),
        DataType::Float16 => shared(values.as_primitive::<Float16Type>().values().inner(), Precision::F16),
        _ => {
            let doubles = values.as_primitive::<Float64Type>().values();
            Features::from_f32(doubles.iter().map(|value| *value as f32).collect(), dim)
        }
    })
}

/// Fails if one of the flat `values` of rows of length `dim` is null.
fn check_no_nulls(values: &ArrayRef, dim: usize) -> Result<(), Refusal> {
    if values.null_count() == 0 {
        return Ok(());
    }
    let index = (0..values.len()).find(|&index| values.is_null(index)).unwrap_or(0);
    Err(format!("feature in row {}, column {} is null", index / dim, index % dim))
}

/// The labels of a task as indices into their sorted distinct values, and these as names: the order that the library
/// also uses for files. Names are sorted as text, integers by value.
fn labels_of(labels: &ArrayRef) -> Result<(Vec<i64>, Vec<String>), Refusal> {
    if let Some(row) = (0..labels.len()).find(|&row| labels.is_null(row)) {
        return Err(format!("the label in row {row} is null"));
    }
    match labels.data_type() {
        // Without labels, a dictionary may be empty too, and `normalized_keys` assumes that it is not.
        _ if labels.is_empty() => Ok(Default::default()),
        DataType::Dictionary(_, _) => {
            // Dictionary-encoded: `values` are distinct labels, and a key per row points to one of them.
            let dictionary = labels.as_any_dictionary();
            let keys = dictionary.normalized_keys();
            let values = dictionary.values();
            if let Some(row) = keys.iter().position(|key| values.is_null(*key)) {
                return Err(format!("the label in row {row} is null"));
            }
            match names(values) {
                Some(names) => Ok(number_labels(keys.iter().map(|key| names[*key]))),
                None => {
                    let numbers = whole_numbers(values)?;
                    Ok(number_labels(keys.iter().map(|key| numbers[*key])))
                }
            }
        }
        _ => match names(labels) {
            Some(names) => Ok(number_labels(names.into_iter())),
            None => Ok(number_labels(whole_numbers(labels)?.into_iter())),
        },
    }
}

/// The labels as names, if they are strings or booleans, else `None`. Nulls become empty names; callers refuse nulls.
fn names(labels: &ArrayRef) -> Option<Vec<&str>> {
    match labels.data_type() {
        DataType::Utf8 => Some(labels.as_string::<i32>().iter().map(Option::unwrap_or_default).collect()),
        DataType::LargeUtf8 => {
            Some(labels.as_string::<i64>().iter().map(Option::unwrap_or_default).collect())
        }
        DataType::Utf8View => Some(labels.as_string_view().iter().map(Option::unwrap_or_default).collect()),
        // Python's names of booleans, because labels of arrays get the same names.
        DataType::Boolean => {
            let name = |label: Option<bool>| if label.unwrap_or_default() { "True" } else { "False" };
            Some(labels.as_boolean().iter().map(name).collect())
        }
        _ => None,
    }
}

/// The labels as integers; an error if one does not fit into an i64.
fn whole_numbers(labels: &ArrayRef) -> Result<Vec<i64>, Refusal> {
    fn widened<T: ArrowPrimitiveType>(labels: &ArrayRef) -> Vec<i64>
    where
        T::Native: Into<i64>,
    {
        labels.as_primitive::<T>().values().iter().map(|&label| label.into()).collect()
    }
    Ok(match labels.data_type() {
        DataType::Int8 => widened::<Int8Type>(labels),
        DataType::Int16 => widened::<Int16Type>(labels),
        DataType::Int32 => widened::<Int32Type>(labels),
        DataType::Int64 => widened::<Int64Type>(labels),
        DataType::UInt8 => widened::<UInt8Type>(labels),
        DataType::UInt16 => widened::<UInt16Type>(labels),
        DataType::UInt32 => widened::<UInt32Type>(labels),
        _ => {
            let labels: &PrimitiveArray<UInt64Type> = labels.as_primitive();
            let narrowed =
                |&label: &u64| i64::try_from(label).map_err(|_| format!("label {label} is too large"));
            labels.values().iter().map(narrowed).collect::<Result<_, _>>()?
        }
    })
}

/// Numbers labels in their sorted order: the index of every label, and the names of the classes.
fn number_labels<T: Ord + Clone + ToString>(
    labels: impl Iterator<Item = T> + Clone,
) -> (Vec<i64>, Vec<String>) {
    // The distinct labels in order; their indices are filled in once all labels are known.
    let mut indices: BTreeMap<T, i64> = labels.clone().map(|label| (label, 0)).collect();
    indices.values_mut().zip(0..).for_each(|(index, n)| *index = n);
    (labels.map(|label| indices[&label]).collect(), indices.keys().map(ToString::to_string).collect())
}
