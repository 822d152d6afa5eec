//! [`PredictorBuilder`] chooses the method of a classifier and fits it.

use super::Predictor;
use crate::audit::Audit;
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::{NamedMethod, Registry};
use crate::progress::Progress;

/// The method of a classifier unless another one is chosen.
pub const DEFAULT_METHOD: &str = "relabel";

/// A classifier before it is fitted: made by [`Predictor::of`], fitted by [`PredictorBuilder::fit`].
#[must_use = "a classifier does nothing until `fit` is called"]
pub struct PredictorBuilder<'a> {
    data: Embeddings,
    /// `None` stands for [`DEFAULT_METHOD`].
    method: Option<NamedMethod>,
    progress: &'a dyn Progress,
}

impl<'a> PredictorBuilder<'a> {
    pub(super) fn new(data: Embeddings) -> Self {
        PredictorBuilder { data, method: None, progress: &() }
    }

    /// The method, with its parameters after colons, such as `median:eps=0.1`; `relabel` without this call.
    ///
    /// # Errors
    /// Unknown methods and parameters, and values outside their ranges.
    pub fn method(mut self, name: &str) -> Result<Self> {
        self.method = Some(Registry::default().parse(name)?);
        Ok(self)
    }

    /// Reports the progress of the audit of the examples, which takes most of the time.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Audits the examples, fits the method and calibrates its probabilities. Examples whose labels are probably wrong
    /// count less in the calibration.
    ///
    /// # Errors
    /// [`Error::Transductive`](crate::Error::Transductive) and [`Error::CannotBeSaved`](crate::Error::CannotBeSaved) if
    /// classifiers of the method cannot be saved, [`Error::OneClass`](crate::Error::OneClass) if fewer than two classes
    /// have items, [`Error::Interrupted`](crate::Error::Interrupted) if the progress stopped it, and errors of the
    /// method.
    pub fn fit(self) -> Result<Predictor> {
        let method = self.method.map_or_else(|| Registry::default().parse(DEFAULT_METHOD), Ok)?;
        method.check_not_transductive()?;
        let audit = Audit::of(&self.data).progress(self.progress).run()?;
        Predictor::fit(self.data, &method, Some(&audit))
    }
}
