//! Progress bars for long work, and Ctrl-C, which stops the work before it ends the program.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use trueshot::progress::Progress;

use crate::messages::{STOPPED, say};

/// Whether the user has pressed Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A progress bar over a known number of items.
pub struct ProgressDisplay {
    bar: ProgressBar,
}

impl ProgressDisplay {
    /// Shows a bar over `count` items such as "episodes" if standard error is a terminal, and handles Ctrl-C.
    pub fn counting(count: u64, things: &str) -> Self {
        handle_interrupts();
        let bar = ProgressBar::new(count);
        let style = format!("{{bar:30}} {{human_pos}}/{{human_len}} {things}  {{rate}}  {{eta}} left");
        let style = ProgressStyle::with_template(&style).expect("the template is valid");
        bar.set_style(style.with_key("rate", write_rate));
        ProgressDisplay { bar }
    }

    /// Calls `write`, which writes lines to the terminal, without the bar between them.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for ProgressDisplay {
    fn update(&self, done: u64, _total: u64) -> ControlFlow<()> {
        self.bar.set_position(done);
        check_interrupted()
    }
}

/// Formats items per second.
fn write_rate(state: &ProgressState, text: &mut dyn std::fmt::Write) {
    let rate = state.per_sec();
    let decimals = usize::from(rate < 10.0);
    let _ = write!(text, "{rate:.decimals$}/s");
}

/// [`ControlFlow::Break`] once the user has pressed Ctrl-C.
pub fn check_interrupted() -> ControlFlow<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Handles Ctrl-C from now on. The first one makes [`check_interrupted`] return [`ControlFlow::Break`], so that the
/// work stops when it next reports its progress; the second one ends the program with status 130, the usual one for
/// Ctrl-C.
pub fn handle_interrupts() {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        let result = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(STOPPED.into());
            }
        });
        if let Err(error) = result {
            say!("warning: Ctrl-C will end the program without results: {error}");
        }
    });
}
