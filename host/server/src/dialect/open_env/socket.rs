//! The socket of a session.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request as HttpRequest, State};
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

/// Interval of the server's pings. A caller that vanished without closing its connection is noticed by them.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time without a sign of life after which a caller counts as vanished.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time for which a socket stays open after an error without a request. A client may send its first request without
/// having read, and would see a closed connection instead of the error.
const UNASKED_ERROR_TIME: Duration = Duration::from_secs(5);

/// Text that a key is hashed with, from RFC 6455.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The query of a socket's address.
#[derive(serde::Deserialize)]
pub(super) struct Attached {
    session_id: Option<String>,
}

/// Answers `GET /ws`.
pub(super) async fn connect(
    State(server): State<OpenEnv>,
    Query(Attached { session_id }): Query<Attached>,
    mut request: HttpRequest,
) -> Response {
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
    let tasks = server.0.tasks.clone();
    tasks.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let limits = Limits::default().max_payload_len(Some(server.0.limits.message_bytes_max));
                let socket = ServerBuilder::new().limits(limits).serve(TokioIo::new(upgraded));
                // Boxed, because this task waits in it for as long as the session lives.
                Box::pin(serve(server, socket, session_id)).await;
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

/// Returns the value by which a client recognizes that its handshake was understood. The error is for people.
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
async fn serve(server: OpenEnv, mut socket: Socket, session_id: Option<String>) {
    let opened = match &session_id {
        Some(id) => server.0.detached.attach(id),
        None => server.open().await.map(|session| std::sync::Arc::new(tokio::sync::Mutex::new(session))),
    };
    match opened {
        Ok(session) => {
            if let Some(refusal) = play(&server, &mut socket, &session).await {
                say_last(&mut socket, &refusal, false).await;
            }
            drop(session);
            if let Some(id) = &session_id {
                server.0.detached.release(id);
            }
        }
        Err(refusal) => say_last(&mut socket, &refusal, true).await,
    }
    // The caller may be gone.
    let _ = timeout(UNASKED_ERROR_TIME, socket.close()).await;
}

/// Sends an error before the socket is closed.
async fn say_last(socket: &mut Socket, refusal: &Refusal, is_unasked: bool) {
    let sending = async {
        socket.send(Message::text(refusal.frame())).await?;
        if is_unasked {
            // Until the first request, or for a moment.
            while let Some(message) = socket.next().await {
                if !matches!(message?, message if message.is_ping() || message.is_pong()) {
                    break;
                }
            }
        }
        socket.send(Message::close(Some(CloseCode::NORMAL_CLOSURE), "")).await
    };
    let _ = timeout(UNASKED_ERROR_TIME, sending).await;
}

/// Result of waiting for a caller.
enum Next {
    Message(Message),
    Gone,
    Ended(Refusal),
}

/// Answers the requests of a socket until it ends. Returns the reason, unless the caller ended it.
async fn play(server: &OpenEnv, socket: &mut Socket, session: &SharedSession) -> Option<Refusal> {
    let (cancelled, id) = {
        let open = session.lock().await;
        (open.session.cancelled(), open.session.id().as_str().to_owned())
    };
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut alive = Alive { at: Instant::now(), pings };
    let mut waiting = None;
    loop {
        let message = match waiting.take() {
            Some(message) => message,
            None => match next(server, socket, session, &cancelled, &mut alive).await {
                Next::Message(message) => message,
                Next::Gone => return None,
                Next::Ended(refusal) => return Some(refusal),
            },
        };
        let Some(text) = message.as_text() else {
            return Some(Refusal::session("a frame must be text"));
        };
        let answering = answer(server, session, text, &id);
        let mut answering = std::pin::pin!(answering);
        // Pings are answered while the environment computes. Another request waits.
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answering => break answer,
                message = socket.next(), if waiting.is_none() => match message {
                    Some(Ok(message)) if message.is_ping() || message.is_pong() => alive.at = Instant::now(),
                    Some(Ok(message)) if !message.is_close() => waiting = Some(message),
                    _ => return None,
                },
                _ = alive.pings.tick() => socket.send(Message::ping("")).await.ok()?,
            }
        };
        alive.at = Instant::now();
        match answer {
            Ok(Some(frame)) => socket.send(Message::text(frame)).await.ok()?,
            Ok(None) => {
                let _ = socket.send(Message::close(Some(CloseCode::NORMAL_CLOSURE), "")).await;
                return None;
            }
            Err(refusal) if refusal.is_fatal() => return Some(refusal),
            Err(refusal) => socket.send(Message::text(refusal.frame())).await.ok()?,
        }
    }
}

/// Signs of a caller's life.
struct Alive {
    at: Instant,
    pings: tokio::time::Interval,
}

/// Waits for the next request.
async fn next(
    server: &OpenEnv,
    socket: &mut Socket,
    session: &SharedSession,
    cancelled: &CancellationToken,
    alive: &mut Alive,
) -> Next {
    let idle_time_max = server.0.limits.idle_time_max;
    let idle_at = Instant::now() + idle_time_max;
    // A session in the middle of an episode may go on until the server cancels it.
    let may_go_on = session.lock().await.session.is_in_episode();
    loop {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => {
                return Next::Ended(Refusal::session(session.lock().await.session.end_reason()));
            }
            () = server.0.closing.cancelled(), if !may_go_on => {
                return Next::Ended(Refusal::session("the server is shutting down"));
            }
            message = socket.next() => match message {
                Some(Ok(message)) if message.is_ping() || message.is_pong() => alive.at = Instant::now(),
                Some(Ok(message)) if message.is_close() => return Next::Gone,
                Some(Ok(message)) => return Next::Message(message),
                Some(Err(error)) => {
                    tracing::debug!(%error, "the socket of a session failed");
                    return Next::Gone;
                }
                None => return Next::Gone,
            },
            () = sleep_until(idle_at) => {
                let secs = idle_time_max.as_secs_f64();
                let reason = format!("the session had no request for idle-secs, {secs} s");
                return Next::Ended(Refusal::session(reason));
            }
            _ = alive.pings.tick() => {
                if alive.at.elapsed() > SILENCE_MAX || socket.send(Message::ping("")).await.is_err() {
                    return Next::Gone;
                }
            }
        }
    }
}

/// Answers a request. Returns `None` for a request to end the session.
async fn answer(
    server: &OpenEnv,
    session: &SharedSession,
    text: &str,
    id: &str,
) -> Result<Option<String>, Refusal> {
    let _charge = server.charge(text.len())?;
    let request = Request::parse(text)?;
    let frame = match request {
        Request::Reset(data) => session.lock().await.reset(data).await?.frame(),
        Request::Step(action) => session.lock().await.step(action).await?.frame(),
        Request::State => {
            let state = session.lock().await.state().await?;
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
