//! The learning rate over a training: a linear warm-up, then some decay.

/// What becomes of the rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// It stays.
    Constant,
    /// Times `factor` every so many steps, counted from the start.
    Steps {
        /// For instance 0.7.
        factor: f64,
        /// Steps between two changes.
        every: u64,
    },
    /// Half a cosine from the end of the warm-up to the last step.
    Cosine {
        /// The share of the rate that is left at the end.
        floor: f64,
    },
}

/// How the rate goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub rate: f64,
    /// Steps of the warm-up.
    pub warm_up: u64,
    /// Steps in all.
    pub steps: u64,
    /// What follows the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let warm = if step < self.warm_up { (step + 1) as f64 / self.warm_up as f64 } else { 1.0 };
        self.rate * warm * self.decayed(step)
    }

    fn decayed(&self, step: u64) -> f64 {
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Steps { factor, every } => factor.powf((step / every.max(1)) as f64),
            Decay::Cosine { floor } => {
                let length = self.steps.saturating_sub(self.warm_up).max(1) as f64;
                let way = (step.saturating_sub(self.warm_up) as f64 / length).min(1.0);
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * way).cos())
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
    fn the_rate_warms_up_in_equal_steps() {
        let schedule = Schedule { rate: 2.0, warm_up: 4, steps: 100, decay: Decay::Constant };
        let rates: Vec<f64> = (0..6).map(|step| schedule.at(step)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn step_decay_takes_its_factor_every_so_often() {
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
