//! How failures reach people: one line that says what failed, and one that says what to do about it.

/// Prints an error with its hint and turns the result into an exit status: 0 done, 1 failed, 2 asked
/// for wrongly, 3 looked for something wrong and found it.
pub fn exit_status(result: anyhow::Result<()>) -> u8 {
    let Err(error) = result else { return 0 };
    if is_closed_pipe(&error) {
        return 0;
    }
    if let Some(found) = error.downcast_ref::<Found>() {
        eprintln!("{found}");
        return 3;
    }
    eprintln!("error: {}", in_one_line(&error));
    let known = error.chain().find_map(known);
    if let Some(hint) = known.as_ref().and_then(|known| known.hint.as_ref()) {
        eprintln!("hint: {hint}");
    }
    if known.is_some_and(|known| known.is_wrong_usage) { 2 } else { 1 }
}

/// A check that did its work and found so many things wrong, which it has listed.
#[derive(Debug)]
pub struct Found(pub usize);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => write!(f, "1 thing is not as it should be"),
            count => write!(f, "{count} things are not as they should be"),
        }
    }
}

impl std::error::Error for Found {}

/// What our libraries know about their errors.
struct Known {
    hint: Option<String>,
    is_wrong_usage: bool,
}

fn known(cause: &(dyn std::error::Error + 'static)) -> Option<Known> {
    if let Some(error) = cause.downcast_ref::<trueshot_vision::Error>() {
        return Some(Known { hint: error.hint(), is_wrong_usage: error.is_wrong_usage() });
    }
    let error = cause.downcast_ref::<trueshot::Error>()?;
    Some(Known { hint: error.hint(), is_wrong_usage: error.is_wrong_usage() })
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
