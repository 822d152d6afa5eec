//! Messages on standard error: errors with their hints, exit statuses, and the macro `say!`, which prints every
//! message.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;

use trueshot::report::{visible, visible_lines};

/// Prints one line to standard error, formatted as by `format!`, with control characters escaped: names of files and
/// classes may contain them. A lint of this crate forbids `eprintln!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::messages::print_message(&format!($($text)*)) };
}
pub(crate) use say;

/// Prints one line to standard error, with control characters escaped.
#[allow(clippy::disallowed_macros, reason = "the one place that prints messages")]
pub fn print_message(line: &str) {
    eprintln!("{}", visible(line));
}

/// The long options of the command that runs, without the dashes.
pub type OptionNames = HashSet<String>;

/// Prints an error with its hint and turns the result into an exit status: 0 success, 1 failure,
/// 2 wrong usage, 3 a check found problems.
pub fn exit_status(result: anyhow::Result<()>, options: &OptionNames) -> u8 {
    let Err(error) = result else { return 0 };
    if is_closed_pipe(&error) {
        return 0;
    }
    if let Some(found) = error.downcast_ref::<ProblemsFound>() {
        say!("{found}");
        return 3;
    }
    say!("error: {}", error_chain(&error));
    let details = error.chain().find_map(|cause| details(cause, options));
    if let Some(hint) = details.as_ref().and_then(|details| details.hint.as_ref()) {
        say!("hint: {hint}");
    }
    if details.is_some_and(|details| details.is_wrong_usage) { 2 } else { 1 }
}

/// Prints clap's help, version or error, and returns the exit status.
pub fn print_usage(help_or_error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_plain = |argument: &OsString| argument.to_str().is_some_and(|text| visible(text) == text);
    // clap repeats arguments as they are. A closed pipe is not an error.
    let _ = match arguments.iter().all(is_plain) {
        true => help_or_error.print(),
        false => {
            let text = visible_lines(&help_or_error.render().to_string());
            std::io::stderr().write_all(text.as_bytes())
        }
    };
    help_or_error.exit_code() as u8
}

#[derive(Debug)]
pub struct HintedError {
    message: String,
    pub hint: String,
}

/// An error with a hint. The hint may name only options of the command that fails.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    HintedError { message: message.into(), hint: hint.into() }.into()
}

impl std::fmt::Display for HintedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HintedError {}

/// The error of a check that found problems, which it has printed.
#[derive(Debug)]
pub struct ProblemsFound {
    count: usize,
    /// What one problem is called.
    noun: &'static str,
}

impl ProblemsFound {
    pub fn new(count: usize, noun: &'static str) -> Self {
        ProblemsFound { count, noun }
    }
}

impl std::fmt::Display for ProblemsFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ending = if self.count == 1 { "" } else { "s" };
        write!(f, "{} {}{ending} found", self.count, self.noun)
    }
}

impl std::error::Error for ProblemsFound {}

/// What an error of our libraries knows about itself.
struct ErrorDetails {
    hint: Option<String>,
    is_wrong_usage: bool,
}

fn details(cause: &(dyn std::error::Error + 'static), options: &OptionNames) -> Option<ErrorDetails> {
    if let Some(error) = cause.downcast_ref::<HintedError>() {
        return Some(ErrorDetails { hint: Some(error.hint.clone()), is_wrong_usage: false });
    }
    let has = |option: &str| options.contains(option.trim_start_matches('-'));
    if let Some(error) = cause.downcast_ref::<trueshot_vision::Error>() {
        return Some(ErrorDetails { hint: error.hint_for(&has), is_wrong_usage: error.is_wrong_usage() });
    }
    let error = cause.downcast_ref::<trueshot::Error>()?;
    Some(ErrorDetails { hint: error.hint_for(&has), is_wrong_usage: error.is_wrong_usage() })
}

/// The error and its causes, without causes that an earlier message contains.
fn error_chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| match line {
        line if line.is_empty() => cause,
        line if line.contains(&cause) => line,
        line => format!("{line}: {cause}"),
    })
}

/// Whether the reader closed the pipe (`trueshot eval .. | head`), which is not a failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.into_iter().any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
