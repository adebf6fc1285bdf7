//! Rollouts that an earlier process did not finish.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use rollout_journal as store;
use serde_json::value::RawValue;

use super::admission::{self, AdmissionLine, JournaledSecrets, VERSION};
use super::{DeploymentId, Journal, RolloutLog, ServedAs, StartedLine, kind};
use crate::model::{GroupEvent, RolloutRequest};

/// The rollouts that an earlier process did not finish, the oldest first. Each is read on demand, so that only those
/// being resumed are in memory.
pub struct Unfinished {
    journal: Arc<Journal>,
    entries: std::vec::IntoIter<store::Entry>,
}

impl Unfinished {
    pub(super) fn new(journal: Arc<Journal>, entries: Vec<store::Entry>) -> Self {
        Self { journal, entries: entries.into_iter() }
    }

    /// Returns the maximum number of rollouts. Some admissions may never have been answered.
    pub fn count_max(&self) -> usize {
        self.entries.len()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.journal.resumed.send_replace(true);
    }
}

impl Iterator for Unfinished {
    type Item = io::Result<UnfinishedRollout>;

    /// Reads files.
    fn next(&mut self) -> Option<Self::Item> {
        self.entries.find_map(|entry| UnfinishedRollout::read(&self.journal, entry).transpose())
    }
}

/// A rollout that an earlier process did not finish. The events of its runs and its outcome are read when it is
/// resumed.
pub struct UnfinishedRollout {
    pub(crate) log: RolloutLog,
    /// The request.
    pub request: RolloutRequest,
    /// The secrets.
    pub secrets: JournaledSecrets,
    /// Its driver.
    pub driver: String,
    /// The driver's data.
    pub facts: Box<RawValue>,
    /// The driver's notes since then, in order.
    pub notes: Vec<Box<RawValue>>,
    /// Whether the outcome is stored; its [log](RolloutLog::read_outcome) returns it.
    pub is_over: bool,
    pub(crate) deployment: DeploymentId,
    pub(crate) admitted_at: SystemTime,
    pub(crate) started: Started,
    pub(crate) is_cancelled: bool,
    /// The events of its group, in order.
    pub(crate) group: Vec<GroupEvent>,
}

/// Times when the runs first started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Started {
    pub workflow: Option<SystemTime>,
    pub grader: Option<SystemTime>,
}

/// Error of a rollout in the journal that cannot be resumed.
#[derive(Debug, thiserror::Error)]
#[error("rollout {name}: {reason}")]
pub(super) struct UnreadableRollout {
    name: String,
    reason: String,
}

impl UnfinishedRollout {
    /// Returns the log of the rollout.
    pub fn log(&self) -> &RolloutLog {
        &self.log
    }

    /// Returns the name of its deployment, if several plugins were served.
    pub fn served_as(&self) -> Option<&ServedAs> {
        self.deployment.served_as.as_ref()
    }

    /// Restarts the rollout's deadlines, for one without a caller that waited while no process ran it.
    #[expect(clippy::disallowed_methods, reason = "the time of the rollout starts here")]
    pub fn with_time_anew(self) -> Self {
        Self { admitted_at: SystemTime::now(), started: Started::default(), ..self }
    }

    pub(super) fn read(journal: &Journal, entry: store::Entry) -> io::Result<Option<Self>> {
        let written = entry.read(Self::is_needed)?;
        let Some((admitted, events)) = written.events.split_first() else {
            // The admission was never answered.
            entry.end();
            return Ok(None);
        };
        let unreadable = |reason: String| UnreadableRollout::of(&written.name, reason);
        let (line, sealed) = read_admission(&admitted.payload).map_err(unreadable)?;
        let AdmissionLine { version: _, nanos, deployment, driver, facts, request } = line;
        let secrets = JournaledSecrets::open(&journal.seal, &written.name, &sealed).ok_or_else(|| {
            unreadable("its secrets are encrypted with another key than this journal's".to_owned())
        })?;
        let is_over = entry.kinds().contains(&kind::OUTCOME);
        let mut unfinished = Self {
            log: RolloutLog(Arc::new(entry)),
            request: request.into_owned(),
            secrets,
            driver: driver.into_owned(),
            facts,
            notes: Vec::new(),
            is_over,
            deployment,
            admitted_at: admission::time(nanos),
            started: Started::default(),
            is_cancelled: false,
            group: Vec::new(),
        };
        for event in events {
            unfinished.add(event).map_err(|error| unreadable(error.to_string()))?;
        }
        Ok(Some(unfinished))
    }

    /// Returns whether events of this kind are needed to resume, except those of runs. They take as much memory as a
    /// request.
    fn is_needed(kind: u8) -> bool {
        matches!(kind, kind::ADMITTED | kind::STARTED | kind::CANCELLED | kind::NOTED | kind::GROUP)
    }

    fn add(&mut self, event: &store::Event) -> Result<(), serde_json::Error> {
        match event.kind {
            kind::STARTED => {
                let StartedLine { of_grader, nanos } = serde_json::from_slice(&event.payload)?;
                let began = if of_grader { &mut self.started.grader } else { &mut self.started.workflow };
                began.get_or_insert(admission::time(nanos));
            }
            kind::CANCELLED => self.is_cancelled = true,
            kind::GROUP => self.group.push(serde_json::from_slice(&event.payload)?),
            kind::NOTED => self.notes.push(serde_json::from_slice(&event.payload)?),
            // Only needed when the rollout is read back.
            _ => {}
        }
        Ok(())
    }
}

impl UnreadableRollout {
    pub(super) fn of(name: &[u8], reason: String) -> io::Error {
        io::Error::other(Self { name: String::from_utf8_lossy(name).into_owned(), reason })
    }
}

/// Parses an admission. Returns it with its encrypted secrets.
pub(super) fn read_admission(payload: &Bytes) -> Result<(AdmissionLine<'static>, Bytes), String> {
    let (line, sealed) = split_line(payload).ok_or("its admission is malformed")?;
    let line: AdmissionLine<'_> = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
    if line.version != VERSION {
        return Err(format!("it has version {}, and this host reads {VERSION}", line.version));
    }
    Ok((line, sealed))
}

/// Splits a payload after its first line.
pub(super) fn split_line(payload: &Bytes) -> Option<(Bytes, Bytes)> {
    let end = payload.iter().position(|byte| *byte == b'\n')?;
    Some((payload.slice(..end), payload.slice(end + 1..)))
}
