//! Parses the names of methods, such as `median:eps=0.1`, that users pass to estimators and batch functions.
//!
//! Parsed methods are cached: the default method, `relabel`, has a built-in trained network (a head), and reading its
//! parameters takes longer than fitting an estimator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trueshot::Result;
use trueshot::method::{NamedMethod, Registry};

/// The maximum number of cached methods; others are parsed on every call.
const MAX_CACHED: usize = 64;

/// A method for fitting, by its name and parameters as on the command line. Transductive methods, which classify all
/// queries together, are refused: there is nothing to fit in advance.
pub fn method(text: &str) -> Result<Arc<NamedMethod>> {
    static CACHED: Mutex<Option<HashMap<String, Arc<NamedMethod>>>> = Mutex::new(None);
    // Both parameters name a file, which may have changed since the last call.
    if text.contains("model=") || text.contains("centre=") {
        return parse(text);
    }
    let mut cached = CACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let cached = cached.get_or_insert_default();
    if let Some(method) = cached.get(text) {
        return Ok(method.clone());
    }
    let method = parse(text)?;
    if cached.len() < MAX_CACHED {
        cached.insert(text.into(), method.clone());
    }
    Ok(method)
}

fn parse(text: &str) -> Result<Arc<NamedMethod>> {
    let method = Registry::default().parse(text)?;
    method.check_not_transductive()?;
    Ok(Arc::new(method))
}
