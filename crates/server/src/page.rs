//! The web page and its assets, which are part of the program. Nothing is loaded from other servers.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, content type and contents of the assets.
const ASSETS: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("auditing.js", SCRIPT, include_str!("page/auditing.js")),
    ("browser_storage.js", SCRIPT, include_str!("page/browser_storage.js")),
    ("camera.js", SCRIPT, include_str!("page/camera.js")),
    ("card.js", SCRIPT, include_str!("page/card.js")),
    ("class_chooser.js", SCRIPT, include_str!("page/class_chooser.js")),
    ("class_sections.js", SCRIPT, include_str!("page/class_sections.js")),
    ("collection.js", SCRIPT, include_str!("page/collection.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("downloads.js", SCRIPT, include_str!("page/downloads.js")),
    ("drop_target.js", SCRIPT, include_str!("page/drop_target.js")),
    ("embedding.js", SCRIPT, include_str!("page/embedding.js")),
    ("evaluation.js", SCRIPT, include_str!("page/evaluation.js")),
    ("file_input.js", SCRIPT, include_str!("page/file_input.js")),
    ("filters.js", SCRIPT, include_str!("page/filters.js")),
    ("history.js", SCRIPT, include_str!("page/history.js")),
    ("item_dialog.js", SCRIPT, include_str!("page/item_dialog.js")),
    ("listing.js", SCRIPT, include_str!("page/listing.js")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("name_dialog.js", SCRIPT, include_str!("page/name_dialog.js")),
    ("object_urls.js", SCRIPT, include_str!("page/object_urls.js")),
    ("predictions.js", SCRIPT, include_str!("page/predictions.js")),
    ("quarantine_section.js", SCRIPT, include_str!("page/quarantine_section.js")),
    ("review.js", SCRIPT, include_str!("page/review.js")),
    ("selection.js", SCRIPT, include_str!("page/selection.js")),
    ("server.js", SCRIPT, include_str!("page/server.js")),
    ("test_set.js", SCRIPT, include_str!("page/test_set.js")),
    ("thumbnails.js", SCRIPT, include_str!("page/thumbnails.js")),
    ("viewer.js", SCRIPT, include_str!("page/viewer.js")),
    ("virtual_grid.js", SCRIPT, include_str!("page/virtual_grid.js")),
    ("wording.js", SCRIPT, include_str!("page/wording.js")),
];

/// Serves the page.
pub async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// Serves an asset of the page.
pub async fn asset(name: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    found
        .map(|(_, kind, contents)| file(kind, contents))
        .ok_or_else(|| Problem::unknown("this file does not exist"))
}

fn file(kind: &'static str, contents: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], contents).into_response()
}
