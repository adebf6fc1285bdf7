//! Wrappers of a connection's stream and bodies. They report the stage of the connection to the table and enforce the
//! timeouts of request bodies.

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
use super::table::{Stage, TrackedConnection};
use crate::connection::{BodyError, WhenWritten};

/// Maximum time without a byte of a body, and time at the start of a body without a minimum rate.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Minimum rate of a body in bytes per second. A slower body would hold memory and a connection for too long.
const BODY_RATE_MIN: u64 = 16 << 10;

/// Maximum time of a whole body: the largest one at 3 Mbit/s.
const BODY_TIME_MAX: Duration = Duration::from_secs(180);

/// Maximum time for which a connection is read after its request was answered without reading its body. If the
/// connection were closed at once, the caller would receive a reset while it still writes, and lose the response.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// Maximum number of bytes that are read in that time.
const LINGER_BYTES: usize = 1 << 20;

/// The callback of the response that is being written.
#[derive(Default)]
pub(super) struct WrittenCallback(Mutex<Option<WhenWritten>>);

impl WrittenCallback {
    /// Replaces the callback.
    pub(crate) fn set(&self, callback: Option<WhenWritten>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = callback;
    }

    fn take(&self) -> Option<WhenWritten> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The stream of a connection.
pub(super) struct CallerStream {
    pub bytes: stream::ByteStream,
    pub tracked: Arc<TrackedConnection>,
    pub written_callback: Arc<WrittenCallback>,
    pub linger: Option<Linger>,
    /// Dropped with the stream, which notifies the task of the connection that an upgraded stream is gone.
    pub _alive: oneshot::Sender<()>,
}

/// The limits of reading from a connection that is closed for writing.
pub(super) struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl AsyncRead for CallerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.tracked.is_hung_up(Some(cx.waker())) {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let Poll::Ready(result) = Pin::new(&mut self.bytes).poll_read(cx, buf) else {
            self.tracked.on_read_pending();
            if self.tracked.looks() && self.bytes.has_unread_bytes() {
                self.tracked.on_unread_bytes();
            }
            return Poll::Pending;
        };
        if buf.filled().len() > before {
            self.tracked.on_read();
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for CallerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.tracked.is_hung_up(None) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.bytes).poll_write(cx, buf));
        self.tracked.on_written();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.tracked.is_hung_up(None) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.bytes).poll_write_vectored(cx, bufs));
        self.tracked.on_written();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    /// Flushes the stream. The protocol calls it only when the socket has accepted all bytes to be written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.bytes).poll_flush(cx))?;
        if self.tracked.on_flushed()
            && let Some(callback) = self.written_callback.take()
        {
            callback.call();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { bytes, tracked, linger, .. } = self.get_mut();
        let linger = match linger {
            Some(linger) => linger,
            None => {
                ready!(Pin::new(&mut *bytes).poll_shutdown(cx))?;
                if !tracked.has_unread_body() {
                    return Poll::Ready(Ok(()));
                }
                tracked.set_stage(Stage::Idle);
                let until = Box::pin(tokio::time::sleep(LINGER_TIME));
                linger.insert(Linger { until, bytes_left: LINGER_BYTES })
            }
        };
        while linger.bytes_left > 0 && linger.until.as_mut().poll(cx).is_pending() {
            let mut discarded = [0; 4096];
            let mut buf = ReadBuf::new(&mut discarded);
            if ready!(Pin::new(&mut *bytes).poll_read(cx, &mut buf)).is_err() || buf.filled().is_empty() {
                break;
            }
            linger.bytes_left = linger.bytes_left.saturating_sub(buf.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

/// The body of a request, with timeouts.
pub(super) struct TimedBody {
    body: Incoming,
    tracked: Arc<TrackedConnection>,
    began: Instant,
    last: Instant,
    received: u64,
    is_whole: bool,
    /// Created when the body is first waited for. Most bodies arrive with their head.
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    pub(crate) fn new(body: Incoming, tracked: Arc<TrackedConnection>) -> Self {
        tracked.set_stage(if body.is_end_stream() { Stage::Working } else { Stage::Receiving });
        let now = Instant::now();
        Self { body, tracked, began: now, last: now, received: 0, is_whole: false, timer: None }
    }

    /// Returns the time by which more of the body must arrive.
    fn deadline(&self) -> Instant {
        let at_rate = Duration::from_secs(self.received / BODY_RATE_MIN);
        (self.began + BODY_TIME_MAX)
            .min(self.began + BODY_SILENCE_MAX + at_rate)
            .min(self.last + BODY_SILENCE_MAX)
    }

    /// Completes at the deadline.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx)
    }
}

impl Body for TimedBody {
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
                    self.tracked.set_stage(Stage::Receiving);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Ready(None) => {
                self.is_whole = true;
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.poll_deadline(cx));
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

impl Drop for TimedBody {
    fn drop(&mut self) {
        if !self.is_whole && !self.body.is_end_stream() {
            self.tracked.set_unread_body();
        }
        // The handler has read the body or dropped it, and now works on the request.
        if self.tracked.stage() == Stage::Receiving {
            self.tracked.set_stage(Stage::Working);
        }
    }
}

/// The body of a response. It notes when its last byte was handed to the protocol.
pub(super) struct ResponseBody {
    body: axum::body::Body,
    tracked: Arc<TrackedConnection>,
    is_whole: bool,
}

impl ResponseBody {
    pub(crate) fn new(body: axum::body::Body, tracked: Arc<TrackedConnection>) -> Self {
        tracked.set_stage(Stage::Sending);
        let is_whole = body.is_end_stream();
        Self { body, tracked, is_whole }
    }
}

impl Body for ResponseBody {
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if self.is_whole {
            self.tracked.on_response_complete();
        }
    }
}
