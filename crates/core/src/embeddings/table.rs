//! Record batches, as Arrow and Parquet give them, become features, labels and item names.
//!
//! Columns are found by the names people use. What can point twice at the same bytes (views, dictionaries)
//! can claim more than the file holds: names are kept once, and rows that must be gathered are counted
//! against the same limit as compressed contents.

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

const FEATURES: [&str; 5] = ["features", "embedding", "embeddings", "x", "vector"];
const LABELS: [&str; 5] = ["label", "labels", "class", "y", "target"];
const ITEMS: [&str; 5] = ["item", "items", "path", "id", "file"];

/// Which columns of a table are needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    features: usize,
    labels: Option<usize>,
    items: Option<usize>,
}

impl Columns {
    /// Finds the columns by name and type; `Err` says which was not found, and what there is.
    pub fn choose(schema: &Schema) -> Result<Self, String> {
        let columns = Self::choose_unlabelled(schema)?;
        let labels = named(schema, &LABELS, is_labels).ok_or_else(|| {
            format!("no column of labels named {}; its columns: {}", LABELS.join(" or "), described(schema))
        })?;
        Ok(Columns { labels: Some(labels), ..columns })
    }

    /// The same without labels, which rows that ask for their class do not have.
    pub fn choose_unlabelled(schema: &Schema) -> Result<Self, String> {
        let features =
            named(schema, &FEATURES, is_features).or_else(|| only_features(schema)).ok_or_else(|| {
                format!(
                    "no column of number lists named {}; its columns: {}",
                    FEATURES.join(" or "),
                    described(schema)
                )
            })?;
        Ok(Columns { features, labels: None, items: named(schema, &ITEMS, is_text) })
    }

    /// The places of the columns in the schema, ascending.
    pub fn places(&self) -> Vec<usize> {
        let optional = self.labels.into_iter().chain(self.items);
        let mut places: Vec<usize> = std::iter::once(self.features).chain(optional).collect();
        places.sort_unstable();
        places
    }

    /// The place of a column among the chosen ones.
    fn projected(&self, place: usize) -> usize {
        self.places().iter().take_while(|&&other| other < place).count()
    }
}

/// The first column of one of these names that is of the right type.
fn named(schema: &Schema, names: &[&str], fits: fn(&DataType) -> bool) -> Option<usize> {
    names.iter().find_map(|name| {
        let (place, field) = schema.column_with_name(name)?;
        fits(field.data_type()).then_some(place)
    })
}

/// What a message shows of a schema.
fn described(schema: &Schema) -> String {
    const SHOWN: usize = 12;
    let name = |field: &std::sync::Arc<Field>| format!("{} ({})", field.name(), field.data_type());
    let mut columns: Vec<String> = schema.fields().iter().take(SHOWN).map(name).collect();
    if let Some(more @ 1..) = schema.fields().len().checked_sub(SHOWN) {
        columns.push(format!("{more} more"));
    }
    columns.join(", ")
}

fn only_features(schema: &Schema) -> Option<usize> {
    let mut lists = (0..schema.fields().len()).filter(|&place| is_features(schema.field(place).data_type()));
    lists.next().filter(|_| lists.next().is_none())
}

fn is_features(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => item.data_type().is_floating(),
        DataType::ListView(item) | DataType::LargeListView(item) => item.data_type().is_floating(),
        DataType::FixedSizeList(item, length) => item.data_type().is_floating() && *length > 0,
        _ => false,
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, value) => {
            matches!(**value, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
        }
        _ => false,
    }
}

fn is_labels(data_type: &DataType) -> bool {
    let number = |data_type: &DataType| data_type.is_integer() || *data_type == DataType::Boolean;
    match data_type {
        DataType::Dictionary(_, value) => is_text(data_type) || number(value),
        _ => is_text(data_type) || number(data_type),
    }
}

/// A table as it comes in, batch by batch.
pub(crate) struct Table<'a> {
    source: &'a Source,
    format: &'static str,
    columns: Columns,
    rows: usize,
    matrix: Option<Matrix>,
    numbers: Vec<i64>,
    names: Option<Names>,
    items: Vec<String>,
    items_length: u64,
}

/// The rows of features so far.
struct Matrix {
    precision: Precision,
    dim: usize,
    bytes: Rows,
}

/// One batch stays where it lies; more are copied together.
enum Rows {
    InPlace(Bytes),
    Gathered(Vec<u8>),
}

impl<'a> Table<'a> {
    /// An empty table.
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

    /// Takes the next rows; the batch has the chosen columns only.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let wanted = self.columns.places().len();
        if batch.num_columns() != wanted {
            return Err(self.malformed(format!("a batch has {} of {wanted} columns", batch.num_columns())));
        }
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let column = |place: usize| batch.column(self.columns.projected(place)).clone();
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

    /// What the table was.
    pub fn finish(self) -> Result<Parts> {
        let Some(matrix) = self.matrix else { return Err(Error::Empty) };
        let bytes = match matrix.bytes {
            Rows::InPlace(bytes) => bytes,
            Rows::Gathered(bytes) => bytes.into(),
        };
        let labels = match self.names {
            Some(names) => names.into_labels(),
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

    fn push_features(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the features of row {} are null", self.rows + row)));
        }
        let lists = Lists::of(column).ok_or_else(|| self.malformed("the features are not lists"))?;
        let dim = self.matrix.as_ref().map_or(lists.span(0).1, |matrix| matrix.dim);
        self.check_spans(&lists, dim)?;
        let (precision, stored) = stored_numbers(&lists.values).ok_or_else(|| {
            self.malformed("the features are not floating-point numbers of 16, 32 or 64 bits")
        })?;
        let (first, width) = (lists.span(0).0, dim * precision.size());
        let contiguous = (0..lists.rows).all(|row| lists.span(row).0 == first + row * dim);
        let matrix =
            self.matrix.get_or_insert_with(|| Matrix { precision, dim, bytes: Rows::Gathered(Vec::new()) });
        if contiguous {
            let start = first * precision.size();
            matrix.append(stored.slice(start..start + lists.rows * width));
            return Ok(());
        }
        let starts = (0..lists.rows).map(|row| lists.span(row).0 * precision.size());
        let gathered = matrix.gather(&stored, starts, width);
        self.source.allow(gathered)
    }

    /// Every row must have `dim` numbers, none of them null.
    fn check_spans(&self, lists: &Lists, dim: usize) -> Result<()> {
        let nulls = lists.values.nulls();
        for row in 0..lists.rows {
            let (start, length) = lists.span(row);
            let at = self.rows + row;
            if length != dim {
                return Err(self.malformed(format!("row {at} has {length} features, row 0 has {dim}")));
            }
            let inside = start.checked_add(length).is_some_and(|end| end <= lists.values.len());
            if !inside {
                return Err(self.malformed(format!("the features of row {at} lie outside their column")));
            }
            if nulls.is_some_and(|nulls| nulls.slice(start, length).null_count() > 0) {
                return Err(self.malformed(format!("row {at} has a feature that is null")));
            }
        }
        // Lists may overlap: what they add up to is a claim like any other.
        let bytes = (lists.rows as u64).saturating_mul(dim as u64).saturating_mul(4);
        self.source.allow(bytes)
    }

    fn push_labels(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the label of row {} is null", self.rows + row)));
        }
        let (source, format) = (self.source, self.format);
        if let Some(texts) = Texts::of(column) {
            let names = self.names.get_or_insert_default();
            return (0..column.len())
                .try_for_each(|row| names.push(texts.get(row)))
                .map_err(|problem| source.malformed(format, problem));
        }
        let numbers = whole_numbers(column)
            .ok_or_else(|| self.malformed(format!("the labels contain a number above {}", i64::MAX)))?;
        self.numbers.extend(numbers);
        Ok(())
    }

    fn push_items(&mut self, column: &ArrayRef) -> Result<()> {
        if let Some(row) = first_null(column) {
            return Err(self.malformed(format!("the item name of row {} is null", self.rows + row)));
        }
        let texts = Texts::of(column).ok_or_else(|| self.malformed("the item names are not strings"))?;
        for row in 0..column.len() {
            let name = texts.get(row);
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
    /// Adds rows that lie one after the other.
    fn append(&mut self, rows: Bytes) {
        match &mut self.bytes {
            Rows::Gathered(bytes) if bytes.is_empty() => self.bytes = Rows::InPlace(rows),
            _ => self.copied().extend_from_slice(&rows),
        }
    }

    /// Adds rows that lie anywhere; returns how many bytes there are now.
    fn gather(&mut self, stored: &[u8], starts: impl Iterator<Item = usize>, width: usize) -> u64 {
        let bytes = self.copied();
        for start in starts {
            bytes.extend_from_slice(&stored[start..start + width]);
        }
        bytes.len() as u64
    }

    fn copied(&mut self) -> &mut Vec<u8> {
        if let Rows::InPlace(bytes) = &self.bytes {
            self.bytes = Rows::Gathered(bytes.to_vec());
        }
        match &mut self.bytes {
            Rows::Gathered(bytes) => bytes,
            Rows::InPlace(_) => unreachable!("replaced above"),
        }
    }
}

/// The first row without a value, looked up through a dictionary if there is one.
fn first_null(column: &ArrayRef) -> Option<usize> {
    let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
    (0..nulls.len()).find(|&row| nulls.is_null(row))
}

/// A column of lists of any kind: which of the values belong to which row.
struct Lists {
    rows: usize,
    values: ArrayRef,
    spans: Spans,
}

enum Spans {
    Fixed(usize),
    Offsets(Vec<usize>),
    Views(Vec<(usize, usize)>),
}

impl Lists {
    fn of(column: &ArrayRef) -> Option<Self> {
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

    /// Where a row begins among the values, and how many belong to it.
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
    let places = lists.offsets().iter().zip(lists.sizes().iter());
    let views = places.map(|(offset, size)| (offset.as_usize(), size.as_usize()));
    (lists.values().clone(), Spans::Views(views.collect()))
}

/// The bytes of a column of numbers: in place, except doubles, which become singles.
fn stored_numbers(values: &ArrayRef) -> Option<(Precision, Bytes)> {
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

/// A column of whole numbers; `None` if one does not fit, or if they are something else.
fn whole_numbers(column: &ArrayRef) -> Option<Vec<i64>> {
    macro_rules! all_of {
        ($type:ty) => {
            column.as_primitive::<$type>().values().iter().map(|&number| i64::try_from(number).ok()).collect()
        };
    }
    match column.data_type() {
        DataType::Int8 => all_of!(Int8Type),
        DataType::Int16 => all_of!(Int16Type),
        DataType::Int32 => all_of!(Int32Type),
        DataType::Int64 => all_of!(Int64Type),
        DataType::UInt8 => all_of!(UInt8Type),
        DataType::UInt16 => all_of!(UInt16Type),
        DataType::UInt32 => all_of!(UInt32Type),
        DataType::UInt64 => all_of!(UInt64Type),
        DataType::Boolean => Some(column.as_boolean().values().iter().map(i64::from).collect()),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary_opt().filter(|d| !d.values().is_empty())?;
            let values = whole_numbers(dictionary.values())?;
            dictionary.normalized_keys().into_iter().map(|key| values.get(key).copied()).collect()
        }
        _ => None,
    }
}

/// A column of strings of any kind.
struct Texts {
    values: ArrayRef,
    /// For a dictionary, the place of every row's value.
    keys: Option<Vec<usize>>,
}

impl Texts {
    fn of(column: &ArrayRef) -> Option<Self> {
        if !is_text(column.data_type()) {
            return None;
        }
        let Some(dictionary) = column.as_any_dictionary_opt() else {
            return Some(Texts { values: column.clone(), keys: None });
        };
        let keys = if dictionary.values().is_empty() { Vec::new() } else { dictionary.normalized_keys() };
        (keys.len() == column.len()).then(|| Texts { values: dictionary.values().clone(), keys: Some(keys) })
    }

    fn get(&self, row: usize) -> &str {
        let place = self.keys.as_ref().map_or(row, |keys| keys[row]);
        match self.values.data_type() {
            DataType::Utf8 => self.values.as_string::<i32>().value(place),
            DataType::LargeUtf8 => self.values.as_string::<i64>().value(place),
            _ => self.values.as_string_view().value(place),
        }
    }
}
