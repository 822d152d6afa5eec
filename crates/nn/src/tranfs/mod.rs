//! TraNFS (Transformer for Noisy Few-Shot learning; Liang et al., CVPR 2022): a transformer that reads a support set
//! with label noise and outputs a prototype for each class, a vector that queries are compared with.
//!
//! Start with [`Tranfs`]: [`Tranfs::prototypes`] for inference, [`Head::losses`] for training. [`Config`] has all
//! options.
//!
//! Shapes: D the dimension of an embedding, W the width of a token, C classes, M items. The tokens of an episode are C
//! class tokens, then its M items sorted by given label and projected from D to W; to each token the position embedding
//! of its class is added, a vector that tells classes apart. After the encoder, the class tokens are projected back to
//! D: the prototypes. The items also get a logit of "mislabelled" (their given label is not their true class):
//! projected back, times a weight of D numbers. As `(U t) . w = t . (Uᵀ w)`, with U the up-projection, t the item's
//! token and w that weight, `Uᵀ w` is computed once and no item is actually projected back.
//!
//! All episodes of a call share the matrix products. `token_layout` has the order of the tokens, `projections` what
//! happens before and after the `encoder`, `inference` and `training` the two uses of the model.

mod encoder;
mod inference;
mod projections;
mod token_layout;
mod training;

use std::ops::Range;
use std::sync::Mutex;

pub use inference::{TranfsAttention, TranfsOutput, TranfsToken};
pub use token_layout::TranfsInput;

use crate::head::{Episode, FeatureStatistics, Head, JointHead};
use crate::parameters::{ParameterLayout, Role};
use encoder::Encoder;
use projections::Workspace;

/// The kind of class tokens: what a class token is before its position is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassTokens {
    /// Random and constant, one row of a table per class.
    Random,
    /// Trained, one row of a table per class.
    Learned,
    /// The mean of the class's projected items.
    ClassMean,
}

/// The kind of position embeddings, one per class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Trained.
    Learned,
    /// Random and constant.
    Random,
}

/// The distance of a prototype to the mean of its class's correctly labelled items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanLoss {
    /// The squared distance.
    SquaredDistance,
    /// Minus the cosine.
    NegativeCosine,
}

/// The shape of the model and the weights of its loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// D: dimension of embeddings.
    pub dim: usize,
    /// Maximum number of classes per episode: the rows of the tables of positions and class tokens.
    pub classes: usize,
    /// W: width of tokens.
    pub width: usize,
    /// Attention heads; divides the width.
    pub heads: usize,
    /// Hidden units of the feed-forward network.
    pub feed_forward: usize,
    /// Layers of the encoder.
    pub layers: usize,
    /// Dropout rate in training.
    pub dropout: f64,
    /// The kind of class tokens.
    pub class_tokens: ClassTokens,
    /// The kind of position embeddings.
    pub positions: Positions,
    /// Whether the up-projection (W to D) is always the transpose of the down-projection (D to W). Otherwise it starts
    /// as this transpose and is trained separately.
    pub tied: bool,
    /// The distance of the clean loss.
    pub clean_loss: CleanLoss,
    /// The weight of the clean loss (lambda_c).
    pub clean_weight: f64,
    /// The weight of the cross-entropy of "mislabelled" (lambda_b).
    pub mislabelled_weight: f64,
}

impl Config {
    /// The default configuration for embeddings of `dim` numbers.
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

    /// Checks all values.
    ///
    /// # Errors
    /// Names the first value that is not allowed, and the allowed ones.
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
            return Err(format!("{name} is 0; allowed: 1 and more"));
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

/// The model without its parameters: their layout, and the computations with them.
///
/// ```
/// use trueshot_nn::head::Head;
/// use trueshot_nn::tranfs::{Config, Tranfs, TranfsInput};
///
/// let model = Tranfs::new(Config::new(2))?;
/// let mut state = 1u64;
/// let parameters = model.initial(&mut || {
///     state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
///     (state >> 11) as f64 / (1u64 << 53) as f64
/// });
/// // Four items with labels 0, 0, 1, 1.
/// let items: [&[f32]; 4] = [&[1.0, 0.1], &[0.9, 0.0], &[0.1, 1.0], &[0.0, 0.8]];
/// let input = TranfsInput { classes: 2, items: &items, given: &[0, 0, 1, 1], order: None };
/// let output = &model.prototypes(&parameters, &[input])[0];
/// assert_eq!(output.prototypes.len(), 2 * 2);
/// assert_eq!(output.mislabelled.len(), 4);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Tranfs {
    config: Config,
    layout: ParameterLayout,
    ranges: ParameterRanges,
    encoder: Encoder,
    /// Workspaces that no call is using. A call takes one and puts it back, because allocating a new one would take
    /// longer than the call.
    idle: Mutex<Vec<Workspace<f32>>>,
}

/// The ranges of the parameters outside the encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParameterRanges {
    /// The projection of items to tokens, `[D, W]`.
    down: Range<usize>,
    /// The projection of tokens back, stored transposed: `[D, W]`; the same as `down` if tied.
    up: Range<usize>,
    /// Position embeddings, `[classes, W]`.
    positions: Range<usize>,
    /// `[classes, W]`; `None` if the class tokens are class means.
    class_tokens: Option<Range<usize>>,
    /// The weight of the logit of "mislabelled", `[D]`.
    mislabelled: Range<usize>,
    /// The index of the bias of that logit.
    mislabelled_bias: usize,
}

impl Tranfs {
    /// A model of this configuration.
    ///
    /// # Errors
    /// If the configuration is invalid, see [`Config::check`].
    pub fn new(config: Config) -> Result<Self, String> {
        config.check()?;
        let mut layout = ParameterLayout::default();
        let (dim, width, table) = (config.dim, config.width, [config.classes, config.width]);
        let down = layout.add("down.weight", &[dim, width], Role::Trained);
        let up =
            if config.tied { down.clone() } else { layout.add("up.weight", &[dim, width], Role::Trained) };
        let role = |learned| if learned { Role::Trained } else { Role::Constant };
        let positions = layout.add("positions", &table, role(config.positions == Positions::Learned));
        let class_tokens = match config.class_tokens {
            ClassTokens::ClassMean => None,
            kind => Some(layout.add("class_tokens", &table, role(kind == ClassTokens::Learned))),
        };
        let encoder = Encoder::add(&mut layout, &config);
        let mislabelled = layout.add("mislabelled.weight", &[dim], Role::Trained);
        let mislabelled_bias = layout.add("mislabelled.bias", &[1], Role::Trained).start;
        let ranges = ParameterRanges { down, up, positions, class_tokens, mislabelled, mislabelled_bias };
        Ok(Tranfs { config, layout, ranges, encoder, idle: Mutex::default() })
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Runs `job` with an idle workspace.
    fn with_workspace<R>(&self, job: impl FnOnce(&mut Workspace<f32>) -> R) -> R {
        let idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let mut workspace = idle.unwrap_or_default();
        let result = job(&mut workspace);
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(workspace);
        result
    }
}

impl Clone for Tranfs {
    fn clone(&self) -> Self {
        Tranfs {
            config: self.config.clone(),
            layout: self.layout.clone(),
            ranges: self.ranges.clone(),
            encoder: self.encoder.clone(),
            idle: Mutex::default(),
        }
    }
}

impl Head for Tranfs {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        use crate::initialisation::{fill_normal, fill_orthogonal, fill_uniform};
        let mut parameters = vec![0.0; self.layout.len()];
        let Config { dim, width, .. } = self.config;
        fill_orthogonal(&mut parameters[self.ranges.down.clone()], dim, width, random);
        // Without effect if the projections are tied, because both ranges are the same then.
        parameters.copy_within(self.ranges.down.clone(), self.ranges.up.start);
        fill_normal(&mut parameters[self.ranges.positions.clone()], random);
        if let Some(class_tokens) = &self.ranges.class_tokens {
            fill_normal(&mut parameters[class_tokens.clone()], random);
        }
        self.encoder.initialise(&mut parameters, random);
        // As PyTorch initialises a linear layer of `dim` inputs.
        let bound = 1.0 / (dim as f64).sqrt();
        fill_uniform(&mut parameters[self.ranges.mislabelled.clone()], bound, random);
        let bias = self.ranges.mislabelled_bias;
        fill_uniform(&mut parameters[bias..=bias], bound, random);
        parameters
    }

    /// Scales the projections and the encoder's output to the spread of the features, their root mean square distance
    /// from the mean. Positions and class tokens have a length of about sqrt(W). Projected features must not be
    /// shorter, or they vanish within a few layers; and prototypes must be as long as the features differ, since a
    /// scale that first has to shrink would shrink the differences between classes with it.
    ///
    /// Down: the orthonormal projection to W of D dimensions leaves about sqrt(W / D) of a length, so
    /// `gain = sqrt(D) / spread` makes projected differences sqrt(W) long. Up: the last layer norm yields tokens of
    /// length `scale sqrt(W)`, and the up-projection multiplies lengths by `gain`, so `scale = spread / (gain sqrt(W))`
    /// makes prototypes `spread` long.
    fn fit_normalisation(&self, parameters: &mut [f32], statistics: &dyn Fn() -> FeatureStatistics) {
        let Config { dim, width, tied, .. } = self.config;
        let spread = statistics().spread;
        if !(spread.is_finite() && spread > 0.0) {
            return;
        }
        let gain = (dim as f64).sqrt() / spread;
        let scale = spread / (gain * (width as f64).sqrt());
        let projections = [Some(&self.ranges.down), (!tied).then_some(&self.ranges.up)];
        for projection in projections.into_iter().flatten() {
            parameters[projection.clone()].iter_mut().for_each(|weight| *weight *= gain as f32);
        }
        parameters[self.encoder.last_scale()].fill(scale as f32);
    }

    fn loss_terms(&self) -> &'static [&'static str] {
        &["queries", "clean", "mislabelled"]
    }

    fn losses(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64> {
        self.with_workspace(|workspace| {
            self.losses_and_gradient(parameters, episodes, seed, gradient, None, workspace).to_vec()
        })
    }
}

impl JointHead for Tranfs {
    fn losses_with_feature_gradient(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
        feature_gradient: &mut [f32],
    ) -> Vec<f64> {
        let feature_gradient = Some(feature_gradient);
        self.with_workspace(|workspace| {
            self.losses_and_gradient(parameters, episodes, seed, gradient, feature_gradient, workspace)
                .to_vec()
        })
    }
}

#[cfg(test)]
mod tests;
