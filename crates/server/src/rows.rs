//! Rows as JSON. A list of lists is parsed directly into one array of numbers, and parsing stops as soon as a list is
//! longer than allowed, so that a body of brackets cannot take many times its size in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use crate::limits::{LONGEST_NAME, MOST_ITEMS, MOST_NUMBERS};

/// A support set as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupportJson {
    pub rows: Rows,
    pub labels: Bounded<Name>,
    #[serde(default)]
    pub items: Option<Bounded<Name>>,
    #[serde(default)]
    pub confirmed: Option<Bounded<bool>>,
    #[serde(default)]
    pub embedder: Option<Name>,
}

/// Query rows as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueriesJson {
    pub rows: Rows,
    #[serde(default)]
    pub items: Option<Bounded<Name>>,
}

/// Rows of equal length in one array: `[count, dim]`.
#[derive(Default)]
pub struct Rows {
    pub values: Vec<f32>,
    pub dim: usize,
    pub count: usize,
}

/// A list of at most [`MOST_ITEMS`] entries.
pub struct Bounded<T>(pub Vec<T>);

/// A name, given as text or as an integer.
pub struct Name(pub String);

impl Bounded<Name> {
    /// The names.
    pub fn into_names(self) -> Vec<String> {
        self.0.into_iter().map(|name| name.0).collect()
    }
}

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Rows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST_ITEMS} rows, each a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Rows, A::Error> {
                let mut rows = Rows::default();
                while let Some(length) = list.next_element_seed(Row(&mut rows.values))? {
                    if rows.count == MOST_ITEMS {
                        return Err(A::Error::custom(format!("more than {MOST_ITEMS} rows")));
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
        deserializer.deserialize_seq(Table)
    }
}

/// Appends a row to the numbers; its value is how many there were.
struct Row<'a>(&'a mut Vec<f32>);

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a row of 1 to {MOST_NUMBERS} numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<usize, A::Error> {
        let start = self.0.len();
        while let Some(number) = list.next_element()? {
            if self.0.len() - start == MOST_NUMBERS {
                return Err(A::Error::custom(format!("a row has more than {MOST_NUMBERS} numbers")));
            }
            self.0.push(number);
        }
        match self.0.len() - start {
            0 => Err(A::Error::custom("a row has no numbers")),
            length => Ok(length),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for List<T> {
            type Value = Bounded<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST_ITEMS} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    if all.len() == MOST_ITEMS {
                        return Err(A::Error::custom(format!("a list has more than {MOST_ITEMS} entries")));
                    }
                    all.push(one);
                }
                Ok(Bounded(all))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a name of at most {LONGEST_NAME} bytes, or an integer")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
                match text.len() {
                    0..=LONGEST_NAME => Ok(Name(text.to_owned())),
                    length => Err(E::custom(format!(
                        "a name has {length} bytes; at most {LONGEST_NAME} are allowed"
                    ))),
                }
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        serde_json::from_str::<SupportJson>(text).err().expect("it is refused").to_string()
    }

    #[test]
    fn rows_become_one_block_and_labels_may_be_numbers() {
        let read: SupportJson =
            serde_json::from_str(r#"{"rows": [[1, 2.5], [3e0, -4]], "labels": ["a", 7]}"#).unwrap();
        assert_eq!((read.rows.values, read.rows.dim, read.rows.count), (vec![1.0, 2.5, 3.0, -4.0], 2, 2));
        assert_eq!(read.labels.into_names(), ["a", "7"]);
    }

    #[test]
    fn rows_of_unequal_length_and_wrong_types_are_refused_with_their_position() {
        assert!(
            refused(r#"{"rows": [[1, 2], [3]], "labels": []}"#).contains("row 1 has 1 numbers, row 0 has 2")
        );
        assert!(refused(r#"{"rows": [[]], "labels": []}"#).contains("a row has no numbers"));
        assert!(refused(r#"{"rows": [["x"]], "labels": []}"#).contains("invalid type"));
        assert!(refused(r#"{"rows": [[null]], "labels": []}"#).contains("invalid type"));
        assert!(refused(r#"{"rows": [[1]], "labels": [1.5]}"#).contains("invalid type"));
        assert!(refused(r#"{"rows": [[1]]}"#).contains("missing field `labels`"));
    }

    #[test]
    fn lists_end_where_they_are_longer_than_allowed() {
        let many = |one: &str| format!("[{}]", vec![one; MOST_ITEMS + 1].join(","));
        assert!(
            refused(&format!(r#"{{"rows": {}, "labels": []}}"#, many("[1]"))).contains("more than 20000")
        );
        assert!(refused(&format!(r#"{{"labels": {}, "rows": []}}"#, many("1"))).contains("more than 20000"));
        let name = "x".repeat(LONGEST_NAME + 1);
        assert!(refused(&format!(r#"{{"labels": ["{name}"], "rows": []}}"#)).contains("513 bytes"));
    }
}
