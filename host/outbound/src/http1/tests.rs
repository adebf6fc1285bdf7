use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;

/// Returns a connection and the raw stream at its other end.
async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(Connection::open(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Receives responses from `sent`, which arrives in pieces of `piece` bytes, until the stream ends.
async fn responses(sent: &str, piece: usize) -> Vec<Result<(u16, String), String>> {
    let (mut near, mut far) = pair().await;
    let sent = sent.as_bytes().to_vec();
    let feed = tokio::spawn(async move {
        far.set_nodelay(true).unwrap();
        for piece in sent.chunks(piece) {
            far.write_all(piece).await.unwrap();
            far.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut got = Vec::new();
    loop {
        match near.receive_response().await {
            Ok(message) => {
                got.push(Ok((
                    message.status().unwrap(),
                    String::from_utf8(message.body().to_vec()).unwrap(),
                )));
            }
            Err(Broken::Ended) => break,
            Err(error) => {
                got.push(Err(error.to_string()));
                break;
            }
        }
    }
    feed.await.unwrap();
    got
}

#[tokio::test]
async fn responses_are_read_with_any_framing_and_in_pieces_of_any_size() {
    let all = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
        HTTP/1.1 100 Continue\r\n\r\n\
        HTTP/1.1 202 Accepted\r\nconTENT-length:0\r\n\r\n\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n\
        HTTP/1.1 204 No Content\r\n\r\n\
        HTTP/1.1 429 Too Many Requests\r\n\r\nuntil the end";
    let expected: Vec<Result<(u16, String), String>> =
        [(200, "hello"), (202, ""), (200, "abc0123456789"), (204, ""), (429, "until the end")]
            .map(|(status, body)| Ok((status, body.to_owned())))
            .into();
    for piece in [1, 2, 7, 1000] {
        assert_eq!(responses(all, piece).await, expected, "in pieces of {piece}");
    }
}

#[tokio::test]
async fn malformed_responses_are_reported_with_their_defect() {
    async fn check(sent: &str, expected: &str) {
        let got = responses(sent, 1000).await;
        assert_eq!(got, vec![Err(format!("not HTTP/1.1: {expected}"))], "{sent:?}");
    }
    check("SSH-2.0-x\r\n\r\n", "the first line").await;
    check("HTTP/1.1 abc\r\n\r\n", "the status").await;
    check("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "a header field").await;
    check("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "the content length").await;
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n";
    let got = responses(long, 1000).await;
    assert_eq!(got, vec![Err("a body longer than 16777216 bytes".to_owned())]);
    check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "the length of a chunk").await;
    check(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        "a chunk is longer than its size",
    )
    .await;
}

#[tokio::test]
async fn a_request_shows_its_target_key_and_body() {
    let (mut near, mut far) = pair().await;
    far.write_all(b"POST /a/b HTTP/1.1\r\nAuthorization:  Bearer k \r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    let request = near.receive_request().await.unwrap().unwrap();
    assert_eq!(request.target(), "/a/b");
    assert_eq!(request.authorization(), Some("Bearer k"));
    assert_eq!(request.body(), b"{}");
    assert!(!request.ends_connection());

    far.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await.unwrap();
    let request = near.receive_request().await.unwrap().unwrap();
    assert_eq!((request.body(), request.authorization()), (&b""[..], None));
    assert!(request.ends_connection());

    drop(far);
    assert!(near.receive_request().await.unwrap().is_none());
}

#[test]
fn retry_after_is_parsed_from_seconds_and_from_dates() {
    fn check(fields: &str, expected: Option<f64>) {
        let bytes = format!("HTTP/1.1 429 x\r\n{fields}\r\n\r\n");
        let head = Head::parse_response(bytes.as_bytes()).unwrap();
        let message = Message { bytes: bytes.as_bytes().into(), head, body: BytesMut::new() };
        assert_eq!(message.retry_after(), expected.map(Duration::from_secs_f64), "{fields:?}");
    }
    check("retry-after: 5", Some(5.0));
    check("Retry-After:0.25", Some(0.25));
    check("retry-after: -1", None);
    check("retry-after: inf", None);
    check("retry-after: soon", None);
    check("x: y", None);
    // This date has long passed by this machine's clock, but may be in the future by the server's clock.
    let date = "Wed, 21 Oct 2015 07:28:00 GMT";
    check(&format!("retry-after: {date}"), Some(0.0));
    check(&format!("Date: Wed, 21 Oct 2015 07:27:57 GMT\r\nretry-after: {date}"), Some(3.0));
    check(&format!("Date: Wed, 21 Oct 2015 07:28:57 GMT\r\nretry-after: {date}"), Some(0.0));
    check(&format!("Date: Wed, 21 Oct 1998 07:28:00 GMT\r\nretry-after: {date}"), Some(86_400.0));
}

/// Returns the error of receiving from a server that sends `beginning` and then repeats `piece` until the connection is
/// closed.
async fn endless_response_error(beginning: &str, piece: &str) -> String {
    let (mut near, mut far) = pair().await;
    let (beginning, piece) = (beginning.to_owned(), piece.repeat(100));
    let feed = tokio::spawn(async move {
        far.write_all(beginning.as_bytes()).await.unwrap();
        while far.write_all(piece.as_bytes()).await.is_ok() {}
    });
    let error = near.receive_response().await.unwrap_err();
    drop(near);
    feed.await.unwrap();
    error.to_string()
}

#[tokio::test]
async fn a_response_without_an_end_is_an_error() {
    async fn check(beginning: &str, piece: &str, expected: &str) {
        assert_eq!(endless_response_error(beginning, piece).await, expected, "{piece:?}");
    }
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let extension_or_trailer = "not HTTP/1.1: a chunk extension or a trailer is too long";
    check("", "HTTP/1.1 103 Early Hints\r\n\r\n", "not HTTP/1.1: too many interim responses").await;
    check("HTTP/1.1 200 OK\r\n", "a: b\r\n", "not HTTP/1.1: the head is too long").await;
    check("HTTP/1.1 200 OK\r\na: ", "b", "not HTTP/1.1: the head is too long").await;
    check(&format!("{chunked}1;"), "x", extension_or_trailer).await;
    check(chunked, &format!("1;{}\r\nx\r\n", "x".repeat(1000)), extension_or_trailer).await;
    check(&format!("{chunked}0\r\n"), "trailer: t\r\n", "not HTTP/1.1: too many trailers").await;
    check(&format!("{chunked}0\r\na: "), "t", extension_or_trailer).await;
    check(&format!("{chunked}0\r\n"), &format!("a: {}\r\n", "t".repeat(1000)), extension_or_trailer).await;
    check(chunked, "1\r\nx\r\n", "a body longer than 16777216 bytes").await;
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
    check(&many, "x", "not HTTP/1.1: too many header fields").await;
}

/// Runs on one thread, so that the timeout fires only if the reader yields.
#[tokio::test]
async fn an_endless_sender_does_not_block_the_thread() {
    let (mut near, far) = pair().await;
    near.limit_bodies(usize::MAX);
    let far = far.into_std().unwrap();
    far.set_nonblocking(false).unwrap();
    let feed = std::thread::spawn(move || {
        let chunks = "1\r\nx\r\n".repeat(10_000);
        let mut all =
            std::io::Write::write_all(&mut &far, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while all.is_ok() {
            all = std::io::Write::write_all(&mut &far, chunks.as_bytes());
        }
    });

    let read = tokio::time::timeout(Duration::from_millis(200), near.receive_response()).await;

    assert!(read.is_err(), "the deadline around the exchange is kept");
    drop(near);
    feed.join().unwrap();
}

#[tokio::test]
async fn an_ambiguous_message_is_refused_or_ends_the_connection() {
    async fn check(fields: &str, body: &str, expected: Result<(&str, bool), &str>) {
        let (mut near, mut far) = pair().await;
        far.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let got = near.receive_response().await;
        let got = got
            .map(|message| (String::from_utf8(message.body().to_vec()).unwrap(), message.ends_connection()));
        let got = got.map_err(|error| error.to_string());
        let expected = expected.map(|(body, ends)| (body.to_owned(), ends));
        assert_eq!(got, expected.map_err(|what| format!("not HTTP/1.1: {what}")), "{fields:?}");
    }
    check("content-length: 2\r\ncontent-length: 3", "abc", Err("two content lengths")).await;
    check("content-length: 2\r\ncontent-length: 2", "ab", Ok(("ab", false))).await;
    check("content-length: +2", "ab", Err("the content length")).await;
    let chunks = "1\r\na\r\n0\r\n\r\n";
    check("content-length: 2\r\ntransfer-encoding: chunked", chunks, Ok(("a", true))).await;
    check("transfer-encoding: chunked\r\ncontent-length: 2", chunks, Ok(("a", true))).await;
    check("connection: x, Close\r\ncontent-length: 1", "a", Ok(("a", true))).await;
    check("transfer-encoding: gzip, chunked", "", Err("a transfer encoding other than chunked")).await;
}
