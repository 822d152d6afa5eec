//! Validation of a head in training: its accuracy on the same episodes every time, under every configured noise setting.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::configuration;
use super::episodes::{Shape, check_used, numbers};
use crate::episode::{AugmentedCopies, EpisodeData, EpisodeSpec, Episodes};
use crate::error::Result;
use crate::evaluate::{Details, Experiment, evaluate};
use crate::method::{Method, NamedMethod};
use crate::noise::{Noise, NoiseLevels, settings};
use crate::training::Validation;

/// The validation episodes.
pub(super) struct Validator<'a> {
    settings: Vec<ValidationSetting<'a>>,
    episodes: u64,
}

/// The episodes of one file with one number of ways and shots.
struct ValidationSetting<'a> {
    /// What distinguishes it from the other settings; empty if there is only one.
    name: String,
    data: EpisodeData<'a>,
    shape: Shape<'a>,
}

impl<'a> Validator<'a> {
    pub fn new(sets: Vec<EpisodeData<'a>>, options: &configuration::Validation) -> Result<Self> {
        let ways = BTreeSet::from_iter(numbers(&options.ways));
        let noise = [NoiseLevels(settings(&options.noise))];
        let mut settings = Vec::new();
        for (number, &data) in sets.iter().enumerate() {
            let images = AugmentedCopies::of(data.embeddings).map(Arc::new);
            for &ways_here in &ways {
                for &shots in &options.shots {
                    let spec = EpisodeSpec {
                        ways: ways_here,
                        shots: shots.into(),
                        queries: options.queries,
                        seed: options.seed,
                    };
                    let parts = [
                        (sets.len() > 1).then(|| file_name(data, number)),
                        (ways.len() > 1).then(|| format!("{ways_here}-way")),
                        (options.shots.len() > 1).then(|| format!("{shots}-shot")),
                    ];
                    let name: String =
                        parts.into_iter().flatten().flat_map(|part| [part, " ".to_string()]).collect();
                    let shape = Shape::new(data, images.clone(), spec, &noise)?;
                    settings.push(ValidationSetting { name, data, shape });
                }
            }
        }
        check_used(settings.iter().map(|setting| &setting.shape), &noise)?;
        Ok(Validator { settings, episodes: options.episodes })
    }

    /// The mean accuracy over all settings, and the accuracy in each.
    pub fn validate(&self, method: Box<dyn Method>) -> Result<Option<Validation>> {
        let methods = [NamedMethod { label: "head".into(), method }];
        let mut figures = Vec::new();
        for episodes in &self.settings {
            let experiment = Experiment {
                embeddings: episodes.data.embeddings,
                outliers: episodes.data.outliers,
                episodes: &episodes.shape.sampler as &dyn Episodes,
                count: self.episodes,
                methods: &methods,
                baseline: "",
                details: Details::default(),
            };
            let found = evaluate(&experiment, &())?;
            for setting in &found.settings {
                let noise = Noise { kind: setting.noise, level: setting.level };
                let accuracy = setting.methods[0].accuracy.unwrap_or(0.0);
                figures.push((format!("{}{}", episodes.name, shown(noise)), accuracy));
            }
        }
        let score = figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / figures.len().max(1) as f64;
        Ok((!figures.is_empty()).then_some(Validation { score, figures }))
    }
}

fn shown(noise: Noise) -> String {
    if noise.level == 0.0 { "clean".into() } else { noise.to_string() }
}

fn file_name(data: EpisodeData<'_>, number: usize) -> String {
    let stem = data.embeddings.path().and_then(|path| path.file_stem());
    stem.map_or_else(|| format!("data {}", number + 1), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::heads::configuration::CountRange;

    #[test]
    fn spans_of_shots_are_settings_of_their_own() {
        let options = configuration::Validation {
            every: 1,
            episodes: 20,
            ways: vec![CountRange::exactly(2), CountRange::exactly(3)],
            shots: vec![CountRange::exactly(1), CountRange { min: 2, max: 5 }],
            queries: 3,
            noise: ["symmetric=0,25".parse().unwrap(), "paired=0,25".parse().unwrap()].to_vec(),
            seed: 0,
        };
        let labels = (0..80).map(|row| format!("{}", row / 20)).collect();
        let values = (0..80).map(|row| (row / 20) as f32 + (row % 7) as f32 / 10.0).collect();
        let data = crate::Embeddings::from_rows(values, 1, labels).unwrap();
        let validator =
            Validator::new(vec![EpisodeData { embeddings: &data, outliers: None }], &options).unwrap();
        let method = crate::method::Registry::default().parse("protonet").unwrap().method;
        let found = validator.validate(method).unwrap().unwrap();
        let names: Vec<&str> = found.figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "2-way 1-shot clean");
        assert!(names.contains(&"3-way 2-5-shot clean"), "{names:?}");
        assert!(found.score > 60.0, "{found:?}");
        let mean = found.figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / names.len() as f64;
        assert!((found.score - mean).abs() < 1e-9, "the score is the mean over all settings: {found:?}");
    }
}
