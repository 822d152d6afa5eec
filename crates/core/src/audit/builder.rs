//! Options of an audit with their ranges ([`Options`]), and [`AuditBuilder`], which sets them and runs the audit.

use super::{Audit, Certainty, ImageMeasures, RowFacts, run};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::ranges::require;

/// The largest number of neighbours that can be reported per item.
pub const MAX_NEIGHBOURS: usize = 100;

/// Options of an audit, with the same ranges on the command line, in the HTTP API and in Python.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The smallest probability of each verdict.
    pub certainty: Certainty,
    /// The share of wrong labels, if it is known, from 0 to below 1. The probabilities of wrong labels are shifted to
    /// meet it. Otherwise the audit estimates it.
    pub expected_noise: Option<f64>,
    /// The number of similar items to report per item, up to [`MAX_NEIGHBOURS`].
    pub neighbours: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { certainty: Certainty::default(), expected_noise: None, neighbours: 5 }
    }
}

impl Options {
    /// Checks that all options are in their ranges.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], which names the option, the value and the range.
    pub fn validate(&self) -> Result<()> {
        let Certainty { keep, relabel, outlier, wrong } = self.certainty;
        for certainty in [keep, relabel, outlier, wrong] {
            require("certainty", certainty, (0.5..=1.0).contains(&certainty), "a probability from 0.5 to 1")?;
        }
        if let Some(share) = self.expected_noise {
            require("expected_noise", share, (0.0..1.0).contains(&share), "a share from 0 to below 1")?;
        }
        let allowed = format!("0 to {MAX_NEIGHBOURS}");
        require("neighbours", self.neighbours, self.neighbours <= MAX_NEIGHBOURS, &allowed)
    }
}

/// An audit before it runs: made by [`Audit::of`], started by [`AuditBuilder::run`].
#[must_use = "an audit does nothing until `run` is called"]
#[derive(Clone)]
pub struct AuditBuilder<'a> {
    data: &'a Embeddings,
    options: Options,
    confirmed: &'a [bool],
    measures: &'a [Option<ImageMeasures>],
    /// Names of images with their classes, if known.
    unreadable: Vec<(String, Option<String>)>,
    progress: &'a dyn Progress,
}

impl<'a> AuditBuilder<'a> {
    pub(super) fn new(data: &'a Embeddings) -> Self {
        AuditBuilder {
            data,
            options: Options::default(),
            confirmed: &[],
            measures: &[],
            unreadable: Vec::new(),
            progress: &(),
        }
    }

    /// The smallest probability of an action, from 0.5 to 1; 0.8 by default. Below it, items are left to review. At
    /// most 0.75 is needed to keep a label, and at most 0.9 for the verdict [`Wrong`](super::Verdict::Wrong).
    pub fn certainty(mut self, probability: f32) -> Self {
        self.options.certainty = Certainty::of_actions(probability);
        self
    }

    /// The share of wrong labels, from 0 to below 1. The probabilities of wrong labels are shifted so that their mean
    /// is this share. Without it, the share is estimated.
    pub fn expected_noise(mut self, share: f64) -> Self {
        self.options.expected_noise = Some(share);
        self
    }

    /// The number of similar items to report per item, up to [`MAX_NEIGHBOURS`]; 5 by default.
    pub fn neighbours(mut self, count: usize) -> Self {
        self.options.neighbours = count;
        self
    }

    /// All options at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Which labels the user has confirmed, one entry per row. These items keep their labels, and help to judge others.
    pub fn confirmed(mut self, confirmed: &'a [bool]) -> Self {
        self.confirmed = confirmed;
        self
    }

    /// The measures of the images behind the rows, one entry per row; empty if the rows were not made from images. They
    /// show which images are copies of each other, and which are too poor to be used.
    pub fn image_measures(mut self, measures: &'a [Option<ImageMeasures>]) -> Self {
        self.measures = measures;
        self
    }

    /// Names and classes (`None` if unknown) of images that cannot be read and so have no rows. They are listed in
    /// [`Audit::image_problems`].
    pub fn unreadable_images(mut self, images: impl IntoIterator<Item = (String, Option<String>)>) -> Self {
        self.unreadable = images.into_iter().collect();
        self
    }

    /// Sets the progress callback, which gets the number of scored items and can stop the audit. It is also called
    /// between two items, with the same number and from any thread. During the matrix decompositions, which can take
    /// seconds in large collections, it is not called.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Runs the audit on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`Error::OneClass`] if fewer than two classes have items, [`Error::OutOfRange`] for an option or a wrong number
    /// of entries for the rows, [`Error::Interrupted`] if the progress stopped it.
    pub fn run(self) -> Result<Audit> {
        self.options.validate()?;
        if self.data.used_classes().count() < 2 {
            return Err(Error::OneClass);
        }
        let rows = self.data.len();
        let allowed = format!("{rows} entries, one per row");
        for (name, entries) in [("confirmed", self.confirmed.len()), ("image_measures", self.measures.len())]
        {
            require(name, format!("a list of {entries}"), entries == 0 || entries == rows, &allowed)?;
        }
        let facts =
            RowFacts { confirmed: self.confirmed, measures: self.measures, unreadable: &self.unreadable };
        run(self.data, &self.options, &facts, self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_ranges_are_refused_by_name() {
        let problem = |options: Options| options.validate().unwrap_err().to_string();
        let usual = Options::default;
        let unsure = Options { certainty: Certainty::of_actions(0.4), ..usual() };
        assert_eq!(problem(unsure), "certainty is 0.4; allowed: a probability from 0.5 to 1");
        for share in [-0.1, 1.0, f64::NAN] {
            assert!(
                problem(Options { expected_noise: Some(share), ..usual() }).starts_with("expected_noise is ")
            );
        }
        assert_eq!(problem(Options { neighbours: 101, ..usual() }), "neighbours is 101; allowed: 0 to 100");
        usual().validate().unwrap();
    }

    #[test]
    fn confirmed_entries_must_match_the_rows() {
        let labels = ["a", "a", "b", "b"].map(String::from).to_vec();
        let data = Embeddings::from_rows(vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0, 0.1, 0.9], 2, labels).unwrap();
        let error = Audit::of(&data).confirmed(&[true, false]).run().unwrap_err();
        assert_eq!(error.to_string(), "confirmed is a list of 2; allowed: 4 entries, one per row");
        assert!(
            Audit::of(&data).confirmed(&[true; 4]).run().unwrap().items.iter().all(|item| item.confirmed)
        );
    }
}
