//! Bodies of requests: read within a time and a size, and charged to the host's budget for as long as any part of them is
//! stored.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use futures_util::StreamExt;

use crate::connection::BodyError;
use rollout_core::budget::{Budget, Charge, Use};

/// Maximum size of all incomplete bodies together. Further bodies are refused with `Retry-After`, which leaves memory for
/// complete ones.
const INCOMPLETE_BYTES_MAX: usize = 512 << 20;

/// Initial size of a buffer and minimum step of its growth.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// Memory of a list's element in addition to its text: the position of its end, in a vector that may just have doubled its
/// capacity.
const PART_BYTES: usize = 16;

/// Maximum size of a body that is parsed on the runtime's thread, which takes about a millisecond.
const AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// Error of a request's body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyRefused {
    /// The body is larger than this number of bytes.
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    /// The memory budget is used up.
    #[error("the server holds as much as its memory budget allows; retry later")]
    NoMemory,
    /// The body arrived too slowly, as the text says.
    #[error("{0}")]
    Slow(String),
    /// The connection broke, or the bytes are not valid HTTP.
    #[error("there was an error reading the body")]
    Unreadable,
}

/// A dialect that reads bodies.
pub(crate) trait HoldsBodies: Send + Sync {
    /// Returns the budget to which bodies are charged.
    fn budget(&self) -> &Budget;

    /// Returns the bytes of all incomplete bodies.
    fn bodies(&self) -> &Bodies;
}

/// A body within a limit, with its charge.
pub(crate) struct Body<const BYTES_MAX: usize> {
    bytes: Vec<u8>,
    charge: Charge,
}

impl<const BYTES_MAX: usize> Body<BYTES_MAX> {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses the body into a value that takes at most its bytes and a pointer for each of its parts.
    pub(crate) fn parse<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T, BodyRefused> {
        let parts = self.bytes.iter().filter(|byte| **byte == b',').count();
        let more = self.bytes.len() + parts * PART_BYTES;
        self.charge.grow(more).map_err(|_| BodyRefused::NoMemory)?;
        // Parsing megabytes would delay other tasks.
        if self.bytes.len() > AT_ONCE_BYTES_MAX {
            Ok(tokio::task::block_in_place(|| read(&self.bytes)))
        } else {
            Ok(read(&self.bytes))
        }
    }

    /// Returns the bytes and their charge.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Charge) {
        (self.bytes, self.charge)
    }

    /// Drops the body and returns its charge, adjusted to the size of the parsed value.
    pub(crate) fn becomes(self, bytes: usize) -> Result<Charge, BodyRefused> {
        let Self { bytes: body, mut charge } = self;
        drop(body);
        if bytes > charge.bytes() {
            charge.grow(bytes - charge.bytes()).map_err(|_| BodyRefused::NoMemory)?;
        }
        charge.shrink_to(bytes);
        Ok(charge)
    }
}

impl<S: HoldsBodies, const BYTES_MAX: usize> FromRequest<S> for Body<BYTES_MAX> {
    type Rejection = BodyRefused;

    async fn from_request(request: Request, dialect: &S) -> Result<Self, BodyRefused> {
        let (budget, unfinished) = (dialect.budget(), dialect.bodies());
        let (head, body) = request.into_parts();
        // HTTP parsing has refused an invalid length. Without a length the body is chunked.
        let announced =
            head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let mut reading = Reading::start(budget, unfinished, announced, BYTES_MAX)?;
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            reading.push(chunk.map_err(broken)?)?;
        }
        let Reading { bytes, charge, .. } = reading;
        Ok(Self { bytes, charge })
    }
}

fn broken(error: axum::Error) -> BodyRefused {
    // A layer in between may have wrapped the error.
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        if let Some(slow @ BodyError::TooSlow { .. }) = error.downcast_ref() {
            return BodyRefused::Slow(slow.to_string());
        }
        cause = error.source();
    }
    BodyRefused::Unreadable
}

/// The bytes of all incomplete bodies.
#[derive(Default)]
pub(crate) struct Bodies(AtomicUsize);

/// The bytes of one incomplete body within the total.
struct Part<'a> {
    of: &'a Bodies,
    bytes: usize,
}

impl Part<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), BodyRefused> {
        let before = self.of.0.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before + bytes > INCOMPLETE_BYTES_MAX { Err(BodyRefused::NoMemory) } else { Ok(()) }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An incomplete body.
struct Reading<'a> {
    bytes: Vec<u8>,
    charge: Charge,
    part: Part<'a>,
    announced: Option<usize>,
    bytes_max: usize,
}

impl<'a> Reading<'a> {
    fn start(
        budget: &Budget,
        unfinished: &'a Bodies,
        announced: Option<usize>,
        bytes_max: usize,
    ) -> Result<Self, BodyRefused> {
        let expected = announced.unwrap_or(0);
        if expected > bytes_max {
            return Err(BodyRefused::TooLarge(bytes_max));
        }
        // A body for which there is no room is refused at once. The charge then covers received bytes only, because an
        // announced length takes no memory.
        let mut charge = budget.charge(Use::Request, expected).map_err(|_| BodyRefused::NoMemory)?;
        charge.shrink_to(0);
        let part = Part { of: unfinished, bytes: 0 };
        Ok(Self { bytes: Vec::new(), charge, part, announced, bytes_max })
    }

    fn push(&mut self, chunk: Bytes) -> Result<(), BodyRefused> {
        let length = self.bytes.len() + chunk.len();
        if length > self.bytes_max {
            return Err(BodyRefused::TooLarge(self.bytes_max));
        }
        if length > self.bytes.capacity() {
            let most = self.announced.unwrap_or(self.bytes_max).max(length);
            let room = (self.bytes.capacity() * 2).max(ROOM_BYTES_MIN).clamp(length, most);
            let more = room - self.bytes.capacity();
            self.part.grow(more)?;
            self.charge.grow(more).map_err(|_| BodyRefused::NoMemory)?;
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(&chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_charged_as_it_arrives_and_never_for_more_than_its_length() {
        let budget = Budget::default();
        let unfinished = Bodies::default();
        let mut reading = Reading::start(&budget, &unfinished, Some(100_000), 1 << 20).unwrap();
        assert_eq!(reading.charge.bytes(), 0);
        for _ in 0..100 {
            reading.push(Bytes::from(vec![b'x'; 1000])).unwrap();
            assert!(reading.charge.bytes() >= reading.bytes.len(), "{}", reading.charge.bytes());
        }
        assert_eq!(reading.charge.bytes(), 100_000);
        assert_eq!(unfinished.0.load(Ordering::Relaxed), 100_000);
        drop(reading);
        assert_eq!(unfinished.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_body_above_the_limit_is_refused_by_its_announced_length_or_when_it_exceeds_the_limit() {
        let (budget, unfinished) = (Budget::default(), Bodies::default());
        let refused = |error: Result<_, BodyRefused>| matches!(error, Err(BodyRefused::TooLarge(10)));
        assert!(refused(Reading::start(&budget, &unfinished, Some(11), 10).map(drop)));
        let mut reading = Reading::start(&budget, &unfinished, None, 10).unwrap();
        assert!(!refused(reading.push(Bytes::from_static(b"0123456789"))));
        assert!(refused(reading.push(Bytes::from_static(b"0"))));
    }

    #[test]
    fn incomplete_bodies_are_limited_in_total() {
        let (budget, unfinished) = (Budget::default(), Bodies::default());
        let chunk = Bytes::from(vec![0; 16 << 20]);
        let mut all = Vec::new();
        let refused = (0..64).find(|_| {
            let mut reading = Reading::start(&budget, &unfinished, None, 64 << 20).unwrap();
            let pushed = reading.push(chunk.clone());
            all.push(reading);
            matches!(pushed, Err(BodyRefused::NoMemory))
        });
        assert_eq!(refused, Some(INCOMPLETE_BYTES_MAX / chunk.len()));
        all.clear();
        assert_eq!(unfinished.0.load(Ordering::Relaxed), 0);
    }
}
