//! The connections of callers: taken, served, ended.
//!
//! HTTP/1.1 and nothing else, because a connection that could turn into another protocol
//! costs twice the memory while it waits, and a trainer has one open for every rollout
//! whose result it waits for.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections that may wait to be accepted. A trainer opens thousands at once, and one
/// that finds no place is tried again seconds later. The kernel caps it.
const BACKLOG: u32 = 16_384;

/// How long a caller may take over the head of a request. An idle connection between two
/// requests is ended by it, too, and callers open another.
const HEAD_TIME_MAX: Duration = Duration::from_secs(120);

/// How long to wait where the process has no descriptor left for a connection.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);

/// Listens on an address.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server takes its port over from connections that are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves whoever connects, until `drained`; then lets what is under way end.
pub(super) async fn serve(listener: TcpListener, router: Router, drained: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = drained.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone(), drained.clone()));
            }
            // One caller that went away before it was accepted is nobody's problem.
            Err(error) if is_the_callers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted; trying again");
                tokio::time::sleep(NO_DESCRIPTOR_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(stream: TcpStream, router: Router, drained: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = drained.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a caller's connection failed");
    }
}
