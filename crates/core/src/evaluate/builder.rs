//! [`EvaluationBuilder`] sets the options of an evaluation and runs it. An evaluation measures the accuracy of few-shot
//! methods on episodes: small classification problems drawn from the data, with a number of classes ("ways"), a few
//! labelled items per class ("shots"), some of them with wrong labels, and queries to classify.

use super::{Details, Evaluation, Experiment, check_baseline, evaluate};
use crate::embeddings::Embeddings;
use crate::episode::{DefaultNoise, EpisodeSpec, Sampler, Shots};
use crate::error::{Error, Result};
use crate::method::{NamedMethod, Registry};
use crate::noise::{self, LabelNoise, NoiseLevels};
use crate::progress::Progress;

/// The method to which others are compared unless another one is chosen.
pub const DEFAULT_BASELINE: &str = "protonet";

/// Options of an evaluation: created by [`Evaluation::of`], run by [`EvaluationBuilder::run`].
///
/// By default: all methods that need no model file and are not transductive, 10,000 episodes of 5 ways, 5 shots and 15
/// queries per class, with symmetric noise of 0, 20, 40 and 60 %. Of these levels, those that are impossible with the
/// shape of the episodes are left out ([`DefaultNoise`]).
#[must_use = "an evaluation does nothing until `run` is called"]
pub struct EvaluationBuilder<'a> {
    data: &'a Embeddings,
    outliers: Option<&'a Embeddings>,
    noise: Vec<NoiseLevels>,
    label_noise: Vec<Box<dyn LabelNoise + 'a>>,
    methods: Option<Vec<NamedMethod>>,
    spec: EpisodeSpec,
    episodes: u64,
    baseline: Option<String>,
    details: Details,
    progress: &'a dyn Progress,
}

impl<'a> EvaluationBuilder<'a> {
    pub(super) fn new(data: &'a Embeddings) -> Self {
        EvaluationBuilder {
            data,
            outliers: None,
            noise: Vec::new(),
            label_noise: Vec::new(),
            methods: None,
            spec: EpisodeSpec::default(),
            episodes: 10_000,
            baseline: None,
            details: Details::default(),
            progress: &(),
        }
    }

    /// Adds a noise type with its levels in percent, such as `symmetric=20,40`.
    ///
    /// # Errors
    /// [`Error::BadNoise`] if the text is not of this form.
    pub fn noise(mut self, levels: &str) -> Result<Self> {
        let parsed = levels.parse();
        self.noise.push(parsed.map_err(|problem| Error::BadNoise { text: levels.into(), problem })?);
        Ok(self)
    }

    /// Adds a custom noise type, after those of [`EvaluationBuilder::noise`].
    pub fn label_noise(mut self, noise: impl LabelNoise + 'a) -> Self {
        self.label_noise.push(Box::new(noise));
        self
    }

    /// Sets the methods: names separated by commas, each with its parameters after colons, such as
    /// `protonet,median:eps=0.1`.
    ///
    /// # Errors
    /// Unknown methods and parameters, values outside their ranges, and methods that are given twice.
    pub fn methods(self, names: &str) -> Result<Self> {
        self.methods_of(&Registry::default(), names)
    }

    /// Sets the methods like [`EvaluationBuilder::methods`], from a registry that may contain methods of other crates.
    ///
    /// # Errors
    /// As for [`EvaluationBuilder::methods`].
    pub fn methods_of(mut self, registry: &Registry, names: &str) -> Result<Self> {
        let names: Vec<&str> = names.split(',').collect();
        self.methods = Some(registry.parse_all(&names)?);
        Ok(self)
    }

    /// Embeddings of other classes, from which outlier noise is drawn. By default, outliers are drawn from classes that
    /// are not in the episode.
    pub fn outliers(mut self, outliers: &'a Embeddings) -> Self {
        self.outliers = Some(outliers);
        self
    }

    /// Classes per episode.
    pub fn ways(mut self, ways: usize) -> Self {
        self.spec.ways = ways;
        self
    }

    /// Labelled items per class: a number, or a range from which every class draws its own.
    pub fn shots(mut self, shots: impl Into<Shots>) -> Self {
        self.spec.shots = shots.into();
        self
    }

    /// Queries per class.
    pub fn queries(mut self, queries: usize) -> Self {
        self.spec.queries = queries;
        self
    }

    /// The number of episodes.
    pub fn episodes(mut self, episodes: u64) -> Self {
        self.episodes = episodes;
        self
    }

    /// The random seed: the same seed gives the same episodes and the same result.
    pub fn seed(mut self, seed: u64) -> Self {
        self.spec.seed = seed;
        self
    }

    /// The label of the method to which the others are compared, [`DEFAULT_BASELINE`] by default. If the default is not
    /// among the methods, no differences are reported.
    pub fn baseline(mut self, label: impl Into<String>) -> Self {
        self.baseline = Some(label.into());
        self
    }

    /// What to report beyond accuracies.
    pub fn details(mut self, details: Details) -> Self {
        self.details = details;
        self
    }

    /// Sets the progress callback, which gets the number of finished episodes. A stopped evaluation returns the results
    /// so far.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Runs the evaluation on the threads of the current rayon pool.
    ///
    /// # Errors
    /// If the chosen baseline is not among the methods, the number of episodes is 0, the data has too few classes or
    /// items for the episodes, the noise is impossible with their shape, or a method fails.
    pub fn run(self) -> Result<Evaluation> {
        let methods = self.methods.map_or_else(|| Registry::default().parse_all::<&str>(&[]), Ok)?;
        if let Some(baseline) = &self.baseline {
            check_baseline(baseline, &methods)?;
        }
        let settings = match self.noise.is_empty() && self.label_noise.is_empty() {
            true => DefaultNoise::of(&self.spec).settings,
            false => noise::settings(&self.noise),
        };
        let sampler = Sampler::new(self.data, self.outliers, self.spec, settings)?;
        let sampler = self.label_noise.into_iter().try_fold(sampler, Sampler::with_noise)?;
        let experiment = Experiment {
            embeddings: self.data,
            outliers: self.outliers,
            episodes: &sampler,
            count: self.episodes,
            methods: &methods,
            baseline: self.baseline.as_deref().unwrap_or(DEFAULT_BASELINE),
            details: self.details,
        };
        evaluate(&experiment, self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six classes of 30 rows with 8 values; in rows of class c, value c is larger by 3.
    fn data() -> Embeddings {
        let value =
            |i: usize| ((i * 7919) % 997) as f32 / 400.0 + if i / (8 * 30) == i % 8 { 3.0 } else { 0.0 };
        let labels = (0..180).map(|row| format!("class {}", row / 30)).collect();
        Embeddings::from_rows((0..180 * 8).map(value).collect(), 8, labels).unwrap()
    }

    #[test]
    fn the_first_progress_update_comes_after_a_few_episodes() {
        use std::ops::ControlFlow;
        use std::sync::atomic::{AtomicU64, Ordering};
        let data = data();
        let first = AtomicU64::new(u64::MAX);
        let report = |done: u64, _total: u64| {
            first.fetch_min(done, Ordering::Relaxed);
            ControlFlow::<()>::Continue(())
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let evaluation = pool.install(|| {
            let evaluation = Evaluation::of(&data).noise("symmetric=0").unwrap().methods("protonet").unwrap();
            evaluation.ways(3).shots(4).queries(5).episodes(300).progress(&report).run().unwrap()
        });
        assert_eq!((first.load(Ordering::Relaxed), evaluation.settings[0].episodes), (8, 300));
    }

    #[test]
    fn a_builder_has_the_same_result_as_an_experiment_made_by_hand() {
        let data = data();
        let built =
            Evaluation::of(&data).noise("symmetric=0,40").unwrap().methods("protonet,median").unwrap();
        let built = built.ways(3).shots(4).queries(5).episodes(300).seed(7).run().unwrap();
        let spec = EpisodeSpec { ways: 3, shots: 4.into(), queries: 5, seed: 7 };
        let settings = noise::settings(&["symmetric=0,40".parse().unwrap()]);
        let sampler = Sampler::new(&data, None, spec, settings).unwrap();
        let methods = Registry::default().parse_all(&["protonet", "median"]).unwrap();
        let experiment = Experiment {
            embeddings: &data,
            outliers: None,
            episodes: &sampler,
            count: 300,
            methods: &methods,
            baseline: "protonet",
            details: Details::default(),
        };
        let by_hand = evaluate(&experiment, &()).unwrap();
        assert_eq!(serde_json::to_string(&built).unwrap(), serde_json::to_string(&by_hand).unwrap());
    }

    #[test]
    fn mistakes_are_named() {
        let data = data();
        let problem = |result: Result<EvaluationBuilder<'_>>| result.err().unwrap().to_string();
        assert!(
            problem(Evaluation::of(&data).noise("gaussian=10")).starts_with("noise 'gaussian=10': unknown")
        );
        assert!(problem(Evaluation::of(&data).methods("protonet,medain")).contains("medain"));
        let twice = problem(Evaluation::of(&data).methods("median,median"));
        assert_eq!(twice, "method 'median' is given twice");
        let baseline = Evaluation::of(&data).methods("protonet,median").unwrap().baseline("mean").run();
        assert_eq!(
            baseline.err().unwrap().to_string(),
            "baseline 'mean' is not among the methods: protonet, median"
        );
    }
}
