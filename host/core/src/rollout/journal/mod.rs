//! What is kept of rollouts on disk, so that none that was admitted is lost and each can be made
//! again.
//!
//! [`Journal`] is that of a process. A [`RolloutLog`] is one rollout's: what it was admitted with,
//! what happened in its runs, what its driver notes, and its outcome, in this order. What of it is
//! there after a process died is an [`UnfinishedRollout`] rollout, with which
//! [`Host::resume`](super::Host::resume) goes on.
//!
//! Which bytes an event has is said here and in [`RunEvent`]; where they are is the business of the
//! crate `rollout-journal`.

mod admission;
mod file;
mod fork;
mod kept;
mod outcome;
mod run_clock;
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
use tokio::sync::Semaphore;

use super::model::{Finished, HOST_VERSION, RolloutRequest};
use crate::id::RolloutId;
use crate::imports::{Carried, Ending, Left, NoEvent, Role, RunEvent, RunLog};
use crate::seal::Seal;

use admission::AdmissionLine;
pub use admission::{Continuation, DeploymentId, JournaledSecrets, ServedAs};
pub use fork::{ForkPast, TooFewTurns};
pub(super) use fork::{NoParent, Parent};
pub use kept::{KeptOutcome, KeptResult, KeptResults, ResultOf};
pub use run_clock::RunClock;
pub use store::{
    Damage, Failed, OpenError, Refused, RepairError, Repaired, Retention, Settings, Sync, repair,
};
pub(in crate::rollout) use stored::RanBy;
pub use stored::{FoundRollout, StoredRollout};
pub(super) use unfinished::Started;
pub use unfinished::{Unfinished, UnfinishedRollout};

/// The kinds of events. Those of runs come last, so that all others can be read without them.
mod kind {
    pub(super) const ADMITTED: u8 = 1;
    pub(super) const STARTED: u8 = 2;
    pub(super) const CANCELLED: u8 = 3;
    pub(super) const NOTED: u8 = 4;
    pub(super) const OUTCOME: u8 = 5;
    pub(super) const ARTIFACT: u8 = 6;
    pub(super) const LOGGED: u8 = 7;
    pub(super) const LEFT: u8 = 8;
    pub(super) const REFUSED_CALL: u8 = 9;
    /// What a result is given again by, in a note of its own; see [`kept`](super::kept).
    pub(super) const KEPT: u8 = 10;
    /// Results that were read, in a note of its own.
    pub(super) const READ: u8 = 11;
    /// Results that are forgotten, in a note of its own.
    pub(super) const RELEASED: u8 = 12;
    /// From here on, [`RunEvent::KINDS`](crate::imports::RunEvent::KINDS) of the workflow's run.
    pub(super) const OF_WORKFLOW: u8 = 16;
    /// From here on, as many of the grader's.
    pub(super) const OF_GRADER: u8 = 24;
}

/// The journal of a process.
pub struct Journal {
    store: store::Journal,
    seal: Arc<Seal>,
    results: KeptResults,
    /// Who may read a whole rollout to go on from it: each takes a thread and some files.
    pub(super) readers: Semaphore,
}

/// How many read whole rollouts at once.
const READERS_MAX: usize = 2;

impl Journal {
    /// Opens the journal that these settings say, whose secrets have this seal, and gives the
    /// rollouts in it that are not over, to be read one after the other. Results that an earlier process kept are
    /// kept for this time. Reads files.
    pub fn open(
        settings: Settings,
        seal: impl Into<Arc<Seal>>,
        results_ttl: Duration,
    ) -> Result<(Arc<Self>, Unfinished), OpenError> {
        let path = settings.path.clone();
        let (store, entries) = store::Journal::open(settings)?;
        let results = KeptResults::find(&store, &path, results_ttl);
        let results = results.map_err(|error| OpenError::Io(path, error))?;
        let readers = Semaphore::new(READERS_MAX);
        let journal = Arc::new(Self { store, seal: seal.into(), results, readers });
        let unfinished = Unfinished::new(journal.clone(), entries);
        Ok((journal, unfinished))
    }

    /// Closes it at the end of its process. While a runtime comes apart, calls fail and rollouts end
    /// for no reason of their own: from here on nothing of that is kept, or reported.
    pub fn close(&self) {
        self.store.close();
    }

    /// The last rollout of this id that is in it, as far as it is in files. Reads these, and blocks.
    pub fn find(&self, id: &RolloutId) -> io::Result<Option<FoundRollout>> {
        Ok(self.store.find(id.as_str())?.into_iter().next().map(FoundRollout))
    }

    /// What it takes on disk, as of what was written by now.
    pub fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Changes how many bytes of rollouts that are over are kept. The oldest beyond them are deleted in the background.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.store.set_bytes_max(bytes_max);
    }

    /// Whether rollouts can be admitted.
    pub(super) fn check(&self) -> Result<(), Refused> {
        self.store.check()
    }

    /// Waits while too much is to be written.
    pub(super) async fn room(&self) {
        self.store.room().await;
    }

    /// Waits until all that happened so far can be found.
    pub(super) async fn written(&self) -> Result<(), Failed> {
        self.store.written().await
    }

    /// Begins the log of a rollout that is being admitted.
    pub(super) fn admit(
        &self,
        request: &RolloutRequest,
        deployment: DeploymentId,
        secrets: &JournaledSecrets,
        Continuation { driver, facts, secret: _ }: Continuation,
    ) -> Result<RolloutLog, Refused> {
        let name = request.id.as_str();
        let line = AdmissionLine::new(request, deployment, driver, facts);
        let sealed = secrets.seal(&self.seal, name.as_bytes());
        // Neither numbers nor texts can fail, and random numbers are there.
        let sealed = sealed.map_err(|error| Refused::from(Failed::new(error.to_string())))?;
        let log = RolloutLog(Arc::new(self.store.begin(name)?));
        log.append(kind::ADMITTED, vec![json_line(&line), sealed.into()]);
        Ok(log)
    }
}

/// One rollout's journal. Cheap to clone.
#[derive(Clone)]
pub struct RolloutLog(Arc<store::Entry>);

impl fmt::Debug for RolloutLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RolloutLog").field(&self.0.number()).finish()
    }
}

/// When a run began first.
#[derive(Serialize, Deserialize)]
struct StartedLine {
    of_grader: bool,
    nanos: u64,
}

/// What begins the events of what a rollout left behind. A process that dies after them leaves them to
/// be written once more.
#[derive(Serialize, Deserialize)]
pub(super) struct LeftLine<'a> {
    /// The version of the host that wrote it.
    #[serde(borrow)]
    host: Cow<'a, str>,
    /// The digest of the component with the agent.
    #[serde(borrow)]
    workflow: Option<Cow<'a, str>>,
    /// That of the one that grades, which may be the same.
    #[serde(borrow)]
    grader: Option<Cow<'a, str>>,
    record: Ending,
}

impl RolloutLog {
    fn append(&self, kind: u8, parts: Vec<Bytes>) {
        if let Err(error) = self.0.append(kind, parts) {
            // What guests and servers may hand over is bounded far below.
            tracing::error!(%error, "an event is not in the journal");
        }
    }

    /// Waits until the admission is as safe as it has to be before it is answered.
    pub async fn admitted(&self) -> Result<(), Failed> {
        self.0.admitted().await
    }

    /// Waits until all that was kept so far outlives the process. Nobody is told of what is not.
    pub async fn written(&self) -> Result<(), Failed> {
        self.0.written().await
    }

    /// Keeps what a driver needs to know to go on.
    pub fn note(&self, note: &impl Serialize) {
        self.append(kind::NOTED, vec![json(note)]);
    }

    /// There is nothing more to do for the rollout: nobody goes on with it any more.
    pub fn end(&self) {
        self.0.end();
    }

    /// Keeps what the rollout has of another one.
    pub(super) fn begins_with(&self, past: ForkPast) {
        let of_workflow = self.of_run(Role::Workflow);
        past.events.iter().for_each(|event| of_workflow.append(event));
    }

    pub(super) fn cancelled(&self) {
        self.append(kind::CANCELLED, Vec::new());
    }

    pub(super) fn started(&self, role: Role, at: SystemTime) {
        let line = StartedLine { of_grader: role == Role::Grader, nanos: admission::nanos(at) };
        self.append(kind::STARTED, vec![json(&line)]);
    }

    /// Keeps what a rollout's guests left behind that is in no event of its runs and in no sample, and
    /// who ran them.
    pub(super) fn left(&self, left: &Left<'_>, plugins: [Option<&str>; 2]) {
        let [workflow, grader] = plugins.map(|digest| digest.map(Into::into));
        let line = LeftLine { host: HOST_VERSION.into(), workflow, grader, record: left.ending() };
        self.append(kind::LEFT, vec![json(&line)]);
        for (name, content) in left.artifacts() {
            self.append(kind::ARTIFACT, vec![json_line(name), content.clone()]);
        }
        if !left.log().is_empty() {
            self.append(kind::LOGGED, vec![json(left.log())]);
        }
        for call in left.refused() {
            self.append(kind::REFUSED_CALL, vec![call]);
        }
    }

    /// Appends the outcome of the rollout, without the messages that requests carried.
    pub(super) fn outcome(&self, finished: &Finished, carried: &[Option<Carried>]) {
        self.append(kind::OUTCOME, outcome::written(finished, carried));
    }

    /// The bytes of the outcome in files, with the requests that it refers to. Reads files, and blocks.
    pub fn outcome_bytes(&self) -> io::Result<u64> {
        self.0.bytes_of(outcome::is_part)
    }

    /// What came of the rollout, once that is kept and while it is not [over](Self::end). Reads files, and blocks.
    pub fn read_outcome(&self) -> io::Result<Option<Finished>> {
        outcome::read(&self.0.read(outcome::is_part)?.events)
    }

    /// Where a run's events are kept.
    pub(super) fn of_run(&self, role: Role) -> Arc<dyn RunLog> {
        Arc::new(OfRun { log: self.clone(), base: base(role) })
    }

    /// What happened in a run so far, in order. Reads files, and blocks.
    pub(super) fn run_events(&self, role: Role) -> io::Result<Vec<RunEvent>> {
        let of_run = kinds(role);
        let written = self.0.read(|kind| of_run.contains(&kind))?;
        events_of(&written.events, role).map_err(io::Error::other)
    }
}

/// The kinds of events of this run.
fn kinds(role: Role) -> Range<u8> {
    base(role)..base(role) + RunEvent::KINDS
}

/// What happened in a run, among all that happened.
fn events_of(events: &[store::Event], role: Role) -> Result<Vec<RunEvent>, NoEvent> {
    let of_run = kinds(role);
    let of_run = events.iter().filter(|event| of_run.contains(&event.kind));
    of_run.map(|event| RunEvent::read(event.kind - base(role), &event.payload)).collect()
}

fn base(role: Role) -> u8 {
    if role == Role::Grader { kind::OF_GRADER } else { kind::OF_WORKFLOW }
}

#[derive(Debug)]
struct OfRun {
    log: RolloutLog,
    base: u8,
}

impl RunLog for OfRun {
    fn append(&self, event: &RunEvent) {
        let (kind, parts) = event.parts();
        self.log.append(self.base + kind, parts.into());
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        self.log.0.room().boxed()
    }
}

fn json(value: &(impl Serialize + ?Sized)) -> Bytes {
    // Data that is made of text, checked numbers and JSON that was parsed before.
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}

fn json_line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
