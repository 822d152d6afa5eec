//! Options of the optimiser and of the learning-rate schedule, shared by heads, backbones, MAML and NegMargin.

use serde::{Deserialize, Serialize};
use trueshot_nn::schedule::{Decay, Schedule};

use crate::error::Result;
use crate::ranges::require;

/// Options of AdamW and of the learning-rate schedule, common to all models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimiser {
    /// The highest learning rate.
    pub rate: f64,
    /// The weight decay of AdamW.
    pub weight_decay: f64,
    /// The share of the run in which the rate rises linearly to its highest value.
    pub warm_up: f64,
    /// How the rate falls after the warm-up.
    pub schedule: ScheduleKind,
    /// The final rate of the cosine schedule, as a share of the highest.
    pub floor: f64,
    /// The factor of each decrease of the `steps` schedule.
    pub decay: f64,
    /// The share of the run between two decreases of the `steps` schedule.
    pub decay_every: f64,
    /// The largest norm of the gradient; a longer gradient is scaled down to it. 0: no clipping.
    pub clip: f64,
}

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Along a cosine to the floor.
    Cosine,
    /// By a factor at regular intervals.
    Steps,
    /// Not at all.
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
        let share = |share: f64| (share * steps as f64).round() as u64;
        let decay = match self.schedule {
            ScheduleKind::Cosine => Decay::Cosine { floor: self.floor },
            ScheduleKind::Steps => Decay::Steps { factor: self.decay, every: share(self.decay_every) },
            ScheduleKind::Constant => Decay::Constant,
        };
        Schedule { rate: self.rate, warm_up: share(self.warm_up), steps, decay }
    }

    /// Refuses values outside their ranges.
    pub fn check(&self) -> Result<()> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        let rate_fits = self.rate > 0.0 && self.rate.is_finite();
        require("optimiser.rate", self.rate, rate_fits, "a number above 0")?;
        let decays = not_negative(self.weight_decay);
        require("optimiser.weight_decay", self.weight_decay, decays, "a number, 0 or above")?;
        require("optimiser.warm_up", self.warm_up, share(self.warm_up), "a share from 0 to 1")?;
        require("optimiser.floor", self.floor, share(self.floor), "a share from 0 to 1")?;
        require("optimiser.decay", self.decay, share(self.decay), "a share from 0 to 1")?;
        let cuts = share(self.decay_every) && self.decay_every > 0.0;
        require("optimiser.decay_every", self.decay_every, cuts, "a share above 0, up to 1")?;
        require("optimiser.clip", self.clip, not_negative(self.clip), "a number, 0 or above")
    }
}
