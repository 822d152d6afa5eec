//! The command line, for `python -m trueshot` and the console script: the same code as the program `trueshot`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with `arguments`, the first of which is the name of the program, and returns its exit status.
#[pyfunction]
pub fn main_from(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    // Releases the interpreter lock: the command may run for hours.
    py.detach(|| trueshot_cli::main_from(arguments))
}
