//! How this program starts itself: for the steps of `reproduce`, and as the worker process that runs ONNX models.

use std::ffi::OsString;

use trueshot_vision::onnx::{self, ModelProcess};

/// The argument that starts a worker process for ONNX models; not documented for users.
pub const ONNX_WORKER: &str = "onnx-worker";

/// This program and its first arguments: the running executable, or the Python interpreter that runs it as a module. In
/// the second case the Python package has set TRUESHOT_PYTHON to the path of the interpreter.
pub fn own_command() -> std::io::Result<(OsString, Vec<OsString>)> {
    match std::env::var_os("TRUESHOT_PYTHON") {
        None => Ok((std::env::current_exe()?.into(), Vec::new())),
        Some(interpreter) => Ok((interpreter, vec!["-m".into(), "trueshot".into()])),
    }
}

/// Configures ONNX models to run in worker processes of this program, with the limits that the environment sets.
pub fn configure_onnx_worker() -> anyhow::Result<()> {
    // If the path of this program is unknown, only ONNX models fail.
    let Ok((program, mut arguments)) = own_command() else { return Ok(()) };
    arguments.push(ONNX_WORKER.into());
    let mut process = ModelProcess::new(program, arguments);
    // The limits of the process: memory in GiB, time in seconds.
    if let Some(gibibytes) = limit_from_env("TRUESHOT_ONNX_MEMORY", 1 << 20)? {
        process.memory = gibibytes << 30;
    }
    if let Some(seconds) = limit_from_env("TRUESHOT_ONNX_SECONDS", 1 << 30)? {
        process.seconds = seconds;
    }
    onnx::run_models_in(process);
    Ok(())
}

/// The whole number from 1 to `max` in an environment variable; `None` if the variable is not set.
fn limit_from_env(variable: &str, max: u64) -> anyhow::Result<Option<u64>> {
    let Some(given) = std::env::var_os(variable) else { return Ok(None) };
    let limit = given.to_str().and_then(|given| given.parse().ok()).filter(|limit| (1..=max).contains(limit));
    anyhow::ensure!(limit.is_some(), "{variable} is {given:?}; allowed: whole numbers from 1 to {max}");
    Ok(limit)
}
