//! The server on a socket ([`serve`]): accepts connections, closes those that keep it waiting, and stops on Ctrl-C or
//! SIGTERM. `connections` knows what every connection is doing, and decides which ones to close.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_service::Service;

use crate::connections::{
    CHECK_INTERVAL, ClientStream, Connection, Connections, OpenConnection, ResponseBody,
};
use crate::state::SharedApp;

/// How long complete requests may continue after the server is told to stop.
const WORK_GRACE: Duration = Duration::from_secs(10);
/// How long bodies may still arrive after the server is told to stop, and how long a client may then pause while it
/// reads its response.
const BODY_GRACE: Duration = Duration::from_secs(1);
/// The pause after a failed accept.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The size of the read buffer of a connection in bytes, and so the maximum length of the headers of a request.
const READ_AHEAD: usize = 64 << 10;

/// Serves until `stop` is ready, which is usually a [`stop_signal`]. Requests that are complete by then may continue
/// for some seconds.
pub async fn serve(listener: TcpListener, app: SharedApp, stop: impl Future<Output = ()>) {
    let connections = Connections::new(&app.limits);
    let (stopping, is_stopping) = watch::channel(false);
    // The first two futures never end: this waits for `stop`.
    tokio::select! {
        () = accept(&listener, &connections, crate::app(app), is_stopping) => {}
        () = close_overdue(&connections) => {}
        () = stop => {}
    }
    // From here on: accept nothing, let open connections finish their current request, and close the others.
    drop(listener);
    stopping.send_replace(true);
    tokio::select! {
        () = connections.all_closed() => {}
        () = close_gradually(&connections) => {}
    }
}

/// Accepts connections forever.
async fn accept(
    listener: &TcpListener,
    connections: &Arc<Connections>,
    router: Router,
    is_stopping: watch::Receiver<bool>,
) {
    for number in 0.. {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // The system has no descriptors or no memory left; closing a connection frees some.
                    connections.close_one();
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        };
        let open = connections.add(number).await;
        tokio::spawn(serve_connection(stream, open, router.clone(), is_stopping.clone()));
    }
}

/// Closes connections that have exceeded their time limits, forever.
async fn close_overdue(connections: &Connections) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        connections.close_overdue();
    }
}

/// Closes connections when the server stops: first those without a request, then those whose request is incomplete, and
/// finally the rest.
async fn close_gradually(connections: &Connections) {
    connections.close_without_request();
    tokio::time::sleep(BODY_GRACE).await;
    let close_repeatedly = async {
        loop {
            connections.close_incomplete(BODY_GRACE);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    // Connections that are still open after this time end with the runtime of the caller.
    let _ = tokio::time::timeout(WORK_GRACE, close_repeatedly).await;
}

/// Serves the requests of one connection, one after the other.
async fn serve_connection(
    stream: TcpStream,
    open: OpenConnection,
    router: Router,
    mut is_stopping: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let connection = &open.connection;
    let io = TokioIo::new(ClientStream::new(stream, connection.clone()));
    let service = service_fn(|request| respond(router.clone(), connection.clone(), request));
    let mut http = http1::Builder::new();
    http.max_buf_size(READ_AHEAD);
    let mut serving = std::pin::pin!(http.serve_connection(io, service));
    // Errors are ignored: the client has disconnected, or has got an error response because it did not send valid HTTP.
    tokio::select! {
        _ = serving.as_mut() => return,
        () = connection.close_requested() => return,
        _ = is_stopping.wait_for(|is_stopping| *is_stopping) => {}
    }
    // The server stops: hyper finishes the current request and then closes the connection.
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = serving => {}
        () = connection.close_requested() => {}
    }
}

/// Answers one request. `drain` finds the connection in the extensions of the request, to report when the body is
/// complete; the response reports when it has been sent.
async fn respond(
    mut router: Router,
    connection: Arc<Connection>,
    request: hyper::Request<hyper::body::Incoming>,
) -> Result<Response, Infallible> {
    connection.request_started();
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(connection.clone());
    let response = router.call(request).await?;
    Ok(response.map(|body| Body::new(ResponseBody::new(body, connection))))
}

/// A future that is ready after Ctrl-C or SIGTERM. Signals are handled from this call on: call it before you report
/// that the server is ready. Must be called inside a Tokio runtime.
#[cfg(unix)]
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! { _ = interrupted.recv() => {}, _ = terminated.recv() => {} }
    })
}

/// A future that is ready after Ctrl-C. The signal is handled from this call on: call it before you report that the
/// server is ready. Must be called inside a Tokio runtime.
#[cfg(windows)]
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupted = tokio::signal::windows::ctrl_c()?;
    Ok(async move {
        let _ = interrupted.recv().await;
    })
}
