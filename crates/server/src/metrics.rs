//! Counters of requests, durations and embedded images, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::state::SharedApp;

/// Upper bounds of the histogram buckets of durations, in seconds.
const BUCKETS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// The status under which a request is counted if the client disconnected before the response.
const CLIENT_GONE_STATUS: u16 = 499;

/// The counters of a server since its start.
#[derive(Default)]
pub struct Metrics {
    /// Requests that are being processed.
    in_flight: AtomicI64,
    /// Images that were embedded.
    pub pictures_embedded: AtomicU64,
    /// Images whose embeddings were in the cache.
    pub pictures_from_cache: AtomicU64,
    /// By path pattern, such as `/api/v1/classifiers/{id}`, and method.
    routes: Mutex<BTreeMap<(String, &'static str), RouteCounts>>,
}

/// The counts of one path and method.
#[derive(Default)]
struct RouteCounts {
    by_status: BTreeMap<u16, u64>,
    /// For each bound in `BUCKETS`, the number of requests that took at most this time. As Prometheus expects, a
    /// request counts in all buckets from its own on.
    buckets: [u64; BUCKETS.len()],
    /// All requests.
    count: u64,
    /// The sum of their durations.
    seconds: f64,
}

/// A request that is being processed; counted on drop, so also if the client disconnects.
struct RequestInFlight {
    app: SharedApp,
    route: String,
    method: &'static str,
    status: u16,
    started: Instant,
}

/// Middleware that counts requests.
pub async fn count_request(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = known_method(request.method());
    app.metrics.in_flight.fetch_add(1, Ordering::Relaxed);
    let mut in_flight =
        RequestInFlight { app, route, method, status: CLIENT_GONE_STATUS, started: Instant::now() };
    let response = next.run(request).await;
    in_flight.status = response.status().as_u16();
    response
}

/// The name of a method, or a fixed name for unknown ones: clients could otherwise create any number of counters.
fn known_method(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let mut routes = metrics.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let route = routes.entry((std::mem::take(&mut self.route), self.method)).or_default();
        *route.by_status.entry(self.status).or_default() += 1;
        route.count += 1;
        route.seconds += seconds;
        for (bucket, end) in route.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= end);
        }
    }
}

impl Metrics {
    /// All counters in the text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut single = |name: &str, kind: &str, help: &str, value: i64| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        single("trueshot_requests_in_flight", "gauge", "Requests in flight.", in_flight);
        let embedded = self.pictures_embedded.load(Ordering::Relaxed) as i64;
        single("trueshot_pictures_embedded_total", "counter", "Images embedded by the network.", embedded);
        let cached = self.pictures_from_cache.load(Ordering::Relaxed) as i64;
        single(
            "trueshot_embedding_cache_hits_total",
            "counter",
            "Images whose embedding was in the cache.",
            cached,
        );
        self.render_routes(&mut text);
        text
    }

    /// Appends the counters per path.
    fn render_routes(&self, text: &mut String) {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str("# HELP trueshot_requests_total Requests by route and status.\n");
        text.push_str("# TYPE trueshot_requests_total counter\n");
        for ((route, method), counts) in routes.iter() {
            for (status, count) in &counts.by_status {
                let labels = format!(r#"route="{route}",method="{method}",status="{status}""#);
                let _ = writeln!(text, "trueshot_requests_total{{{labels}}} {count}");
            }
        }
        let name = "trueshot_request_duration_seconds";
        let _ = write!(text, "# HELP {name} Duration of requests.\n# TYPE {name} histogram\n");
        for ((route, method), counts) in routes.iter() {
            let labels = format!(r#"route="{route}",method="{method}""#);
            for (end, count) in BUCKETS.iter().zip(counts.buckets) {
                let _ = writeln!(text, r#"{name}_bucket{{{labels},le="{end}"}} {count}"#);
            }
            let _ = writeln!(text, r#"{name}_bucket{{{labels},le="+Inf"}} {}"#, counts.count);
            let _ = writeln!(text, "{name}_sum{{{labels}}} {}", counts.seconds);
            let _ = writeln!(text, "{name}_count{{{labels}}} {}", counts.count);
        }
    }
}

/// Returns Prometheus metrics: requests by route and status, their durations, embedded images and cache hits.
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "metrics as text", content_type = "text/plain", body = String)))]
pub async fn metrics(State(app): State<SharedApp>) -> impl IntoResponse {
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}
