//! The connections of callers: taken, served, ended.
//!
//! HTTP/1.1, because a connection that could turn into HTTP/2 costs twice the memory while it
//! waits, and a trainer has one open for every rollout whose result it waits for. A handler may
//! upgrade a connection to a protocol of its own, such as WebSocket. It is that handler's then:
//! it makes room for nobody, counts as open, and reads an end when the server stops.
//!
//! There are as many connections as there are descriptors for ([`rollout_core::capacity`]). What is
//! silent makes room for what is new, so that neither those who open connections and say
//! nothing nor those who keep idle ones can shut a server. Among many tenants the one with the most
//! connections makes room, and its polls are answered early ([`table`]).

mod socket;
mod stream;
mod table;
mod watched;

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
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
use stream::Bytes;
use table::{Known, Stage, Table};
use watched::{AtTheEnd, InTime, Sent, Stream};

/// What a connection reads ahead, and with it the longest head. Callers' heads have a few
/// hundred bytes.
const READ_BYTES_MAX: usize = 32 << 10;

/// How often connections are looked at that have been silent for too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How often connections that are closing are hurried where there is no descriptor before one ends.
const HURRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long to wait where the process has no descriptor left for a connection.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);

/// Serves whoever connects, at most `callers_max` at once, until `drained`; then lets what is
/// under way end. What is listened on is left at once.
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
                let served = Served {
                    router: router.clone(),
                    is_crowded,
                    leaving: leaving.clone(),
                    known: table.enter(),
                };
                connections.spawn(connection(stream, tls.clone(), served, drained.clone()));
            }
            // One caller that went away before it was accepted is nobody's problem.
            Err(error) if is_the_callers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, open = table.open(), "no connection can be accepted; trying again");
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

/// Takes the next connection, and waits until there is a descriptor for more. Says whether it is beyond
/// those that may be worked for.
async fn accept(
    listener: &TcpListener,
    table: &Arc<Table>,
    callers_max: usize,
) -> io::Result<(TcpStream, bool)> {
    let (stream, _) = listener.accept().await?;
    if table.open() >= callers_max && !table.make_room() {
        // Those that came just before are looked at first: of them one may be silent.
        tokio::task::yield_now().await;
        if table.open() >= callers_max {
            table.make_room();
        }
    }
    // The one that goes may take a moment, in which it has its descriptor still. Nobody is sent
    // away before there is somebody to make room for.
    while table.descriptors() >= callers_max + CALLERS_SPARE {
        if table.open() >= callers_max {
            table.make_room();
        }
        table.hurry();
        let _ = tokio::time::timeout(HURRY_INTERVAL, table.left()).await;
    }
    let is_crowded = table.open() >= callers_max;
    Ok((stream, is_crowded))
}

async fn sweep(table: Arc<Table>) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        table.sweep();
    }
}

fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What one connection is served by.
struct Served {
    router: Router,
    is_crowded: bool,
    leaving: CancellationToken,
    known: Arc<Known>,
}

/// One connection's requests, each with what the connection has to know of it.
struct Watching {
    inner: TowerToHyperService<Router>,
    is_crowded: bool,
    leaving: CancellationToken,
    known: Arc<Known>,
    at_the_end: Arc<AtTheEnd>,
}

impl Service<Request<Incoming>> for Watching {
    type Response = Response<Sent>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (known, at_the_end) = (self.known.clone(), self.at_the_end.clone());
        // What is asked for by HEAD is sent by nobody.
        let leaving = self.leaving.clone();
        // One that was to make room does so before long work, where there is no room for that.
        let is_crowded = self.is_crowded && known.is_table_crowded() || known.is_closing_late();
        let is_told = request.method() != Method::HEAD;
        let mut request = request.map(|body| InTime::new(body, known.clone()));
        if is_crowded {
            request.extensions_mut().insert(Crowded);
        }
        request.extensions_mut().insert(Caller::new(known.clone()));
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response: Response<Body> = response.await?;
            let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if (is_crowded || leaving.is_cancelled() || known.ends_after_answer()) && !is_upgraded {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let then = response.extensions_mut().remove::<WhenWritten>();
            at_the_end.set(then.filter(|_| is_told));
            let response = response.map(|body| Sent::new(body, known.clone()));
            if is_upgraded {
                known.is_at(Stage::Upgraded);
            }
            Ok(response)
        })
    }
}

/// Shakes hands with a caller, where that is asked for. As long as that takes, the connection is one whose
/// head is to come: it has as much time and no more, and makes room for others like any.
async fn encrypted(
    tcp: TcpStream,
    tls: &ServerTls,
    known: &Known,
    drained: &CancellationToken,
) -> Option<Bytes> {
    known.is_at(Stage::Head);
    tokio::select! {
        shaken = tls.accept(tcp) => match shaken {
            Ok(stream) => Some(Bytes::Encrypted(Box::new(stream))),
            Err(error) => {
                tracing::debug!(%error, "a caller's connection was not encrypted");
                None
            }
        },
        () = known.must_close() => {
            tracing::debug!("a caller took too long over TLS, or made room for another");
            None
        }
        () = drained.cancelled() => None,
    }
}

async fn connection(tcp: TcpStream, tls: Option<ServerTls>, served: Served, drained: CancellationToken) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let bytes = match tls {
        None => Bytes::Plain(tcp),
        // In a box, because every connection would have its size.
        Some(tls) => match Box::pin(encrypted(tcp, &tls, &served.known, &drained)).await {
            Some(bytes) => bytes,
            None => return,
        },
    };
    let Served { router, is_crowded, leaving, known } = served;
    let at_the_end = Arc::<AtTheEnd>::default();
    let service = Watching {
        inner: TowerToHyperService::new(router),
        is_crowded,
        leaving,
        known: known.clone(),
        at_the_end: at_the_end.clone(),
    };
    let (alive, mut gone) = oneshot::channel();
    let stream = Stream { bytes, known: known.clone(), at_the_end, linger: None, _alive: alive };
    let mut protocol = http1::Builder::new();
    // Who is silent for too long is closed by the table, which tells a head from a pause.
    protocol.max_buf_size(READ_BYTES_MAX).header_read_timeout(None::<Duration>);
    let served = protocol.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut served = pin!(served);
    let mut is_ending = false;
    let ended = loop {
        tokio::select! {
            ended = served.as_mut() => break ended,
            () = drained.cancelled(), if !is_ending => is_ending = true,
            () = known.must_close() => {
                // A request that came in the last moment is served, and a poll answered.
                if !known.is_worked_for() {
                    tracing::debug!("a caller's connection was silent for too long, or made room for another");
                    return;
                }
                is_ending = true;
            }
        }
        served.as_mut().graceful_shutdown();
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a caller's connection failed");
    }
    if known.stage() == Stage::Upgraded {
        // Its handler has the stream, which says by its end that it is gone.
        tokio::select! {
            _ = &mut gone => {}
            () = drained.cancelled() => {
                known.hang_up();
                let _ = gone.await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
