//! A server on a socket, until it is told to stop.

use std::time::Duration;

use tokio::net::TcpListener;

use crate::state::Shared;

/// How long requests may go on when the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Answers until Ctrl-C or SIGTERM; requests that have begun are answered still, for some seconds.
pub async fn serve(listener: TcpListener, app: Shared) -> std::io::Result<()> {
    let (told, mut hears) = tokio::sync::watch::channel(false);
    let stopped = async move {
        stop_signal().await;
        let _ = told.send(true);
    };
    let serving = axum::serve(listener, crate::app(app)).with_graceful_shutdown(stopped);
    let patience = async {
        let _ = hears.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = async { serving.await } => ended,
        () = patience => Ok(()),
    }
}

async fn stop_signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! { () = interrupted => {}, () = terminated => {} }
}
