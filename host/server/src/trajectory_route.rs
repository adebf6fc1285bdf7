//! `GET /rollout/{id}/trajectory`: the trajectory of a finished rollout, from the journal. The route is the same for
//! all protocols.
//!
//! A blocking thread reads the files and builds the documents, for a few requests at a time. The memory is charged
//! before the files are read. The response starts when the documents are complete, so a slow reader holds bytes of its
//! tenant's share but no permit that another request waits for.

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
use crate::error::RequestRefused;
use rollout_core::budget::{Budget, Charge};
use rollout_rollout::{Host, Journal, NoTrajectory, StoredDocument};
use rollout_wire::id::{RolloutId, SampleId};
use rollout_wire::text::{beginning, printable};

/// Maximum number of requests whose documents are built at once. Each has a thread and open files.
const BUILDS_MAX: usize = 4;

/// Memory of a rollout while its documents are built, as a multiple of its size in files: its events, the record made
/// of them, the documents, and another copy of them if the caller's report is merged.
const MEMORY_FACTOR: u64 = 7;

/// Number of bytes of a chunk of the response.
const CHUNK_BYTES: usize = 64 << 10;

/// Time that a caller always has to read the response.
const READING_TIME_MIN: Duration = Duration::from_secs(60);

/// Minimum rate in bytes per second at which a caller must read the response after that time.
const READ_BYTES_PER_SEC: usize = 64 << 10;

/// Maximum number of bytes of a name that an error repeats.
const NAME_BYTES_SHOWN: usize = 100;

/// Limits the number of requests whose documents are built at once.
pub(super) struct TrajectoryPermits(Arc<Semaphore>);

impl Default for TrajectoryPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUILDS_MAX)))
    }
}

/// Returns the documents of a rollout: an array if there are several and the query selects no sample.
pub(super) async fn trajectory(
    State(server): State<Server>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, RequestRefused> {
    let host = server.0.serving.host();
    let Some(journal) = host.journal().cloned() else {
        let detail = "this server has no journal and writes trajectories to files only; to serve them, start it with \
             --journal DIR, or add [journal] to its configuration";
        return Err(RequestRefused::NotFound(detail.to_owned()));
    };
    let id = RolloutId::parse(id)
        .map_err(|error| RequestRefused::NotFound(format!("invalid rollout id: {error}")))?;
    let sample = selected_sample(query.as_deref().unwrap_or_default());
    let closed = |_| RequestRefused::Internal;
    let permit = server.0.trajectory_permits.0.clone().acquire_owned().await.map_err(closed)?;
    let build = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        build_documents(&host, &journal, &id, sample.as_deref())
    });
    // The log already contains the panic.
    let documents = build.await.unwrap_or(Err(RequestRefused::Internal))?;
    Ok(([(CONTENT_TYPE, "application/json")], documents.into_body(READING_TIME_MIN)).into_response())
}

/// Returns the sample that the query selects, if any.
fn selected_sample(query: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://localhost/?{query}")).ok()?;
    let selected = url.query_pairs().find(|(name, _)| name == "sample");
    selected.map(|(_, sample)| sample.into_owned())
}

/// Documents in memory, charged until they are sent.
struct BuiltDocuments {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    charge: Charge,
}

impl BuiltDocuments {
    /// Returns the body of the response. It breaks off if the reader takes longer than `time_min` and the time for its
    /// bytes at the minimum rate.
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
            // A sent chunk stays in the connection's buffers for a moment.
            charge.shrink_to(chunks.iter().map(Bytes::len).sum::<usize>() + chunk.len());
            Poll::Ready(Some(Ok(chunk)))
        });
        Body::from_stream(body)
    }
}

/// Builds the documents of a rollout. Blocks on files.
fn build_documents(
    host: &Host,
    journal: &Journal,
    id: &RolloutId,
    sample: Option<&str>,
) -> Result<BuiltDocuments, RequestRefused> {
    let (trajectories, mut charge) = read_trajectories(host, journal, id)?;
    let documents = trajectories.documents();
    let indices = selected_indices(&documents, sample)?;
    let mut to = ChunkWriter { chunks: VecDeque::new(), buffer: Vec::with_capacity(CHUNK_BYTES), bytes: 0 };
    let written = trajectories.write_selected(&documents, &indices, &mut to).and_then(|()| to.flush());
    written.map_err(|error| {
        tracing::error!(rollout_id = %id, %error, "the trajectory of a rollout in the journal cannot be built");
        RequestRefused::Internal
    })?;
    drop(documents);
    drop(trajectories);
    charge.shrink_to(to.bytes);
    Ok(BuiltDocuments { chunks: to.chunks, bytes: to.bytes, charge })
}

/// Reads the trajectories of a rollout, and returns them with the charge for their memory.
fn read_trajectories(
    host: &Host,
    journal: &Journal,
    id: &RolloutId,
) -> Result<(Trajectories, Charge), RequestRefused> {
    let name = || printable(&beginning(id.as_str(), NAME_BYTES_SHOWN));
    let not_finished =
        || RequestRefused::NotReady(format!("rollout '{}' has not finished; retry when it has", name()));
    let unreadable = |error: io::Error| {
        tracing::error!(rollout_id = %id, %error, "a rollout in the journal cannot be read");
        RequestRefused::Internal
    };
    let not_found =
        || RequestRefused::NotFound(format!("there is no rollout '{}' in this server's journal", name()));
    // A live rollout is the newest one with its id, and the journal's files may not contain it yet.
    let is_alive = host.find(id).is_some();
    let found = journal.find(id).map_err(unreadable)?;
    let found = match found {
        Some(found) if found.is_over() => found,
        _ if is_alive => return Err(not_finished()),
        Some(found) if found.has_ended() => {
            return Err(RequestRefused::NotFound(format!("rollout '{}' ended without a result", name())));
        }
        Some(_) => return Err(not_finished()),
        None => return Err(not_found()),
    };
    let charge = charge_memory(host.budget(), found.bytes().map_err(unreadable)?)?;
    let stored = found.read().map_err(unreadable)?.ok_or_else(not_found)?;
    let trajectories = Trajectories::of(stored).map_err(|reason| match reason {
        NoTrajectory::NotOver(_) => not_finished(),
        reason => unreadable(io::Error::other(reason)),
    })?;
    Ok((trajectories, charge))
}

/// Charges the memory of the documents while they are built.
fn charge_memory(budget: &Budget, bytes_in_files: u64) -> Result<Charge, RequestRefused> {
    let bytes = usize::try_from(bytes_in_files.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
    let no_room = |error: &dyn std::error::Error| {
        let advice = "retry later, or read the journal with 'rollout-host trajectory'";
        RequestRefused::NoRoom(format!("{error}; {advice}"))
    };
    budget.check_new_work(bytes).map_err(|error| no_room(&error))?;
    budget.charge_read(bytes).map_err(|error| no_room(&error))
}

/// Returns the indices of the documents to send.
fn selected_indices(
    documents: &[StoredDocument<'_>],
    sample: Option<&str>,
) -> Result<Vec<usize>, RequestRefused> {
    let Some(sample) = sample else { return Ok((0..documents.len()).collect()) };
    let matches = |document: &StoredDocument<'_>| document.sample().is_some_and(|id| id.as_str() == sample);
    documents.iter().position(matches).map(|index| vec![index]).ok_or_else(|| {
        let ids = documents.iter().filter_map(StoredDocument::sample).map(SampleId::as_str);
        let ids: Vec<&str> = ids.collect();
        let sample = printable(&beginning(sample, NAME_BYTES_SHOWN));
        let existing = match ids.as_slice() {
            [] => "none".to_owned(),
            ids => beginning(&ids.join(", "), NAME_BYTES_SHOWN),
        };
        RequestRefused::NotFound(format!("the rollout has no sample '{sample}'; it has {existing}"))
    })
}

/// A writer that fills chunks, which are freed one by one as they are sent.
struct ChunkWriter {
    chunks: VecDeque<Bytes>,
    buffer: Vec<u8>,
    bytes: usize,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > CHUNK_BYTES {
            self.flush()?;
        }
        // The caller writes the rest of a longer text with its next call.
        let accepted = &bytes[..bytes.len().min(CHUNK_BYTES)];
        self.buffer.extend_from_slice(accepted);
        Ok(accepted.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.bytes += self.buffer.len();
            self.chunks.push_back(Bytes::copy_from_slice(&self.buffer));
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, TryStreamExt};

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_gets_an_error_and_its_memory_is_released() {
        let budget = Budget::new(1 << 20);
        let documents = || BuiltDocuments {
            chunks: VecDeque::from([Bytes::from_static(b"one"), Bytes::from_static(b"two")]),
            bytes: 6,
            charge: budget.charge_read(6).unwrap(),
        };
        let in_time = documents().into_body(READING_TIME_MIN).into_data_stream();
        assert_eq!(in_time.try_collect::<Vec<_>>().await.unwrap(), ["one", "two"]);
        let mut late = documents().into_body(Duration::ZERO).into_data_stream();
        assert!(late.next().await.unwrap().is_err());
        assert_eq!(budget.used(), 0);
    }
}
