//! What the examples of this crate share: random numbers, and the timing of training steps.

/// Pseudo-random numbers in [0, 1) by xorshift, the same on every machine.
pub fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Median and least time of single steps, and the mean time of steps that follow each other, in milliseconds.
#[allow(dead_code, reason = "not every example measures steps")]
pub struct StepTimes {
    /// The median of a step that is waited for.
    pub median: f64,
    /// The least time of such a step.
    pub least: f64,
    /// The mean of steps that are started one after the other.
    pub pipelined: f64,
}

/// Times `repeats` steps, first with a wait after each, then without. `launch` starts a step, `wait` waits for the
/// device.
#[allow(dead_code, reason = "not every example measures steps")]
pub fn time_steps<E>(
    repeats: usize,
    mut launch: impl FnMut() -> Result<(), E>,
    wait: impl Fn() -> Result<(), E>,
) -> Result<StepTimes, E> {
    let mut times = Vec::new();
    for _ in 0..repeats {
        let start = std::time::Instant::now();
        launch()?;
        wait()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let start = std::time::Instant::now();
    for _ in 0..repeats {
        launch()?;
    }
    wait()?;
    let pipelined = start.elapsed().as_secs_f64() * 1e3 / repeats as f64;
    Ok(StepTimes { median: times[repeats / 2], least: times[0], pipelined })
}
