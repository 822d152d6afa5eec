//! The training session of MAML on a GPU ([`GpuSession`]), and validation there ([`GpuValidation`]).
//!
//! MAML adapts a network to the support set of a task (an episode) by gradient descent. As for backbones, the images
//! are stored on the GPU, and a batch holds the numbers of the images and their augmentation.

use std::path::PathBuf;
use std::sync::Arc;

use trueshot::method::NamedMethod;
use trueshot::training::Validation;
use trueshot_cuda::Device;
use trueshot_cuda::maml::{MamlOptions, MamlTraining};
use trueshot_nn::maml;

use super::super::gpu::{GpuSession, upload_training_images};
use super::super::validation::Validator;
use super::{Datasets, MamlConfiguration, MamlEpisodeSettings, adamw_config};
use crate::dataset::Dataset;
use crate::maml::{GpuImages, GpuMaml, GpuTasks, KIND, Maml, MamlConfig};
use crate::preprocess::Preprocessing;

impl GpuSession<MamlTraining> {
    /// MAML in training. Starts from `parameters`. The images are stored on the GPU, unless they take more than
    /// `most_image_bytes`.
    pub fn maml(
        device: &Device,
        configuration: &MamlConfiguration,
        datasets: &Datasets,
        parameters: &[f32],
        most_image_bytes: usize,
    ) -> trueshot::Result<Self> {
        let MamlConfiguration { episodes, adaptation, optimiser, steps, pictures, .. } = configuration;
        let MamlEpisodeSettings { per_step, ways, shots, queries, .. } = *episodes;
        let options = MamlOptions {
            size: configuration.size(),
            support: ways * shots,
            queries: ways * queries,
            tasks: per_step,
            adaptation: adaptation.in_training(),
            order: adaptation.gradient_order(),
            optimiser: adamw_config(configuration),
            clip: optimiser.clip,
        };
        let (images, warning) =
            upload_training_images(device, datasets, &pictures.preprocessing(), most_image_bytes)?;
        Ok(GpuSession {
            training: MamlTraining::new(device, options, parameters, images)?,
            layout: maml::layout(configuration.size()),
            schedule: optimiser.schedule(*steps),
            warning,
        })
    }
}

/// Validation on the GPU, with the same episodes as on the CPU. The images to validate on stay there during the run.
pub(super) struct GpuValidation {
    tasks: Arc<GpuTasks>,
    dataset: Arc<Dataset>,
    outliers: Option<Arc<Dataset>>,
    validator: Validator,
    preprocessing: Preprocessing,
    config: MamlConfig,
}

impl GpuValidation {
    /// Copies the images to validate on to the GPU; `None` if there are none.
    pub fn new(
        device: &Device,
        configuration: &MamlConfiguration,
        datasets: &Datasets,
    ) -> trueshot::Result<Option<Self>> {
        let Some(dataset) = datasets.validation.clone() else { return Ok(None) };
        let outliers = datasets.validation_outliers.clone();
        let (preprocessing, config) = (configuration.pictures.preprocessing(), configuration.config());
        let validator = configuration.validator();
        let images = GpuImages::upload(device, Arc::clone(&dataset), outliers.clone(), &preprocessing)?;
        let Validator { spec, episodes, .. } = &validator;
        let tasks = Arc::new(GpuTasks::new(&images, &preprocessing, &config, spec, *episodes)?);
        Ok(Some(GpuValidation { tasks, dataset, outliers, validator, preprocessing, config }))
    }

    /// Validates a network with these parameters: the mean accuracy over all noise settings as the score, and the
    /// accuracies, in percent.
    pub fn validate(&self, parameters: &[f32]) -> trueshot::Result<Validation> {
        let (preprocessing, parameters) = (self.preprocessing.clone(), parameters.to_vec());
        let maml = Maml::new(preprocessing, self.config, parameters, PathBuf::from(KIND));
        let method = GpuMaml::new(maml, Arc::clone(&self.tasks));
        let method = NamedMethod { label: KIND.into(), method: Box::new(method) };
        // Only the labels are needed: the images are on the GPU.
        let outliers = self.outliers.as_deref().map(Dataset::labels);
        self.validator.validate(self.dataset.labels(), outliers, method)
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
