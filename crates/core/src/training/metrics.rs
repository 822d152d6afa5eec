//! Training metrics: [`Record`], one line of JSON in `NAME.metrics.jsonl` (`NAME` is that of the model file), and
//! [`Window`], the averages of the loss terms that go into it.

use serde::{Deserialize, Serialize};

/// One line of the metrics file: the state of training after a number of steps.
///
/// ```
/// use trueshot::training::Record;
///
/// let line = r#"{"step":500,"rate":0.001,"loss":1.5,"terms":{"queries":1.0,"labels":0.5},"seconds":2.0}"#;
/// let record: Record = serde_json::from_str(line).unwrap();
/// assert_eq!(record.terms[1], ("labels".to_string(), 0.5));
/// assert_eq!(record.line(), line);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The number of finished steps.
    pub step: u64,
    /// The learning rate of the last step.
    pub rate: f64,
    /// The mean loss over the steps since the previous line.
    pub loss: f64,
    /// The mean of each loss term over the same steps; their sum is `loss`.
    #[serde(with = "pairs")]
    pub terms: Vec<(String, f64)>,
    /// The score by which the best model is chosen; `None` if this step was not validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The named values behind the score ([`Validation::figures`](super::Validation::figures)).
    #[serde(default, with = "pairs", skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<(String, f64)>,
    /// Seconds of training so far, including the time before interruptions.
    pub seconds: f64,
    /// The name of the GPU that trains; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Record {
    /// The record as a line of JSON, without a line end.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data")
    }
}

/// Serialises a list of named numbers as a JSON object and keeps their order.
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

/// Sums of the loss terms over the steps since the last line of metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Window {
    /// The number of steps.
    pub count: u64,
    /// One sum per loss term; empty before the first step.
    pub sums: Vec<f64>,
}

impl Window {
    /// Adds the loss terms of one step.
    pub fn add(&mut self, terms: &[f64]) {
        self.sums.resize(terms.len(), 0.0);
        self.sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        self.count += 1;
    }

    /// Returns the mean of each term and empties the window.
    pub fn take(&mut self) -> Vec<f64> {
        let count = self.count.max(1) as f64;
        std::mem::take(self).sums.into_iter().map(|sum| sum / count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_writing_and_reading() {
        let record = Record {
            step: 500,
            rate: 1e-3,
            loss: 1.5,
            terms: vec![("queries".into(), 1.0), ("labels".into(), 0.5)],
            score: Some(61.25),
            validation: vec![("symmetric 40 %".into(), 61.25)],
            seconds: 2.0,
            device: Some("NVIDIA H200".into()),
        };
        assert_eq!(serde_json::from_str::<Record>(&record.line()).unwrap(), record);
        let without = Record { score: None, validation: vec![], device: None, ..record };
        assert_eq!(serde_json::from_str::<Record>(&without.line()).unwrap(), without);
    }

    #[test]
    fn a_window_returns_means_and_is_empty_afterwards() {
        let mut window = Window::default();
        window.add(&[1.0, 2.0]);
        window.add(&[2.0, 4.0]);
        assert_eq!(window.take(), [1.5, 3.0]);
        assert_eq!(window, Window::default());
    }
}
