//! The least HTTP/1.1 that thousands of waiting calls need, on both sides of a connection.
//!
//! A rollout that waits for its model is a connection that waits for an answer, and ten
//! thousand of them wait at once: here such a connection is a socket and 200 bytes, in a
//! general client 27 KiB of channels and buffers made ready. It is quick for the same reason: a
//! message is one write of bytes that were made before, and one read in which only the fields
//! that matter are looked at (the messages of one rollout take 15 µs instead of 40), which
//! the load generator needs, because what it uses of the processor, the server that is
//! measured does not get.
//!
//! This module knows framing (content length, chunks, end of stream) and a few header
//! fields. It knows no route, no JSON and no rollout. There is no TLS.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, ToSocketAddrs};

/// A head that is longer comes from something that does not speak HTTP.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// A body that is longer is a mistake of the other side, unless more was allowed.
const BODY_BYTES_MAX: usize = 16 << 20;
/// What a connection reads at once: one head and a body of the usual size.
const READ_BYTES: usize = 4 << 10;
/// A server may close a connection that is idle for longer (some wait only 5 s), and a request
/// that crosses the closing is lost. Such a connection is replaced.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the connection ended before an answer did")]
    Ended,
    #[error("not HTTP/1.1: {0}")]
    Malformed(&'static str),
    #[error("a body longer than {0} bytes")]
    TooLong(usize),
    /// There was a head, which says this, and then what is wrong.
    #[error("{cause}")]
    Body { status: u16, cause: Box<Broken> },
}

/// One connection, either side, and what it has read ahead.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    used: Instant,
    body_bytes_max: usize,
}

/// A request or a response, as far as anyone here looks.
#[derive(Debug)]
pub(crate) struct Message {
    bytes: BytesMut,
    head: Head,
    body: BytesMut,
}

impl Connection {
    /// Connects, without Nagle's delay.
    pub(crate) async fn open(to: impl ToSocketAddrs) -> io::Result<Self> {
        Self::over(TcpStream::connect(to).await?)
    }

    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (buffer, used) = (BytesMut::new(), Instant::now());
        Ok(Self { stream, buffer, used, body_bytes_max: BODY_BYTES_MAX })
    }

    /// Whether the other side has surely not closed it for idleness.
    pub(crate) fn is_fresh(&self) -> bool {
        self.used.elapsed() < IDLE_MAX
    }

    /// Whether it has been idle for less than this, and the other side has neither closed it
    /// nor said anything that nobody asked for.
    pub(crate) fn is_good(&self, idle_max: Duration) -> bool {
        let mut byte = [0];
        let quiet = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.buffer.is_empty()
            && !self.has_rested(idle_max)
            && self.stream.try_read(&mut byte).as_ref().is_err_and(quiet)
    }

    /// Whether it has been idle for as long as this.
    pub(crate) fn has_rested(&self, time: Duration) -> bool {
        self.used.elapsed() >= time
    }

    /// Gives back what it read into, until there is something to read again.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Takes bodies up to this many bytes from here on.
    pub(crate) fn limit_bodies(&mut self, bytes_max: usize) {
        self.body_bytes_max = bytes_max;
    }

    /// Sends a whole message in one write.
    pub(crate) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message).await?;
        self.used = Instant::now();
        Ok(())
    }

    /// The next request, or nothing when the other side is done.
    pub(crate) async fn receive_request(&mut self) -> Result<Option<Message>, Broken> {
        loop {
            if let Some(head) = self.head()? {
                return self.finish(head, false).await.map(Some);
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(Broken::Ended) };
            }
        }
    }

    /// The next response; interim ones are passed over.
    pub(crate) async fn receive_response(&mut self) -> Result<Message, Broken> {
        loop {
            match self.head()? {
                Some(head) if head.status()? / 100 == 1 => self.buffer.advance(head.length),
                // In a box, because it is as large as all that waits for an answer to begin.
                Some(head) => return Box::pin(self.finish(head, true)).await,
                None if self.fill().await? => {}
                None => return Err(Broken::Ended),
            }
        }
    }

    fn head(&self) -> Result<Option<Head>, Broken> {
        match find(&self.buffer, b"\r\n\r\n") {
            Some(end) => Head::parse(&self.buffer[..end + 4]).map(Some),
            None if self.buffer.len() > HEAD_BYTES_MAX => Err(Broken::Malformed("the head has no end")),
            None => Ok(None),
        }
    }

    async fn finish(&mut self, head: Head, is_response: bool) -> Result<Message, Broken> {
        let bytes = self.buffer.split_to(head.length);
        let body = match (is_response, head.framing) {
            (true, _) if matches!(head.status()?, 204 | 304) => Ok(BytesMut::new()),
            (_, Framing::Length(length)) => self.read_sized(length).await,
            (_, Framing::Chunked) => self.read_chunked().await,
            (true, Framing::Unsaid) => self.read_to_end().await,
            (false, Framing::Unsaid) => Ok(BytesMut::new()),
        };
        let body = body.map_err(|cause| match head.status {
            Some(status) if is_response => Broken::Body { status, cause: Box::new(cause) },
            _ => cause,
        })?;
        self.used = Instant::now();
        Ok(Message { bytes, head, body })
    }

    async fn read_sized(&mut self, length: usize) -> Result<BytesMut, Broken> {
        self.need(length).await?;
        Ok(self.buffer.split_to(length))
    }

    async fn read_to_end(&mut self) -> Result<BytesMut, Broken> {
        while self.fill().await? {
            self.check_body(self.buffer.len())?;
        }
        Ok(self.buffer.split())
    }

    async fn read_chunked(&mut self) -> Result<BytesMut, Broken> {
        let mut body = BytesMut::new();
        loop {
            let line = self.read_line().await?;
            let length = chunk_length(&line)?;
            self.check_body(body.len().saturating_add(length))?;
            if length == 0 {
                while self.read_line().await?.len() > 2 {}
                return Ok(body);
            }
            self.need(length + 2).await?;
            body.extend_from_slice(&self.buffer[..length]);
            if &self.buffer[length..length + 2] != b"\r\n" {
                return Err(Broken::Malformed("a chunk is longer than it says"));
            }
            self.buffer.advance(length + 2);
        }
    }

    async fn read_line(&mut self) -> Result<BytesMut, Broken> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                return Ok(self.buffer.split_to(end + 2));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(Broken::Malformed("a line has no end"));
            }
            self.fill_or_end().await?;
        }
    }

    async fn need(&mut self, length: usize) -> Result<(), Broken> {
        self.check_body(length)?;
        while self.buffer.len() < length {
            self.fill_or_end().await?;
        }
        Ok(())
    }

    async fn fill_or_end(&mut self) -> Result<(), Broken> {
        if self.fill().await? { Ok(()) } else { Err(Broken::Ended) }
    }

    /// Reads what there is; false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, Broken> {
        loop {
            // A connection that waits, perhaps for minutes, has no memory to read into yet.
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            self.stream.readable().await?;
            self.buffer.reserve(READ_BYTES);
            match self.stream.try_read_buf(&mut self.buffer) {
                Ok(read) => return Ok(read > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn check_body(&self, length: usize) -> Result<(), Broken> {
        if length > self.body_bytes_max { Err(Broken::TooLong(self.body_bytes_max)) } else { Ok(()) }
    }
}

impl Message {
    /// The second word of the first line: a response's status.
    pub(crate) fn status(&self) -> Result<u16, Broken> {
        self.head.status()
    }

    /// The second word of the first line: a request's target.
    pub(crate) fn target(&self) -> &str {
        self.text(&self.head.second)
    }

    pub(crate) fn authorization(&self) -> Option<&str> {
        self.head.authorization.as_ref().map(|range| self.text(range))
    }

    /// The wait that a refusal asks for. A date is not understood, and counts as nothing said.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let secs: f64 = self.text(self.head.retry_after.as_ref()?).trim().parse().ok()?;
        Duration::try_from_secs_f64(secs).ok()
    }

    /// Whether the sender closes the connection after this message.
    pub(crate) fn ends_connection(&self) -> bool {
        self.head.closes
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, and nothing else of what was read.
    pub(crate) fn into_body(self) -> Bytes {
        self.body.freeze()
    }

    /// What is not text is shown as nothing.
    fn text(&self, range: &Range<usize>) -> &str {
        std::str::from_utf8(&self.bytes[range.clone()]).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length(usize),
    Chunked,
    Unsaid,
}

/// Where the fields that matter are in the bytes of a head.
#[derive(Clone, Debug, PartialEq)]
struct Head {
    length: usize,
    second: Range<usize>,
    status: Option<u16>,
    framing: Framing,
    closes: bool,
    authorization: Option<Range<usize>>,
    retry_after: Option<Range<usize>>,
}

impl Head {
    /// `bytes` end with the empty line.
    fn parse(bytes: &[u8]) -> Result<Self, Broken> {
        let first_end = find(bytes, b"\r\n").unwrap_or(bytes.len());
        let first = &bytes[..first_end];
        let begin = first.iter().position(|&b| b == b' ').ok_or(Broken::Malformed("the first line"))? + 1;
        let length = first[begin..].iter().position(|&b| b == b' ').unwrap_or(first_end - begin);
        let second = begin..begin + length;
        let status = std::str::from_utf8(&bytes[second.clone()]).ok().and_then(|text| text.parse().ok());
        let mut head = Self {
            length: bytes.len(),
            status,
            framing: Framing::Unsaid,
            closes: first.starts_with(b"HTTP/1.0"),
            authorization: None,
            retry_after: None,
            second,
        };
        let mut at = first_end + 2;
        while let Some(end) = find(&bytes[at..], b"\r\n").filter(|&end| end > 0) {
            head.field(bytes, at..at + end)?;
            at += end + 2;
        }
        // A response that does not say how long it is ends with its connection.
        head.closes |= head.framing == Framing::Unsaid && first.starts_with(b"HTTP/");
        Ok(head)
    }

    fn field(&mut self, bytes: &[u8], line: Range<usize>) -> Result<(), Broken> {
        let text = &bytes[line.clone()];
        let colon = text.iter().position(|&b| b == b':').ok_or(Broken::Malformed("a header field"))?;
        let (name, value) = (&text[..colon], text[colon + 1..].trim_ascii());
        let place = || {
            let begin = line.end - text[colon + 1..].trim_ascii_start().len();
            begin..begin + value.len()
        };
        // The length tells most fields apart before any letter is compared.
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") && self.framing != Framing::Chunked => {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let length = length.ok_or(Broken::Malformed("the content length"))?;
                self.framing = Framing::Length(length);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Broken::Malformed("a transfer encoding other than chunked"));
                }
                self.framing = Framing::Chunked;
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.closes = value.eq_ignore_ascii_case(b"close");
            }
            13 if name.eq_ignore_ascii_case(b"authorization") => self.authorization = Some(place()),
            11 if name.eq_ignore_ascii_case(b"retry-after") => self.retry_after = Some(place()),
            _ => {}
        }
        Ok(())
    }

    fn status(&self) -> Result<u16, Broken> {
        self.status.ok_or(Broken::Malformed("the status"))
    }
}

fn chunk_length(line: &[u8]) -> Result<usize, Broken> {
    let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
    let length = text.and_then(|text| usize::from_str_radix(text, 16).ok());
    length.ok_or(Broken::Malformed("the length of a chunk"))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = what[0];
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&b| b == first) {
        if bytes[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A connection, and the raw stream at its other end.
    async fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(Connection::open(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// Reads responses out of `sent`, which arrives in pieces of `piece` bytes, until it ends.
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
                Ok(message) => got.push(Ok((
                    message.status().unwrap(),
                    String::from_utf8(message.body().to_vec()).unwrap(),
                ))),
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
    async fn responses_are_read_however_they_are_framed_and_split() {
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
    async fn what_is_not_http_is_named_and_ends_the_reading() {
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
            "a chunk is longer than it says",
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
    fn a_wait_is_read_from_seconds_only() {
        fn check(field: &str, expected: Option<f64>) {
            let bytes = format!("HTTP/1.1 429 x\r\n{field}\r\n\r\n");
            let head = Head::parse(bytes.as_bytes()).unwrap();
            let message = Message { bytes: bytes.as_bytes().into(), head, body: BytesMut::new() };
            assert_eq!(message.retry_after(), expected.map(Duration::from_secs_f64), "{field:?}");
        }
        check("retry-after: 5", Some(5.0));
        check("Retry-After:0.25", Some(0.25));
        check("retry-after: -1", None);
        check("retry-after: Wed, 21 Oct 2015 07:28:00 GMT", None);
        check("x: y", None);
    }
}
