//! Errors of the library as Python exceptions: `ValueError` for invalid arguments, `OSError` for files,
//! `KeyboardInterrupt` for Ctrl-C. The hint of an error is on a separate line.

use std::io::ErrorKind;

use pyo3::PyErr;
use pyo3::exceptions::{
    PyFileNotFoundError, PyKeyboardInterrupt, PyOSError, PyPermissionError, PyRuntimeError, PyValueError,
};
use trueshot::Error;
use trueshot::report::visible;

/// The exception for an error of the library.
pub fn to_exception(error: Error) -> PyErr {
    let message = error_text(&error);
    exception(error, message)
}

/// The exception for an error in the rows of one argument, such as `outliers`, whose name comes first. Only the hint of
/// [`Error::NotFinite`] is left out: it names X, which has other rows.
pub fn argument_exception(argument: &str, error: Error) -> PyErr {
    let message = match error {
        Error::NotFinite { .. } => visible(&error.to_string()),
        _ => error_text(&error),
    };
    exception(error, format!("{argument}: {message}"))
}

fn exception(error: Error, message: String) -> PyErr {
    match error {
        Error::Interrupted => PyKeyboardInterrupt::new_err(message),
        Error::Read { source, .. } | Error::Write { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(message),
            _ => PyOSError::new_err(message),
        },
        _ => PyValueError::new_err(message),
    }
}

/// The message and hint of an error, without options of the command line. Control characters in names are escaped,
/// because a traceback prints the message unchanged.
pub fn error_text(error: &Error) -> String {
    let message = visible(&error.to_string());
    let hint = match error {
        Error::NotFinite { .. } => Some("numpy.isfinite(X).all(axis=1) is False for all such rows".into()),
        _ => error.hint_for(&|_| false),
    };
    match hint {
        Some(hint) => format!("{message}\nhint: {}", visible(&hint)),
        None => message,
    }
}

/// The exception for an invalid argument.
pub fn value_error(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

/// The exception after a panic, which is a bug in the library. It is a `RuntimeError`, so `except Exception` catches
/// it.
pub fn internal_error() -> PyErr {
    PyRuntimeError::new_err(INTERNAL_ERROR)
}

/// The message after a panic. [`crate::batch`] puts it into the `error` of the task instead of raising an exception.
pub const INTERNAL_ERROR: &str = "internal error of trueshot on this input: please report it";
