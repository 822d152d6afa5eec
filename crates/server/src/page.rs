//! The web page and its assets, which are compiled into the program. Nothing is loaded from other servers.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// The scripts with these names, each with its contents.
macro_rules! scripts {
    ($($name:literal,)+) => { &[$(($name, include_str!(concat!("page/", $name)))),+] };
}

const SCRIPTS: &[(&str, &str)] = scripts![
    "auditing.js",
    "browser_storage.js",
    "camera.js",
    "card.js",
    "class_chooser.js",
    "class_sections.js",
    "collection.js",
    "dom.js",
    "downloads.js",
    "drop_target.js",
    "embedding.js",
    "evaluation.js",
    "file_input.js",
    "filters.js",
    "history.js",
    "item_dialog.js",
    "listing.js",
    "main.js",
    "name_dialog.js",
    "object_urls.js",
    "predictions.js",
    "quarantine_section.js",
    "review.js",
    "selection.js",
    "server.js",
    "test_set.js",
    "thumbnails.js",
    "viewer.js",
    "virtual_grid.js",
    "wording.js",
];

/// Serves the page.
pub async fn index() -> Response {
    file_response("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// Serves an asset of the page.
pub async fn asset(name: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    // No asset has the empty name: a name that is not UTF-8 is answered with 404 like any unknown one.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    match name.as_str() {
        "style.css" => Ok(file_response("text/css; charset=utf-8", include_str!("page/style.css"))),
        "icon.svg" => Ok(file_response("image/svg+xml", include_str!("page/icon.svg"))),
        _ => SCRIPTS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, contents)| file_response("text/javascript; charset=utf-8", contents))
            .ok_or_else(|| Problem::unknown("this file does not exist")),
    }
}

/// A file for the browser, which asks for it again every time, so that scripts of different versions are never mixed
/// after an update.
fn file_response(content_type: &'static str, contents: &'static str) -> Response {
    ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-cache")], contents).into_response()
}
