//! Messages on standard error: errors with their hints, exit statuses, and the macro `say!` through which every message
//! goes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;

use trueshot::report::{visible, visible_lines};

/// Prints one line to standard error, formatted as by `format!`. Control characters, which names of files and classes may
/// contain, are escaped. All messages go through here; a lint of this crate forbids `eprintln!`.
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

/// Prints what clap says of arguments, and returns the exit status. Help and version are answers, not errors.
pub fn print_usage(help_or_error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_plain = |argument: &OsString| argument.to_str().is_some_and(|text| visible(text) == text);
    // clap repeats arguments as they are. A closed pipe is nobody's fault.
    let _ = match arguments.iter().all(is_plain) {
        true => help_or_error.print(),
        false => {
            let text = visible_lines(&help_or_error.render().to_string());
            std::io::stderr().write_all(text.as_bytes())
        }
    };
    help_or_error.exit_code() as u8
}

/// A failure of a command itself, with what to do about it.
#[derive(Debug)]
pub struct HintedError {
    message: String,
    pub hint: String,
}

/// The error with this message and this hint. A hint may name options of the command that fails, and no others.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    HintedError { message: message.into(), hint: hint.into() }.into()
}

impl std::fmt::Display for HintedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HintedError {}

/// A check that succeeded and found problems, which it has listed.
#[derive(Debug)]
pub struct ProblemsFound {
    count: usize,
    /// What one of them is called.
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

/// What our libraries know about their errors.
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

/// An error and its causes, without those that the message before already tells.
fn error_chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| match line {
        line if line.is_empty() => cause,
        line if line.contains(&cause) => line,
        line => format!("{line}: {cause}"),
    })
}

/// Whoever read our output has seen enough (`trueshot eval .. | head`): no failure of ours.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.into_iter().any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
