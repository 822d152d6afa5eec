//! The data sets of a training run: images to train and validate on, and outliers for both.

use std::sync::Arc;

use serde::Serialize;
use toml::Table;
use trueshot::Embeddings;

use crate::dataset::Dataset;

/// The data sets of a run, loaded with [`super::ImageSettings::preprocessing`]; those to train on for augmentation (see
/// [`Dataset::load`]) if the configuration says so, those to validate on not.
#[derive(Clone)]
pub struct Datasets {
    /// Images to train on.
    pub train: Arc<Dataset>,
    /// Images of other classes, which outlier noise in training draws from; `None`: outliers are images of training
    /// classes that are not in the episode.
    pub outliers: Option<Arc<Dataset>>,
    /// Images to validate on.
    pub validation: Option<Arc<Dataset>>,
    /// Images that outlier noise in validation draws from.
    pub validation_outliers: Option<Arc<Dataset>>,
}

impl Datasets {
    /// Data sets without separate images for outlier noise.
    pub fn new(train: Dataset, validation: Option<Dataset>) -> Self {
        let validation = validation.map(Arc::new);
        Datasets { train: Arc::new(train), outliers: None, validation, validation_outliers: None }
    }

    /// The labels of the validation data and of its outliers, from which episodes are drawn; `None` without validation.
    pub(super) fn validation_labels(&self) -> Option<(&Embeddings, Option<&Embeddings>)> {
        let outliers = self.validation_outliers.as_deref().map(Dataset::labels);
        self.validation.as_ref().map(|dataset| (dataset.labels(), outliers))
    }

    /// What must be the same for a run to be resumed: the configuration, with hashes of the data instead of paths.
    pub fn identity(&self, configuration: &impl Serialize) -> Table {
        let mut identity = trueshot::training::configuration::table(configuration);
        let mut data = Table::new();
        data.insert("train".into(), self.train.fingerprint().into());
        let validation = self.validation.as_deref().map(Dataset::fingerprint);
        data.insert("validation".into(), validation.unwrap_or_default().into());
        // Without outliers there is no entry, so that earlier runs keep their identity.
        let outlier_sets = [
            ("outliers", self.outliers.as_deref()),
            ("validation_outliers", self.validation_outliers.as_deref()),
        ];
        for (name, dataset) in outlier_sets {
            data.extend(dataset.map(|dataset| (name.to_string(), dataset.fingerprint().into())));
        }
        identity.insert("data".into(), data.into());
        identity
    }
}
