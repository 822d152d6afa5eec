//! Reading of training configurations: defaults, overridden by a TOML file, overridden by command-line options.
//!
//! Start with [`read`]. All three sources are TOML tables, so an option has the same name everywhere. The defaults
//! contain every key, so an unknown key can be recognised, and the error suggests the nearest known one.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::error::{Error, Result};

/// Reads a configuration from a TOML file and command-line options.
///
/// `defaults` must serialise every key that is allowed. `flags` holds the command-line options; they override the file.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use trueshot::training::configuration;
///
/// #[derive(Serialize, Deserialize)]
/// struct Options {
///     seed: u64,
///     rate: f64,
/// }
///
/// let defaults = Options { seed: 0, rate: 0.001 };
/// let options = configuration::read(&defaults, None, "seed = 7".parse().unwrap())?;
/// assert_eq!((options.seed, options.rate), (7, 0.001));
/// # Ok::<(), trueshot::Error>(())
/// ```
///
/// # Errors
/// [`Error::Read`] if the file cannot be read, [`Error::UnknownKey`] for a key that `defaults` does not have,
/// [`Error::BadConfiguration`] if the file is not TOML or a value has the wrong type.
pub fn read<C: Serialize + DeserializeOwned>(defaults: &C, file: Option<&Path>, flags: Table) -> Result<C> {
    let mut merged = table(defaults);
    if let Some(path) = file {
        let bad = |problem: String| Error::BadConfiguration { path: Some(path.into()), problem };
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let given: Table = text.parse().map_err(|problem: toml::de::Error| bad(toml_message(&problem)))?;
        check_keys(&merged, &given, "")?;
        // An invalid value in the file is an error even if a flag overrides it.
        let mut without_flags = merged.clone();
        merge(&mut without_flags, given.clone());
        without_flags.try_into::<C>().map_err(|problem| bad(toml_message(&problem)))?;
        merge(&mut merged, given);
    }
    merge(&mut merged, flags);
    let problem = |problem: toml::de::Error| toml_message(&problem);
    merged.try_into().map_err(|error| Error::BadConfiguration { path: None, problem: problem(error) })
}

/// Reads a configuration from a table given by the user, whose keys are checked like those of a file.
///
/// # Errors
/// [`Error::UnknownKey`] and [`Error::BadConfiguration`], as in [`read`].
pub fn read_table<C: Serialize + DeserializeOwned>(defaults: &C, given: Table) -> Result<C> {
    check_keys(&table(defaults), &given, "")?;
    read(defaults, None, given)
}

/// Converts a configuration to a TOML table.
pub fn table(configuration: &impl Serialize) -> Table {
    Table::try_from(configuration).expect("a configuration is plain data")
}

/// Converts a configuration to the text of a TOML file.
pub fn text(configuration: &impl Serialize) -> String {
    toml::to_string(configuration).expect("a configuration is plain data")
}

/// The first key, in alphabetical order, whose value differs: its full name (`section.key`), the value in `then` and
/// the value in `now`.
pub fn difference(then: &Table, now: &Table) -> Option<(String, String, String)> {
    difference_in_section(then, now, "")
}

/// [`difference`] for the tables of one section, whose full name is `section`.
fn difference_in_section(then: &Table, now: &Table, section: &str) -> Option<(String, String, String)> {
    let shown = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
    let mut keys: Vec<&String> = then.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().find_map(|key| match (then.get(key), now.get(key)) {
        (Some(Value::Table(then)), Some(Value::Table(now))) => {
            difference_in_section(then, now, &full_key(section, key))
        }
        (then, now) if then == now => None,
        (then, now) => Some((full_key(section, key), shown(then), shown(now))),
    })
}

/// The name of a key with its section in front: `section.key`.
fn full_key(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}

/// Refuses keys of `given` that `known` does not have.
fn check_keys(known: &Table, given: &Table, section: &str) -> Result<()> {
    for (key, value) in given {
        match (known.get(key), value) {
            (None, _) => return Err(unknown(known, key, section)),
            (Some(Value::Table(known)), Value::Table(given)) => {
                check_keys(known, given, &full_key(section, key))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The error for a key of `section` that is not among `known`, with the nearest known key as a hint.
fn unknown(known: &Table, key: &str, section: &str) -> Error {
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    Error::UnknownKey {
        key: full_key(section, key),
        nearest: crate::method::nearest_name(key, &names).map(|name| full_key(section, &name)),
        known: names.join(", "),
    }
}

/// Overrides the values of `base` by those of `overrides`; sections are merged key by key.
fn merge(base: &mut Table, overrides: Table) {
    for (key, value) in overrides {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(overrides)) => merge(base, overrides),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// The message of the TOML parser in one line, without the lines that mark the position with `|` and `^`.
///
/// ```
/// let problem = "rate = fast".parse::<toml::Table>().unwrap_err();
/// let message = trueshot::training::configuration::toml_message(&problem);
/// assert!(message.starts_with("TOML parse error at line 1, column 8: 1 | rate = fast"), "{message}");
/// ```
pub fn toml_message(problem: &toml::de::Error) -> String {
    let problem = problem.to_string();
    let lines = problem.lines().map(str::trim).filter(|line| !line.is_empty());
    let message: Vec<&str> = lines.filter(|line| !line.starts_with(['|', '^'])).collect();
    message.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        seed: u64,
        optimiser: Optimiser,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Optimiser {
        rate: f64,
        schedule: String,
    }

    fn defaults() -> Sample {
        Sample { seed: 0, optimiser: Optimiser { rate: 0.001, schedule: "cosine".into() } }
    }

    fn read_text(text: &str, flags: &str) -> Result<Sample> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(&defaults(), Some(file.path()), flags.parse().unwrap())
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_the_defaults() {
        let read = read_text("seed = 3\n[optimiser]\nrate = 1", "[optimiser]\nrate = 0.5").unwrap();
        assert_eq!(read, Sample { seed: 3, optimiser: Optimiser { rate: 0.5, ..defaults().optimiser } });
    }

    #[test]
    fn a_configuration_survives_writing_and_reading() {
        assert_eq!(read_text(&text(&defaults()), "").unwrap(), defaults());
    }

    #[test]
    fn for_a_misspelt_key_the_nearest_is_suggested() {
        let error = read_text("[optimiser]\nrates = 1", "").unwrap_err();
        assert!(error.to_string().starts_with("unknown key 'optimiser.rates'"), "{error}");
        assert_eq!(error.hint().unwrap(), "did you mean 'optimiser.rate'?");
    }

    #[test]
    fn parse_errors_are_one_line_long() {
        for text in
            ["seed = ", "seed = 'three'", "seed = 1\nseed = 2", "optimiser = 3", "[optimiser]\nrate = [1]"]
        {
            let error = read_text(text, "").unwrap_err();
            assert!(matches!(error, Error::BadConfiguration { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let mut other = defaults();
        other.optimiser.rate = 0.25;
        let first = difference(&table(&defaults()), &table(&other)).unwrap();
        assert_eq!(first, ("optimiser.rate".into(), "0.001".into(), "0.25".into()));
        assert_eq!(difference(&table(&other), &table(&other)), None);
    }
}
