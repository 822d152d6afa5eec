//! Exports of repaired labels for other programs: CSV ([`labels_csv`]), Label Studio ([`label_studio`]) and FiftyOne
//! ([`fiftyone`]). All three take the items of a collection with their labels after a repair ([`Labelled`]) and return
//! the text of a file.

use serde_json::{Value, json};

use crate::csv_field::csv_field;

/// An item with its label after a repair.
///
/// ```
/// use trueshot::repair::{Labelled, labels_csv};
///
/// let rex = Labelled {
///     item: "cat/rex.jpg".into(),
///     path: "/photos/cat/rex.jpg".into(),
///     label: Some("dog".into()),
///     was: "cat".into(),
/// };
/// assert_eq!(labels_csv(&[rex]), "path,label,was\n/photos/cat/rex.jpg,dog,cat\n");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labelled {
    /// The name of the item within the collection.
    pub item: String,
    /// The path of its file, or its name if it has no file.
    pub path: String,
    /// The class after the repair; `None` if the item is in quarantine.
    pub label: Option<String>,
    /// The class before the repair.
    pub was: String,
}

/// The labels as CSV with the columns `path,label,was`, which `trueshot` itself reads. Items in quarantine are left
/// out.
pub fn labels_csv(labelled: &[Labelled]) -> String {
    let line = |entry: &Labelled| {
        let fields = [&entry.path, entry.label.as_ref()?, &entry.was].map(|field| csv_field(field));
        Some(fields.join(",") + "\n")
    };
    std::iter::once("path,label,was\n".to_string()).chain(labelled.iter().filter_map(line)).collect()
}

/// The labels as Label Studio tasks (JSON), for a labelling interface with `<Image name="image" value="$image"/>` and
/// `<Choices name="label" toName="image">`. Label Studio must serve the folder of the collection as local files.
pub fn label_studio(labelled: &[Labelled]) -> String {
    let task = |entry: &Labelled| {
        let result = |label: &String| {
            json!([{"result": [{
                "from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [label]},
            }]}])
        };
        json!({
            "data": {"image": format!("/data/local-files/?d={}", percent_encoded(&entry.item)), "item": entry.item, "was": entry.was},
            "annotations": entry.label.as_ref().map_or_else(|| json!([]), result),
        })
    };
    pretty(&Value::Array(labelled.iter().map(task).collect()))
}

/// The labels in FiftyOne's format `FiftyOneImageClassificationDataset` (JSON), with files by their full path. Items in
/// quarantine are left out.
pub fn fiftyone(labelled: &[Labelled]) -> String {
    let mut classes: Vec<&String> = labelled.iter().filter_map(|entry| entry.label.as_ref()).collect();
    classes.sort();
    classes.dedup();
    let class_index = |label: &String| classes.binary_search(&label).ok();
    let labels: serde_json::Map<String, Value> = labelled
        .iter()
        .filter_map(|entry| Some((entry.path.clone(), json!(class_index(entry.label.as_ref()?)?))))
        .collect();
    pretty(&json!({"classes": classes, "labels": labels}))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value is plain data") + "\n"
}

/// A path with all bytes percent-encoded except `/` and the characters that a URL never needs to encode.
fn percent_encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                text.push(byte.into())
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
