//! The journal of rollouts on disk. No admitted rollout is lost in a crash, and each can be rerun.
//!
//! A process has one [`Journal`]. A [`RolloutLog`] belongs to one rollout and contains, in this order: its admission,
//! the events of its runs, its driver's notes, and its outcome. After a crash, an unfinished rollout is read as an
//! [`UnfinishedRollout`], which [`Host::resume`](super::Host::resume) continues.
//!
//! This module and [`Event`] define the bytes of events; the crate `rollout-journal` stores them.

mod admission;
mod file;
mod fork_history;
mod kept;
mod outcome;
mod run_clock;
mod session_log;
mod stored;
mod unfinished;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollout_journal as store;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use super::model::{Finished, GroupEvent, HOST_VERSION, RolloutRequest};
use crate::seal::Seal;
use rollout_core::storage::StorageAccount;
use rollout_guest::imports::{Remains, Role, RunLog};
use rollout_transcript::{Carried, Event, InvalidEvent};
use rollout_wire::id::RolloutId;

use admission::AdmissionLine;
pub use admission::{Continuation, DeploymentId, JournaledSecrets, ServedAs};
pub use fork_history::{ForkPast, TooFewTurns};
pub(super) use fork_history::{NoParent, Parent};
pub use kept::{ResultOf, StoredOutcome, StoredResult, StoredResults};
pub use run_clock::RunClock;
pub(super) use session_log::{SessionEvent, SessionHistory};
pub use store::{
    Damage, Failed, JournalRefused, JournalSettings, OpenError, RepairError, Repaired, ReplicaSettings,
    Retention, Sync, repair,
};
pub(crate) use stored::RanBy;
pub use stored::{FoundRollout, StoredRollout};
pub(super) use unfinished::Started;
pub use unfinished::{Unfinished, UnfinishedRollout};

/// Kinds of events. Those of runs come last, so that all others can be read without them.
mod kind {
    pub(super) const ADMITTED: u8 = 1;
    pub(super) const STARTED: u8 = 2;
    pub(super) const CANCELLED: u8 = 3;
    pub(super) const NOTED: u8 = 4;
    pub(super) const OUTCOME: u8 = 5;
    pub(super) const ARTIFACT: u8 = 6;
    pub(super) const LOGGED: u8 = 7;
    pub(super) const RAN_BY: u8 = 8;
    /// The data for rebuilding a result, in a note of its own; see [`kept`](super::kept).
    pub(super) const KEPT: u8 = 10;
    /// Results that were read, in a note of its own.
    pub(super) const READ: u8 = 11;
    /// Results that are forgotten, in a note of its own.
    pub(super) const RELEASED: u8 = 12;
    /// An event of the rollout's group.
    pub(super) const GROUP: u8 = 13;
    /// A call of a session's caller.
    pub(super) const CALLED: u8 = 14;
    /// The answer to the call before it.
    pub(super) const ANSWERED: u8 = 15;
    /// The first of [`Event::KINDS`](rollout_transcript::Event::KINDS) kinds of the workflow's run.
    pub(super) const OF_WORKFLOW: u8 = 16;
    /// The first of as many kinds of the grader's run.
    pub(super) const OF_GRADER: u8 = 24;
}

/// The journal of a process.
pub struct Journal {
    store: store::JournalStore,
    seal: Arc<Seal>,
    results: StoredResults,
    /// Permits for reading whole rollouts to fork them: each reader takes a thread and some files.
    pub(super) readers: Semaphore,
    /// Whether all unfinished rollouts of an earlier process were read.
    resumed: watch::Sender<bool>,
}

/// Rollouts in a journal whose callers may still expect something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalRest {
    /// Number of rollouts that have not ended.
    pub unfinished: usize,
    /// Number of stored results that no caller has read.
    pub unread: usize,
}

impl JournalRest {
    /// Counts these rollouts in a journal that no process has open. Reads files, and allocates the next segments as a server does.
    ///
    /// # Errors
    ///
    /// [`OpenError`] as for opening the journal.
    pub fn of(settings: JournalSettings) -> Result<Self, OpenError> {
        let path = settings.path.clone();
        let (store, entries) = store::JournalStore::open(JournalSettings { is_held: true, ..settings })?;
        let results = StoredResults::find(&store, &path, Duration::ZERO);
        let results = results.map_err(|error| OpenError::Io(path, error))?;
        Ok(Self { unfinished: entries.len(), unread: results.unread() })
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for JournalRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unfinished, unread } = self;
        write!(f, "rollouts that callers wait for ({unfinished} unfinished, {unread} with unread results)")
    }
}

/// Maximum number of whole rollouts read at once.
const READERS_MAX: usize = 2;

impl Journal {
    /// Opens a journal whose secrets are encrypted with `seal`. Returns it with its unfinished rollouts, to be read one
    /// after the other. Results of an earlier process are stored for `results_ttl`. Reads files.
    pub fn open(
        settings: JournalSettings,
        seal: impl Into<Arc<Seal>>,
        results_ttl: Duration,
    ) -> Result<(Arc<Self>, Unfinished), OpenError> {
        let path = settings.path.clone();
        // Segments with results that no caller has read are found first, and then held.
        let (store, entries) = store::JournalStore::open(JournalSettings { is_held: true, ..settings })?;
        let results = StoredResults::find(&store, &path, results_ttl);
        let results = results.map_err(|error| OpenError::Io(path, error))?;
        let readers = Semaphore::new(READERS_MAX);
        let resumed = watch::Sender::new(false);
        let journal = Arc::new(Self { store, seal: seal.into(), results, readers, resumed });
        let unfinished = Unfinished::new(journal.clone(), entries);
        Ok((journal, unfinished))
    }

    /// Returns whether all [unfinished](Unfinished) rollouts of an earlier process were read, as a value to wait for.
    pub(super) fn resumed(&self) -> watch::Receiver<bool> {
        self.resumed.subscribe()
    }

    /// Closes the journal at the end of its process. While a runtime shuts down, calls fail and rollouts end for no
    /// reason of their own: from here on such events are neither stored nor reported.
    pub fn close(&self) {
        // The next process does not keep results for callers that have read them.
        self.note_results();
        self.store.close();
    }

    /// Returns the last rollout with this id, with the events that are in files already. Reads files and blocks.
    pub fn find(&self, id: &RolloutId) -> io::Result<Option<FoundRollout>> {
        Ok(self.store.find(id.as_str())?.into_iter().next().map(FoundRollout))
    }

    /// Returns the size of the journal on disk in bytes, as of the data written so far.
    pub fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Changes the maximum number of bytes of finished rollouts. The oldest rollouts beyond it are deleted in the
    /// background.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.store.set_bytes_max(bytes_max);
    }

    /// Changes the maximum number of bytes of unfinished and finished rollouts together. Finished rollouts are deleted
    /// as far as unfinished ones need their room.
    pub fn set_total_bytes_max(&self, total_bytes_max: u64) {
        self.store.set_total_bytes_max(total_bytes_max);
    }

    /// Returns an upper bound of the bytes on disk that are never deleted for new records: those of unfinished rollouts
    /// and of unread results.
    pub fn retained_bytes(&self) -> u64 {
        self.store.retained_bytes()
    }

    /// Checks that rollouts can be admitted.
    pub(super) fn check(&self) -> Result<(), JournalRefused> {
        self.store.check()
    }

    /// Waits while too much data is to be written.
    pub(super) async fn room(&self) {
        self.store.room().await;
    }

    /// Waits until all events so far can be found.
    pub(super) async fn written(&self) -> Result<(), Failed> {
        self.store.written().await
    }

    /// Starts the log of a rollout that is being admitted.
    pub(super) fn admit(
        &self,
        request: &RolloutRequest,
        deployment: DeploymentId,
        secrets: &JournaledSecrets,
        Continuation { driver, facts, secret: _ }: Continuation,
    ) -> Result<RolloutLog, JournalRefused> {
        let name = request.id.as_str();
        let line = AdmissionLine::new(request, deployment, driver, facts);
        let sealed = secrets.seal(&self.seal, name.as_bytes());
        // Numbers and strings always serialize, and random numbers are available.
        let sealed = sealed.map_err(|error| JournalRefused::from(Failed::new(error.to_string())))?;
        let log = RolloutLog(Arc::new(self.store.begin(name)?));
        log.append(kind::ADMITTED, vec![json_line(&line), sealed.into()]);
        Ok(log)
    }
}

/// The journal of one rollout. Cheap to clone.
#[derive(Clone)]
pub struct RolloutLog(Arc<store::Entry>);

impl fmt::Debug for RolloutLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RolloutLog").field(&self.0.number()).finish()
    }
}

/// Time when a run first started.
#[derive(Serialize, Deserialize)]
struct StartedLine {
    of_grader: bool,
    nanos: u64,
}

/// Start of the events with the final data of a rollout. If a process crashes after them, they are written again.
#[derive(Serialize, Deserialize)]
pub(super) struct RanByLine<'a> {
    /// Version of the host that wrote it.
    #[serde(borrow)]
    host: Cow<'a, str>,
    /// Digest of the component with the agent.
    #[serde(borrow)]
    workflow: Option<Cow<'a, str>>,
    /// Digest of the component that grades, which may be the same.
    #[serde(borrow)]
    grader: Option<Cow<'a, str>>,
    /// Log entries that were dropped at the limit.
    #[serde(default)]
    log_dropped: u64,
}

impl RolloutLog {
    fn append(&self, kind: u8, parts: Vec<Bytes>) {
        if let Err(error) = self.0.append(kind, parts) {
            // The sizes of guests' and servers' data are limited far below the maximum.
            tracing::error!(%error, "cannot append an event to the journal");
        }
    }

    /// Waits until the admission is durable enough to be answered.
    pub async fn admitted(&self) -> Result<(), Failed> {
        self.0.admitted().await
    }

    /// Waits until all events so far survive a crash of the process. State that is not flushed is never reported.
    pub async fn written(&self) -> Result<(), Failed> {
        self.0.written().await
    }

    /// Appends a note that the driver needs to resume the rollout.
    pub fn note(&self, note: &impl Serialize) {
        self.append(kind::NOTED, vec![json(note)]);
    }

    /// Ends the rollout: no process resumes it.
    pub fn end(&self) {
        self.0.end();
    }

    /// Appends the history that a fork shares with another rollout.
    pub(super) fn append_past(&self, past: ForkPast) {
        let workflow_log = self.run_log(Role::Workflow, None);
        past.events.iter().for_each(|event| workflow_log.append(event));
    }

    /// Appends an event of the rollout's group.
    pub(super) fn group(&self, event: &GroupEvent) {
        self.append(kind::GROUP, vec![json(event)]);
    }

    pub(super) fn cancelled(&self) {
        self.append(kind::CANCELLED, Vec::new());
    }

    pub(super) fn started(&self, role: Role, at: SystemTime) {
        let line = StartedLine { of_grader: role == Role::Grader, nanos: admission::nanos(at) };
        self.append(kind::STARTED, vec![json(&line)]);
    }

    /// Appends the identity of the host and components that ran a rollout, its artifacts and its log.
    pub(super) fn remains(&self, remains: &Remains<'_>, plugins: [Option<&str>; 2]) {
        let Remains { transcript: _, artifacts, log, log_dropped } = *remains;
        let [workflow, grader] = plugins.map(|digest| digest.map(Into::into));
        let line = RanByLine { host: HOST_VERSION.into(), workflow, grader, log_dropped };
        self.append(kind::RAN_BY, vec![json(&line)]);
        for (name, content) in artifacts {
            self.append(kind::ARTIFACT, vec![json_line(name), content.clone()]);
        }
        if !log.is_empty() {
            self.append(kind::LOGGED, vec![json(log)]);
        }
    }

    /// Appends the outcome of the rollout, without the messages that requests contain.
    pub(super) fn outcome(&self, finished: &Finished, carried: &[Option<Carried>]) {
        self.append(kind::OUTCOME, outcome::written(finished, carried));
    }

    /// Returns the size of the outcome in files, including the requests that it refers to. Reads files and blocks.
    pub fn outcome_bytes(&self) -> io::Result<u64> {
        self.0.bytes_of(outcome::is_part)
    }

    /// Returns the outcome of the rollout, if it is stored and the rollout has not [ended](Self::end). Reads files and
    /// blocks.
    pub fn read_outcome(&self) -> io::Result<Option<Finished>> {
        outcome::read(&self.0.read(outcome::is_part)?.events)
    }

    /// Returns the log for a run's events, which are charged to `storage`.
    pub(super) fn run_log(&self, role: Role, storage: Option<Arc<StorageAccount>>) -> Arc<dyn RunLog> {
        Arc::new(JournaledRun { log: self.clone(), base: base(role), storage })
    }

    /// Returns the events of a run so far, in order. Reads files and blocks.
    pub(super) fn run_events(&self, role: Role) -> io::Result<Vec<Event>> {
        let of_run = kinds(role);
        let written = self.0.read(|kind| of_run.contains(&kind))?;
        events_of(&written.events, role).map_err(io::Error::other)
    }
}

/// Returns the kinds of events of a run.
fn kinds(role: Role) -> Range<u8> {
    base(role)..base(role) + Event::KINDS
}

/// Returns the events of a run among all events.
fn events_of(events: &[store::Event], role: Role) -> Result<Vec<Event>, InvalidEvent> {
    let of_run = kinds(role);
    let of_run = events.iter().filter(|event| of_run.contains(&event.kind));
    of_run.map(|event| Event::read(event.kind - base(role), &event.payload)).collect()
}

fn base(role: Role) -> u8 {
    if role == Role::Grader { kind::OF_GRADER } else { kind::OF_WORKFLOW }
}

#[derive(Debug)]
struct JournaledRun {
    log: RolloutLog,
    base: u8,
    storage: Option<Arc<StorageAccount>>,
}

impl RunLog for JournaledRun {
    fn append(&self, event: &Event) {
        let (kind, parts) = event.parts();
        self.log.append(self.base + kind, parts.into());
        if let Some(storage) = &self.storage {
            // Requests were charged before, and other events are small. If there is no room, the rollout is ended.
            let _ = storage.check();
        }
    }

    fn append_answer(&self, event: &Event) -> bool {
        let (kind, parts) = event.parts();
        let bytes = parts.iter().map(Bytes::len).sum();
        let Ok(_charge) = self.storage.as_ref().map(|storage| storage.charge(bytes)).transpose() else {
            return false;
        };
        // The charge is dropped after the event counts as written.
        self.log.append(self.base + kind, parts.into());
        true
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        self.log.0.room().boxed()
    }
}

fn json(value: &(impl Serialize + ?Sized)) -> Bytes {
    // The data consists of text, checked numbers and JSON that was parsed before.
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}

fn json_line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
