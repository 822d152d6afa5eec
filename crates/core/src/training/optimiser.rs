//! Options of the AdamW optimiser and of the learning-rate schedule: the section `[optimiser]` of every training
//! configuration. The trainings of heads (TraNFS, Relabel), backbones, MAML and NegMargin share them.

use serde::{Deserialize, Serialize};
use trueshot_nn::schedule::{Decay, Schedule};

use crate::error::Result;
use crate::ranges::require;

/// Options of AdamW and of the learning-rate schedule, common to all models.
///
/// ```
/// use trueshot::training::{Optimiser, ScheduleKind};
///
/// let optimiser = Optimiser { rate: 0.01, warm_up: 0.1, schedule: ScheduleKind::Constant, ..Optimiser::default() };
/// let schedule = optimiser.schedule(1000);
/// assert!(schedule.at(0) < schedule.at(99));
/// assert_eq!(schedule.at(500), 0.01);
/// assert!(Optimiser { warm_up: 2.0, ..optimiser }.check().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimiser {
    /// The highest learning rate, above 0.
    pub rate: f64,
    /// The weight decay of AdamW, 0 or above.
    pub weight_decay: f64,
    /// The share of the run (0 to 1) in which the rate rises linearly to its highest value.
    pub warm_up: f64,
    /// How the rate falls. Which of `floor`, `decay` and `decay_every` matter depends on it.
    pub schedule: ScheduleKind,
    /// The final rate of the cosine schedule, as a share of the highest.
    pub floor: f64,
    /// The factor of each decrease of the `steps` schedule.
    pub decay: f64,
    /// The share of the run between two decreases of the `steps` schedule, counted from step 0 (the warm-up included).
    pub decay_every: f64,
    /// The largest norm of the gradient; a longer gradient is scaled down to it. 0: no clipping.
    pub clip: f64,
}

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// The rate falls along a cosine to the floor.
    Cosine,
    /// The rate is multiplied by a factor at regular intervals, which are counted from step 0 and not from the end of
    /// the warm-up.
    Steps,
    /// The rate stays at its highest value.
    Constant,
}

impl Default for Optimiser {
    fn default() -> Self {
        Optimiser {
            rate: 1e-3,
            weight_decay: 0.01,
            warm_up: 0.03,
            schedule: ScheduleKind::Cosine,
            floor: 0.02,
            decay: 0.7,
            decay_every: 0.125,
            clip: 0.0,
        }
    }
}

impl Optimiser {
    /// The learning rate over a run of `steps` steps.
    pub fn schedule(&self, steps: u64) -> Schedule {
        let steps_of = |share: f64| (share * steps as f64).round() as u64;
        let decay = match self.schedule {
            ScheduleKind::Cosine => Decay::Cosine { floor: self.floor },
            ScheduleKind::Steps => Decay::Steps { factor: self.decay, every: steps_of(self.decay_every) },
            ScheduleKind::Constant => Decay::Constant,
        };
        Schedule { rate: self.rate, warm_up: steps_of(self.warm_up), steps, decay }
    }

    /// Checks that all values are in their ranges.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) with the name of the option and the allowed values.
    pub fn check(&self) -> Result<()> {
        let is_share = |value: f64| (0.0..=1.0).contains(&value);
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        let is_rate = self.rate > 0.0 && self.rate.is_finite();
        require("optimiser.rate", self.rate, is_rate, "a number above 0")?;
        let is_decay = not_negative(self.weight_decay);
        require("optimiser.weight_decay", self.weight_decay, is_decay, "a number, 0 or above")?;
        require("optimiser.warm_up", self.warm_up, is_share(self.warm_up), "a share from 0 to 1")?;
        require("optimiser.floor", self.floor, is_share(self.floor), "a share from 0 to 1")?;
        require("optimiser.decay", self.decay, is_share(self.decay), "a share from 0 to 1")?;
        let is_interval = is_share(self.decay_every) && self.decay_every > 0.0;
        require("optimiser.decay_every", self.decay_every, is_interval, "a share above 0, up to 1")?;
        require("optimiser.clip", self.clip, not_negative(self.clip), "a number, 0 or above")
    }
}
