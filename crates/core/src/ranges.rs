//! Checks of option values: every refusal names the option, the value and what is allowed.

use crate::error::{Error, Result};

/// Refuses the value `given` of the option `what` unless `holds`.
///
/// # Errors
/// [`Error::OutOfRange`] with the text of `allowed`.
pub fn require(what: &'static str, given: impl std::fmt::Display, holds: bool, allowed: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::OutOfRange { what, given: given.to_string(), allowed: allowed.into() }),
    }
}

/// Refuses values below `least`.
pub(crate) fn at_least(what: &'static str, given: usize, least: usize) -> Result<()> {
    require(what, given, given >= least, &format!("{least} or more"))
}
