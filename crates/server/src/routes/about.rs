//! The operations that describe the server: version, methods, limits, health and the OpenAPI description.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::limits::{MAX_CLASSES, MAX_FITTED_ITEMS, MAX_ITEMS};
use crate::openapi::document;
use crate::state::SharedApp;

/// What this server is and allows.
#[derive(Serialize, ToSchema)]
pub struct About {
    /// The version of the program.
    version: &'static str,
    /// What embeds pictures.
    embedder: String,
    /// Methods that a classifier can be made by.
    methods: Vec<KnownMethod>,
    /// What a request may cost.
    limits: KnownLimits,
}

/// A method.
#[derive(Serialize, ToSchema)]
pub struct KnownMethod {
    /// Its name.
    name: &'static str,
    /// What it does.
    summary: &'static str,
}

/// What a request may cost.
#[derive(Serialize, ToSchema)]
pub struct KnownLimits {
    /// Bytes of a body.
    body_bytes: usize,
    /// Pixels of a picture.
    pixels: u64,
    /// Items of a request.
    items: usize,
    /// Items a classifier may be made of.
    fitted_items: usize,
    /// Classes.
    classes: usize,
    /// Seconds a request may take.
    seconds: u64,
}

/// What this server is and allows.
#[utoipa::path(get, path = "/api/v1", tag = "operation", responses((status = 200, description = "what this server is", body = About)))]
pub async fn about(State(app): State<SharedApp>) -> Json<About> {
    let usable = app.registry.infos().iter().filter(|info| super::classifiers::is_usable(info));
    Json(About {
        version: env!("CARGO_PKG_VERSION"),
        embedder: app.embedder.backbone().name().to_owned(),
        methods: usable.map(|info| KnownMethod { name: info.name, summary: info.summary }).collect(),
        limits: KnownLimits {
            body_bytes: app.limits.body,
            pixels: app.limits.pixels,
            items: MAX_ITEMS,
            fitted_items: MAX_FITTED_ITEMS,
            classes: MAX_CLASSES,
            seconds: app.limits.request_time.as_secs(),
        },
    })
}

/// Whether the server is there.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses((status = 200, description = "it is there", content_type = "text/plain", body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// The description of the API.
pub async fn description(State(app): State<SharedApp>) -> Json<serde_json::Value> {
    Json(document(&super::classifiers::usable_methods(&app)))
}
