//! The socket of a session.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request as HttpRequest, State};
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_websockets::{CloseCode, Limits, Message, ServerBuilder, WebSocketStream};

use super::frame::{Refusal, Request};
use super::{OpenEnv, SharedSession, rpc};
use crate::dialect::sessions::{OpenSession, SessionsError};

/// Interval of the server's pings, which reveal a caller that vanished without closing its connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time without a message or a pong after which a caller counts as vanished.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time for which a socket stays open after an error that answers no request. A client may send its first request before it
/// reads, and would see a closed connection instead of the error.
const UNSOLICITED_ERROR_TIME: Duration = Duration::from_secs(5);

/// Maximum number of refused sockets of a plugin that stay open for their callers at once. Each takes a connection, which
/// other callers may need.
pub(super) const LINGERING_MAX: usize = 32;

/// Maximum length of a session's name, which the caller chooses.
const SESSION_NAME_CHARS_MAX: usize = 255;

/// Maximum length of a request to end the session.
const CLOSE_BYTES_MAX: usize = 64;

/// Text that is hashed together with a key, from RFC 6455.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The query of a socket's address.
#[derive(serde::Deserialize)]
pub(super) struct Attached {
    session_id: Option<String>,
}

/// The session of a socket.
enum Wanted {
    /// A new session, which ends with the socket.
    Own,
    /// The existing session with this name.
    Existing(String),
    /// The session with this name, which the caller chose. It is opened if it does not exist.
    Named(String),
}

/// The messages on a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Frames of the protocol.
    Frames,
    /// JSON-RPC.
    Rpc,
}

/// Answers `GET /ws`.
pub(super) async fn connect(
    State(server): State<OpenEnv>,
    Query(Attached { session_id }): Query<Attached>,
    request: HttpRequest,
) -> Response {
    upgrade(server, request, session_id.map_or(Wanted::Own, Wanted::Existing), Framing::Frames)
}

/// Answers `GET /sessions/NAME/ws`.
pub(super) async fn connect_named(
    State(server): State<OpenEnv>,
    Path(name): Path<String>,
    request: HttpRequest,
) -> Response {
    if name.chars().count() > SESSION_NAME_CHARS_MAX {
        let detail = format!("the name of a session has at most {SESSION_NAME_CHARS_MAX} characters");
        return (StatusCode::BAD_REQUEST, axum::Json(json!({"detail": detail}))).into_response();
    }
    upgrade(server, request, Wanted::Named(name), Framing::Frames)
}

/// Answers `GET /mcp`, a socket that carries JSON-RPC.
pub(super) async fn connect_mcp(State(server): State<OpenEnv>, request: HttpRequest) -> Response {
    upgrade(server, request, Wanted::Own, Framing::Rpc)
}

/// Accepts a handshake, and serves the socket in a task of its own.
fn upgrade(server: OpenEnv, mut request: HttpRequest, wanted: Wanted, framing: Framing) -> Response {
    let accept = match accept_key(request.headers()) {
        Ok(accept) => accept,
        Err(reason) => {
            let body = axum::Json(json!({"detail": reason}));
            return (StatusCode::UPGRADE_REQUIRED, [(UPGRADE, "websocket")], body).into_response();
        }
    };
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let tasks = server.sessions.tasks().clone();
    tasks.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let max = server.sessions.limits().message_bytes_max;
                let limits = Limits::default().max_payload_len(Some(max));
                let socket = ServerBuilder::new().limits(limits).serve(TokioIo::new(upgraded));
                // Boxed, because this task waits in it for as long as the session lives.
                Box::pin(serve(server, socket, wanted, framing)).await;
            }
            Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
        }
    });
    let headers = [
        (UPGRADE, HeaderValue::from_static("websocket")),
        (CONNECTION, HeaderValue::from_static("upgrade")),
        (SEC_WEBSOCKET_ACCEPT, accept),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

/// Returns the value that proves to a client that its handshake was understood. The error is for people.
fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, String> {
    let has = |name, expected: &str| {
        let values = headers.get_all(name).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(expected))
    };
    if !has(UPGRADE, "websocket") || !has(CONNECTION, "upgrade") {
        return Err("this is the address of a WebSocket; connect with a client of OpenEnv".to_owned());
    }
    if !has(SEC_WEBSOCKET_VERSION, "13") {
        return Err("the handshake is not of version 13 of WebSocket".to_owned());
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or("the handshake has no header Sec-WebSocket-Key")?;
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key.as_bytes());
    hash.update(KEY_SUFFIX);
    let accept = BASE64_STANDARD.encode(hash.digest().bytes());
    HeaderValue::try_from(accept).map_err(|error| error.to_string())
}

/// Opens a session, or finds the one that the caller names, and serves it until it ends.
async fn serve(server: OpenEnv, mut socket: Socket, wanted: Wanted, framing: Framing) {
    let sessions = &server.sessions;
    let is_own_name = matches!(wanted, Wanted::Named(_));
    let (name, opened) = match wanted {
        Wanted::Own => {
            let open = sessions.open().await;
            (None, open.map(SharedSession::new))
        }
        Wanted::Existing(name) => {
            let opened = sessions.attach(&name).await;
            (Some(name), opened)
        }
        Wanted::Named(name) => {
            let opened = attach_or_open(&server, &name).await;
            (Some(name), opened)
        }
    };
    match opened {
        Ok(session) => {
            let id = match &name {
                Some(name) => name.clone(),
                None => session.lock().await.session.id().as_str().to_owned(),
            };
            let is_named = name.is_some();
            let socket_session = SocketSession { server: &server, session: &session, id, is_named, framing };
            let ended = socket_session.play(&mut socket).await;
            if let Some(name) = &name {
                if matches!(ended, SocketEnd::Idle(_)) || is_own_name && matches!(ended, SocketEnd::Closed) {
                    sessions.close(name).await;
                }
                drop(session);
                sessions.release(name).await;
            }
            match ended {
                SocketEnd::Gone => {}
                SocketEnd::Closed => {
                    let _ = socket.send(Message::close(Some(CloseCode::NORMAL_CLOSURE), "")).await;
                }
                SocketEnd::Idle(refusal) | SocketEnd::Refused(refusal) => {
                    send_last_error(&server, &mut socket, &framing.error(&refusal), false).await;
                }
            }
        }
        Err(error) => {
            let refusal = server.refusal(error);
            send_last_error(&server, &mut socket, &framing.error(&refusal), true).await;
        }
    }
}

/// Opens the session with this name unless it exists, and attaches the socket to it.
async fn attach_or_open(server: &OpenEnv, name: &str) -> Result<SharedSession, SessionsError> {
    if !server.sessions.has(name) {
        server.sessions.find_or_open(name).await?;
    }
    server.sessions.attach(name).await
}

impl Framing {
    /// Returns the message for an error.
    fn error(self, refusal: &Refusal) -> String {
        match self {
            Self::Frames => refusal.frame(),
            Self::Rpc => rpc::failed(refusal.clone()).to_string(),
        }
    }
}

/// Sends an error before the socket is closed.
async fn send_last_error(server: &OpenEnv, socket: &mut Socket, error: &str, is_unsolicited: bool) {
    let lingering = server.lingering.try_acquire();
    let sending = async {
        socket.send(Message::text(error.to_owned())).await?;
        if is_unsolicited && lingering.is_ok() {
            // The wait ends with the first request, or after a moment.
            while let Some(message) = socket.next().await {
                if !matches!(message?, message if message.is_ping() || message.is_pong()) {
                    break;
                }
            }
        }
        socket.send(Message::close(Some(CloseCode::NORMAL_CLOSURE), "")).await?;
        if lingering.is_ok() { socket.close().await } else { Ok(()) }
    };
    // The caller may be gone.
    let _ = timeout(UNSOLICITED_ERROR_TIME, sending).await;
}

/// Result of waiting for a caller.
enum Next {
    Message(Message),
    Ended(SocketEnd),
}

/// The reason why a socket ended.
enum SocketEnd {
    /// The caller disconnected or vanished.
    Gone,
    /// The caller ended the session.
    Closed,
    /// The session had no request for a while.
    Idle(Refusal),
    /// The session or a request failed.
    Refused(Refusal),
}

/// A session that is used over a socket.
struct SocketSession<'a> {
    server: &'a OpenEnv,
    session: &'a SharedSession,
    /// The session's id for the caller.
    id: String,
    /// Whether the session outlives the socket.
    is_named: bool,
    framing: Framing,
}

impl SocketSession<'_> {
    /// Answers the requests of a socket until it ends.
    async fn play(&self, socket: &mut Socket) -> SocketEnd {
        let cancelled = self.session.lock().await.session.cancelled();
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut alive = Liveness { at: Instant::now(), pings };
        let mut waiting = None;
        loop {
            let message = match waiting.take() {
                Some(message) => message,
                None => match self.next(socket, &cancelled, &mut alive).await {
                    Next::Message(message) => message,
                    Next::Ended(ended) => return ended,
                },
            };
            let Some(text) = message.as_text() else {
                return SocketEnd::Refused(Refusal::session("a frame must be text"));
            };
            let mut answering = std::pin::pin!(self.answer(text));
            // Pings are answered while the environment computes. Another request waits.
            let answer = loop {
                tokio::select! {
                    biased;
                    answer = &mut answering => break answer,
                    message = socket.next(), if waiting.is_none() => match message {
                        Some(Ok(message)) if message.is_ping() || message.is_pong() => {
                            alive.at = Instant::now();
                        }
                        Some(Ok(message)) if !message.is_close() => waiting = Some(message),
                        _ => return SocketEnd::Gone,
                    },
                    _ = alive.pings.tick() => {
                        if socket.send(Message::ping("")).await.is_err() {
                            return SocketEnd::Gone;
                        }
                    }
                }
            };
            alive.at = Instant::now();
            let text = match answer {
                Ok(Some(text)) => text,
                Ok(None) => return SocketEnd::Closed,
                Err(refusal) if refusal.is_fatal() => return SocketEnd::Refused(refusal),
                Err(refusal) => self.framing.error(&refusal),
            };
            if socket.send(Message::text(text)).await.is_err() {
                return SocketEnd::Gone;
            }
        }
    }

    /// Answers a request. Returns `None` for a request to end the session.
    async fn answer(&self, text: &str) -> Result<Option<String>, Refusal> {
        if !self.is_named {
            let own = Own { session: self.session, id: &self.id };
            return answer(self.server, own, text, self.framing).await;
        }
        // Parsed before the wait for the session, because the caller leaves at once.
        let may_be_close = self.framing == Framing::Frames && text.len() <= CLOSE_BYTES_MAX;
        if may_be_close && matches!(Request::parse(text), Ok(Request::Close)) {
            return Ok(None);
        }
        let server = self.server.clone();
        let turn = self.session.enter().map_err(|error| server.refusal(error))?;
        let (id, text, framing) = (self.id.clone(), text.to_owned(), self.framing);
        let work = async move {
            let own = Own { session: &turn.session, id: &id };
            answer(&server, own, &text, framing).await
        };
        self.server.complete(work).await
    }

    /// Waits for the next request.
    async fn next(&self, socket: &mut Socket, cancelled: &CancellationToken, alive: &mut Liveness) -> Next {
        let idle_time_max = self.server.sessions.limits().idle_time_max;
        let idle_at = Instant::now() + idle_time_max;
        // A session in the middle of an episode may continue until the server cancels it.
        let may_continue = self.session.lock().await.session.is_in_episode();
        let refused = |refusal| Next::Ended(SocketEnd::Refused(refusal));
        loop {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => {
                    return refused(Refusal::session(self.session.lock().await.session.end_reason()));
                }
                () = self.server.sessions.closing().cancelled(), if !may_continue => {
                    return refused(Refusal::session("the server is shutting down"));
                }
                message = socket.next() => match message {
                    Some(Ok(message)) if message.is_ping() || message.is_pong() => alive.at = Instant::now(),
                    Some(Ok(message)) if message.is_close() => return Next::Ended(SocketEnd::Gone),
                    Some(Ok(message)) => return Next::Message(message),
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the socket of a session failed");
                        return Next::Ended(SocketEnd::Gone);
                    }
                    None => return Next::Ended(SocketEnd::Gone),
                },
                () = sleep_until(idle_at) => {
                    let secs = idle_time_max.as_secs_f64();
                    let reason = format!("the session had no request for idle-secs, {secs} s");
                    return Next::Ended(SocketEnd::Idle(Refusal::session(reason)));
                }
                _ = alive.pings.tick() => {
                    if alive.at.elapsed() > SILENCE_MAX || socket.send(Message::ping("")).await.is_err() {
                        return Next::Ended(SocketEnd::Gone);
                    }
                }
            }
        }
    }
}

/// The time at which a caller last showed that it is connected, and the pings.
struct Liveness {
    at: Instant,
    pings: tokio::time::Interval,
}

/// The session of a socket, with its id for the caller.
#[derive(Clone, Copy)]
struct Own<'a> {
    session: &'a SharedSession,
    id: &'a str,
}

/// Answers a request. Returns `None` for a request to end the session.
async fn answer(
    server: &OpenEnv,
    Own { session, id }: Own<'_>,
    text: &str,
    framing: Framing,
) -> Result<Option<String>, Refusal> {
    let _charge = server.charge(text.len())?;
    if framing == Framing::Rpc {
        return Ok(Some(rpc::answer_text(server, text.as_bytes(), Some((session, id))).await.to_string()));
    }
    let frame = match Request::parse(text)? {
        Request::Reset(data) => begin(server, session).await?.reset(data).await?.frame(),
        Request::Step(action) => begin(server, session).await?.step(action).await?.frame(),
        Request::State => {
            let state = begin(server, session).await?.state().await?;
            json!({"type": "state", "data": state}).to_string()
        }
        Request::Close => return Ok(None),
        Request::Mcp(request) => {
            let answer = rpc::answer(server, request, Some((session, id))).await;
            json!({"type": "mcp", "data": answer}).to_string()
        }
    };
    Ok(Some(frame))
}

/// Waits until no other request uses the session.
async fn begin<'a>(
    server: &OpenEnv,
    session: &'a SharedSession,
) -> Result<tokio::sync::MutexGuard<'a, OpenSession>, Refusal> {
    session.begin().await.map_err(|error| server.refusal(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_answered_as_in_the_example_of_the_standard() {
        let mut headers = HeaderMap::new();
        let mut check = |name, value: &'static str, expected: Result<&str, &str>| {
            headers.insert(name, HeaderValue::from_static(value));
            let accept = accept_key(&headers);
            match expected {
                Ok(expected) => assert_eq!(accept.unwrap(), expected),
                Err(part) => assert!(accept.unwrap_err().contains(part)),
            }
        };
        check(CONNECTION, "keep-alive, Upgrade", Err("address of a WebSocket"));
        check(UPGRADE, "websocket", Err("version 13"));
        check(SEC_WEBSOCKET_VERSION, "13", Err("Sec-WebSocket-Key"));
        check(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==", Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    }
}
