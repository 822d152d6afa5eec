//! The open connections ([`Connections`]): their number, what each is doing, and which one to close when there are too
//! many.
//!
//! The number of connections is limited, because each takes a file descriptor and some memory. If one more client
//! connects, the server closes the connection whose client has kept the server waiting longest: a client that sent
//! no request yet, sends nothing more of a body, or does not read a response. So clients that open connections and
//! send nothing cannot block others. A connection on which a response was sent may be silent ten times as long before
//! it is chosen. A new client waits only if the requests of all connections are being processed.
//!
//! `http_server` registers every connection ([`Connections::add`]) and closes those that should be closed. Three
//! wrappers report what a connection is doing: [`ClientStream`] around the socket, `StallTimeoutBody` around the body
//! of a request, and [`ResponseBody`] around that of a response.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::Limits;

/// File descriptors reserved for files, standard streams and the runtime.
#[cfg(unix)]
const OTHER_DESCRIPTORS: usize = 64;
/// The interval between checks for connections that keep the server waiting.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// When the server chooses a connection to close, the waiting time of one that has had a response is divided by this:
/// its client has shown that it sends complete requests.
const ANSWERED_PATIENCE: u32 = 10;
/// The number of connections that are allowed even if the system has few descriptors.
#[cfg(unix)]
const MIN_CONNECTIONS: usize = 16;

/// The open connections and their limits.
pub struct Connections {
    /// By the number that [`Connections::add`] was given.
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    limit: usize,
    /// Notified when a connection has been closed.
    freed: Notify,
    header_time: Duration,
    stall_time: Duration,
    idle_time: Duration,
}

/// One connection, shared by the wrappers that report what it is doing.
pub struct Connection {
    activity: Mutex<Activity>,
    /// Notified when the connection should be closed.
    close: Notify,
}

/// What a connection is doing.
struct Activity {
    phase: Phase,
    /// Since when the server waits for the client to send headers or more of a body; `None` if it does not wait.
    waiting_for_request_since: Option<Instant>,
    /// Since when the server waits for the client to read a response; `None` if it does not wait.
    waiting_for_reader_since: Option<Instant>,
    /// Whether a response has been sent.
    has_answered: bool,
}

impl Activity {
    /// How long the server has been waiting for the client, divided by [`ANSWERED_PATIENCE`] after a response; `None`
    /// if it does not wait.
    fn weighted_waiting_time(&self) -> Option<Duration> {
        let since = self.waiting_for_request_since.into_iter().chain(self.waiting_for_reader_since).min()?;
        Some(since.elapsed() / if self.has_answered { ANSWERED_PATIENCE } else { 1 })
    }
}

/// The phases of a connection: `Head`, `Body`, `Work`, `Flush` and `Idle` for every request, and at the end `Closing`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The server waits for the headers of a request.
    Head,
    /// A response was sent, and nothing of the next request has arrived.
    Idle,
    /// The body of a request is being received.
    Body,
    /// A complete request is being processed, or its response sent.
    Work,
    /// The rest of the response is in the buffer of hyper, which writes it to the socket.
    Flush,
    /// The connection will be closed.
    Closing,
}

impl Connections {
    /// No connections, with these limits.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Connections {
            open: Mutex::default(),
            limit: limits.connections.min(allowed_by_system(limits.connections)).max(1),
            freed: Notify::new(),
            header_time: limits.header_time,
            stall_time: limits.stall_time,
            idle_time: limits.idle_time,
        })
    }

    /// Registers an accepted connection under a number that no other connection has. If there are too many, closes
    /// another one and waits until it is gone.
    pub async fn add(self: &Arc<Self>, number: u64) -> OpenConnection {
        loop {
            {
                let mut open = self.open();
                if open.len() < self.limit {
                    let connection = Arc::new(Connection::new());
                    open.insert(number, connection.clone());
                    return OpenConnection { all: self.clone(), number, connection };
                }
                close_longest_waiting(&open);
            }
            // Look again after a while: a connection that was working may wait for its client by then.
            let _ = tokio::time::timeout(CHECK_INTERVAL, self.freed.notified()).await;
        }
    }

    /// Closes the connection whose client has kept the server waiting longest.
    pub fn close_one(&self) {
        close_longest_waiting(&self.open());
    }

    /// Closes connections that have exceeded their time limits.
    pub fn close_overdue(&self) {
        self.close_if(|activity| {
            let time_limit = match activity.phase {
                Phase::Head => self.header_time,
                Phase::Idle => self.idle_time,
                // A body that stalls is refused after the stall time. This is for clients that ignore the response.
                Phase::Body => 2 * self.stall_time,
                Phase::Work | Phase::Flush | Phase::Closing => Duration::MAX,
            };
            is_longer_than(activity.waiting_for_request_since, time_limit)
                || is_longer_than(activity.waiting_for_reader_since, self.stall_time)
        });
    }

    /// Closes connections without a complete request, and those whose clients did not read a response for `patience`.
    pub fn close_incomplete(&self, patience: Duration) {
        self.close_if(|activity| {
            !matches!(activity.phase, Phase::Work | Phase::Flush)
                || is_longer_than(activity.waiting_for_reader_since, patience)
        });
    }

    /// Closes connections that have not started a request.
    pub fn close_without_request(&self) {
        self.close_if(|activity| matches!(activity.phase, Phase::Head | Phase::Idle));
    }

    fn close_if(&self, is_unwanted: impl Fn(&Activity) -> bool) {
        for connection in self.open().values() {
            let mut activity = connection.activity();
            if is_unwanted(&activity) {
                connection.close(&mut activity);
            }
        }
    }

    /// Waits until no connection is open.
    pub async fn all_closed(&self) {
        while !self.open().is_empty() {
            self.freed.notified().await;
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the time since `since` exceeds `limit`; false if `since` is `None`, because then the server does not wait.
fn is_longer_than(since: Option<Instant>, limit: Duration) -> bool {
    since.is_some_and(|since| since.elapsed() > limit)
}

/// Closes the connection with the longest [weighted waiting time](Activity::weighted_waiting_time), if the server waits
/// for any client.
fn close_longest_waiting(open: &HashMap<u64, Arc<Connection>>) {
    let waiting = open
        .values()
        .filter_map(|connection| Some((connection.activity().weighted_waiting_time()?, connection)));
    if let Some((_, connection)) = waiting.max_by_key(|(waiting, _)| *waiting) {
        connection.close(&mut connection.activity());
    }
}

/// The number of connections for which the system has descriptors. Raises the soft limit as far as needed and allowed.
#[cfg(unix)]
fn allowed_by_system(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // `current` is the soft limit, `maximum` the hard one; `None` is unlimited.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = ((wanted + OTHER_DESCRIPTORS) as u64).min(maximum.unwrap_or(u64::MAX));
    let mut allowed = current.unwrap_or(u64::MAX);
    if allowed < needed && setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).is_ok() {
        allowed = needed;
    }
    (allowed as usize).saturating_sub(OTHER_DESCRIPTORS).max(MIN_CONNECTIONS)
}

#[cfg(not(unix))]
fn allowed_by_system(wanted: usize) -> usize {
    wanted
}

/// A registered connection; removed on drop.
pub struct OpenConnection {
    all: Arc<Connections>,
    number: u64,
    pub connection: Arc<Connection>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.open().remove(&self.number);
        self.all.freed.notify_one();
    }
}

impl Connection {
    fn new() -> Self {
        let activity = Activity {
            phase: Phase::Head,
            waiting_for_request_since: Some(Instant::now()),
            waiting_for_reader_since: None,
            has_answered: false,
        };
        Connection { activity: Mutex::new(activity), close: Notify::new() }
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the task of the connection to close it.
    fn close(&self, activity: &mut Activity) {
        activity.phase = Phase::Closing;
        (activity.waiting_for_request_since, activity.waiting_for_reader_since) = (None, None);
        self.close.notify_one();
    }

    /// Sets a phase in which the server does not wait for a request.
    fn set_phase(&self, phase: Phase) {
        let mut activity = self.activity();
        if activity.phase != Phase::Closing {
            (activity.phase, activity.waiting_for_request_since) = (phase, None);
        }
    }

    /// Waits until the connection should be closed.
    pub async fn close_requested(&self) {
        self.close.notified().await;
    }

    /// Called when bytes have arrived.
    fn received(&self) {
        let mut activity = self.activity();
        if activity.phase == Phase::Idle {
            (activity.phase, activity.waiting_for_request_since) = (Phase::Head, Some(Instant::now()));
        }
    }

    /// Called when the headers of a request are complete.
    pub fn request_started(&self) {
        self.set_phase(Phase::Body);
    }

    /// Called when the body of a request is complete.
    pub fn body_complete(&self) {
        self.set_phase(Phase::Work);
    }

    /// Sets whether the server waits for more of a body.
    pub fn set_awaits_body(&self, waits: bool) {
        let mut activity = self.activity();
        if activity.phase == Phase::Body {
            let since = activity.waiting_for_request_since;
            activity.waiting_for_request_since = waits.then(|| since.unwrap_or_else(Instant::now));
        }
    }

    /// Sets whether the client accepts more of a response.
    fn set_writable(&self, is_writable: bool) {
        let mut activity = self.activity();
        if activity.phase != Phase::Closing {
            let since = activity.waiting_for_reader_since;
            activity.waiting_for_reader_since = (!is_writable).then(|| since.unwrap_or_else(Instant::now));
        }
    }

    /// Called when hyper has taken the whole response into its buffer.
    fn response_buffered(&self) {
        self.set_phase(Phase::Flush);
    }

    /// Called when everything in the buffer of hyper has been passed to the socket.
    fn flushed(&self) {
        let mut activity = self.activity();
        if activity.phase == Phase::Flush {
            (activity.phase, activity.waiting_for_request_since) = (Phase::Idle, Some(Instant::now()));
            activity.has_answered = true;
        }
    }
}

/// A socket that records when bytes arrive and when the client does not accept any.
pub struct ClientStream {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl ClientStream {
    pub fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        ClientStream { stream, connection }
    }

    fn record_write<T>(&self, written: Poll<T>) -> Poll<T> {
        self.connection.set_writable(written.is_ready());
        written
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.connection.received();
        }
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // hyper flushes the socket after it has written its whole buffer.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a response, which notifies its connection when hyper has taken all of it.
pub struct ResponseBody {
    body: Body,
    connection: Arc<Connection>,
}

impl ResponseBody {
    pub fn new(body: Body, connection: Arc<Connection>) -> Self {
        ResponseBody { body, connection }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.connection.response_buffered();
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
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
    use http_body_util::BodyExt;

    use super::*;
    use crate::stall_timeout::StallTimeoutBody;

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(&Limits { connections: limit, ..Limits::default() })
    }

    fn is_closing(open: &OpenConnection) -> bool {
        open.connection.activity().phase == Phase::Closing
    }

    fn send_response(open: &OpenConnection) {
        open.connection.response_buffered();
        open.connection.flushed();
    }

    async fn advance_seconds(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_client_replaces_the_one_that_has_kept_the_server_waiting_longest() {
        let all = connections(3);
        let working = all.add(0).await;
        working.connection.request_started();
        working.connection.body_complete();
        advance_seconds(1).await;
        let old = all.add(1).await;
        advance_seconds(1).await;
        let young = all.add(2).await;
        let next = tokio::spawn({
            let all = all.clone();
            async move { all.add(3).await }
        });
        old.connection.close_requested().await;
        assert!(!next.is_finished(), "the old one is still open");
        drop(old);
        let next = next.await.unwrap();
        assert!(!is_closing(&young) && !is_closing(&working) && !is_closing(&next));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_answered_may_pause_for_longer_than_one_that_sent_nothing() {
        let all = connections(2);
        let answered = all.add(0).await;
        answered.connection.request_started();
        send_response(&answered);
        advance_seconds(5).await;
        let half_open = all.add(1).await;
        advance_seconds(1).await;
        all.close_one();
        assert!(is_closing(&half_open) && !is_closing(&answered));
        drop(half_open);
        advance_seconds(60).await;
        let new = all.add(2).await;
        advance_seconds(1).await;
        all.close_one();
        assert!(is_closing(&answered) && !is_closing(&new));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_client_waits_while_all_requests_are_processed() {
        let all = connections(1);
        let working = all.add(0).await;
        working.connection.request_started();
        let next = tokio::time::timeout(Duration::from_secs(3600), all.add(1)).await;
        assert!(next.is_err() && !is_closing(&working));
        drop(working);
        all.add(2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_client_replaces_a_connection_that_becomes_idle() {
        let all = connections(1);
        let working = all.add(0).await;
        working.connection.request_started();
        working.connection.body_complete();
        let next = tokio::spawn({
            let all = all.clone();
            async move { all.add(1).await }
        });
        advance_seconds(1).await;
        assert!(!is_closing(&working));
        send_response(&working);
        let closed = tokio::time::timeout(Duration::from_secs(5), working.connection.close_requested()).await;
        assert!(closed.is_ok(), "the connection stays open although a client waits");
        drop(working);
        next.await.unwrap();
    }

    /// A body without a length, of one frame.
    struct ChunkedBody(Option<Bytes>);

    impl HttpBody for ChunkedBody {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunked_request_is_processed_after_its_last_frame() {
        let all = connections(1);
        let open = all.add(0).await;
        open.connection.request_started();
        let body = Body::new(ChunkedBody(Some(Bytes::from_static(b"rows"))));
        let body = StallTimeoutBody::new(body, Duration::from_secs(10), Some(open.connection.clone()));
        assert!(open.connection.activity().phase == Phase::Body);
        Body::new(body).collect().await.unwrap();
        assert!(open.connection.activity().phase == Phase::Work);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_response_slowly_is_not_idle() {
        let all = connections(1);
        let open = all.add(0).await;
        open.connection.request_started();
        open.connection.body_complete();
        open.connection.response_buffered();
        for _ in 0..20 {
            open.connection.set_writable(false);
            advance_seconds(9).await;
            open.connection.set_writable(true);
            all.close_overdue();
        }
        all.close_incomplete(Duration::from_secs(1));
        assert!(!is_closing(&open));
        open.connection.flushed();
        advance_seconds(76).await;
        all.close_overdue();
        assert!(is_closing(&open));
    }

    #[tokio::test(start_paused = true)]
    async fn headers_bodies_responses_and_pauses_have_separate_time_limits() {
        let all = connections(9);
        let (head, idle, body, unread, working) =
            (all.add(0).await, all.add(1).await, all.add(2).await, all.add(3).await, all.add(4).await);
        for open in [&idle, &body, &unread, &working] {
            open.connection.request_started();
        }
        send_response(&idle);
        body.connection.set_awaits_body(true);
        unread.connection.body_complete();
        unread.connection.set_writable(false);
        working.connection.body_complete();
        // After 11 s the headers and the unread response are overdue, after 21 s the body (twice the stall time,
        // because it is refused first), after 81 s the pause between requests; work has no limit here.
        for (seconds, closed) in [(9, 0), (2, 2), (10, 3), (60, 4), (3600, 4)] {
            advance_seconds(seconds).await;
            all.close_overdue();
            let closing = [&head, &unread, &body, &idle, &working].map(is_closing);
            assert_eq!(closing.iter().filter(|closing| **closing).count(), closed, "{closing:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_buffered_response_that_the_client_does_not_read_is_overdue() {
        let all = connections(1);
        let open = all.add(0).await;
        open.connection.request_started();
        open.connection.body_complete();
        open.connection.response_buffered();
        open.connection.set_writable(false);
        advance_seconds(11).await;
        all.close_overdue();
        assert!(is_closing(&open));
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_arrive_byte_by_byte_get_no_extra_time() {
        let all = connections(1);
        let open = all.add(0).await;
        open.connection.request_started();
        send_response(&open);
        advance_seconds(70).await;
        for _ in 0..11 {
            open.connection.received();
            all.close_overdue();
            assert!(!is_closing(&open));
            advance_seconds(1).await;
        }
        all.close_overdue();
        assert!(is_closing(&open));
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_server_stops_only_work_and_responses_that_are_read_continue() {
        let all = connections(9);
        let (head, body, stuck, working) =
            (all.add(0).await, all.add(1).await, all.add(2).await, all.add(3).await);
        for open in [&body, &stuck, &working] {
            open.connection.request_started();
        }
        stuck.connection.body_complete();
        stuck.connection.set_writable(false);
        working.connection.body_complete();
        all.close_without_request();
        assert!(is_closing(&head) && !is_closing(&body));
        advance_seconds(2).await;
        all.close_incomplete(Duration::from_secs(1));
        assert!(is_closing(&body) && is_closing(&stuck) && !is_closing(&working));
        drop((head, body, stuck, working));
        all.all_closed().await;
    }
}
