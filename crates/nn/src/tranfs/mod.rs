//! TraNFS: a transformer that looks at a noisy support set and answers with a prototype for each class.
//!
//! Shapes: D numbers of an embedding, W of a token. An episode is N class tokens, then its items in order of
//! class, projected from D to W; whatever class a token stands for, that class's position is added to it. After
//! the encoder, the class tokens are projected back to D: the prototypes. A linear layer D -> 1 on the items,
//! projected back too, gives the logit of "mislabelled"; it is worked out as the token times (up-projection
//! times that layer), so that no item is ever really projected back.
//!
//! The episodes of a call go through all products of matrices together.

mod encoder;
mod inference;
mod tokens;
mod training;

use std::ops::Range;
use std::sync::Mutex;

pub use inference::{Aggregate, Attention, Support, Token};

use crate::head::{Cloud, Episode, Head};
use crate::isa::Isa;
use crate::parameters::{Layout, Role};
use encoder::Encoder;
use training::Work;

/// What the class tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassTokens {
    /// Drawn once and left alone.
    Random,
    /// Drawn, then trained.
    Learned,
    /// The mean of the class's projected items.
    ClassMean,
}

/// What is added to the tokens of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Drawn, then trained.
    Learned,
    /// Drawn once and left alone.
    Random,
}

/// How a prototype is drawn to the mean of its class's clean items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanLoss {
    /// By the squared distance.
    SquaredDistance,
    /// By minus the cosine.
    NegativeCosine,
}

/// Everything a model is made by.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Numbers of an embedding.
    pub dim: usize,
    /// The most classes of an episode.
    pub classes: usize,
    /// Numbers of a token.
    pub width: usize,
    /// Heads of the attention; their number divides the width.
    pub heads: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Layers of the encoder.
    pub layers: usize,
    /// Share of numbers dropped in training.
    pub dropout: f64,
    /// What the class tokens are.
    pub class_tokens: ClassTokens,
    /// What is added to the tokens of a class.
    pub positions: Positions,
    /// Whether the way back to D is the transpose of the way in, or has weights of its own that start so.
    pub tied: bool,
    /// The form of the clean loss.
    pub clean_loss: CleanLoss,
    /// Its weight (lambda_c).
    pub clean_weight: f64,
    /// The weight of the cross-entropy of "mislabelled" (lambda_b).
    pub mislabelled_weight: f64,
}

impl Config {
    /// The defaults for embeddings of `dim` numbers.
    pub fn new(dim: usize) -> Self {
        Config {
            dim,
            classes: 5,
            width: 128,
            heads: 8,
            feed_forward: 128,
            layers: 3,
            dropout: 0.1,
            class_tokens: ClassTokens::Random,
            positions: Positions::Learned,
            tied: true,
            clean_loss: CleanLoss::SquaredDistance,
            clean_weight: 1.0,
            mislabelled_weight: 0.5,
        }
    }

    /// What is wrong with it, if anything.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [
            ("dim", self.dim),
            ("classes", self.classes),
            ("width", self.width),
            ("heads", self.heads),
            ("feed_forward", self.feed_forward),
            ("layers", self.layers),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{name} is 0; at least 1 is needed"));
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(format!("{} heads do not divide a width of {}", self.heads, self.width));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("dropout is {}; allowed: 0 up to below 1", self.dropout));
        }
        let weights = [("clean_weight", self.clean_weight), ("mislabelled_weight", self.mislabelled_weight)];
        match weights.iter().find(|(_, weight)| !(weight.is_finite() && *weight >= 0.0)) {
            Some((name, weight)) => Err(format!("{name} is {weight}; allowed: 0 and more")),
            None => Ok(()),
        }
    }
}

/// A model without its parameters: what they are, and what to do with them.
#[derive(Debug)]
pub struct Tranfs {
    config: Config,
    layout: Layout,
    places: Places,
    encoder: Encoder,
    /// Room for intermediate results, lent to one call at a time: fresh memory would cost more than using it.
    idle: Mutex<Vec<Work<f32>>>,
}

/// Where the parameters outside the encoder lie.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Places {
    /// D x W
    down: Range<usize>,
    /// D x W, too; the same as `down` if tied.
    up: Range<usize>,
    /// C x W
    positions: Range<usize>,
    /// C x W; none if they are class means.
    class_tokens: Option<Range<usize>>,
    /// D
    mislabelled: Range<usize>,
    /// 1
    mislabelled_bias: usize,
}

impl Tranfs {
    /// Lays out a model.
    ///
    /// # Errors
    /// If the configuration makes no sense; says why.
    pub fn new(config: Config) -> Result<Self, String> {
        config.check()?;
        let mut layout = Layout::default();
        let (dim, width, table) = (config.dim, config.width, [config.classes, config.width]);
        let down = layout.add("down.weight", &[dim, width], Role::Trained);
        let up =
            if config.tied { down.clone() } else { layout.add("up.weight", &[dim, width], Role::Trained) };
        let drawn = |learned| if learned { Role::Trained } else { Role::Constant };
        let positions = layout.add("positions", &table, drawn(config.positions == Positions::Learned));
        let class_tokens = match config.class_tokens {
            ClassTokens::ClassMean => None,
            kind => Some(layout.add("class_tokens", &table, drawn(kind == ClassTokens::Learned))),
        };
        let encoder = Encoder::add(&mut layout, &config);
        let mislabelled = layout.add("mislabelled.weight", &[dim], Role::Trained);
        let mislabelled_bias = layout.add("mislabelled.bias", &[1], Role::Trained).start;
        let places = Places { down, up, positions, class_tokens, mislabelled, mislabelled_bias };
        Ok(Tranfs { config, layout, places, encoder, idle: Mutex::default() })
    }

    /// What it was made by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Lends out room to work in.
    fn with_work<R>(&self, job: impl FnOnce(&mut Work<f32>) -> R) -> R {
        let lent = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let mut work = lent.unwrap_or_default();
        let result = job(&mut work);
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(work);
        result
    }
}

impl Clone for Tranfs {
    fn clone(&self) -> Self {
        Tranfs {
            config: self.config.clone(),
            layout: self.layout.clone(),
            places: self.places.clone(),
            encoder: self.encoder.clone(),
            idle: Mutex::default(),
        }
    }
}

impl Head for Tranfs {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        use crate::initial::{fill_normal, fill_uniform, orthogonal};
        let mut parameters = vec![0.0; self.layout.len()];
        let Config { dim, width, .. } = self.config;
        orthogonal(&mut parameters[self.places.down.clone()], dim, width, random);
        parameters.copy_within(self.places.down.clone(), self.places.up.start);
        fill_normal(&mut parameters[self.places.positions.clone()], random);
        if let Some(class_tokens) = &self.places.class_tokens {
            fill_normal(&mut parameters[class_tokens.clone()], random);
        }
        self.encoder.initialise(&mut parameters, random);
        let bound = 1.0 / (dim as f64).sqrt();
        fill_uniform(&mut parameters[self.places.mislabelled.clone()], bound, random);
        let bias = self.places.mislabelled_bias;
        fill_uniform(&mut parameters[bias..=bias], bound, random);
        parameters
    }

    /// Positions and class tokens are as long as the square root of the width. Features must be no shorter where they meet them,
    /// or nothing is left of them after a few layers; and prototypes as long as the features differ, since a scale that has to
    /// shrink first takes the classes' differences with it.
    fn suit(&self, parameters: &mut [f32], cloud: &dyn Fn() -> Cloud) {
        let Config { dim, width, tied, .. } = self.config;
        let spread = cloud().spread;
        if !(spread.is_finite() && spread > 0.0) {
            return;
        }
        let gain = (dim as f64).sqrt() / spread;
        let scale = spread / (gain * (width as f64).sqrt());
        let projections = [Some(&self.places.down), (!tied).then_some(&self.places.up)];
        for projection in projections.into_iter().flatten() {
            parameters[projection.clone()].iter_mut().for_each(|weight| *weight *= gain as f32);
        }
        parameters[self.encoder.last_scale()].fill(scale as f32);
    }

    fn terms(&self) -> &'static [&'static str] {
        &["queries", "clean", "mislabelled"]
    }

    fn losses(
        &self,
        isa: Isa,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64> {
        self.with_work(|work| self.losses_with(isa, parameters, episodes, seed, gradient, work)).to_vec()
    }
}

#[cfg(test)]
mod tests;
