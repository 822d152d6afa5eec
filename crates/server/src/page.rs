//! The web page and its assets, which are part of the program. Nothing is loaded from elsewhere.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, type and contents of everything the page asks for.
const ASSETS: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("server.js", SCRIPT, include_str!("page/server.js")),
    ("collection.js", SCRIPT, include_str!("page/collection.js")),
    ("keeping.js", SCRIPT, include_str!("page/keeping.js")),
    ("receiving.js", SCRIPT, include_str!("page/receiving.js")),
    ("drawing.js", SCRIPT, include_str!("page/drawing.js")),
    ("asking.js", SCRIPT, include_str!("page/asking.js")),
    ("downloads.js", SCRIPT, include_str!("page/downloads.js")),
    ("reviewing.js", SCRIPT, include_str!("page/reviewing.js")),
];

/// The page.
pub async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// Something that belongs to it.
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
