//! The page that classifies in the browser: one HTML file with the engine (`crates/wasm`), the backbone and the
//! classifier.
//!
//! Everything is inside the page, in base64, because browsers do not let a page that was opened as a file read other
//! files.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use trueshot::predictor::Predictor;
use trueshot::report::escaped_xml;
use trueshot_vision::{Backbone, export};

use crate::messages::hinted;
use crate::predict::UNKNOWN_THRESHOLD;

/// The program that classifies in the browser, as WebAssembly. Compiled by `crates/wasm/build.py`.
static ENGINE: &[u8] = include_bytes!("../../assets/engine.wasm");
/// The HTML of the page, in which [`filled`] replaces every `{{name}}`.
static TEMPLATE: &str = include_str!("page.html");
/// The script of the page. It decodes the parts, calls the engine and shows its answers.
static SCRIPT: &str = include_str!("page.js");
/// The number of classes that are listed with their probabilities.
const LISTED: usize = 10;

/// The HTML of the page. `output` is the file it will be written to, whose name is the title. Fails without a backbone,
/// and for a backbone that the engine cannot run.
pub fn page(predictor: &Predictor, backbone: Option<&Backbone>, output: &Path) -> anyhow::Result<String> {
    let Some(backbone) = backbone else {
        return Err(hinted(
            "a page needs a backbone, because it classifies images",
            "give the backbone with --backbone, or write an .onnx file, which can take embeddings",
        ));
    };
    let Some(network) = export::network_file(backbone) else {
        return Err(hinted(
            format!("a page cannot run {}: only Conv4 and EfficientNet-Lite0", backbone.name()),
            "write an .onnx file instead",
        ));
    };
    let title = output.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let classes = predictor.classes();
    // Read by page.js.
    let config =
        json!({ "classes": classes, "refusedFrom": UNKNOWN_THRESHOLD, "listed": LISTED }).to_string();
    let parts = [
        ("title", escaped_xml(&title)),
        ("summary", escaped_xml(&summary(classes))),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("backbone", escaped_xml(backbone.name())),
        // Inside a script element nothing can be escaped with entities, and `</script` would end it.
        ("config", config.replace('<', "\\u003c")),
        ("engine", BASE64.encode(ENGINE)),
        // Without the names of the examples: pages are passed on to others.
        ("classifier", BASE64.encode(predictor.to_anonymous_bytes())),
        ("network", BASE64.encode(network)),
        ("script", SCRIPT.into()),
    ];
    Ok(filled(TEMPLATE, &parts))
}

/// A sentence about the page, with the names of the classes if there are few.
fn summary(classes: &[String]) -> String {
    match classes.len() {
        count @ ..=LISTED => format!("Classifies images into {count} classes: {}.", classes.join(", ")),
        count => format!("Classifies images into {count} classes."),
    }
}

/// The template with every `{{name}}` replaced by the part with that name. `parts` are pairs of name and text.
///
/// # Panics
/// If the template names a part that does not exist.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut pieces = template.split("{{");
    let mut text = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let (name, after) = piece.split_once("}}").expect("the template closes every brace");
        let (_, part) = parts.iter().find(|(known, _)| *known == name).expect("a part of the page");
        text.push_str(part);
        text.push_str(after);
    }
    text
}
