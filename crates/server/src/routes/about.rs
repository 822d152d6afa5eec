//! The operations that describe the server: version, methods, limits, health and the OpenAPI description.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::limits::{MAX_CLASSES, MAX_FITTED_ITEMS, MAX_ITEMS};
use crate::openapi::document;
use crate::state::SharedApp;

/// Version, embedder, methods and limits of the server.
#[derive(Serialize, ToSchema)]
pub struct About {
    /// The version of trueshot.
    version: &'static str,
    /// The name of the network that embeds images.
    embedder: String,
    /// The methods that can fit a classifier.
    methods: Vec<MethodDescription>,
    /// The limits on requests.
    limits: RequestLimits,
}

/// A method that can fit a classifier.
#[derive(Serialize, ToSchema)]
pub struct MethodDescription {
    /// The value of the parameter `method`.
    name: &'static str,
    /// What the method does, in one sentence.
    summary: &'static str,
}

/// Limits on requests.
#[derive(Serialize, ToSchema)]
pub struct RequestLimits {
    /// Maximum length of a body in bytes.
    body_bytes: usize,
    /// Maximum number of pixels of an image.
    pixels: u64,
    /// Maximum number of items in a request.
    items: usize,
    /// Maximum number of items to fit a classifier on.
    fitted_items: usize,
    /// Maximum number of classes.
    classes: usize,
    /// Maximum duration of a request in seconds.
    seconds: u64,
}

/// Returns version, embedder, methods and limits of the server.
#[utoipa::path(get, path = "/api/v1", tag = "operation", responses((status = 200, description = "version, embedder, methods and limits", body = About)))]
pub async fn about(State(app): State<SharedApp>) -> Json<About> {
    let usable = app.registry.infos().iter().filter(|info| super::classifiers::is_usable(info));
    Json(About {
        version: env!("CARGO_PKG_VERSION"),
        embedder: app.embedder.backbone().name().to_owned(),
        methods: usable.map(|info| MethodDescription { name: info.name, summary: info.summary }).collect(),
        limits: RequestLimits {
            body_bytes: app.limits.body,
            pixels: app.limits.pixels,
            items: MAX_ITEMS,
            fitted_items: MAX_FITTED_ITEMS,
            classes: MAX_CLASSES,
            seconds: app.limits.request_time.as_secs(),
        },
    })
}

/// Answers `ok` while the server runs.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, description = "the server is running", content_type = "text/plain", body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns the OpenAPI description of the API.
pub async fn description(State(app): State<SharedApp>) -> Json<serde_json::Value> {
    Json(document(&super::classifiers::usable_methods(&app)))
}
