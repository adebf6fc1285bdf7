//! Tests of connections through a real listener: upgrades, and a full server.

use std::net::SocketAddr;

use axum::http::header::UPGRADE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Upgrades a connection to a protocol that echoes all bytes.
async fn echo(mut request: axum::extract::Request) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let mut received = [0; 64];
        while let Ok(count @ 1..) = stream.read(&mut received).await {
            stream.write_all(&received[..count]).await.unwrap();
        }
    });
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, "echo")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Opens a connection and upgrades it.
async fn upgrade(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /echo HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    stream
}

async fn assert_echo(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.unwrap();
    let mut received = [0; 4];
    stream.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"ping");
}

/// Returns the status line of `GET /plain` over a connection of its own.
async fn status_of(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /plain HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_upgraded_connection_is_not_closed_to_make_room_and_ends_with_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/echo", get(echo)).route("/plain", get(async || "plain"));
    let drained = CancellationToken::new();
    let callers_max = 2;
    let server = tokio::spawn(serve(listener, router, callers_max, drained.clone()));
    let mut stream = upgrade(address).await;
    assert_echo(&mut stream).await;

    // Silent connections are closed for each other and for a request.
    let mut silent = Vec::new();
    for _ in 0..4 * callers_max {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(status_of(address).await, "HTTP/1.1 200 OK");
    assert_echo(&mut stream).await;

    drained.cancel();

    let mut rest = Vec::new();
    let result = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
    result.expect("the connection ends with the server").unwrap();
    assert!(rest.is_empty());
    drop(silent);
    let stopped = tokio::time::timeout(Duration::from_secs(60), server).await;
    stopped.expect("no connection blocks the shutdown").unwrap();
}

#[tokio::test]
async fn a_new_connection_is_crowded_while_all_others_are_in_progress() {
    const CALLERS_MAX: usize = 4;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let wait = async move || {
        let _ = arrived.send(());
        std::future::pending::<()>().await;
    };
    let plain = async |request: axum::extract::Request| match request.extensions().get::<Crowded>() {
        Some(Crowded) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::OK,
    };
    let router = Router::new().route("/wait", get(wait)).route("/plain", get(plain));
    let server = tokio::spawn(serve(listener, router, CALLERS_MAX, CancellationToken::new()));
    let mut waiting = Vec::new();
    for _ in 0..CALLERS_MAX {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        arrivals.recv().await.unwrap();
        waiting.push(stream);
    }

    assert_eq!(status_of(address).await, "HTTP/1.1 503 Service Unavailable");
    waiting.clear();
    let free = async { while status_of(address).await != "HTTP/1.1 200 OK" {} };
    tokio::time::timeout(Duration::from_secs(60), free).await.unwrap();
    server.abort();
}

/// Reads the head of a response and a body of this length.
async fn read_response(stream: &mut TcpStream, body: &str) -> String {
    let mut response = String::new();
    while !response.ends_with(&format!("\r\n\r\n{body}")) {
        response.push(char::from(stream.read_u8().await.expect("the connection is answered")));
    }
    response
}

#[tokio::test]
async fn a_request_that_has_arrived_is_answered_before_its_connection_makes_room() {
    const REQUEST: &[u8] = b"GET /plain HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for is_first in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        caller.set_nodelay(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let table = Table::new(1);
        let context = ConnectionContext {
            router: Router::new().route("/plain", get(async || "plain")),
            is_crowded: false,
            leaving: CancellationToken::new(),
            tracked: table.enter(),
        };
        let tracked = context.tracked.clone();
        let server = tokio::spawn(serve_connection(stream, None, context, CancellationToken::new()));
        if !is_first {
            caller.write_all(REQUEST).await.unwrap();
            let response = read_response(&mut caller, "plain").await;
            assert!(!response.contains("connection: close"), "{response}");
        }
        let silent = if is_first { Stage::Head } else { Stage::Idle };
        while tracked.stage() != silent {
            tokio::task::yield_now().await;
        }

        // Without a pause between both, so that the runtime does not know of the request yet.
        assert_eq!(caller.try_write(REQUEST).unwrap(), REQUEST.len());
        assert!(table.make_room());

        let response = read_response(&mut caller, "plain").await;
        assert!(response.contains("connection: close"), "{response}");
        assert_eq!(caller.read(&mut [0]).await.unwrap(), 0, "then the connection is closed");
        tokio::time::timeout(Duration::from_secs(60), server).await.unwrap().unwrap();
    }
}
