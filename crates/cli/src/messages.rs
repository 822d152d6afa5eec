//! Messages on standard error, and exit statuses. Start with the macro `say!`, through which every command prints its
//! messages, and [`exit_status`], which reports the error that ended a command.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use trueshot::report::{visible, visible_lines};

/// Prints one line to standard error, formatted as by `format!`, with control characters escaped, because names of
/// files and classes may contain them. Use it instead of `eprintln!`, which a lint of this crate forbids.
macro_rules! say {
    ($($text:tt)*) => { $crate::messages::print_message(&format!($($text)*)) };
}
pub(crate) use say;

/// Prints one line to standard error, with control characters escaped. Called by `say!`.
#[allow(clippy::disallowed_macros, reason = "the one place that prints messages")]
pub fn print_message(line: &str) {
    eprintln!("{}", visible(line));
}

/// The names of the long options that the running command has, without the dashes: `outliers` for `--outliers`.
pub type OptionNames = HashSet<String>;

/// Turns the result of a command into its exit status: 0 success, 1 failure, 2 wrong usage, 3 a check found problems,
/// [`STOPPED`]. An error is printed with its hint; hints name only options in `options`. A closed pipe counts as success.
pub fn exit_status(result: anyhow::Result<()>, options: &OptionNames) -> u8 {
    let Err(error) = result else { return 0 };
    if is_closed_pipe(&error) {
        return 0;
    }
    if let Some(problems) = error.downcast_ref::<ProblemsFound>() {
        say!("{problems}");
        return 3;
    }
    if error.is::<StoppedEarly>() {
        return STOPPED;
    }
    say!("error: {}", error_chain(&error));
    if error.chain().any(is_interrupted) {
        return STOPPED;
    }
    let details = error.chain().find_map(|cause| details(cause, options));
    if let Some(hint) = details.as_ref().and_then(|details| details.hint.as_ref()) {
        say!("hint: {hint}");
    }
    if details.is_some_and(|details| details.is_wrong_usage) { 2 } else { 1 }
}

/// A word of a command, quoted for a shell if it has to be.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A path in a command, quoted as by [`shell_word`].
pub fn shell_path(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

/// Prints what clap returns instead of parsed arguments, a help text, the version or an error, and returns the exit
/// status.
pub fn print_usage(help_or_error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_plain = |argument: &OsString| argument.to_str().is_some_and(|text| visible(text) == text);
    // clap's errors quote the arguments. If these contain control characters, the text is printed escaped and without
    // colours. Failures to print, such as a closed pipe, are ignored.
    let _ = match arguments.iter().all(is_plain) {
        true => help_or_error.print(),
        false => {
            let text = visible_lines(&help_or_error.render().to_string());
            std::io::stderr().write_all(text.as_bytes())
        }
    };
    help_or_error.exit_code() as u8
}

/// An error with a hint: what the user can do about it. Made by [`hinted`].
#[derive(Debug)]
pub struct HintedError {
    message: String,
    pub hint: String,
}

/// Makes an error with a hint. The hint is printed as it is, so it may name only options of the command that fails.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    HintedError { message: message.into(), hint: hint.into() }.into()
}

impl std::fmt::Display for HintedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HintedError {}

/// The error of a command that checks data, for exit status 3. The command has already printed the problems; this error
/// prints their number, such as "2 suspect labels found".
#[derive(Debug)]
pub struct ProblemsFound {
    count: usize,
    /// The name of one problem, in the singular.
    noun: &'static str,
}

impl ProblemsFound {
    /// `count` problems, each a `noun` in the singular; its plural must end with "s".
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

/// The exit status of a command that was stopped by Ctrl-C or a time limit.
pub const STOPPED: u8 = 130;

/// The error of a command that was stopped, for the exit status [`STOPPED`]. The command has already said so.
#[derive(Debug)]
pub struct StoppedEarly;

impl std::fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped early")
    }
}

impl std::error::Error for StoppedEarly {}

/// Whether Ctrl-C caused an error.
fn is_interrupted(cause: &(dyn std::error::Error + 'static)) -> bool {
    let core = match cause.downcast_ref() {
        Some(trueshot_vision::Error::Core(error)) => Some(error),
        _ => cause.downcast_ref(),
    };
    matches!(core, Some(trueshot::Error::Interrupted))
}

/// What is printed with an error, and what its exit status depends on.
struct ErrorDetails {
    hint: Option<String>,
    /// Whether the exit status is 2 instead of 1.
    is_wrong_usage: bool,
}

/// The details of an error, if it is a [`HintedError`] or an error of trueshot's libraries.
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

/// The messages of the error and its causes in one line, without causes that an earlier message already contains.
fn error_chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| match line {
        line if line.is_empty() => cause,
        line if line.contains(&cause) => line,
        line => format!("{line}: {cause}"),
    })
}

/// Whether the error is a closed pipe: the reader of standard output ended early, as in `trueshot eval .. | head`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_broken_pipe = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(is_broken_pipe))
}
