//! Progress of long work: a bar on a terminal, nothing elsewhere; Ctrl-C ends the work, not the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use trueshot::evaluate::Watcher;

use crate::messages::say;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A bar over a known number of things, most often episodes.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar (where standard error is a terminal) and listens for Ctrl-C.
    pub fn over(episodes: u64) -> Self {
        Self::counting(episodes, "episodes")
    }

    /// The same over so many other things.
    pub fn counting(count: u64, things: &str) -> Self {
        listen_for_interrupts();
        let bar = ProgressBar::new(count);
        let style = format!("{{bar:30}} {{human_pos}}/{{human_len}} {things}  {{per_sec}}  {{eta}} left");
        bar.set_style(ProgressStyle::with_template(&style).expect("the template is ours"));
        Progress { bar }
    }

    /// Moves the bar; `false` once somebody pressed Ctrl-C.
    pub fn moves_to(&self, done: u64) -> bool {
        self.bar.set_position(done);
        goes_on()
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watcher for Progress {
    fn progress(&self, done: u64) -> bool {
        self.moves_to(done)
    }
}

/// Whether nobody pressed Ctrl-C yet.
pub fn goes_on() -> bool {
    !INTERRUPTED.load(Ordering::Relaxed)
}

/// The first Ctrl-C asks the work to stop after the current round; the second ends the program.
pub fn listen_for_interrupts() {
    static LISTENING: OnceLock<()> = OnceLock::new();
    LISTENING.get_or_init(|| {
        let result = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
        if let Err(error) = result {
            say!("warning: Ctrl-C will end the program without results: {error}");
        }
    });
}
