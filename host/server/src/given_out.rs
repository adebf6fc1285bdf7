//! `GET /rollout/{id}/trajectory`: a rollout that is over, out of the journal, whatever protocol it
//! came by.
//!
//! Files are read, and a document made, on a thread that may block, for a few callers at a time, and
//! what that takes is charged before it is read. The document is sent when all of it is made: a caller that reads slowly
//! holds its bytes, of which its tenant has a share, and no turn of anybody else.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Server, Trajectories};
use crate::error::Refused;
use rollout_core::budget::{Budget, Charge};
use rollout_rollout::{Host, Journal, NoTrajectory, StoredDocument};
use rollout_wire::id::{RolloutId, SampleId};
use rollout_wire::text::{beginning, printable};

/// How many are made at once: each has a thread, and files open.
const AT_ONCE: usize = 4;

/// What a rollout takes while its documents are made, in multiples of what it takes in files: its
/// events as they were read, the record that is made of them, the documents, and one more where its caller
/// reported something that goes into it.
const MEMORY_FACTOR: u64 = 7;

/// What is sent at once.
const CHUNK_BYTES: usize = 64 << 10;

/// How long a caller has to read what it asked for, whatever that takes.
const READING_TIME_MIN: Duration = Duration::from_secs(60);

/// How many bytes a second a caller has to read beyond that time.
const READ_BYTES_PER_SEC: usize = 64 << 10;

/// The longest part of a name that is repeated.
const NAME_BYTES_SHOWN: usize = 100;

/// What keeps trajectories from being made all at once.
pub(super) struct GivenOut(Arc<Semaphore>);

impl Default for GivenOut {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Gives the documents of a rollout: an array where there are several and none is chosen.
pub(super) async fn trajectory(
    State(server): State<Server>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let host = server.0.serving.host();
    let Some(journal) = host.journal().cloned() else {
        let how = "this server keeps no journal, and its trajectories are files; --journal DIR, or [journal] \
             in its configuration, lets it give them out";
        return Err(Refused::NotFound(how.to_owned()));
    };
    let id = RolloutId::parse(id).map_err(|error| Refused::NotFound(format!("the id: {error}")))?;
    let sample = chosen_sample(query.as_deref().unwrap_or_default());
    let closed = |_| Refused::Unreadable;
    let permit = server.0.given_out.0.clone().acquire_owned().await.map_err(closed)?;
    let made = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        make(&host, &journal, &id, sample.as_deref())
    });
    // One that panicked has said nothing.
    let made = made.await.unwrap_or(Err(Refused::Unreadable))?;
    Ok(([(CONTENT_TYPE, "application/json")], made.into_body(READING_TIME_MIN)).into_response())
}

/// The sample that is chosen, if one is.
fn chosen_sample(query: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://localhost/?{query}")).ok()?;
    let chosen = url.query_pairs().find(|(name, _)| name == "sample");
    chosen.map(|(_, sample)| sample.into_owned())
}

/// Documents that were made, charged until they are sent.
struct Made {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    charge: Charge,
}

impl Made {
    /// The body of an answer, which breaks off where its reader takes longer than this and its share for each byte.
    fn into_body(self, time_min: Duration) -> Body {
        let Self { mut chunks, bytes, mut charge } = self;
        let time = time_min + Duration::from_secs((bytes / READ_BYTES_PER_SEC) as u64);
        let until = Instant::now() + time;
        let body = stream::poll_fn(move |_| {
            let Some(chunk) = chunks.pop_front() else { return Poll::Ready(None) };
            if Instant::now() >= until {
                chunks.clear();
                charge.shrink_to(0);
                return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut))));
            }
            // What is sent is in the connection's buffers a moment longer.
            charge.shrink_to(chunks.iter().map(Bytes::len).sum::<usize>() + chunk.len());
            Poll::Ready(Some(Ok(chunk)))
        });
        Body::from_stream(body)
    }
}

/// Makes the documents of a rollout. Reads files.
fn make(host: &Host, journal: &Journal, id: &RolloutId, sample: Option<&str>) -> Result<Made, Refused> {
    let (trajectories, mut charge) = read(host, journal, id)?;
    let documents = trajectories.documents();
    let places = places(&documents, sample)?;
    let mut to = Chunks { chunks: VecDeque::new(), gathered: Vec::with_capacity(CHUNK_BYTES), bytes: 0 };
    let written = trajectories.write_places(&documents, &places, &mut to).and_then(|()| to.flush());
    written.map_err(|error| {
        tracing::error!(rollout_id = %id, %error, "a trajectory cannot be made of a rollout of the journal");
        Refused::Unreadable
    })?;
    drop(documents);
    drop(trajectories);
    charge.shrink_to(to.bytes);
    Ok(Made { chunks: to.chunks, bytes: to.bytes, charge })
}

/// The trajectories of a rollout, with a charge for what they take.
fn read(host: &Host, journal: &Journal, id: &RolloutId) -> Result<(Trajectories, Charge), Refused> {
    let name = || printable(&beginning(id.as_str(), NAME_BYTES_SHOWN));
    let not_over = || Refused::NotNow(format!("rollout '{}' is not over; ask again when it is", name()));
    let unreadable = |error: io::Error| {
        tracing::error!(rollout_id = %id, %error, "a rollout of the journal cannot be read");
        Refused::Unreadable
    };
    let none = || Refused::NotFound(format!("there is no rollout '{}' in this server's journal", name()));
    // One that is alive is the last of its id, and may not be in files yet.
    let is_alive = host.find(id).is_some();
    let found = journal.find(id).map_err(unreadable)?;
    let found = match found {
        Some(found) if found.is_over() => found,
        _ if is_alive => return Err(not_over()),
        Some(found) if found.has_ended() => {
            return Err(Refused::NotFound(format!("rollout '{}' ended without a result", name())));
        }
        Some(_) => return Err(not_over()),
        None => return Err(none()),
    };
    let charge = charged(host.budget(), found.bytes().map_err(unreadable)?)?;
    let stored = found.read().map_err(unreadable)?.ok_or_else(none)?;
    let trajectories = Trajectories::of(stored).map_err(|why| match why {
        NoTrajectory::NotOver(_) => not_over(),
        why => unreadable(io::Error::other(why)),
    })?;
    Ok((trajectories, charge))
}

fn charged(budget: &Budget, bytes_in_files: u64) -> Result<Charge, Refused> {
    let bytes = usize::try_from(bytes_in_files.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
    let no_room = |error: &dyn std::error::Error| {
        let instead = "retry later, or read the journal with 'rollout-host trajectory'";
        Refused::NoRoom(format!("{error}; {instead}"))
    };
    budget.check_new_work(bytes).map_err(|error| no_room(&error))?;
    budget.charge_read(bytes).map_err(|error| no_room(&error))
}

/// Which of the documents are to be given.
fn places(documents: &[StoredDocument<'_>], sample: Option<&str>) -> Result<Vec<usize>, Refused> {
    let Some(sample) = sample else { return Ok((0..documents.len()).collect()) };
    let is_it = |document: &StoredDocument<'_>| document.sample().is_some_and(|id| id.as_str() == sample);
    documents.iter().position(is_it).map(|place| vec![place]).ok_or_else(|| {
        let ids = documents.iter().filter_map(StoredDocument::sample).map(SampleId::as_str);
        let ids: Vec<&str> = ids.collect();
        let sample = printable(&beginning(sample, NAME_BYTES_SHOWN));
        let has = match ids.as_slice() {
            [] => "none".to_owned(),
            ids => beginning(&ids.join(", "), NAME_BYTES_SHOWN),
        };
        Refused::NotFound(format!("the rollout has no sample '{sample}'; it has {has}"))
    })
}

/// What is written, in parts that are given back one by one as they are sent.
struct Chunks {
    chunks: VecDeque<Bytes>,
    gathered: Vec<u8>,
    bytes: usize,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() + bytes.len() > CHUNK_BYTES {
            self.flush()?;
        }
        // A longer text than a chunk goes in several.
        let taken = &bytes[..bytes.len().min(CHUNK_BYTES)];
        self.gathered.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            self.bytes += self.gathered.len();
            self.chunks.push_back(Bytes::copy_from_slice(&self.gathered));
            self.gathered.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, TryStreamExt};

    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_too_long_gets_no_more_and_holds_nothing() {
        let budget = Budget::new(1 << 20);
        let made = || Made {
            chunks: VecDeque::from([Bytes::from_static(b"one"), Bytes::from_static(b"two")]),
            bytes: 6,
            charge: budget.charge_read(6).unwrap(),
        };
        let in_time = made().into_body(READING_TIME_MIN).into_data_stream();
        assert_eq!(in_time.try_collect::<Vec<_>>().await.unwrap(), ["one", "two"]);
        let mut late = made().into_body(Duration::ZERO).into_data_stream();
        assert!(late.next().await.unwrap().is_err());
        assert_eq!(budget.used(), 0);
    }
}
