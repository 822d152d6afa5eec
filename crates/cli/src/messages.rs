//! How failures reach people: one line that says what failed, and one that says what to do about it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;

use trueshot::report::{visible, visible_lines};

/// Prints one line to standard error, formatted as by `format!`. Control characters, which names of files and classes may
/// contain, are escaped. All messages go through here; a lint of this crate forbids `eprintln!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::messages::say_line(&format!($($text)*)) };
}
pub(crate) use say;

/// Prints one line to standard error, with control characters escaped.
#[allow(clippy::disallowed_macros, reason = "the one place that prints messages")]
pub fn say_line(line: &str) {
    eprintln!("{}", visible(line));
}

/// The long options of the command that runs, without the dashes.
pub type Options = HashSet<String>;

/// Prints an error with its hint and turns the result into an exit status: 0 success, 1 failure,
/// 2 wrong usage, 3 a check found problems.
pub fn exit_status(result: anyhow::Result<()>, options: &Options) -> u8 {
    let Err(error) = result else { return 0 };
    if is_closed_pipe(&error) {
        return 0;
    }
    if let Some(found) = error.downcast_ref::<Found>() {
        say!("{found}");
        return 3;
    }
    say!("error: {}", in_one_line(&error));
    let known = error.chain().find_map(|cause| known(cause, options));
    if let Some(hint) = known.as_ref().and_then(|known| known.hint.as_ref()) {
        say!("hint: {hint}");
    }
    if known.is_some_and(|known| known.is_wrong_usage) { 2 } else { 1 }
}

/// Prints what clap says of arguments, and returns the exit status. Help and version are answers, not errors.
pub fn say_usage(asked_or_refused: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_plain = |argument: &OsString| argument.to_str().is_some_and(|text| visible(text) == text);
    // clap repeats arguments as they are. A closed pipe is nobody's fault.
    let _ = match arguments.iter().all(is_plain) {
        true => asked_or_refused.print(),
        false => {
            let text = visible_lines(&asked_or_refused.render().to_string());
            std::io::stderr().write_all(text.as_bytes())
        }
    };
    asked_or_refused.exit_code() as u8
}

/// A failure of a command itself, with what to do about it.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    pub hint: String,
}

/// The error with this message and this hint. A hint may name options of the command that fails, and no others.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Hinted { message: message.into(), hint: hint.into() }.into()
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// A check that succeeded and found this number of problems, which it has listed.
#[derive(Debug)]
pub struct Found(pub usize);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => write!(f, "1 problem found"),
            count => write!(f, "{count} problems found"),
        }
    }
}

impl std::error::Error for Found {}

/// What our libraries know about their errors.
struct Known {
    hint: Option<String>,
    is_wrong_usage: bool,
}

fn known(cause: &(dyn std::error::Error + 'static), options: &Options) -> Option<Known> {
    if let Some(error) = cause.downcast_ref::<Hinted>() {
        return Some(Known { hint: Some(error.hint.clone()), is_wrong_usage: false });
    }
    let has = |option: &str| options.contains(option.trim_start_matches('-'));
    if let Some(error) = cause.downcast_ref::<trueshot_vision::Error>() {
        return Some(Known { hint: error.hint_for(&has), is_wrong_usage: error.is_wrong_usage() });
    }
    let error = cause.downcast_ref::<trueshot::Error>()?;
    Some(Known { hint: error.hint_for(&has), is_wrong_usage: error.is_wrong_usage() })
}

/// An error and its causes, without those that the message before already tells.
fn in_one_line(error: &anyhow::Error) -> String {
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
