//! How failures reach people: one line that says what failed, and one that says what to do about it.

use std::process::ExitCode;

/// Prints an error with its hint and turns the result into an exit status: 0 done, 1 failed.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error:#}");
    let known = error.chain().find_map(|cause| cause.downcast_ref::<trueshot::Error>());
    if let Some(hint) = known.and_then(trueshot::Error::hint) {
        eprintln!("hint: {hint}");
    }
    ExitCode::FAILURE
}

/// Whoever read our output has seen enough (`trueshot eval .. | head`): no failure of ours.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.into_iter().any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
