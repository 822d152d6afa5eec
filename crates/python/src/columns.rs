//! The columns of a table of tasks: one row per task, with its support set in two list columns (features and labels).
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

/// Why a task fails.
pub type Refusal = String;

/// The two columns of a support set.
pub struct TaskColumns {
    features: ArrayRef,
    labels: ArrayRef,
}

/// The names and indices of the columns.
pub struct TaskSchema {
    features: usize,
    labels: usize,
}

impl TaskSchema {
    /// Finds the columns; `Err` describes the problem of the table.
    pub fn find(schema: &Schema, features: &str, labels: &str) -> Result<Self, String> {
        let place = |name: &str| {
            schema.index_of(name).map_err(|_| {
                let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                format!("the table has no column '{name}'; it has: {}", known.join(", "))
            })
        };
        let task_schema = TaskSchema { features: place(features)?, labels: place(labels)? };
        let kind = |place: usize| schema.field(place).data_type();
        let row = element_type(kind(task_schema.features))
            .ok_or_else(|| not_features(features, kind(task_schema.features)))?;
        if !is_number(row) && !element_type(row).is_some_and(is_number) {
            return Err(not_features(features, kind(task_schema.features)));
        }
        match element_type(kind(task_schema.labels)) {
            Some(label) if is_label(label) => Ok(task_schema),
            _ => Err(format!(
                "column '{labels}' is {}; expected a list of strings or integers",
                kind(task_schema.labels)
            )),
        }
    }

    pub fn columns(&self, batch: &RecordBatch) -> TaskColumns {
        TaskColumns {
            features: batch.column(self.features).clone(),
            labels: batch.column(self.labels).clone(),
        }
    }
}

fn not_features(name: &str, kind: &DataType) -> String {
    format!("column '{name}' is {kind}; expected a list of lists of float, half or double, one list per row")
}

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
    pub fn support(&self, task: usize) -> Result<Embeddings, Refusal> {
        let labels = list_entry(&self.labels, task).ok_or("the labels are null")?;
        let (labels, classes) = labels_of(&labels)?;
        let features = list_entry(&self.features, task).ok_or("the features are null")?;
        let features = features_of(&features, labels.len())?;
        Embeddings::from_numbered(features, labels, classes)
            .map_err(|error| crate::exceptions::error_text(&error))
    }
}

/// One entry of a list column of any kind; `None` if it is null.
fn list_entry(list: &ArrayRef, place: usize) -> Option<ArrayRef> {
    if list.is_null(place) {
        return None;
    }
    Some(match list.data_type() {
        DataType::List(_) => list.as_list::<i32>().value(place),
        DataType::LargeList(_) => list.as_list::<i64>().value(place),
        DataType::ListView(_) => list.as_list_view::<i32>().value(place),
        DataType::LargeListView(_) => list.as_list_view::<i64>().value(place),
        DataType::FixedSizeList(_, _) => list.as_fixed_size_list().value(place),
        _ => unreachable!("the layout lets only lists pass"),
    })
}

/// The rows of a task, from lists of numbers or from one flat list.
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
    let side_by_side = starts.iter().enumerate().all(|(row, start)| *start == starts[0] + row * dim);
    match side_by_side {
        true => contiguous_features(&values.slice(starts[0], rows.len() * dim), dim),
        false => gather_rows(values, &starts, dim),
    }
}

/// The start of every row, and their common length.
fn row_starts(rows: &ArrayRef) -> Result<(Vec<usize>, usize), Refusal> {
    let place = |row: usize| -> (usize, usize) {
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
    let dim = place(0).1;
    let mut starts = Vec::with_capacity(rows.len());
    for row in 0..rows.len() {
        let (start, length) = place(row);
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

fn start_and_length<O: Copy + TryInto<usize>>(offsets: &[O], row: usize) -> (usize, usize) {
    let at = |place: usize| offsets[place].try_into().unwrap_or(0);
    (at(row), at(row + 1) - at(row))
}

fn inner_values(rows: &ArrayRef) -> &ArrayRef {
    match rows.data_type() {
        DataType::List(_) => rows.as_list::<i32>().values(),
        DataType::LargeList(_) => rows.as_list::<i64>().values(),
        DataType::ListView(_) => rows.as_list_view::<i32>().values(),
        _ => rows.as_list_view::<i64>().values(),
    }
}

/// Copies rows that are not contiguous.
fn gather_rows(values: &ArrayRef, starts: &[usize], dim: usize) -> Result<Features, Refusal> {
    // List views may overlap, so a few numbers could claim to be any number of rows.
    if starts.len().saturating_mul(dim) > values.len() {
        let (rows, held) = (starts.len(), values.len());
        return Err(format!("the rows of the features overlap: {rows} rows of {dim} numbers among {held}"));
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

/// Contiguous numbers, without a copy unless they are doubles.
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

fn check_no_nulls(values: &ArrayRef, dim: usize) -> Result<(), Refusal> {
    if values.null_count() == 0 {
        return Ok(());
    }
    let place = (0..values.len()).find(|&place| values.is_null(place)).unwrap_or(0);
    Err(format!("feature in row {}, column {} is null", place / dim, place % dim))
}

/// Labels as indices into their sorted distinct values, as the library does with files.
fn labels_of(labels: &ArrayRef) -> Result<(Vec<i64>, Vec<String>), Refusal> {
    if let Some(row) = (0..labels.len()).find(|&row| labels.is_null(row)) {
        return Err(format!("the label in row {row} is null"));
    }
    match labels.data_type() {
        // Arrow assumes that a dictionary has entries.
        _ if labels.is_empty() => Ok(Default::default()),
        DataType::Dictionary(_, _) => {
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

/// The labels as names, if they are strings or booleans; nulls are empty.
fn names(labels: &ArrayRef) -> Option<Vec<&str>> {
    match labels.data_type() {
        DataType::Utf8 => Some(labels.as_string::<i32>().iter().map(Option::unwrap_or_default).collect()),
        DataType::LargeUtf8 => {
            Some(labels.as_string::<i64>().iter().map(Option::unwrap_or_default).collect())
        }
        DataType::Utf8View => Some(labels.as_string_view().iter().map(Option::unwrap_or_default).collect()),
        // As Python writes booleans.
        DataType::Boolean => {
            let name = |label: Option<bool>| if label.unwrap_or_default() { "True" } else { "False" };
            Some(labels.as_boolean().iter().map(name).collect())
        }
        _ => None,
    }
}

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

fn number_labels<T: Ord + Clone + ToString>(
    labels: impl Iterator<Item = T> + Clone,
) -> (Vec<i64>, Vec<String>) {
    let mut places: BTreeMap<T, i64> = labels.clone().map(|label| (label, 0)).collect();
    places.values_mut().zip(0..).for_each(|(place, n)| *place = n);
    (labels.map(|label| places[&label]).collect(), places.keys().map(ToString::to_string).collect())
}
