//! `GET /rollout/{id}/trajectory`: a rollout that is over, out of the journal, whatever protocol it
//! came by.
//!
//! Files are read, and a document made, on a thread that may block, for a few callers at a time, and
//! what that takes is charged before it is read. The document goes out while it is written.

use std::io::{self, Write};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Server, Trajectories};
use crate::error::Refused;
use rollout_core::budget::{Budget, Use};
use rollout_core::id::{RolloutId, SampleId};
use rollout_core::rollout::{Host, Journal, NoTrajectory, StoredDocument};
use rollout_core::text::{beginning, printable};

/// How many are made at once: each has a thread, and files open.
const AT_ONCE: usize = 4;

/// What a rollout takes while its documents are made, in multiples of what it takes in files: its
/// events as they were read, the record that is made of them, and one document where its caller
/// reported something that goes into it.
const MEMORY_FACTOR: u64 = 6;

/// What is sent at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks that wait to be sent.
const CHUNKS_WAITING: usize = 2;

/// The longest part of a name that is repeated.
const NAME_BYTES_SHOWN: usize = 100;

/// What keeps trajectories from being made all at once.
pub(super) struct GivenOut(Arc<Semaphore>);

impl Default for GivenOut {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// A part of the document, or why there is no more.
type Chunk = io::Result<Bytes>;

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
    let (begins, begun) = oneshot::channel();
    let (chunks, mut sent) = mpsc::channel::<Chunk>(CHUNKS_WAITING);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        if let Err(refused) = give(&host, &journal, &id, sample.as_deref(), begins, chunks) {
            tracing::debug!(rollout_id = %id, refused, "no trajectory is given");
        }
    });
    // One that panicked has said nothing.
    begun.await.unwrap_or(Err(Refused::Unreadable))?;
    let body = stream::poll_fn(move |context| sent.poll_recv(context));
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response())
}

/// The sample that is chosen, if one is.
fn chosen_sample(query: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://localhost/?{query}")).ok()?;
    let chosen = url.query_pairs().find(|(name, _)| name == "sample");
    chosen.map(|(_, sample)| sample.into_owned())
}

/// Says whether there is something, then gives it part by part.
fn give(
    host: &Host,
    journal: &Journal,
    id: &RolloutId,
    sample: Option<&str>,
    begins: oneshot::Sender<Result<(), Refused>>,
    chunks: mpsc::Sender<Chunk>,
) -> Result<(), &'static str> {
    let (trajectories, _charge) = match read(host, journal, id) {
        Ok(read) => read,
        Err(refused) => return begins.send(Err(refused)).map_err(|_| "nobody waits for it"),
    };
    let documents = trajectories.documents();
    let places = match places(&documents, sample) {
        Ok(places) => places,
        Err(refused) => return begins.send(Err(refused)).map_err(|_| "nobody waits for it"),
    };
    begins.send(Ok(())).map_err(|_| "nobody waits for it")?;
    let mut to = Sending { chunks, gathered: Vec::with_capacity(CHUNK_BYTES) };
    let written = trajectories.write_places(&documents, &places, &mut to);
    written.and_then(|()| to.flush()).map_err(|error| {
        // Whoever reads it sees that it breaks off.
        let _ = to.chunks.blocking_send(Err(error));
        "it broke off"
    })
}

/// The trajectories of a rollout, with a charge for what they take.
fn read(
    host: &Host,
    journal: &Journal,
    id: &RolloutId,
) -> Result<(Trajectories, rollout_core::budget::Charge), Refused> {
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

fn charged(budget: &Budget, bytes_in_files: u64) -> Result<rollout_core::budget::Charge, Refused> {
    let bytes = usize::try_from(bytes_in_files.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
    let no_room = |error: &dyn std::error::Error| {
        let instead = "retry later, or read the journal with 'rollout-host trajectory'";
        Refused::NoRoom(format!("{error}; {instead}"))
    };
    budget.check_new_work(bytes).map_err(|error| no_room(&error))?;
    budget.charge(Use::Request, bytes).map_err(|error| no_room(&error))
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

/// What is written, on its way to the caller. Where the caller is slow, writing waits; its connection
/// is closed where it reads nothing at all.
struct Sending {
    chunks: mpsc::Sender<Chunk>,
    gathered: Vec<u8>,
}

impl Write for Sending {
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
        if self.gathered.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.gathered, Vec::with_capacity(CHUNK_BYTES));
        self.chunks.blocking_send(Ok(chunk.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
