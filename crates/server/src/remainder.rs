//! What a refused request still had to say. A connection that is closed while its client is sending tells the client that it
//! was reset, and the answer is lost: a clean "come again" needs the rest of the body to be read, and thrown away.

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

use crate::state::Shared;

/// How long a client may take to send what nobody wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// A body that is lent to whoever answers.
struct Lent(Arc<Mutex<Body>>);

fn locked(body: &Mutex<Body>) -> MutexGuard<'_, Body> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *locked(&self.0)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        locked(&self.0).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        locked(&self.0).size_hint()
    }
}

/// Reads to the end what was refused, unless the client waits to be asked for it.
pub async fn finish(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let waits = parts.headers.contains_key(header::EXPECT);
    let body = Arc::new(Mutex::new(body));
    let response = next.run(Request::from_parts(parts, Body::new(Lent(body.clone())))).await;
    if !waits && !response.status().is_success() {
        let _ = tokio::time::timeout(PATIENCE, discard(&body, 2 * app.limits.body)).await;
    }
    response
}

async fn discard(body: &Mutex<Body>, most: usize) {
    let mut left = most;
    let next = || std::future::poll_fn(|context| Pin::new(&mut *locked(body)).poll_frame(context));
    while let Some(Ok(frame)) = next().await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
