//! The HTTP server of trueshot: an API that audits labels and creates, stores and queries classifiers, and a web page.
//!
//! [`app`] is the router without a socket, which the tests call directly; [`serve`] runs it on a socket
//! (`http_server`). A request passes these modules in this order:
//!
//! 1. `connections` closes connections whose clients keep the server waiting.
//! 2. `drain` reads the rest of a refused body, `metrics` counts, `access` checks who may call.
//! 3. `body` receives the body, with a `stall_timeout` and within the budget of `body_memory`.
//! 4. `admission` limits how many requests wait and compute at the same time.
//! 5. `request_rows` turns the body into rows (`json_rows`, `multipart`).
//! 6. One of the `routes` answers. Every error response is a `problem`.
//!
//! Classifiers are in the `store`; no name or path of a request ever reaches the file system. `limits` has the limits,
//! `state` what all requests share, `page` the web page, and `openapi` and `shared_responses` the description of the
//! API.

mod access;
mod admission;
mod body;
mod body_memory;
mod connections;
mod drain;
mod http_server;
mod json_rows;
mod limits;
mod metrics;
mod multipart;
mod openapi;
mod page;
mod problem;
mod request_rows;
mod routes;
mod shared_responses;
mod stall_timeout;
mod state;
mod store;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use tower_http::catch_panic::CatchPanicLayer;

pub use access::Access;
pub use http_server::{serve, stop_signal};
pub use limits::Limits;
pub use state::{App, ServerSettings, SharedApp};

use problem::Problem;
use routes::{about, audits, classifiers, embeddings, predictions};

/// The router with all paths and middleware.
pub fn app(state: SharedApp) -> Router {
    let classifier = get(classifiers::get).delete(classifiers::delete);
    Router::new()
        .route("/", get(page::index))
        .route("/assets/{name}", get(page::asset))
        .route("/healthz", get(about::healthz))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(about::description))
        .route("/api/v1", get(about::about))
        .route("/api/v1/audit", post(audits::post))
        .route("/api/v1/embed", post(embeddings::post))
        .route("/api/v1/classifiers", get(classifiers::list).post(classifiers::post))
        .route("/api/v1/classifiers/{id}", classifier)
        .route("/api/v1/classifiers/{id}/download", get(classifiers::download))
        .route("/api/v1/classifiers/{id}/predict", post(predictions::post))
        .fallback(async || {
            Problem::unknown("this path does not exist").hint("GET /openapi.json describes all paths")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support this HTTP method")
                .hint("GET /openapi.json describes all paths and their methods")
        })
        .layer(CatchPanicLayer::custom(panic_response))
        .layer(middleware::from_fn_with_state(state.clone(), access::check_access))
        .layer(middleware::from_fn_with_state(state.clone(), metrics::count_request))
        .layer(middleware::from_fn_with_state(state.clone(), drain::drain_refused_body))
        .with_state(state)
}

/// The response after a panic, which is a bug of the server; the panic itself is already in the log.
fn panic_response(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::failed("answering", "it panicked").into_response()
}
