//! The least HTTP/1.1 that thousands of waiting calls need, on both sides of a connection.
//!
//! A rollout that waits for its model is a connection that waits for an answer, and ten
//! thousand of them wait at once: here such a connection is a socket and 200 bytes, in a
//! general client 27 KiB of channels and buffers made ready. It is quick for the same reason: a
//! message is one write of bytes that were made before, and one read in which only the fields
//! that matter are looked at, which the load generator needs, because what it uses of the
//! processor, the server that is measured does not get.
//!
//! The other side is not trusted. Whatever it sends in front of, between and behind the bytes
//! of a body is bounded (`INTERIM_MAX`, `HEAD_BYTES_MAX`, `FRAMING_BYTES_MAX`), is looked
//! at once however few bytes of it come at a time, and gives the thread back to others as it
//! goes on coming, so that a deadline around the exchange is kept.
//!
//! This module knows framing (content length, chunks, end of stream) and a few header
//! fields. It knows no route, no JSON and no rollout.

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

/// A head that is longer comes from something that does not speak HTTP.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// A body that is longer is a mistake of the other side, unless more was allowed.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Interim responses (1xx) before one answer. Servers send one, or a few early hints.
const INTERIM_MAX: usize = 16;
/// What chunk extensions and trailers of one body may have together, which nobody reads.
const FRAMING_BYTES_MAX: usize = 16 << 10;
/// The line in front of a chunk without extensions: 16 digits and the end of the line.
const CHUNK_LINE_BYTES: usize = 18;
/// A server may close a connection that is idle for longer (some wait only 5 s), and a request
/// that crosses the closing is lost. Such a connection is replaced.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Who asks for a longer wait has mistaken the unit or the day.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side hung up.
    #[error("the connection ended before an answer did")]
    Ended,
    /// What came is no HTTP/1.1.
    #[error("not HTTP/1.1: {0}")]
    Malformed(&'static str),
    /// The body is longer than may be read.
    #[error("a body longer than {0} bytes")]
    TooLong(usize),
    /// There was a head, which says this, and then what is wrong.
    #[error("{cause}")]
    Body {
        /// What the head says.
        status: u16,
        /// What is wrong with the body.
        cause: Box<Broken>,
    },
}

/// One connection, either side, and what it has read ahead.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    buffer: BytesMut,
    used: Instant,
    body_bytes_max: usize,
}

/// A request or a response, as far as anyone here looks.
#[derive(Debug)]
pub struct Message {
    bytes: BytesMut,
    head: Head,
    body: BytesMut,
}

/// Which side the messages come from.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Client,
    Server,
}

impl Connection {
    /// Connects, without Nagle's delay.
    #[expect(clippy::disallowed_methods, reason = "for the load generator, which is no part of a rollout")]
    pub async fn open(to: impl ToSocketAddrs) -> io::Result<Self> {
        Self::over(TcpStream::connect(to).await?)
    }

    /// A connection that was made already.
    pub fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::of(Stream::Plain(stream)))
    }

    /// The same, encrypted.
    pub(crate) fn over_tls(stream: TlsStream<TcpStream>) -> Self {
        Self::of(Stream::Tls(Box::new(stream)))
    }

    fn of(stream: Stream) -> Self {
        Self { stream, buffer: BytesMut::new(), used: Instant::now(), body_bytes_max: BODY_BYTES_MAX }
    }

    /// Whether the other side has surely not closed it for idleness.
    pub fn is_fresh(&self) -> bool {
        self.used.elapsed() < IDLE_MAX
    }

    /// Whether it has been idle for less than this, and the other side has neither closed it
    /// nor said anything that nobody asked for.
    pub(crate) fn is_good(&mut self, idle_max: Duration) -> bool {
        self.buffer.is_empty() && self.used.elapsed() < idle_max && self.stream.is_quiet()
    }

    /// Since when it has been idle.
    pub(crate) fn used(&self) -> Instant {
        self.used
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
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message).await?;
        self.used = Instant::now();
        Ok(())
    }

    /// The next request, or nothing when the other side is done.
    pub async fn receive_request(&mut self) -> Result<Option<Message>, Broken> {
        match self.receive_head(Side::Client).await? {
            Some(head) => self.finish(head, Side::Client).await.map(Some),
            None => Ok(None),
        }
    }

    /// The next response; interim ones are passed over.
    pub async fn receive_response(&mut self) -> Result<Message, Broken> {
        for _ in 0..=INTERIM_MAX {
            let head = self.receive_head(Side::Server).await?.ok_or(Broken::Ended)?;
            match head.status()? {
                // Nobody asked for another protocol.
                101 => return Err(Broken::Malformed("a change of protocol")),
                100..200 => self.buffer.advance(head.length),
                // In a box, because it is as large as all that waits for an answer to begin.
                _ => return Box::pin(self.finish(head, Side::Server)).await,
            }
        }
        Err(Broken::Malformed("more interim responses than anybody sends"))
    }

    /// The next head; none where the stream ends before one begins.
    async fn receive_head(&mut self, from: Side) -> Result<Option<Head>, Broken> {
        let mut searched = 0;
        loop {
            if let Some(end) = head::end(&self.buffer, searched) {
                let bytes = &self.buffer[..end];
                let head = match from {
                    Side::Client => Head::of_request(bytes),
                    Side::Server => Head::of_response(bytes),
                };
                return head.map(Some);
            }
            searched = self.buffer.len();
            if searched > HEAD_BYTES_MAX {
                return Err(Broken::Malformed("the head has no end"));
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
            (Side::Server, Framing::Unsaid) => self.read_to_end().await,
            (Side::Client, Framing::Unsaid) => Ok(BytesMut::new()),
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
            // A body of tiny chunks comes out of the buffer without a wait.
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
            return Err(Broken::Malformed("a chunk is longer than it says"));
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
        Err(Broken::Malformed("more trailers than anybody sends"))
    }

    /// The next line with its end, of so many bytes at the most.
    async fn read_line(&mut self, bytes_max: usize) -> Result<BytesMut, Broken> {
        let mut searched: usize = 0;
        loop {
            // The end may be half there.
            let from = searched.saturating_sub(1);
            let end = self.buffer[from..].windows(2).position(|two| two == b"\r\n");
            searched = self.buffer.len();
            match end.map(|at| from + at + 2) {
                Some(end) if end <= bytes_max => return Ok(self.buffer.split_to(end)),
                None if searched <= bytes_max => self.fill_or_end().await?,
                _ => return Err(Broken::Malformed("a chunk's extension or a trailer has no end")),
            }
        }
    }

    async fn fill_or_end(&mut self) -> Result<(), Broken> {
        if self.fill().await? { Ok(()) } else { Err(Broken::Ended) }
    }

    /// Reads what there is; false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, Broken> {
        // A socket that always has something to read does not make its reader wait, and one
        // that never waits lets neither its deadline nor its neighbours have a turn.
        consume_budget().await;
        // A connection that waits, perhaps for minutes, has no memory to read into yet.
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
    /// A response's status.
    pub fn status(&self) -> Result<u16, Broken> {
        self.head.status()
    }

    /// A request's target.
    pub fn target(&self) -> &str {
        self.text(&self.head.target)
    }

    /// The header `authorization`.
    pub fn authorization(&self) -> Option<&str> {
        self.head.authorization.as_ref().map(|range| self.text(range))
    }

    /// The wait that a refusal asks for, in seconds or until a date.
    #[expect(clippy::disallowed_methods, reason = "a date is compared with the date")]
    pub fn retry_after(&self) -> Option<Duration> {
        let date = self.head.date.as_ref().map(|range| self.text(range));
        wait(self.text(self.head.retry_after.as_ref()?), date, SystemTime::now())
    }

    /// Whether the sender closes the connection after this message.
    pub fn ends_connection(&self) -> bool {
        self.head.closes
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
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

/// What `Retry-After` asks for. A date counts from the sender's own, where it gives one, so that
/// a clock that is wrong by hours does not make a wait of hours.
fn wait(asked: &str, date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let asked = asked.trim();
    let wait = match asked.parse() {
        Ok(secs) => Duration::try_from_secs_f64(secs).ok()?,
        Err(_) => {
            let until = parse_http_date(asked).ok()?;
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
