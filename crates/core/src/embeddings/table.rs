//! Conversion of Arrow record batches (groups of rows, stored by column), from Arrow and Parquet files, to features,
//! labels and item names.
//!
//! [`Columns`] finds the needed columns by the names that people use; [`Table`] collects the batches. Views and
//! dictionaries can refer to the same bytes many times and so expand to more than the file holds: names are kept once,
//! and rows that must be copied count towards the same limit as compressed contents.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, GenericListArray, GenericListViewArray, OffsetSizeTrait, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;

use super::features::{Features, Precision};
use super::names::Names;
use super::source::Source;
use super::{Items, Labels, Parts};
use crate::error::{Error, Result};

/// Names of a column of features, by preference.
const FEATURES: [&str; 5] = ["features", "embedding", "embeddings", "x", "vector"];
/// Names of a column of labels, by preference.
const LABELS: [&str; 5] = ["label", "labels", "class", "y", "target"];
/// Names of a column of item names, by preference.
const ITEMS: [&str; 5] = ["item", "items", "path", "id", "file"];

/// The indices of the needed columns in the schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    features: usize,
    labels: Option<usize>,
    items: Option<usize>,
}

impl Columns {
    /// Finds the columns by name and type; `Err` says which one is missing and lists the columns of the schema.
    pub fn choose(schema: &Schema) -> Result<Self, String> {
        let columns = Self::choose_unlabelled(schema)?;
        let labels = find_column(schema, &LABELS, is_labels).ok_or_else(|| {
            format!(
                "no column of labels named {}; its columns: {}",
                LABELS.join(" or "),
                describe_columns(schema)
            )
        })?;
        Ok(Columns { labels: Some(labels), ..columns })
    }

    /// Like [`Columns::choose`], for data without labels, such as rows to classify.
    pub fn choose_unlabelled(schema: &Schema) -> Result<Self, String> {
        let features = find_column(schema, &FEATURES, is_features)
            .or_else(|| only_features(schema))
            .ok_or_else(|| {
                format!(
                    "no column of number lists named {}; its columns: {}",
                    FEATURES.join(" or "),
                    describe_columns(schema)
                )
            })?;
        Ok(Columns { features, labels: None, items: find_column(schema, &ITEMS, is_text) })
    }

    /// The indices of the columns in the schema, ascending.
    pub fn indices(&self) -> Vec<usize> {
        let optional = self.labels.into_iter().chain(self.items);
        let mut indices: Vec<usize> = std::iter::once(self.features).chain(optional).collect();
        indices.sort_unstable();
        indices
    }

    /// The index among the chosen columns of the column with index `index` in the schema: the number of chosen columns
    /// before it.
    fn projected(&self, index: usize) -> usize {
        self.indices().iter().take_while(|&&chosen| chosen < index).count()
    }
}

/// The index of the first column that has one of the names and the right type.
fn find_column(schema: &Schema, names: &[&str], has_type: fn(&DataType) -> bool) -> Option<usize> {
    names.iter().find_map(|name| {
        let (index, field) = schema.column_with_name(name)?;
        has_type(field.data_type()).then_some(index)
    })
}

/// The names and types of the first columns, for messages.
fn describe_columns(schema: &Schema) -> String {
    const MAX_COLUMNS: usize = 12;
    let name = |field: &std::sync::Arc<Field>| format!("{} ({})", field.name(), field.data_type());
    let mut columns: Vec<String> = schema.fields().iter().take(MAX_COLUMNS).map(name).collect();
    if let Some(more @ 1..) = schema.fields().len().checked_sub(MAX_COLUMNS) {
        columns.push(format!("{more} more"));
    }
    columns.join(", ")
}

/// The index of the only column that can be features; `None` if there are several.
fn only_features(schema: &Schema) -> Option<usize> {
    let mut lists = (0..schema.fields().len()).filter(|&index| is_features(schema.field(index).data_type()));
    lists.next().filter(|_| lists.next().is_none())
}

/// Whether a column of this type can be features: lists of floating-point numbers.
fn is_features(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => item.data_type().is_floating(),
        DataType::ListView(item) | DataType::LargeListView(item) => item.data_type().is_floating(),
        DataType::FixedSizeList(item, length) => item.data_type().is_floating() && *length > 0,
        _ => false,
    }
}

/// Whether a column has strings.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, value) => {
            matches!(**value, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
        }
        _ => false,
    }
}

/// Whether a column of this type can be labels: strings, integers or booleans.
fn is_labels(data_type: &DataType) -> bool {
    let is_number = |data_type: &DataType| data_type.is_integer() || *data_type == DataType::Boolean;
    match data_type {
        DataType::Dictionary(_, value) => is_text(data_type) || is_number(value),
        _ => is_text(data_type) || is_number(data_type),
    }
}

/// A table that is collected batch by batch: [`Table::push`] adds a batch, [`Table::finish`] returns the result.
pub(crate) struct Table<'a> {
    /// The file and its format, for error messages and the limit on the unpacked size.
    source: &'a Source,
    format: &'static str,
    columns: Columns,
    /// The number of rows so far.
    rows: usize,
    /// The features; `None` before the first batch with rows.
    matrix: Option<Matrix>,
    /// The labels, if they are numbers.
    numbers: Vec<i64>,
    /// The labels, if they are strings.
    names: Option<Names>,
    /// The item names.
    items: Vec<String>,
    /// The total length of the item names in bytes.
    items_length: u64,
}

/// The feature rows so far.
struct Matrix {
    precision: Precision,
    dim: usize,
    bytes: RowBytes,
}

/// The bytes of the feature rows: those of a single batch are not copied, those of several are.
enum RowBytes {
    InPlace(Bytes),
    Copied(Vec<u8>),
}

impl<'a> Table<'a> {
    /// An empty table for the chosen columns of a file.
    pub fn new(source: &'a Source, format: &'static str, columns: Columns) -> Self {
        Table {
            source,
            format,
            columns,
            rows: 0,
            matrix: None,
            numbers: Vec::new(),
            names: None,
            items: Vec::new(),
            items_length: 0,
        }
    }

    /// Adds the rows of a batch, which has only the chosen columns.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let expected = self.columns.indices().len();
        if batch.num_columns() != expected {
            return Err(self.malformed(format!("a batch has {} of {expected} columns", batch.num_columns())));
        }
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let column = |index: usize| batch.column(self.columns.projected(index)).clone();
        let features = column(self.columns.features);
        let (labels, items) = (self.columns.labels.map(column), self.columns.items.map(column));
        self.push_features(&features)?;
        if let Some(labels) = labels {
            self.push_labels(&labels)?;
        }
        if let Some(items) = items {
            self.push_items(&items)?;
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    /// The features, labels and item names of all batches.
    pub fn finish(self) -> Result<Parts> {
        let Some(matrix) = self.matrix else { return Err(Error::Empty) };
        let bytes = match matrix.bytes {
            RowBytes::InPlace(bytes) => bytes,
            RowBytes::Copied(bytes) => bytes.into(),
        };
        let labels = match self.names {
            Some(names) => names.into_labels(),
            // Rows without labels all get the same class.
            None if self.columns.labels.is_none() => Labels::Numbered(vec![0; self.rows]),
            None => Labels::Numbered(self.numbers),
        };
        Ok(Parts {
            features: Features::new(bytes, matrix.precision, self.rows, matrix.dim),
            labels,
            items: self.columns.items.map(|_| Items::from_names(self.items)),
            backbone: None,
        })
    }

    /// Adds the features of a batch, without copying if it is the only one and its lists are contiguous.
    fn push_features(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the features of row {} are null", self.rows + row)));
        }
        let lists = Lists::new(column).ok_or_else(|| self.malformed("the features are not lists"))?;
        // The first row of the table decides about the dimension.
        let dim = self.matrix.as_ref().map_or(lists.span(0).1, |matrix| matrix.dim);
        self.check_lists(&lists, dim)?;
        let (precision, stored) = stored_numbers(&lists.values).ok_or_else(|| {
            self.malformed("the features are not floating-point numbers of 16, 32 or 64 bits")
        })?;
        let (first_value, row_bytes) = (lists.span(0).0, dim * precision.size());
        let contiguous = (0..lists.rows).all(|row| lists.span(row).0 == first_value + row * dim);
        let matrix =
            self.matrix.get_or_insert_with(|| Matrix { precision, dim, bytes: RowBytes::Copied(Vec::new()) });
        // Contiguous lists are one slice; otherwise every row is copied.
        if contiguous {
            let start = first_value * precision.size();
            matrix.append(stored.slice(start..start + lists.rows * row_bytes));
            return Ok(());
        }
        let starts = (0..lists.rows).map(|row| lists.span(row).0 * precision.size());
        let gathered = matrix.gather(&stored, starts, row_bytes);
        // `check_lists` limits the size of one batch, this the size of all batches.
        self.source.allow(gathered)
    }

    /// Checks that every list has `dim` numbers, none of them null.
    fn check_lists(&self, lists: &Lists, dim: usize) -> Result<()> {
        let nulls = lists.values.nulls();
        for row in 0..lists.rows {
            let (start, length) = lists.span(row);
            let row_number = self.rows + row;
            if length != dim {
                return Err(
                    self.malformed(format!("row {row_number} has {length} features, row 0 has {dim}"))
                );
            }
            let is_inside = start.checked_add(length).is_some_and(|end| end <= lists.values.len());
            if !is_inside {
                return Err(
                    self.malformed(format!("the features of row {row_number} lie outside their column"))
                );
            }
            if nulls.is_some_and(|nulls| nulls.slice(start, length).null_count() > 0) {
                return Err(self.malformed(format!("row {row_number} has a feature that is null")));
            }
        }
        // Lists may overlap, so their total size can exceed the size of the file. A value takes at most four bytes,
        // because `f64` is converted to `f32`.
        let bytes = (lists.rows as u64).saturating_mul(dim as u64).saturating_mul(4);
        self.source.allow(bytes)
    }

    /// Adds the labels of a batch: strings, integers or booleans.
    fn push_labels(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the label of row {} is null", self.rows + row)));
        }
        let (source, format) = (self.source, self.format);
        if let Some(strings) = Strings::new(column) {
            let names = self.names.get_or_insert_default();
            return (0..column.len())
                .try_for_each(|row| names.push(strings.get(row)))
                .map_err(|problem| source.malformed(format, problem));
        }
        let numbers = whole_numbers(column)
            .ok_or_else(|| self.malformed(format!("the labels contain a number above {}", i64::MAX)))?;
        self.numbers.extend(numbers);
        Ok(())
    }

    /// Adds the item names of a batch.
    fn push_items(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the item name of row {} is null", self.rows + row)));
        }
        let strings = Strings::new(column).ok_or_else(|| self.malformed("the item names are not strings"))?;
        for row in 0..column.len() {
            let name = strings.get(row);
            self.items_length = self.items_length.saturating_add(name.len() as u64);
            self.source.allow(self.items_length)?;
            self.items.push(name.to_owned());
        }
        Ok(())
    }

    fn malformed(&self, problem: impl std::fmt::Display) -> Error {
        self.source.malformed(self.format, problem)
    }
}

impl Matrix {
    /// Adds rows that are stored one after the other.
    fn append(&mut self, rows: Bytes) {
        match &mut self.bytes {
            RowBytes::Copied(bytes) if bytes.is_empty() => self.bytes = RowBytes::InPlace(rows),
            _ => self.copied().extend_from_slice(&rows),
        }
    }

    /// Copies rows of `row_bytes` bytes that start at the given offsets in `stored`; returns the number of bytes of all
    /// rows so far.
    fn gather(&mut self, stored: &[u8], starts: impl Iterator<Item = usize>, row_bytes: usize) -> u64 {
        let bytes = self.copied();
        for start in starts {
            bytes.extend_from_slice(&stored[start..start + row_bytes]);
        }
        bytes.len() as u64
    }

    /// The buffer of copied rows; rows that are still in place are copied to it first.
    fn copied(&mut self) -> &mut Vec<u8> {
        if let RowBytes::InPlace(bytes) = &self.bytes {
            self.bytes = RowBytes::Copied(bytes.to_vec());
        }
        match &mut self.bytes {
            RowBytes::Copied(bytes) => bytes,
            RowBytes::InPlace(_) => unreachable!("replaced above"),
        }
    }
}

/// The first row whose value, or whose value in the dictionary, is null.
fn first_null(column: &ArrayRef) -> Option<usize> {
    let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
    (0..nulls.len()).find(|&row| nulls.is_null(row))
}

/// A column of lists, in any of Arrow's list types.
struct Lists {
    rows: usize,
    /// The values of all lists.
    values: ArrayRef,
    spans: Spans,
}

/// The part of the values that belongs to each row.
enum Spans {
    /// Lists of one length.
    Fixed(usize),
    /// The start of each row, and the end of the last.
    Offsets(Vec<usize>),
    /// The start and the length of each row.
    Views(Vec<(usize, usize)>),
}

impl Lists {
    /// The lists of a column; `None` if it has another type.
    fn new(column: &ArrayRef) -> Option<Self> {
        let (values, spans) = match column.data_type() {
            DataType::FixedSizeList(_, length) => {
                let values = column.as_fixed_size_list().values().clone();
                (values, Spans::Fixed(usize::try_from(*length).ok()?))
            }
            DataType::List(_) => spans_of_list(column.as_list::<i32>()),
            DataType::LargeList(_) => spans_of_list(column.as_list::<i64>()),
            DataType::ListView(_) => spans_of_view(column.as_list_view::<i32>()),
            DataType::LargeListView(_) => spans_of_view(column.as_list_view::<i64>()),
            _ => return None,
        };
        Some(Lists { rows: column.len(), values, spans })
    }

    /// The start of a row in the values, and its length.
    fn span(&self, row: usize) -> (usize, usize) {
        match &self.spans {
            Spans::Fixed(length) => (row * length, *length),
            Spans::Offsets(offsets) => (offsets[row], offsets[row + 1].saturating_sub(offsets[row])),
            Spans::Views(views) => views[row],
        }
    }
}

fn spans_of_list<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> (ArrayRef, Spans) {
    let offsets = lists.offsets().iter().map(|offset| offset.as_usize());
    (lists.values().clone(), Spans::Offsets(offsets.collect()))
}

fn spans_of_view<O: OffsetSizeTrait>(lists: &GenericListViewArray<O>) -> (ArrayRef, Spans) {
    let spans = lists.offsets().iter().zip(lists.sizes().iter());
    let views = spans.map(|(offset, size)| (offset.as_usize(), size.as_usize()));
    (lists.values().clone(), Spans::Views(views.collect()))
}

/// The bytes of a column of floating-point numbers: not copied, except `f64`, which is converted to `f32`.
fn stored_numbers(values: &ArrayRef) -> Option<(Precision, Bytes)> {
    /// Owns the buffer whose bytes are returned.
    struct Owner(Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let in_place = |buffer: &Buffer| Bytes::from_owner(Owner(buffer.clone()));
    Some(match values.data_type() {
        DataType::Float16 => {
            (Precision::F16, in_place(values.as_primitive::<Float16Type>().values().inner()))
        }
        DataType::Float32 => {
            (Precision::F32, in_place(values.as_primitive::<Float32Type>().values().inner()))
        }
        DataType::Float64 => {
            let doubles = values.as_primitive::<Float64Type>().values();
            let singles: Vec<u8> = doubles.iter().flat_map(|&double| (double as f32).to_le_bytes()).collect();
            (Precision::F32, singles.into())
        }
        _ => return None,
    })
}

/// The values of a column of integers; `None` if one does not fit or the column has another type.
fn whole_numbers(column: &ArrayRef) -> Option<Vec<i64>> {
    macro_rules! values_of {
        ($type:ty) => {
            column.as_primitive::<$type>().values().iter().map(|&number| i64::try_from(number).ok()).collect()
        };
    }
    match column.data_type() {
        DataType::Int8 => values_of!(Int8Type),
        DataType::Int16 => values_of!(Int16Type),
        DataType::Int32 => values_of!(Int32Type),
        DataType::Int64 => values_of!(Int64Type),
        DataType::UInt8 => values_of!(UInt8Type),
        DataType::UInt16 => values_of!(UInt16Type),
        DataType::UInt32 => values_of!(UInt32Type),
        DataType::UInt64 => values_of!(UInt64Type),
        DataType::Boolean => Some(column.as_boolean().values().iter().map(i64::from).collect()),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary_opt().filter(|d| !d.values().is_empty())?;
            let values = whole_numbers(dictionary.values())?;
            dictionary.normalized_keys().into_iter().map(|key| values.get(key).copied()).collect()
        }
        _ => None,
    }
}

/// A column of strings, in any of Arrow's string types.
struct Strings {
    values: ArrayRef,
    /// For a dictionary, the index of the value of each row.
    keys: Option<Vec<usize>>,
}

impl Strings {
    /// The strings of a column; `None` if it has another type, or is a dictionary without values.
    fn new(column: &ArrayRef) -> Option<Self> {
        if !is_text(column.data_type()) {
            return None;
        }
        let Some(dictionary) = column.as_any_dictionary_opt() else {
            return Some(Strings { values: column.clone(), keys: None });
        };
        let keys = if dictionary.values().is_empty() { Vec::new() } else { dictionary.normalized_keys() };
        (keys.len() == column.len())
            .then(|| Strings { values: dictionary.values().clone(), keys: Some(keys) })
    }

    /// The string of a row.
    fn get(&self, row: usize) -> &str {
        let index = self.keys.as_ref().map_or(row, |keys| keys[row]);
        match self.values.data_type() {
            DataType::Utf8 => self.values.as_string::<i32>().value(index),
            DataType::LargeUtf8 => self.values.as_string::<i64>().value(index),
            _ => self.values.as_string_view().value(index),
        }
    }
}
