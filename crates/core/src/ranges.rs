//! Range checks of the values of options (of audits, models and training): [`require`] returns an error with the
//! option, its value and what is allowed.

use crate::error::{Error, Result};

/// Checks the option `what`: an error unless `holds` is true, with the value `given` and the text `allowed`.
///
/// ```
/// use trueshot::ranges::require;
///
/// let error = require("ways", 1, false, "2 or more").unwrap_err();
/// assert_eq!(error.to_string(), "ways is 1; allowed: 2 or more");
/// ```
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn require(what: &'static str, given: impl std::fmt::Display, holds: bool, allowed: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::OutOfRange { what, given: given.to_string(), allowed: allowed.into() }),
    }
}

/// Checks that the option `what` has a value of `min` or more.
pub(crate) fn at_least(what: &'static str, given: usize, min: usize) -> Result<()> {
    require(what, given, given >= min, &format!("{min} or more"))
}
