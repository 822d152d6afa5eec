//! Learning-rate schedules: a linear warm-up, then an optional decay. [`Schedule::at`] is the rate of a step; a
//! training loop asks for it before each update.

/// How the learning rate decays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// No decay.
    Constant,
    /// The rate is multiplied by `factor` every `every` steps, counted from step 0 (the warm-up included).
    Steps {
        /// The factor of each decay, for example 0.7.
        factor: f64,
        /// Steps between two changes.
        every: u64,
    },
    /// Half a cosine from the end of the warm-up to the last step.
    Cosine {
        /// The final rate as a fraction of [`Schedule::rate`].
        floor: f64,
    },
}

/// The learning rate of every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The rate at the end of the warm-up.
    pub rate: f64,
    /// Steps of the warm-up.
    pub warm_up: u64,
    /// Steps in total.
    pub steps: u64,
    /// What follows the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The learning rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let warm_up = if step < self.warm_up { (step + 1) as f64 / self.warm_up as f64 } else { 1.0 };
        self.rate * warm_up * self.decay_factor(step)
    }

    /// The product of all decays up to this step, 1 at first. Decay in steps counts from step 0; only the cosine waits
    /// for the end of the warm-up.
    fn decay_factor(&self, step: u64) -> f64 {
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Steps { factor, every } => factor.powf((step / every.max(1)) as f64),
            Decay::Cosine { floor } => {
                let length = self.steps.saturating_sub(self.warm_up).max(1) as f64;
                let progress = (step.saturating_sub(self.warm_up) as f64 / length).min(1.0);
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn the_warm_up_rises_in_equal_steps() {
        let schedule = Schedule { rate: 2.0, warm_up: 4, steps: 100, decay: Decay::Constant };
        let rates: Vec<f64> = (0..6).map(|step| schedule.at(step)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn step_decay_multiplies_the_rate_at_every_interval() {
        let decay = Decay::Steps { factor: 0.7, every: 10 };
        let schedule = Schedule { rate: 1.0, warm_up: 0, steps: 100, decay };
        assert!(close(schedule.at(9), 1.0) && close(schedule.at(10), 0.7) && close(schedule.at(25), 0.49));
    }

    #[test]
    fn the_cosine_starts_at_the_rate_and_ends_at_the_floor() {
        let schedule = Schedule { rate: 1.0, warm_up: 10, steps: 110, decay: Decay::Cosine { floor: 0.02 } };
        assert!(close(schedule.at(10), 1.0) && close(schedule.at(60), 0.51) && close(schedule.at(110), 0.02));
        assert!(close(schedule.at(500), 0.02) && schedule.at(109) > 0.02);
    }
}
