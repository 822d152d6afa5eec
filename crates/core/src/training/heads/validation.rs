//! Judges a head: its accuracy on the same episodes every time, under every noise asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::configuration;
use super::episodes::{Bank, Shape, check_used, numbers};
use crate::episode::{EpisodeSpec, Episodes, Images};
use crate::error::Result;
use crate::evaluate::{Details, Experiment, evaluate};
use crate::method::{Method, NamedMethod};
use crate::noise::{Noise, NoiseLevels, settings};
use crate::training::Validation;

/// Episodes to judge by.
pub(super) struct Judge<'a> {
    benches: Vec<Bench<'a>>,
    episodes: u64,
}

/// Those of one file, number of ways and number of shots.
struct Bench<'a> {
    /// What sets it apart from the others, if anything does.
    name: String,
    bank: Bank<'a>,
    shape: Shape<'a>,
}

impl<'a> Judge<'a> {
    pub fn new(banks: Vec<Bank<'a>>, options: &configuration::Validation) -> Result<Self> {
        let ways = BTreeSet::from_iter(numbers(&options.ways));
        let noise = [NoiseLevels(settings(&options.noise))];
        let mut benches = Vec::new();
        for (number, &bank) in banks.iter().enumerate() {
            let images = Images::of(bank.embeddings).map(Arc::new);
            for &ways_here in &ways {
                for &shots in &options.shots {
                    let spec = EpisodeSpec {
                        ways: ways_here,
                        shots: shots.into(),
                        queries: options.queries,
                        seed: options.seed,
                    };
                    let parts = [
                        (banks.len() > 1).then(|| file_name(bank, number)),
                        (ways.len() > 1).then(|| format!("{ways_here}-way")),
                        (options.shots.len() > 1).then(|| format!("{shots}-shot")),
                    ];
                    let name: String =
                        parts.into_iter().flatten().flat_map(|part| [part, " ".to_string()]).collect();
                    let shape = Shape::new(bank, images.clone(), spec, &noise)?;
                    benches.push(Bench { name, bank, shape });
                }
            }
        }
        check_used(benches.iter().map(|bench| &bench.shape), &noise)?;
        Ok(Judge { benches, episodes: options.episodes })
    }

    /// The mean accuracy, and what it is the mean of.
    pub fn judge(&self, method: Box<dyn Method>) -> Result<Option<Validation>> {
        let methods = [NamedMethod { label: "head".into(), method }];
        let mut figures = Vec::new();
        for bench in &self.benches {
            let experiment = Experiment {
                embeddings: bench.bank.embeddings,
                outliers: bench.bank.outliers,
                episodes: &bench.shape.sampler as &dyn Episodes,
                count: self.episodes,
                methods: &methods,
                baseline: "",
                details: Details::default(),
            };
            let found = evaluate(&experiment, &())?;
            for setting in &found.settings {
                let noise = Noise { kind: setting.noise, level: setting.level };
                let accuracy = setting.methods[0].accuracy.unwrap_or(0.0);
                figures.push((format!("{}{}", bench.name, shown(noise)), accuracy));
            }
        }
        let score = figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / figures.len().max(1) as f64;
        Ok((!figures.is_empty()).then_some(Validation { score, figures }))
    }
}

fn shown(noise: Noise) -> String {
    if noise.level == 0.0 { "clean".into() } else { noise.to_string() }
}

fn file_name(bank: Bank<'_>, number: usize) -> String {
    let stem = bank.embeddings.path().and_then(|path| path.file_stem());
    stem.map_or_else(|| format!("data {}", number + 1), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::heads::configuration::Span;

    #[test]
    fn spans_of_shots_are_settings_of_their_own() {
        let options = configuration::Validation {
            every: 1,
            episodes: 20,
            ways: vec![Span::exactly(2), Span::exactly(3)],
            shots: vec![Span::exactly(1), Span { min: 2, max: 5 }],
            queries: 3,
            noise: ["symmetric=0,25".parse().unwrap(), "paired=0,25".parse().unwrap()].to_vec(),
            seed: 0,
        };
        let labels = (0..80).map(|row| format!("{}", row / 20)).collect();
        let values = (0..80).map(|row| (row / 20) as f32 + (row % 7) as f32 / 10.0).collect();
        let data = crate::Embeddings::from_rows(values, 1, labels).unwrap();
        let judge = Judge::new(vec![Bank { embeddings: &data, outliers: None }], &options).unwrap();
        let method = crate::method::Registry::default().parse("protonet").unwrap().method;
        let found = judge.judge(method).unwrap().unwrap();
        let names: Vec<&str> = found.figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "2-way 1-shot clean");
        assert!(names.contains(&"3-way 2-5-shot clean"), "{names:?}");
        assert!(found.score > 60.0, "{found:?}");
        let mean = found.figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / names.len() as f64;
        assert!((found.score - mean).abs() < 1e-9, "the score is the mean over all settings: {found:?}");
    }
}
