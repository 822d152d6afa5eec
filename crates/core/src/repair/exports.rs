//! Cleaned labels for other programs.

use serde_json::{Value, json};

use crate::csv_field::csv_field;

/// An item as it is labelled after a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labelled {
    /// Its name within the collection.
    pub item: String,
    /// Where its file is; its name, where it has none.
    pub path: String,
    /// Its class; none if it is in quarantine.
    pub label: Option<String>,
    /// The class it was filed under.
    pub was: String,
}

/// `path,label,was`: a list that `trueshot` itself reads. What is in quarantine is not in it.
pub fn labels_csv(labelled: &[Labelled]) -> String {
    let line = |one: &Labelled| {
        let fields = [&one.path, one.label.as_ref()?, &one.was].map(|field| csv_field(field));
        Some(fields.join(",") + "\n")
    };
    std::iter::once("path,label,was\n".to_string()).chain(labelled.iter().filter_map(line)).collect()
}

/// Tasks as Label Studio imports them, for `<Image name="image" value="$image"/>` and `<Choices name="label"
/// toName="image">`. Files are meant to be served from the collection's folder.
pub fn label_studio(labelled: &[Labelled]) -> String {
    let task = |one: &Labelled| {
        let result = |label: &String| {
            json!([{"result": [{
                "from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [label]},
            }]}])
        };
        json!({
            "data": {"image": format!("/data/local-files/?d={}", in_url(&one.item)), "item": one.item, "was": one.was},
            "annotations": one.label.as_ref().map_or_else(|| json!([]), result),
        })
    };
    pretty(&Value::Array(labelled.iter().map(task).collect()))
}

/// Labels as FiftyOne imports them (`FiftyOneImageClassificationDataset`): files by their whole path.
pub fn fiftyone(labelled: &[Labelled]) -> String {
    let mut classes: Vec<&String> = labelled.iter().filter_map(|one| one.label.as_ref()).collect();
    classes.sort();
    classes.dedup();
    let place = |label: &String| classes.binary_search(&label).ok();
    let labels: serde_json::Map<String, Value> = labelled
        .iter()
        .filter_map(|one| Some((one.path.clone(), json!(place(one.label.as_ref()?)?))))
        .collect();
    pretty(&json!({"classes": classes, "labels": labels}))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("plain data serialises") + "\n"
}

/// A path as part of an address.
fn in_url(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                text.push(byte.into())
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}
