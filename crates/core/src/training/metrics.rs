//! What is written down of a run: a line of JSON every so many steps.

use serde::{Deserialize, Serialize};

/// One line of metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Steps done.
    pub step: u64,
    /// The learning rate of the last of them.
    pub rate: f64,
    /// The loss, its mean since the line before.
    pub loss: f64,
    /// The terms it adds up from, alike.
    #[serde(with = "pairs")]
    pub terms: Vec<(String, f64)>,
    /// What the best model is chosen by, where the step was validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// What the score was made of.
    #[serde(default, with = "pairs", skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<(String, f64)>,
    /// Seconds of training so far, those before an interruption included.
    pub seconds: f64,
}

impl Record {
    /// The line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data")
    }
}

/// Named numbers as a JSON object, in their order.
mod pairs {
    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(pairs: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64)>, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, f64)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("named numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Means over the steps since the last line.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Window {
    pub count: u64,
    pub sums: Vec<f64>,
}

impl Window {
    pub fn add(&mut self, terms: &[f64]) {
        self.sums.resize(terms.len(), 0.0);
        self.sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        self.count += 1;
    }

    /// The means, and an empty window again.
    pub fn take(&mut self) -> Vec<f64> {
        let count = self.count.max(1) as f64;
        std::mem::take(self).sums.into_iter().map(|sum| sum / count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let record = Record {
            step: 500,
            rate: 1e-3,
            loss: 1.5,
            terms: vec![("queries".into(), 1.0), ("labels".into(), 0.5)],
            score: Some(61.25),
            validation: vec![("symmetric 40 %".into(), 61.25)],
            seconds: 2.0,
        };
        assert_eq!(serde_json::from_str::<Record>(&record.line()).unwrap(), record);
        let without = Record { score: None, validation: vec![], ..record };
        assert_eq!(serde_json::from_str::<Record>(&without.line()).unwrap(), without);
    }

    #[test]
    fn a_window_gives_means_and_begins_again() {
        let mut window = Window::default();
        window.add(&[1.0, 2.0]);
        window.add(&[2.0, 4.0]);
        assert_eq!(window.take(), [1.5, 3.0]);
        assert_eq!(window, Window::default());
    }
}
