//! A request body that must keep arriving ([`StallTimeoutBody`]): it fails if too few bytes arrive within the stall
//! time. A limit on the total time would not suffice: until it is over, a client that sends a single byte from time to
//! time would hold a connection and memory.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::connections::Connection;
use crate::limits::MIN_PROGRESS_BYTES;
use crate::problem::Problem;

/// A body that fails with [`Stalled`] when the server has waited `stall_time` for the client, in one piece or several,
/// and fewer than [`MIN_PROGRESS_BYTES`] bytes have arrived meanwhile. Time in which the server does not ask for more
/// of the body, for instance because it waits for free memory, does not count.
pub struct StallTimeoutBody {
    body: Body,
    stall_time: Duration,
    /// How much of the stall time is left, up to the start of the current wait.
    remaining: Duration,
    /// Bytes that have arrived since the stall time last started.
    arrived: usize,
    /// Since when the server waits for the client, and a timer for the remaining time; `None` while it does not wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// `None` in tests.
    connection: Option<Arc<Connection>>,
}

/// The error of a body that arrives too slowly.
#[derive(Debug, Clone, Copy)]
pub struct Stalled {
    stall_time: Duration,
}

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.stall_time.as_secs_f32();
        write!(f, "the body stalled: fewer than {MIN_PROGRESS_BYTES} bytes of it arrived in {seconds} s")
    }
}

impl std::error::Error for Stalled {}

impl Stalled {
    /// Finds a stalled body among the causes of an error.
    pub fn from_error(error: &axum::Error) -> Option<Stalled> {
        let first: &(dyn std::error::Error + 'static) = error;
        std::iter::successors(Some(first), |cause| cause.source())
            .find_map(|cause| cause.downcast_ref::<Stalled>().copied())
    }
}

impl From<Stalled> for Problem {
    fn from(stalled: Stalled) -> Self {
        let status = axum::http::StatusCode::REQUEST_TIMEOUT;
        Problem::new(status, stalled.to_string())
            .hint("send faster, or start the server with a larger --stall-timeout")
    }
}

impl StallTimeoutBody {
    pub fn new(body: Body, stall_time: Duration, connection: Option<Arc<Connection>>) -> Self {
        let body = StallTimeoutBody {
            body,
            stall_time,
            remaining: stall_time,
            arrived: 0,
            waiting: None,
            connection,
        };
        body.record_end(body.is_end_stream());
        body
    }

    /// Reports the end of the body to the connection, if the body is complete.
    fn record_end(&self, is_complete: bool) {
        if let Some(connection) = self.connection.as_ref().filter(|_| is_complete) {
            connection.body_complete();
        }
    }

    /// Counts bytes that have arrived. With [`MIN_PROGRESS_BYTES`] of them, the stall time starts again.
    fn add_arrived(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.remaining = self.remaining.saturating_sub(since.elapsed());
        }
        self.arrived += bytes;
        if self.arrived >= MIN_PROGRESS_BYTES {
            (self.arrived, self.remaining) = (0, self.stall_time);
        }
        if let Some(connection) = &self.connection {
            connection.set_awaits_body(false);
        }
    }

    /// Called while the server waits for the client: ready when the stall time is over.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<Stalled> {
        if let Some(connection) = &self.connection {
            connection.set_awaits_body(true);
        }
        let remaining = self.remaining;
        let start_timer = || (Instant::now(), Box::pin(tokio::time::sleep(remaining)));
        let (_, timer) = self.waiting.get_or_insert_with(start_timer);
        timer.as_mut().poll(context).map(|()| Stalled { stall_time: self.stall_time })
    }
}

impl HttpBody for StallTimeoutBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Pending => {
                return self.poll_stalled(context).map(|stalled| Some(Err(axum::Error::new(stalled))));
            }
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                self.add_arrived(data.map_or(0, Bytes::len));
            }
        }
        // The end of a chunked body is known only when there is no further frame.
        self.record_end(matches!(polled, Poll::Ready(None)) || self.is_end_stream());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::BodyExt;

    use super::*;

    /// A body that sends frames, each given as a pause in seconds and a length.
    struct SlowBody {
        frames: VecDeque<(u64, usize)>,
        /// The timer of the pause before the next frame.
        pause: Option<Pin<Box<Sleep>>>,
    }

    impl HttpBody for SlowBody {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            let Some(&(seconds, bytes)) = self.frames.front() else { return Poll::Ready(None) };
            let start_pause = || Box::pin(tokio::time::sleep(Duration::from_secs(seconds)));
            let pause = self.pause.get_or_insert_with(start_pause);
            std::task::ready!(pause.as_mut().poll(context));
            self.pause = None;
            self.frames.pop_front();
            Poll::Ready(Some(Ok(Frame::data(vec![0; bytes].into()))))
        }
    }

    /// The number of bytes that arrive with a stall time of 10 s, or the error. The clock is simulated.
    fn received(frames: &[(u64, usize)]) -> Result<usize, Stalled> {
        let slow = SlowBody { frames: frames.iter().copied().collect(), pause: None };
        let body = StallTimeoutBody::new(Body::new(slow), Duration::from_secs(10), None);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let collected =
            builder.enable_time().start_paused(true).build().unwrap().block_on(Body::new(body).collect());
        collected
            .map(|body| body.to_bytes().len())
            .map_err(|error| Stalled::from_error(&error).expect("the only error is a stalled body"))
    }

    #[test]
    fn a_body_that_makes_progress_may_take_long() {
        assert_eq!(received(&[(9, MIN_PROGRESS_BYTES); 20]).unwrap(), 20 * MIN_PROGRESS_BYTES);
        assert_eq!(received(&[(1, MIN_PROGRESS_BYTES / 8); 100]).unwrap(), 100 * MIN_PROGRESS_BYTES / 8);
    }

    #[test]
    fn a_short_body_may_end_before_its_time_is_over() {
        assert_eq!(received(&[(9, 1)]).unwrap(), 1);
        assert_eq!(received(&[]).unwrap(), 0);
    }

    #[test]
    fn a_body_that_stops_or_arrives_too_slowly_is_refused() {
        assert!(received(&[(0, 1), (3600, 1)]).is_err());
        assert!(received(&[(1, 100); 20]).is_err(), "a little at a time is not progress");
        let stops = [vec![(1, MIN_PROGRESS_BYTES); 5], vec![(11, 1)]].concat();
        assert_eq!(
            received(&stops).unwrap_err().to_string(),
            "the body stalled: fewer than 10240 bytes of it arrived in 10 s"
        );
    }
}
