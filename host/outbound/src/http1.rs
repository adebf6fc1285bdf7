//! A minimal HTTP/1.1 implementation, for both sides of a connection.
//!
//! A rollout that waits for its model holds a connection that waits for a response, and ten thousand of them wait at
//! once. Such a connection is a socket and 200 bytes here; in a general client it has 27 KiB of channels and buffers.
//! Processor time is small for the same reason: a message is one write of prepared bytes and one read, of which only
//! the relevant fields are parsed. The load generator needs this, because it shares the processor with the server under
//! test.
//!
//! The peer is not trusted. Everything that it may send around the bytes of a body is limited (`INTERIM_MAX`,
//! `HEAD_BYTES_MAX`, `FRAMING_BYTES_MAX`) and is searched once, however small the pieces are. The reader yields to
//! other tasks between reads, so that a deadline around the exchange takes effect.
//!
//! This module knows framing (content length, chunks, end of stream) and a few header fields. It knows no routes, no
//! JSON and no rollouts.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod head;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, Bytes, BytesMut};
use httpdate::parse_http_date;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::task::consume_budget;
use tokio_rustls::client::TlsStream;

use head::{FIELDS_MAX, Framing, Head};
use stream::Stream;

/// Maximum size of a head. A longer one does not come from an HTTP server or client.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a body by default. A longer one is a mistake of the peer.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of interim responses (1xx) before a response. Servers send one, or a few early hints.
const INTERIM_MAX: usize = 16;
/// Maximum size of the chunk extensions and trailers of one body together. They are ignored.
const FRAMING_BYTES_MAX: usize = 16 << 10;
/// Size of the line before a chunk without extensions: 16 digits and the line end.
const CHUNK_LINE_BYTES: usize = 18;
/// Idle time after which a connection is replaced. Servers close idle connections (some after 5 s), and a request sent
/// at that moment is lost.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Maximum delay before a retry. A longer one comes from a wrong unit or date.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// Error of receiving a message.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("the connection closed before a complete response")]
    Ended,
    /// The bytes are not HTTP/1.1.
    #[error("not HTTP/1.1: {0}")]
    Malformed(&'static str),
    /// The body is longer than allowed.
    #[error("a body longer than {0} bytes")]
    TooLong(usize),
    /// The head arrived, but the body did not.
    #[error("{cause}")]
    Body {
        /// The status in the head.
        status: u16,
        /// The error in the body.
        cause: Box<Broken>,
    },
}

/// One connection, of a client or a server, with the bytes that it has read ahead.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    buffer: BytesMut,
    used: Instant,
    body_bytes_max: usize,
}

/// A request or a response, with the header fields that this module reads.
#[derive(Debug)]
pub struct Message {
    bytes: BytesMut,
    head: Head,
    body: BytesMut,
}

/// The side that sends the message.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Client,
    Server,
}

impl Connection {
    /// Connects, with Nagle's algorithm disabled.
    #[expect(clippy::disallowed_methods, reason = "for the load generator, which belongs to no rollout")]
    pub async fn open(to: impl ToSocketAddrs) -> io::Result<Self> {
        Self::over(TcpStream::connect(to).await?)
    }

    /// Creates a connection over a connected socket.
    pub fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::of(Stream::Plain(stream)))
    }

    /// Creates a connection over TLS.
    pub(crate) fn over_tls(stream: TlsStream<TcpStream>) -> Self {
        Self::of(Stream::Tls(Box::new(stream)))
    }

    fn of(stream: Stream) -> Self {
        Self { stream, buffer: BytesMut::new(), used: Instant::now(), body_bytes_max: BODY_BYTES_MAX }
    }

    /// Returns whether the connection was used so recently that the peer should not have closed it for idleness.
    pub fn is_fresh(&self) -> bool {
        self.used.elapsed() < IDLE_MAX
    }

    /// Returns whether the connection has been idle for less than `idle_max`, the peer has not closed it, and no
    /// unexpected bytes have arrived.
    pub(crate) fn is_good(&mut self, idle_max: Duration) -> bool {
        self.buffer.is_empty() && self.used.elapsed() < idle_max && self.stream.is_quiet()
    }

    /// Returns the time of the last use.
    pub(crate) fn used(&self) -> Instant {
        self.used
    }

    /// Frees the read buffer until there is something to read again.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Sets the maximum size of bodies that are received from here on.
    pub(crate) fn limit_bodies(&mut self, bytes_max: usize) {
        self.body_bytes_max = bytes_max;
    }

    /// Sends a whole message in one write.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message).await?;
        self.used = Instant::now();
        Ok(())
    }

    /// Receives the next request, or `None` if the client closed the connection.
    pub async fn receive_request(&mut self) -> Result<Option<Message>, Broken> {
        match self.receive_head(Side::Client).await? {
            Some(head) => self.finish(head, Side::Client).await.map(Some),
            None => Ok(None),
        }
    }

    /// Receives the next response, skipping interim ones.
    pub async fn receive_response(&mut self) -> Result<Message, Broken> {
        for _ in 0..=INTERIM_MAX {
            let head = self.receive_head(Side::Server).await?.ok_or(Broken::Ended)?;
            match head.status()? {
                // No request asks for another protocol.
                101 => return Err(Broken::Malformed("a change of protocol")),
                100..200 => self.buffer.advance(head.length),
                // Boxed, because the future is as large as all the rest of a waiting call.
                _ => return Box::pin(self.finish(head, Side::Server)).await,
            }
        }
        Err(Broken::Malformed("too many interim responses"))
    }

    /// Receives the next head, or `None` if the stream ends before one begins.
    async fn receive_head(&mut self, from: Side) -> Result<Option<Head>, Broken> {
        let mut searched = 0;
        loop {
            if let Some(end) = head::end(&self.buffer, searched) {
                let bytes = &self.buffer[..end];
                let head = match from {
                    Side::Client => Head::parse_request(bytes),
                    Side::Server => Head::parse_response(bytes),
                };
                return head.map(Some);
            }
            searched = self.buffer.len();
            if searched > HEAD_BYTES_MAX {
                return Err(Broken::Malformed("the head is too long"));
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(Broken::Ended) };
            }
        }
    }

    async fn finish(&mut self, head: Head, from: Side) -> Result<Message, Broken> {
        let bytes = self.buffer.split_to(head.length);
        let body = match (from, head.framing) {
            (Side::Server, _) if matches!(head.status()?, 204 | 304) => Ok(BytesMut::new()),
            (_, Framing::Length(length)) => self.read_sized(length).await,
            (_, Framing::Chunked) => self.read_chunked().await,
            (Side::Server, Framing::Unspecified) => self.read_to_end().await,
            (Side::Client, Framing::Unspecified) => Ok(BytesMut::new()),
        };
        let body = body.map_err(|cause| match head.status {
            Some(status) => Broken::Body { status, cause: Box::new(cause) },
            None => cause,
        })?;
        self.used = Instant::now();
        Ok(Message { bytes, head, body })
    }

    async fn read_sized(&mut self, length: usize) -> Result<BytesMut, Broken> {
        self.check_body(length)?;
        while self.buffer.len() < length {
            self.fill_or_end().await?;
        }
        Ok(self.buffer.split_to(length))
    }

    async fn read_to_end(&mut self) -> Result<BytesMut, Broken> {
        self.check_body(self.buffer.len())?;
        while self.fill().await? {
            self.check_body(self.buffer.len())?;
        }
        Ok(self.buffer.split())
    }

    async fn read_chunked(&mut self) -> Result<BytesMut, Broken> {
        let mut body = BytesMut::new();
        let mut framing_left = FRAMING_BYTES_MAX;
        loop {
            // A body of tiny chunks is parsed from the buffer without a wait.
            consume_budget().await;
            let line = self.read_line(framing_left + CHUNK_LINE_BYTES).await?;
            framing_left = framing_left.saturating_sub(line.len().saturating_sub(CHUNK_LINE_BYTES));
            let length = chunk_length(&line)?;
            if length == 0 {
                self.skip_trailers(framing_left).await?;
                return Ok(body);
            }
            self.check_body(body.len().saturating_add(length))?;
            self.read_chunk(length, &mut body).await?;
        }
    }

    async fn read_chunk(&mut self, length: usize, body: &mut BytesMut) -> Result<(), Broken> {
        let mut left = length;
        while left > 0 {
            if self.buffer.is_empty() {
                self.fill_or_end().await?;
            }
            let here = left.min(self.buffer.len());
            body.extend_from_slice(&self.buffer[..here]);
            self.buffer.advance(here);
            left -= here;
        }
        while self.buffer.len() < 2 {
            self.fill_or_end().await?;
        }
        if !self.buffer.starts_with(b"\r\n") {
            return Err(Broken::Malformed("a chunk is longer than its size"));
        }
        self.buffer.advance(2);
        Ok(())
    }

    async fn skip_trailers(&mut self, mut bytes_left: usize) -> Result<(), Broken> {
        for _ in 0..=FIELDS_MAX {
            let line = self.read_line(bytes_left + 2).await?;
            if line.len() <= 2 {
                return Ok(());
            }
            bytes_left = bytes_left.saturating_sub(line.len());
        }
        Err(Broken::Malformed("too many trailers"))
    }

    /// Reads the next line with its line end, of at most `bytes_max` bytes.
    async fn read_line(&mut self, bytes_max: usize) -> Result<BytesMut, Broken> {
        let mut searched: usize = 0;
        loop {
            // The first byte of the line end may have arrived before.
            let from = searched.saturating_sub(1);
            let end = self.buffer[from..].windows(2).position(|two| two == b"\r\n");
            searched = self.buffer.len();
            match end.map(|at| from + at + 2) {
                Some(end) if end <= bytes_max => return Ok(self.buffer.split_to(end)),
                None if searched <= bytes_max => self.fill_or_end().await?,
                _ => return Err(Broken::Malformed("a chunk extension or a trailer is too long")),
            }
        }
    }

    async fn fill_or_end(&mut self) -> Result<(), Broken> {
        if self.fill().await? { Ok(()) } else { Err(Broken::Ended) }
    }

    /// Reads available bytes. Returns false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, Broken> {
        // Reading from a socket that always has data never yields, and a task that never yields keeps its deadline and
        // other tasks from running.
        consume_budget().await;
        // A connection that waits, perhaps for minutes, holds no buffer.
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        Ok(self.stream.read_into(&mut self.buffer).await? > 0)
    }

    fn check_body(&self, length: usize) -> Result<(), Broken> {
        if length > self.body_bytes_max { Err(Broken::TooLong(self.body_bytes_max)) } else { Ok(()) }
    }
}

impl Message {
    /// Returns the status of a response.
    pub fn status(&self) -> Result<u16, Broken> {
        self.head.status()
    }

    /// Returns the target of a request.
    pub fn target(&self) -> &str {
        self.text(&self.head.target)
    }

    /// Returns the value of the header `authorization`.
    pub fn authorization(&self) -> Option<&str> {
        self.head.authorization.as_ref().map(|range| self.text(range))
    }

    /// Returns the delay before a retry that a response requests, in seconds or until a date.
    #[expect(clippy::disallowed_methods, reason = "the header has a date")]
    pub fn retry_after(&self) -> Option<Duration> {
        let date = self.head.date.as_ref().map(|range| self.text(range));
        wait(self.text(self.head.retry_after.as_ref()?), date, SystemTime::now())
    }

    /// Returns whether the sender closes the connection after this message.
    pub fn ends_connection(&self) -> bool {
        self.head.closes
    }

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the body and frees the rest of the message.
    pub(crate) fn into_body(self) -> Bytes {
        self.body.freeze()
    }

    /// Returns a part of the head as text, or an empty text if it is not UTF-8.
    fn text(&self, range: &Range<usize>) -> &str {
        std::str::from_utf8(&self.bytes[range.clone()]).unwrap_or_default()
    }
}

/// Parses `Retry-After`. A date is relative to the sender's own `Date` if there is one, so that a wrong clock does not
/// result in a delay of hours.
fn wait(value: &str, date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse() {
        Ok(secs) => Duration::try_from_secs_f64(secs).ok()?,
        Err(_) => {
            let until = parse_http_date(value).ok()?;
            let from = date.and_then(|date| parse_http_date(date).ok()).unwrap_or(now);
            until.duration_since(from).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

fn chunk_length(line: &[u8]) -> Result<usize, Broken> {
    let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'));
    let length = text.and_then(|text| usize::from_str_radix(text, 16).ok());
    length.ok_or(Broken::Malformed("the length of a chunk"))
}
