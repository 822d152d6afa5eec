//! Rows and labels as JSON: [`SupportJson`] is a support set, [`QueriesJson`] are rows to classify. A list of lists is
//! parsed directly into one array of numbers, and parsing stops when a list is longer than allowed, so that a body of
//! brackets cannot take many times its size in memory.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use trueshot::audit::ImageMeasures;

use crate::limits::{MAX_DIM, MAX_ITEMS, MAX_NAME_BYTES};

/// A support set as JSON: one label per row, and optionally one name per row (`items`), whether its label is confirmed
/// (`confirmed`), and the measures of its image (`images`), which an audit needs because the image itself is not sent.
/// `embedder` is the name of the backbone that computed the rows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with 'rows' and 'labels'")]
pub struct SupportJson {
    pub rows: JsonRows,
    pub labels: BoundedList<JsonName>,
    #[serde(default)]
    pub items: Option<BoundedList<JsonName>>,
    #[serde(default)]
    pub confirmed: Option<BoundedList<bool>>,
    #[serde(default)]
    pub embedder: Option<JsonName>,
    #[serde(default)]
    pub images: Option<BoundedList<Option<JsonImage>>>,
}

/// Query rows as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with 'rows'")]
pub struct QueriesJson {
    pub rows: JsonRows,
    #[serde(default)]
    pub items: Option<BoundedList<JsonName>>,
}

/// Rows of equal length in one array: `[count, dim]`.
#[derive(Default)]
pub struct JsonRows {
    /// The numbers of all rows, one row after the other.
    pub values: Vec<f32>,
    pub dim: usize,
    pub count: usize,
}

/// A list of at most [`MAX_ITEMS`] entries.
pub struct BoundedList<T>(pub Vec<T>);

/// A name, given as text or as an integer.
pub struct JsonName(pub String);

/// The length of the base64 text of a [`JsonImage`], which is always the same: four characters for three bytes.
pub const IMAGE_TEXT_LEN: usize = ImageMeasures::BYTES.div_ceil(3) * 4;

/// The measures of an image (size, sharpness, brightness, small copy), as the base64 text that `/api/v1/embed` returns.
pub struct JsonImage(pub ImageMeasures);

/// The measures of an image as base64.
pub fn image_text(measures: &ImageMeasures) -> String {
    BASE64.encode(measures.to_bytes())
}

impl<'de> Deserialize<'de> for JsonImage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64.decode(text.as_bytes()).ok();
        let measures = bytes.and_then(|bytes| ImageMeasures::from_bytes(&bytes));
        let expected = "expected the text that /api/v1/embed returned in 'image'";
        measures.map(JsonImage).ok_or_else(|| D::Error::custom(expected))
    }
}

impl BoundedList<JsonName> {
    pub fn into_names(self) -> Vec<String> {
        self.0.into_iter().map(|name| name.0).collect()
    }
}

impl<'de> Deserialize<'de> for JsonRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowsVisitor;
        impl<'de> Visitor<'de> for RowsVisitor {
            type Value = JsonRows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_ITEMS} rows, each a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonRows, A::Error> {
                let mut rows = JsonRows::default();
                while let Some(length) = list.next_element_seed(RowSeed(&mut rows.values))? {
                    if rows.count == MAX_ITEMS {
                        return Err(A::Error::custom(format!("more than {MAX_ITEMS} rows")));
                    }
                    if rows.count > 0 && length != rows.dim {
                        let (row, first) = (rows.count, rows.dim);
                        return Err(A::Error::custom(format!(
                            "row {row} has {length} numbers, row 0 has {first}"
                        )));
                    }
                    rows.dim = length;
                    rows.count += 1;
                }
                Ok(rows)
            }
        }
        deserializer.deserialize_seq(RowsVisitor)
    }
}

/// Appends a row to the numbers and returns its length.
struct RowSeed<'a>(&'a mut Vec<f32>);

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a row of 1 to {MAX_DIM} numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<usize, A::Error> {
        let start = self.0.len();
        while let Some(number) = list.next_element()? {
            if self.0.len() - start == MAX_DIM {
                return Err(A::Error::custom(format!("a row has more than {MAX_DIM} numbers")));
            }
            self.0.push(number);
        }
        match self.0.len() - start {
            0 => Err(A::Error::custom("a row has no numbers")),
            length => Ok(length),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for ListVisitor<T> {
            type Value = BoundedList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_ITEMS} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedList<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    if entries.len() == MAX_ITEMS {
                        return Err(A::Error::custom(format!("a list has more than {MAX_ITEMS} entries")));
                    }
                    entries.push(entry);
                }
                Ok(BoundedList(entries))
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for JsonName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = JsonName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a name of at most {MAX_NAME_BYTES} bytes, or an integer")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<JsonName, E> {
                match text.len() {
                    0..=MAX_NAME_BYTES => Ok(JsonName(text.to_owned())),
                    length => Err(E::custom(format!(
                        "a name has {length} bytes; at most {MAX_NAME_BYTES} are allowed"
                    ))),
                }
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<JsonName, E> {
                Ok(JsonName(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<JsonName, E> {
                Ok(JsonName(number.to_string()))
            }
        }
        deserializer.deserialize_any(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        serde_json::from_str::<SupportJson>(text).err().expect("the text must be refused").to_string()
    }

    #[test]
    fn rows_become_one_block_and_labels_may_be_numbers() {
        let support: SupportJson =
            serde_json::from_str(r#"{"rows": [[1, 2.5], [3e0, -4]], "labels": ["a", 7]}"#).unwrap();
        assert_eq!(
            (support.rows.values, support.rows.dim, support.rows.count),
            (vec![1.0, 2.5, 3.0, -4.0], 2, 2)
        );
        assert_eq!(support.labels.into_names(), ["a", "7"]);
    }

    #[test]
    fn rows_of_unequal_length_and_wrong_types_are_refused_with_their_position() {
        assert!(
            parse_error(r#"{"rows": [[1, 2], [3]], "labels": []}"#)
                .contains("row 1 has 1 numbers, row 0 has 2")
        );
        assert!(parse_error(r#"{"rows": [[]], "labels": []}"#).contains("a row has no numbers"));
        assert!(parse_error(r#"{"rows": [["x"]], "labels": []}"#).contains("invalid type"));
        assert!(parse_error(r#"{"rows": [[null]], "labels": []}"#).contains("invalid type"));
        assert!(parse_error(r#"{"rows": [[1]], "labels": [1.5]}"#).contains("invalid type"));
        assert!(parse_error(r#"{"rows": [[1]]}"#).contains("missing field `labels`"));
    }

    #[test]
    fn lists_that_are_longer_than_allowed_are_refused() {
        let long_list = |entry: &str| format!("[{}]", vec![entry; MAX_ITEMS + 1].join(","));
        assert!(
            parse_error(&format!(r#"{{"rows": {}, "labels": []}}"#, long_list("[1]")))
                .contains("more than 20000")
        );
        assert!(
            parse_error(&format!(r#"{{"labels": {}, "rows": []}}"#, long_list("1")))
                .contains("more than 20000")
        );
        let name = "x".repeat(MAX_NAME_BYTES + 1);
        assert!(parse_error(&format!(r#"{{"labels": ["{name}"], "rows": []}}"#)).contains("513 bytes"));
    }
}
