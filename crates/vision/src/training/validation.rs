//! Validation during training: the accuracy on episodes of images that are not trained on. Trainees of backbones call
//! [`validate_backbone`]; MAML calls [`Validator::validate`] with pixels instead of embeddings.

use rayon::prelude::*;
use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Sampler};
use trueshot::evaluate::{Details, Experiment, SettingResult, evaluate};
use trueshot::method::NamedMethod;
use trueshot::noise::Noise;
use trueshot::training::Validation;

use super::{Datasets, Gpu};
use crate::backbone::Backbone;
use crate::dataset::Dataset;
use crate::preprocess::Preprocessing;

/// Images that a thread embeds per call, on the CPU.
const IMAGES_PER_CALL: usize = 16;

/// The embeddings of all images of a data set, not augmented.
fn embed_dataset(dataset: &Dataset, backbone: &Backbone) -> trueshot::Result<Embeddings> {
    let (to, dim) = (backbone.preprocessing(), backbone.dim());
    let mut features = vec![0.0; dataset.images().len() * dim];
    dataset
        .images()
        .par_chunks(IMAGES_PER_CALL)
        .zip(features.par_chunks_mut(IMAGES_PER_CALL * dim))
        .for_each_init(
            || (backbone.session(), vec![0.0; IMAGES_PER_CALL * to.input_len()]),
            |(session, inputs), (images, out)| {
                for (image, input) in images.iter().zip(inputs.chunks_exact_mut(to.input_len())) {
                    to.normalise(image, input);
                }
                let outcome = session.embed(&inputs[..images.len() * to.input_len()], out);
                outcome.expect("a Conv4 does not fail");
            },
        );
    Embeddings::from_rows(features, dim, dataset.class_names())
}

/// The accuracy of a method on embeddings by a Conv4, given by its preprocessing and parameters. Embeds on `gpu` if
/// there is one. `None` if there is nothing to validate on.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub(super) fn validate_backbone(
    validator: &Validator,
    datasets: &Datasets,
    (preprocessing, parameters): (&Preprocessing, &[f32]),
    gpu: Option<&Gpu>,
    method: NamedMethod,
) -> trueshot::Result<Option<Validation>> {
    let Some(dataset) = &datasets.validation else { return Ok(None) };
    let embed = |dataset: &Dataset| {
        #[cfg(feature = "cuda")]
        if let Some(device) = gpu {
            return super::gpu::embed_dataset(dataset, device, preprocessing, parameters);
        }
        embed_dataset(dataset, &Backbone::from_parameters(preprocessing.clone(), parameters))
    };
    let outliers = datasets.validation_outliers.as_deref().map(embed).transpose()?;
    validator.validate(&embed(dataset)?, outliers.as_ref(), method).map(Some)
}

/// The name of a noise setting in the results.
pub(super) fn setting_name(noise: Noise) -> String {
    if noise.level == 0.0 { "clean".into() } else { noise.to_string() }
}

/// Evaluates a method on episodes of the validation data. The episodes are the same in every validation of a run.
pub(super) struct Validator {
    /// Numbers of classes, support items and queries, and the seed of the episodes.
    pub spec: EpisodeSpec,
    /// The noise settings, each with all episodes.
    pub noises: Vec<Noise>,
    /// The number of episodes per noise setting.
    pub episodes: u64,
}

impl Validator {
    /// Checks that the episodes can be drawn.
    pub fn check(&self, rows: &Embeddings, outliers: Option<&Embeddings>) -> trueshot::Result<()> {
        Sampler::new(rows, outliers, self.spec, self.noises.clone()).map(drop)
    }

    /// Evaluates a method on episodes of `rows` (embeddings, or pixels for MAML), with outlier noise drawn from
    /// `outliers`. The score is the mean accuracy over all noise settings; the figures are the accuracies, in percent.
    pub fn validate(
        &self,
        rows: &Embeddings,
        outliers: Option<&Embeddings>,
        method: NamedMethod,
    ) -> trueshot::Result<Validation> {
        let sampler = Sampler::new(rows, outliers, self.spec, self.noises.clone())?;
        let experiment = Experiment {
            embeddings: rows,
            outliers,
            episodes: &sampler,
            count: self.episodes,
            methods: &[method],
            baseline: "",
            details: Details::default(),
        };
        let evaluation = evaluate(&experiment, &())?;
        let figure = |setting: &SettingResult| {
            let noise = Noise { kind: setting.noise, level: setting.level };
            (setting_name(noise), setting.methods[0].accuracy.unwrap_or(0.0))
        };
        let figures: Vec<(String, f64)> = evaluation.settings.iter().map(figure).collect();
        let score = figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / figures.len() as f64;
        Ok(Validation { score, figures })
    }
}
