//! The data sets of a training run: images to train and validate on, and outliers for both.

use std::sync::Arc;

use serde::Serialize;
use toml::Table;
use trueshot::Embeddings;

use crate::dataset::Dataset;

/// The data sets of a run. All must have been loaded with [`super::ImageSettings::preprocessing`]; those to train on augmented
/// if the configuration says so, those to validate on not.
#[derive(Clone)]
pub struct Datasets {
    /// What is learnt from.
    pub train: Arc<Dataset>,
    /// Images of other classes, which outlier noise in training draws from; `None`: outliers are images of training
    /// classes that are not in the episode.
    pub outliers: Option<Arc<Dataset>>,
    /// What the model is judged by.
    pub validation: Option<Arc<Dataset>>,
    /// Outliers for that.
    pub validation_outliers: Option<Arc<Dataset>>,
}

impl Datasets {
    /// Images to train on, and some to validate on where there are any; no outliers.
    pub fn new(train: Dataset, validation: Option<Dataset>) -> Self {
        let validation = validation.map(Arc::new);
        Datasets { train: Arc::new(train), outliers: None, validation, validation_outliers: None }
    }

    /// What validation draws episodes from, and its outliers: rows that say which image is of which class.
    pub(super) fn validation_labels(&self) -> Option<(&Embeddings, Option<&Embeddings>)> {
        let outliers = self.validation_outliers.as_deref().map(Dataset::labels);
        self.validation.as_ref().map(|dataset| (dataset.labels(), outliers))
    }

    /// What must be the same for a run to be gone on with: the configuration, with what the data holds instead of
    /// where it lies.
    pub fn identity(&self, configuration: &impl Serialize) -> Table {
        let mut identity = trueshot::training::configuration::table(configuration);
        let mut data = Table::new();
        data.insert("train".into(), self.train.fingerprint().into());
        let validation = self.validation.as_deref().map(Dataset::fingerprint);
        data.insert("validation".into(), validation.unwrap_or_default().into());
        // Runs without outliers keep the identity they had before there were any.
        let outliers = [("outliers", self.outliers.as_deref())];
        let outliers =
            outliers.into_iter().chain([("validation_outliers", self.validation_outliers.as_deref())]);
        for (name, dataset) in outliers {
            data.extend(dataset.map(|dataset| (name.to_string(), dataset.fingerprint().into())));
        }
        identity.insert("data".into(), data.into());
        identity
    }
}
