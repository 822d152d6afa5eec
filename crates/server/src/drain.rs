//! Reads and discards the rest of a refused body ([`drain_refused_body`]). If the server closed the connection while
//! the client is sending, the client would see a reset instead of the response.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::connections::Connection;
use crate::stall_timeout::StallTimeoutBody;
use crate::state::SharedApp;

/// The time limit for reading the rest of a refused body.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(10);

/// The body as the handler of a request receives it. The handler may drop it unread; the middleware then reads the
/// rest.
struct SharedBody(Arc<Mutex<StallTimeoutBody>>);

fn lock(body: &Mutex<StallTimeoutBody>) -> MutexGuard<'_, StallTimeoutBody> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *lock(&self.0)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).size_hint()
    }
}

/// Handles a request. If it is refused, reads its body to the end, unless the client sends it only after a `100
/// Continue`.
pub async fn drain_refused_body(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let expects_continue = parts.headers.contains_key(header::EXPECT);
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    let body = Arc::new(Mutex::new(StallTimeoutBody::new(body, app.limits.stall_time, connection)));
    let response = next.run(Request::from_parts(parts, Body::new(SharedBody(body.clone())))).await;
    if !expects_continue && !response.status().is_success() {
        // A body that is refused because it is too long is read up to twice the limit, so that a client that exceeds
        // the limit a little still sees the response.
        let _ = tokio::time::timeout(MAX_DRAIN_TIME, discard(&body, 2 * app.limits.body)).await;
    }
    response
}

/// Reads a body to its end, but at most about `max_bytes` bytes.
async fn discard(body: &Mutex<StallTimeoutBody>, max_bytes: usize) {
    let mut left = max_bytes;
    let next = || std::future::poll_fn(|context| Pin::new(&mut *lock(body)).poll_frame(context));
    while let Some(Ok(frame)) = next().await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
