//! Checks that the options and defaults of training in `docs/training.md` are those of the library.

use toml::{Table, Value};
use trueshot::method::{RelabelOptions, TranfsOptions};
use trueshot::training::configuration::{read_table, table};
use trueshot::training::heads::configuration::Configuration;

fn page() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/training.md");
    std::fs::read_to_string(path).unwrap()
}

/// The TOML configuration in the page.
fn shown(page: &str) -> &str {
    page.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
}

/// The part of a page from the given words to the next empty line.
fn paragraph<'a>(page: &'a str, words: &str) -> &'a str {
    let start = page.find(words).unwrap_or_else(|| panic!("'{words}' is not in the page"));
    page[start..].split("\n\n").next().unwrap()
}

/// All keys of a configuration as `section.key` with their values, except those of the section `data`.
fn keys(configuration: &Table) -> Vec<(String, Value)> {
    let mut keys = Vec::new();
    for (section, value) in configuration {
        match value {
            Value::Table(_) if section == "data" => {}
            Value::Table(inner) => {
                keys.extend(inner.iter().map(|(key, value)| (format!("{section}.{key}"), value.clone())));
            }
            value => keys.push((section.clone(), value.clone())),
        }
    }
    keys
}

#[test]
fn the_configuration_in_the_page_has_the_defaults_of_tranfs() {
    let page = page();
    let given: Table = shown(&page).parse().unwrap();
    let defaults = Configuration::<TranfsOptions>::tranfs();
    let mut read = read_table(&defaults, given.clone()).unwrap();
    let mut expected = Configuration { data: read.data.clone(), ..defaults.clone() };
    read.settle();
    expected.settle();
    assert_eq!(read, expected);
    let shown: Vec<String> = keys(&given).into_iter().map(|(key, _)| key).collect();
    for (key, _) in keys(&table(&defaults)) {
        assert!(shown.contains(&key) || page.contains(&format!("`{key}`")), "'{key}' is not on the page");
    }
}

#[test]
fn the_page_states_the_defaults_of_relabel() {
    let page = page();
    let defaults = table(&Configuration::<RelabelOptions>::relabel());
    let mut section = String::new();
    let mut compared = 0;
    for line in shown(&page).lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.split(']').next().unwrap().to_string();
        }
        let Some((key, remark)) = line.split_once(" = ").zip(line.split_once("# Relabel: ")) else {
            continue;
        };
        let value = remark.1.split(';').next().unwrap();
        let Ok(value) = format!("value = {value}").parse::<Table>() else { continue };
        let found = match section.as_str() {
            "" => &defaults[key.0],
            section => &defaults[section][key.0],
        };
        assert_eq!(found, &value["value"], "{section}.{}", key.0);
        compared += 1;
    }
    assert!(compared >= 3, "{compared}");
    let model = defaults["model"].as_table().unwrap();
    let options = paragraph(&page, "Relabel's `[model]`:");
    for (key, default) in model {
        let after_key = options.split(&format!("`{key}` ")).nth(1);
        let after_key =
            after_key.unwrap_or_else(|| panic!("'{key}' is not named among the options of Relabel"));
        let value = after_key.split([' ', ',']).next().unwrap().trim_end_matches('.');
        let value = &format!("value = {value}").parse::<Table>().unwrap()["value"];
        let number = |value: &Value| value.as_float().or(value.as_integer().map(|value| value as f64));
        let same = value == default || number(value).is_some_and(|value| Some(value) == number(default));
        assert!(same, "{key} is {default}, the page says {value}");
    }
}
