//! Validation of a head in training: [`Validator`] measures its accuracy under every setting of the configuration. A
//! setting is a data set with a number of classes per episode ("ways") and of labelled items per class ("shots"). The
//! head is evaluated at all noise levels of every setting.
//!
//! The validation episodes are the same every time, so scores of different steps can be compared.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::configuration;
use super::episodes::{EpisodeShape, check_levels_used, counts};
use crate::episode::{AugmentedCopies, EpisodeData, EpisodeSpec, Episodes};
use crate::error::Result;
use crate::evaluate::{Details, Experiment, evaluate};
use crate::method::{Method, NamedMethod};
use crate::noise::{self, Noise, NoiseLevels};
use crate::training::Validation;

/// The validation episodes of all settings. [`Validator::validate`] evaluates a head on them.
pub(super) struct Validator<'a> {
    settings: Vec<ValidationSetting<'a>>,
    /// The number of episodes per setting.
    episodes: u64,
}

/// The validation episodes of one data set with one number of ways and shots.
struct ValidationSetting<'a> {
    /// The start of the names of its results, such as `birds 5-way 1-shot `: data set, ways and shots, each followed by
    /// a space. Those that are the same in all settings are left out.
    name: String,
    data: EpisodeData<'a>,
    shape: EpisodeShape<'a>,
}

impl<'a> Validator<'a> {
    /// Prepares one setting per data set, number of ways and entry of `options.shots`. A range of ways is expanded; a
    /// range of shots is one setting, whose episodes have different numbers of shots. Noise levels that a setting
    /// cannot have are left out of it.
    pub fn new(data_sets: Vec<EpisodeData<'a>>, options: &configuration::Validation) -> Result<Self> {
        let way_counts = BTreeSet::from_iter(counts(&options.ways));
        // One list for all types of noise, so that "no noise" is evaluated once.
        let noise = [NoiseLevels(noise::settings(&options.noise))];
        let mut settings = Vec::new();
        for (index, &data) in data_sets.iter().enumerate() {
            let copies = AugmentedCopies::of(data.embeddings).map(Arc::new);
            for &ways in &way_counts {
                for &shots in &options.shots {
                    let spec = EpisodeSpec {
                        ways,
                        shots: shots.into(),
                        queries: options.queries,
                        seed: options.seed,
                    };
                    let name_parts = [
                        (data_sets.len() > 1).then(|| data_set_name(data, index)),
                        (way_counts.len() > 1).then(|| format!("{ways}-way")),
                        (options.shots.len() > 1).then(|| format!("{shots}-shot")),
                    ];
                    let name: String =
                        name_parts.into_iter().flatten().flat_map(|part| [part, " ".to_string()]).collect();
                    let shape = EpisodeShape::new(data, copies.clone(), spec, &noise)?;
                    settings.push(ValidationSetting { name, data, shape });
                }
            }
        }
        check_levels_used(settings.iter().map(|setting| &setting.shape), &noise)?;
        Ok(Validator { settings, episodes: options.episodes })
    }

    /// Evaluates `method` at all noise levels of all settings. The score is the unweighted mean of the accuracies, in
    /// percent. `None` without validation data.
    pub fn validate(&self, method: Box<dyn Method>) -> Result<Option<Validation>> {
        let methods = [NamedMethod { label: "head".into(), method }];
        let mut accuracies = Vec::new();
        for setting in &self.settings {
            let experiment = Experiment {
                embeddings: setting.data.embeddings,
                outliers: setting.data.outliers,
                episodes: &setting.shape.sampler as &dyn Episodes,
                count: self.episodes,
                methods: &methods,
                baseline: "",
                details: Details::default(),
            };
            let evaluation = evaluate(&experiment, &())?;
            for result in &evaluation.settings {
                let noise = Noise { kind: result.noise, level: result.level };
                let accuracy = result.methods[0].accuracy.expect("validation episodes have queries");
                accuracies.push((format!("{}{}", setting.name, noise_name(noise)), accuracy));
            }
        }
        let score =
            accuracies.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / accuracies.len().max(1) as f64;
        Ok((!accuracies.is_empty()).then_some(Validation { score, figures: accuracies }))
    }
}

/// The noise as training logs show it: `clean` without noise.
fn noise_name(noise: Noise) -> String {
    if noise.level == 0.0 { "clean".into() } else { noise.to_string() }
}

/// The name of the file without extension, or `data N` for data that was not read from a file.
fn data_set_name(data: EpisodeData<'_>, index: usize) -> String {
    let stem = data.embeddings.path().and_then(|path| path.file_stem());
    stem.map_or_else(|| format!("data {}", index + 1), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::heads::configuration::CountRange;

    #[test]
    fn each_number_or_range_of_shots_is_a_setting() {
        let options = configuration::Validation {
            every: 1,
            episodes: 20,
            ways: vec![CountRange::exactly(2), CountRange::exactly(3)],
            shots: vec![CountRange::exactly(1), CountRange { min: 2, max: 5 }],
            queries: 3,
            noise: ["symmetric=0,20,40".parse().unwrap(), "paired=0,40".parse().unwrap()].to_vec(),
            seed: 0,
        };
        let labels = (0..80).map(|row| format!("{}", row / 20)).collect();
        let values = (0..80).map(|row| (row / 20) as f32 + (row % 7) as f32 / 10.0).collect();
        let data = crate::Embeddings::from_rows(values, 1, labels).unwrap();
        let validator =
            Validator::new(vec![EpisodeData { embeddings: &data, outliers: None }], &options).unwrap();
        let method = crate::method::Registry::default().parse("protonet").unwrap().method;
        let validation = validator.validate(method).unwrap().unwrap();
        let names: Vec<&str> = validation.figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "2-way 1-shot clean");
        assert!(names.contains(&"3-way 2-5-shot clean"), "{names:?}");
        assert!(validation.score > 60.0, "{validation:?}");
        let mean = validation.figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / names.len() as f64;
        assert!(
            (validation.score - mean).abs() < 1e-9,
            "the score is the mean over all settings: {validation:?}"
        );
    }
}
