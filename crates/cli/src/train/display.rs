//! The display of a training run: on a terminal a progress bar, the losses and the last validation; elsewhere one line
//! per validation. Start with the implementation of [`Observer`], which the training loop calls.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use trueshot::progress::Progress;
use trueshot::training::{Event, Observer, Record};

use crate::messages::say;
use crate::progress::check_interrupted;

/// The weight of a step's loss in the running mean that is shown; with 0.03 it is about the mean of the last 33 steps.
const LOSS_SMOOTHING: f64 = 0.03;
/// The shortest time between two updates of the screen.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the progress of a training run, and stops the run after Ctrl-C or at the deadline.
pub struct TrainingDisplay {
    /// The lines on the screen: `bar`, `losses` and `validation`, from top to bottom. The last two show only a message.
    screen: MultiProgress,
    bar: ProgressBar,
    losses: ProgressBar,
    validation: ProgressBar,
    /// The names of the terms whose sum is the loss, such as `queries`.
    term_names: Vec<String>,
    /// The running mean of each term; empty before the first step.
    means: Vec<f64>,
    /// The total number of steps.
    steps: u64,
    /// The number of finished steps when this process started, and the time.
    started: (u64, Instant),
    /// When the screen was last updated.
    last_redraw: Instant,
    /// When the run stops.
    deadline: Option<Instant>,
}

impl TrainingDisplay {
    /// A display for a run that stops at `deadline`, if there is one.
    pub fn new(deadline: Option<Instant>) -> Self {
        let screen = MultiProgress::new();
        let bar = screen.add(ProgressBar::new(0));
        let message_only = |bar: ProgressBar| {
            bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is valid"));
            bar
        };
        let losses = message_only(screen.add(ProgressBar::new(0)));
        let validation = message_only(screen.add(ProgressBar::new(0)));
        let style = "{bar:30} step {human_pos}/{human_len}  {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
        let now = Instant::now();
        TrainingDisplay {
            screen,
            bar,
            losses,
            validation,
            term_names: Vec::new(),
            means: Vec::new(),
            steps: 0,
            started: (0, now),
            last_redraw: now,
            deadline,
        }
    }

    /// Removes the bars.
    pub fn finish(&self) {
        [&self.bar, &self.losses, &self.validation].into_iter().for_each(ProgressBar::finish_and_clear);
    }

    /// Prepares the display for a run of `steps` steps, of which `done` were finished earlier.
    fn start(&mut self, done: u64, steps: u64, term_names: &[String]) {
        (self.steps, self.term_names) = (steps, term_names.to_vec());
        self.started = (done, Instant::now());
        self.bar.set_length(steps);
        self.bar.set_position(done);
        if done > 0 {
            self.print_line(&format!("resuming after step {done}"));
        }
    }

    /// Adds the loss terms of step `done` to the running means, and redraws unless the screen was updated a moment ago.
    fn step(&mut self, done: u64, terms: &[f64]) {
        if self.means.is_empty() {
            self.means = terms.to_vec();
        }
        self.means.iter_mut().zip(terms).for_each(|(mean, term)| *mean += LOSS_SMOOTHING * (term - *mean));
        if self.last_redraw.elapsed() < REDRAW_INTERVAL {
            return;
        }
        self.last_redraw = Instant::now();
        self.bar.set_position(done);
        self.bar.set_message(self.pace(done));
        self.losses.set_message(format_losses(&self.term_names, &self.means));
    }

    /// Steps per second since this process started, and the remaining time.
    fn pace(&self, done: u64) -> String {
        let (before, since) = self.started;
        // At the first step the elapsed time or the rate can be 0.
        let rate = (done - before) as f64 / since.elapsed().as_secs_f64().max(1e-9);
        let left = (self.steps - done) as f64 / rate.max(1e-9);
        format!("{} steps/s  {} left", format_number(rate), format_duration(left))
    }

    /// Prints the line of a record if it has a validation or is that of the last step.
    fn record(&mut self, record: &Record, is_best: bool) {
        if record.score.is_none() && record.step < self.steps {
            return;
        }
        let (names, means): (Vec<String>, Vec<f64>) = record.terms.iter().cloned().unzip();
        let validation = format_validation(record);
        let best = if is_best && record.score.is_some() { "  best" } else { "" };
        let steps = self.steps.to_string();
        self.print_line(&format!(
            "step {:>width$}/{steps}  {}{}{validation}{best}  ({})",
            record.step,
            format_losses(&names, &means),
            if validation.is_empty() { "" } else { "  " },
            self.pace(record.step),
            width = steps.len(),
        ));
        self.validation.set_message(validation);
    }

    /// Prints a line: above the bars on a terminal, plain otherwise.
    fn print_line(&self, line: &str) {
        if self.screen.is_hidden() {
            say!("{line}");
        } else if let Err(error) = self.screen.println(line) {
            say!("{line} ({error})");
        }
    }
}

impl Observer for TrainingDisplay {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begins { done, steps, terms } => self.start(*done, *steps, terms),
            Event::Stepped { done, terms } => self.step(*done, terms),
            Event::Recorded { record, is_best } => self.record(record, *is_best),
            Event::Saved { .. } => {}
            Event::Warning(text) => self.print_line(&format!("warning: {text}")),
        }
    }
}

impl Progress for TrainingDisplay {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => ControlFlow::Break(()),
            _ => check_interrupted(),
        }
    }
}

/// The total loss and, if there are several, its terms: `loss 1.50 (queries 1.00, clean 0.500)`.
fn format_losses(names: &[String], means: &[f64]) -> String {
    let total: f64 = means.iter().sum();
    let each: Vec<String> =
        names.iter().zip(means).map(|(name, mean)| format!("{name} {}", format_number(*mean))).collect();
    match each.len() {
        0 | 1 => format!("loss {}", format_number(total)),
        _ => format!("loss {} ({})", format_number(total), each.join(", ")),
    }
}

/// The validation score and, if more than one figure is behind it, these figures; empty without a validation.
fn format_validation(record: &Record) -> String {
    let Some(score) = record.score else { return String::new() };
    let figures: Vec<String> =
        record.validation.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
    match figures.len() {
        0 | 1 => format!("validation {score:.2}"),
        _ => format!("validation {score:.2}: {}", figures.join(", ")),
    }
}

/// Formats a number: without decimals from 100 on, with three significant digits from 1 on, and with three decimals below
/// 1.
fn format_number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats seconds: `12 s`, `1 min 01 s`, `2 h 01 min`.
fn format_duration(seconds: f64) -> String {
    let seconds = seconds.round().min(1e9) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_are_short() {
        assert_eq!(
            [format_duration(12.4), format_duration(61.0), format_duration(7260.0)],
            ["12 s", "1 min 01 s", "2 h 01 min"]
        );
        let numbers = [1234.5, 12.34, 1.234, 0.1234].map(format_number);
        assert_eq!(numbers, ["1234", "12.3", "1.23", "0.123"]);
    }

    #[test]
    fn a_line_says_what_the_loss_is_made_of() {
        let names = ["queries".to_string(), "clean".to_string()];
        assert_eq!(format_losses(&names, &[1.0, 0.5]), "loss 1.50 (queries 1.00, clean 0.500)");
        assert_eq!(format_losses(&names[..1], &[1.0]), "loss 1.00");
    }
}
