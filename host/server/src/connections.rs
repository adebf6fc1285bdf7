//! Connections of callers: accepts, serves and closes them.
//!
//! The server speaks HTTP/1.1 only: a connection that may become HTTP/2 costs twice the memory while it waits, and a
//! trainer has one open for each rollout whose result it polls for. A handler may upgrade a connection to another
//! protocol, such as WebSocket. An upgraded connection is never closed to make room, counts as open, and reads an end
//! of file when the server stops.
//!
//! The number of connections is limited by the available descriptors ([`rollout_core::capacity`]). Silent connections
//! are closed for new ones, so callers cannot block the server with connections that are silent or idle. With many
//! tenants, the one with the most connections loses one, or has a poll answered early ([`table`]).

mod socket;
mod stream;
mod table;
mod watched;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Caller, Crowded, WhenWritten};
use crate::tls::ServerTls;
use rollout_core::capacity::CALLERS_SPARE;
pub use socket::{Bound, Listening, bind, listen};
use stream::ByteStream;
use table::{Stage, Table, TrackedConnection};
use watched::{CallerStream, ResponseBody, TimedBody, WrittenCallback};

/// Maximum size of a connection's read buffer, and so of a request's head. Heads usually have a few hundred bytes.
const READ_BYTES_MAX: usize = 32 << 10;

/// Interval at which connections with an exceeded timeout are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which close requests are repeated while a new connection waits for a descriptor.
const HURRY_INTERVAL: Duration = Duration::from_millis(50);

/// Pause after a connection could not be accepted, usually for lack of descriptors.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);

/// Accepts and serves connections, at most `callers_max` at once, until `drained` is cancelled. Then closes the
/// listener and waits until the requests in progress are answered.
pub async fn serve(
    listening: impl Into<Listening>,
    router: Router,
    callers_max: usize,
    drained: CancellationToken,
) {
    let Listening { listener, tls, leaving } = listening.into();
    let connections = TaskTracker::new();
    let table = Table::new(callers_max);
    let sweeping = connections.spawn(sweep(table.clone()));
    loop {
        let accepted = tokio::select! {
            biased;
            () = drained.cancelled() => break,
            () = leaving.cancelled() => break,
            accepted = accept(&listener, &table, callers_max) => accepted,
        };
        match accepted {
            Ok((stream, is_crowded)) => {
                let context = ConnectionContext {
                    router: router.clone(),
                    is_crowded,
                    leaving: leaving.clone(),
                    tracked: table.enter(),
                };
                connections.spawn(serve_connection(stream, tls.clone(), context, drained.clone()));
            }
            // The caller closed the connection before it was accepted.
            Err(error) if is_caller_error(&error) => {}
            Err(error) => {
                tracing::warn!(%error, open = table.open(), "a connection cannot be accepted; retrying");
                table.make_room();
                tokio::time::sleep(NO_DESCRIPTOR_PAUSE).await;
            }
        }
    }
    drop(listener);
    sweeping.abort();
    connections.close();
    connections.wait().await;
}

/// Accepts the next connection, and waits until there is a descriptor for another one. Returns the connection and
/// whether it exceeds `callers_max`.
async fn accept(
    listener: &TcpListener,
    table: &Arc<Table>,
    callers_max: usize,
) -> io::Result<(TcpStream, bool)> {
    let (stream, _) = listener.accept().await?;
    if table.open() >= callers_max && !table.make_room() {
        // Lets the tasks of the newest connections run once: a silent one among them can be closed then.
        tokio::task::yield_now().await;
        if table.open() >= callers_max {
            table.make_room();
        }
    }
    // A closing connection still has its descriptor for a moment. Connections are asked to close only after a new one
    // was accepted.
    while table.descriptors() >= callers_max + CALLERS_SPARE {
        if table.open() >= callers_max {
            table.make_room();
        }
        table.hurry();
        let _ = tokio::time::timeout(HURRY_INTERVAL, table.wait_for_change()).await;
    }
    let is_crowded = table.open() >= callers_max;
    Ok((stream, is_crowded))
}

/// Closes connections with exceeded timeouts, at intervals.
async fn sweep(table: Arc<Table>) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        table.sweep();
    }
}

/// Returns whether the caller, and not the server, is the cause that a connection was not accepted.
fn is_caller_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// State with which a connection is served.
struct ConnectionContext {
    router: Router,
    is_crowded: bool,
    leaving: CancellationToken,
    tracked: Arc<TrackedConnection>,
}

/// The service of one connection. It passes the connection to each handler and notes the stages of requests and
/// responses.
struct TrackingService {
    inner: TowerToHyperService<Router>,
    is_crowded: bool,
    leaving: CancellationToken,
    tracked: Arc<TrackedConnection>,
    written_callback: Arc<WrittenCallback>,
}

impl Service<Request<Incoming>> for TrackingService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (tracked, written_callback) = (self.tracked.clone(), self.written_callback.clone());
        let leaving = self.leaving.clone();
        // A connection beyond the limit, or one that should be closed by now, may not start a long request.
        let is_crowded = self.is_crowded && tracked.is_table_full() || tracked.is_overdue();
        // The body of a response to HEAD is never written.
        let has_body = request.method() != Method::HEAD;
        let mut request = request.map(|body| TimedBody::new(body, tracked.clone()));
        if is_crowded {
            request.extensions_mut().insert(Crowded);
        }
        request.extensions_mut().insert(Caller::new(tracked.clone()));
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response: Response<Body> = response.await?;
            let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            let is_last =
                leaving.is_cancelled() || tracked.is_closing() || tracked.must_close_after_response();
            if (is_crowded || is_last) && !is_upgraded {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let callback = response.extensions_mut().remove::<WhenWritten>();
            written_callback.set(callback.filter(|_| has_body));
            let response = response.map(|body| ResponseBody::new(body, tracked.clone()));
            if is_upgraded {
                tracked.set_stage(Stage::Upgraded);
            }
            Ok(response)
        })
    }
}

/// Performs the TLS handshake. Meanwhile the connection is at the stage `Head`, with its timeout, and may be closed to
/// make room.
async fn handshake(
    tcp: TcpStream,
    tls: &ServerTls,
    tracked: &TrackedConnection,
    drained: &CancellationToken,
) -> Option<ByteStream> {
    tracked.set_stage(Stage::Head);
    tokio::select! {
        accepted = tls.accept(tcp) => match accepted {
            Ok(stream) => Some(ByteStream::Encrypted(Box::new(stream))),
            Err(error) => {
                tracing::debug!(%error, "the TLS handshake of a connection failed");
                None
            }
        },
        () = tracked.close_requested() => {
            tracing::debug!("a connection was closed during its TLS handshake: it took too long, or made room");
            None
        }
        () = drained.cancelled() => None,
    }
}

/// Serves a connection until it ends.
async fn serve_connection(
    tcp: TcpStream,
    tls: Option<ServerTls>,
    context: ConnectionContext,
    drained: CancellationToken,
) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    let bytes = match tls {
        None => ByteStream::Plain(tcp),
        // Boxed, so that plain connections do not have the size of this future.
        Some(tls) => match Box::pin(handshake(tcp, &tls, &context.tracked, &drained)).await {
            Some(bytes) => bytes,
            None => return,
        },
    };
    let ConnectionContext { router, is_crowded, leaving, tracked } = context;
    let written_callback = Arc::<WrittenCallback>::default();
    let service = TrackingService {
        inner: TowerToHyperService::new(router),
        is_crowded,
        leaving,
        tracked: tracked.clone(),
        written_callback: written_callback.clone(),
    };
    let (alive, mut dropped) = oneshot::channel();
    let stream =
        CallerStream { bytes, tracked: tracked.clone(), written_callback, linger: None, _alive: alive };
    let mut protocol = http1::Builder::new();
    // The table has the timeouts of heads, because it distinguishes a late head from an idle connection.
    protocol.max_buf_size(READ_BYTES_MAX).header_read_timeout(None::<Duration>);
    let served = protocol.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut served = pin!(served);
    let mut is_ending = false;
    let result = loop {
        tokio::select! {
            result = served.as_mut() => break result,
            () = drained.cancelled(), if !is_ending => is_ending = true,
            () = tracked.close_requested() => {
                if !tracked.is_in_progress() {
                    // A request may have arrived that was not read yet. It is answered first.
                    tracked.begin_look();
                    let polled = poll_fn(|cx| Poll::Ready(served.as_mut().poll(cx))).await;
                    let is_unread = tracked.end_look();
                    match polled {
                        Poll::Ready(result) => break result,
                        Poll::Pending if tracked.is_in_progress() => {}
                        Poll::Pending if is_unread => continue,
                        Poll::Pending => {
                            tracing::debug!("a connection was closed: it was silent for too long, or made room");
                            return;
                        }
                    }
                }
                // A request whose handler runs is answered first, a waiting poll early.
                is_ending = true;
            }
        }
        served.as_mut().graceful_shutdown();
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection failed");
    }
    if tracked.stage() == Stage::Upgraded {
        // The upgraded stream belongs to its handler; `dropped` completes when the handler drops it.
        tokio::select! {
            _ = &mut dropped => {}
            () = drained.cancelled() => {
                tracked.hang_up();
                let _ = dropped.await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
