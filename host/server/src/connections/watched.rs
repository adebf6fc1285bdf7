//! A connection's stream and bodies, watched: what it is at, and that bodies come in time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::stream;
use super::table::{Known, Stage};
use crate::connection::{BodyError, WhenWritten};

/// A body may begin as slowly as it likes for so long, and may be silent for so long.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Bytes of a body that must have come for each second of it. Whoever is slower holds memory
/// and a connection for nothing that ends soon.
const BODY_RATE_MIN: u64 = 16 << 10;

/// How long a whole body may take: the largest at 3 Mbit/s.
const BODY_TIME_MAX: Duration = Duration::from_secs(180);

/// How long, and for how many bytes, a connection is read whose request was answered without
/// its body. A caller that is still writing would lose the answer to the reset that follows a
/// close; so it has a moment to find out.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;

/// What is to be done at the end of the response that is being written.
#[derive(Default)]
pub(super) struct AtTheEnd(Mutex<Option<WhenWritten>>);

impl AtTheEnd {
    pub(crate) fn set(&self, then: Option<WhenWritten>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = then;
    }

    fn take(&self) -> Option<WhenWritten> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The stream of a caller.
pub(super) struct Stream {
    pub bytes: stream::Bytes,
    pub known: Arc<Known>,
    pub at_the_end: Arc<AtTheEnd>,
    pub linger: Option<Linger>,
    /// Closes with it, which is how its connection learns that it is gone.
    pub _alive: oneshot::Sender<()>,
}

/// A connection that is closed on this side, and read from for a moment.
pub(super) struct Linger {
    until: Pin<Box<Sleep>>,
    left: usize,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.known.is_hung_up(Some(cx.waker())) {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let Poll::Ready(result) = Pin::new(&mut self.bytes).poll_read(cx, buf) else {
            self.known.is_silent();
            return Poll::Pending;
        };
        if buf.filled().len() > before {
            self.known.has_read();
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.known.is_hung_up(None) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.bytes).poll_write(cx, buf));
        self.known.has_written();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.known.is_hung_up(None) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.bytes).poll_write_vectored(cx, bufs));
        self.known.has_written();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    /// The protocol flushes when all that it had to write was taken, and at no other time.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.bytes).poll_flush(cx))?;
        if self.known.has_flushed()
            && let Some(then) = self.at_the_end.take()
        {
            then.written();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { bytes, known, linger, .. } = self.get_mut();
        let linger = match linger {
            Some(linger) => linger,
            None => {
                ready!(Pin::new(&mut *bytes).poll_shutdown(cx))?;
                if !known.has_left_unread() {
                    return Poll::Ready(Ok(()));
                }
                known.is_at(Stage::Idle);
                let until = Box::pin(tokio::time::sleep(LINGER_TIME));
                linger.insert(Linger { until, left: LINGER_BYTES })
            }
        };
        while linger.left > 0 && linger.until.as_mut().poll(cx).is_pending() {
            let mut nowhere = [0; 4096];
            let mut buf = ReadBuf::new(&mut nowhere);
            if ready!(Pin::new(&mut *bytes).poll_read(cx, &mut buf)).is_err() || buf.filled().is_empty() {
                break;
            }
            linger.left = linger.left.saturating_sub(buf.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

/// The body of a request, which has to come in time.
pub(super) struct InTime {
    body: Incoming,
    known: Arc<Known>,
    began: Instant,
    last: Instant,
    received: u64,
    is_whole: bool,
    /// Made when it is first waited for; most bodies come with their head.
    timer: Option<Pin<Box<Sleep>>>,
}

impl InTime {
    pub(crate) fn new(body: Incoming, known: Arc<Known>) -> Self {
        known.is_at(if body.is_end_stream() { Stage::Working } else { Stage::Receiving });
        let now = Instant::now();
        Self { body, known, began: now, last: now, received: 0, is_whole: false, timer: None }
    }

    fn deadline(&self) -> Instant {
        let at_rate = Duration::from_secs(self.received / BODY_RATE_MIN);
        (self.began + BODY_TIME_MAX)
            .min(self.began + BODY_SILENCE_MAX + at_rate)
            .min(self.last + BODY_SILENCE_MAX)
    }

    /// Whether the time is over; if not, it wakes the task when it is.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx)
    }
}

impl Body for InTime {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.received += data.len() as u64;
                    self.last = Instant::now();
                    self.known.is_at(Stage::Receiving);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Ready(None) => {
                self.is_whole = true;
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.poll_over(cx));
                let (received, time) = (self.received, self.began.elapsed());
                Poll::Ready(Some(Err(BodyError::TooSlow { received, time })))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for InTime {
    fn drop(&mut self) {
        if !self.is_whole && !self.body.is_end_stream() {
            self.known.leaves_unread();
        }
        // Read in full or not wanted: what its connection waits for now is the handler.
        if self.known.stage() == Stage::Receiving {
            self.known.is_at(Stage::Working);
        }
    }
}

/// The body of a response, of which the connection learns when it was handed over in full.
pub(super) struct Sent {
    body: axum::body::Body,
    known: Arc<Known>,
    is_whole: bool,
}

impl Sent {
    pub(crate) fn new(body: axum::body::Body, known: Arc<Known>) -> Self {
        known.is_at(Stage::Sending);
        let is_whole = body.is_end_stream();
        Self { body, known, is_whole }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_whole = frame.is_none() || self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.is_whole {
            self.known.has_answered();
        }
    }
}
