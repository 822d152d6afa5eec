//! Configurations: defaults, then a TOML file, then the command line, each over the one before.
//!
//! All three are tables, so an option has one name everywhere. The defaults list every key there is, which is
//! how a misspelt one is told from a right one and answered with the nearest.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::error::{Error, Result};

/// Reads a configuration. `defaults` must write down every key; `flags` holds what the command line says.
pub fn read<C: Serialize + DeserializeOwned>(defaults: &C, file: Option<&Path>, flags: Table) -> Result<C> {
    let mut merged = table(defaults);
    if let Some(path) = file {
        let bad = |problem: String| Error::BadConfiguration { path: Some(path.into()), problem };
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let given: Table =
            text.parse().map_err(|problem: toml::de::Error| bad(in_one_line(&problem.to_string())))?;
        check_keys(&merged, &given, "")?;
        // A file that contradicts itself is told so before flags hide it.
        let mut alone = merged.clone();
        merge(&mut alone, given.clone());
        alone.try_into::<C>().map_err(|problem| bad(in_one_line(&problem.to_string())))?;
        merge(&mut merged, given);
    }
    merge(&mut merged, flags);
    let problem = |problem: toml::de::Error| in_one_line(&problem.to_string());
    merged.try_into().map_err(|error| Error::BadConfiguration { path: None, problem: problem(error) })
}

/// Reads a configuration from a table that somebody made, whose keys may be misspelt.
pub fn read_table<C: Serialize + DeserializeOwned>(defaults: &C, given: Table) -> Result<C> {
    check_keys(&table(defaults), &given, "")?;
    read(defaults, None, given)
}

/// A configuration as a table.
pub fn table(configuration: &impl Serialize) -> Table {
    Table::try_from(configuration).expect("a configuration is plain data")
}

/// A configuration as a file's text.
pub fn text(configuration: &impl Serialize) -> String {
    toml::to_string(configuration).expect("a configuration is plain data")
}

/// The first key whose value differs: the key, and both values.
pub fn difference(then: &Table, now: &Table) -> Option<(String, String, String)> {
    difference_within(then, now, "")
}

fn difference_within(then: &Table, now: &Table, section: &str) -> Option<(String, String, String)> {
    let shown = |value: Option<&Value>| value.map_or("nothing".to_string(), Value::to_string);
    let mut keys: Vec<&String> = then.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter().find_map(|key| match (then.get(key), now.get(key)) {
        (Some(Value::Table(then)), Some(Value::Table(now))) => {
            difference_within(then, now, &within(section, key))
        }
        (then, now) if then == now => None,
        (then, now) => Some((within(section, key), shown(then), shown(now))),
    })
}

fn within(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}

fn check_keys(known: &Table, given: &Table, section: &str) -> Result<()> {
    for (key, value) in given {
        match (known.get(key), value) {
            (None, _) => return Err(unknown(known, key, section)),
            (Some(Value::Table(known)), Value::Table(given)) => {
                check_keys(known, given, &within(section, key))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn unknown(known: &Table, key: &str, section: &str) -> Error {
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    Error::UnknownKey {
        key: within(section, key),
        nearest: crate::method::nearest_name(key, &names).map(|name| within(section, &name)),
        known: names.join(", "),
    }
}

/// Puts a table over another; sections are merged, everything else is replaced.
fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

/// The parser draws the place with arrows over several lines; an error is one.
fn in_one_line(problem: &str) -> String {
    let lines = problem.lines().map(str::trim).filter(|line| !line.is_empty());
    let telling: Vec<&str> = lines.filter(|line| !line.starts_with(['|', '^'])).collect();
    telling.join(": ")
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
    fn flags_lie_over_the_file_and_the_file_over_the_defaults() {
        let read = read_text("seed = 3\n[optimiser]\nrate = 1", "[optimiser]\nrate = 0.5").unwrap();
        assert_eq!(read, Sample { seed: 3, optimiser: Optimiser { rate: 0.5, ..defaults().optimiser } });
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(read_text(&text(&defaults()), "").unwrap(), defaults());
    }

    #[test]
    fn a_misspelt_key_is_answered_with_the_nearest() {
        let error = read_text("[optimiser]\nrates = 1", "").unwrap_err();
        assert!(error.to_string().starts_with("unknown key 'optimiser.rates'"), "{error}");
        assert_eq!(error.hint().unwrap(), "did you mean 'optimiser.rate'?");
    }

    #[test]
    fn what_cannot_be_read_is_said_in_one_line() {
        for text in
            ["seed = ", "seed = 'three'", "seed = 1\nseed = 2", "optimiser = 3", "[optimiser]\nrate = [1]"]
        {
            let error = read_text(text, "").unwrap_err();
            assert!(matches!(error, Error::BadConfiguration { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            println!("{error}");
        }
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let mut other = defaults();
        other.optimiser.rate = 0.25;
        let found = difference(&table(&defaults()), &table(&other)).unwrap();
        assert_eq!(found, ("optimiser.rate".into(), "0.001".into(), "0.25".into()));
        assert_eq!(difference(&table(&other), &table(&other)), None);
    }
}
