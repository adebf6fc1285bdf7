//! Rollouts for pages: from the record while they are alive, then from the journal.

use std::io;
use std::time::Duration;

use super::{NotShown, now};
use rollout_core::budget::{Budget, Charge};
use rollout_guest::imports::Remains;
use rollout_page::{
    Frame, PageOfTurns, RolloutData, RolloutPage, RolloutSource, SentArtifact, phase_word, visible,
    whole_text,
};
use rollout_rollout::{
    EndedRollout, Finished, ForkMember, Handle, Journal, LiveFacts, Outcome, Phase, StoredRollout,
    TenantSlots,
};
use rollout_transcript::Transcript;
use rollout_wire::id::RolloutId;
use rollout_wire::text::beginning;

/// Memory of a rollout that is read, as a multiple of its size in files: its events, the transcript, and its samples.
const MEMORY_FACTOR: u64 = 5;

/// Maximum number of bytes of an id in a notice.
const ID_BYTES_SHOWN: usize = 100;

/// A rollout that was found.
pub(super) enum Source<'a> {
    /// It is alive.
    Live {
        id: &'a RolloutId,
        phase: Phase,
        facts: &'a LiveFacts,
        remains: &'a Remains<'a>,
        family: Vec<ForkMember>,
    },
    /// It is in the journal.
    Stored { stored: &'a StoredRollout, transcript: Transcript, family: Vec<ForkMember> },
    /// Only its summary is left.
    Summary(&'a EndedRollout),
}

/// Numbers that change when a live rollout does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    phase: Phase,
    calls: usize,
    answered: usize,
    log: usize,
}

/// Returns the progress of a rollout that is alive.
pub(super) fn progress(handle: &Handle) -> Option<Progress> {
    let phase = handle.phase();
    handle.facts()?.with_remains(|remains| {
        let Transcript { policy, judge, tools, .. } = remains.transcript;
        let all = || policy.exchanges().iter().chain(judge.exchanges());
        Progress {
            phase,
            calls: all().count() + tools.len(),
            answered: all().filter(|call| call.duration > Duration::ZERO).count()
                + tools.iter().filter(|tool| tool.duration > Duration::ZERO).count(),
            log: remains.log.len(),
        }
    })
}

/// Finds a rollout and returns the result of `make` for it. Reads files and blocks.
pub(super) fn read<T>(
    slots: &TenantSlots,
    journal: Option<&Journal>,
    budget: &Budget,
    id: &RolloutId,
    make: impl FnOnce(Source<'_>) -> T,
) -> Result<T, NotShown> {
    let mut make = Some(make);
    let mut make = |source: Source<'_>| make.take().map(|make| make(source));
    let failed = |error: io::Error| {
        tracing::error!(rollout_id = %id, %error, "a rollout in the journal cannot be read for a page");
        NotShown::Failed
    };
    let handle = slots.find(id);
    let live = handle.as_ref().and_then(|handle| {
        let facts = handle.facts()?;
        let phase = handle.phase();
        let family = slots.family(id, facts.fork.as_ref());
        facts.with_remains(|remains| make(Source::Live { id, phase, facts, remains, family }))
    });
    if let Some(made) = live.flatten() {
        return Ok(made);
    }
    if let Some(journal) = journal
        && let Some(found) = journal.find(id).map_err(failed)?
    {
        let _charge = charge(budget, found.bytes().map_err(failed)?)?;
        if let Some(stored) = found.read().map_err(failed)? {
            let transcript = Transcript::read(&stored.workflow, &stored.grader);
            let transcript = transcript.map_err(|reason| failed(io::Error::other(reason)))?;
            let family = slots.family(id, stored.request.fork.as_ref().map(|fork| &fork.point));
            return make(Source::Stored { stored: &stored, transcript, family }).ok_or(NotShown::Failed);
        }
    }
    let (ended, _) = slots.activity().ended_page(0, 1, |rollout| rollout.id == *id);
    if let Some(ended) = ended.first() {
        return make(Source::Summary(ended)).ok_or(NotShown::Failed);
    }
    let shown = visible(&beginning(id.as_str(), ID_BYTES_SHOWN));
    let reason = format!(
        "There is no rollout '{shown}' here: it never ran, its plugin is another tenant's, or it was deleted because of \
         its age."
    );
    Err(NotShown::Missing { title: "No such rollout", reason })
}

/// Charges the memory of a rollout that is read.
fn charge(budget: &Budget, bytes_in_files: u64) -> Result<Charge, NotShown> {
    let bytes = usize::try_from(bytes_in_files.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
    let charged = budget.check_new_work(bytes).and_then(|()| budget.charge_read(bytes));
    charged.map_err(|error| {
        NotShown::NoRoom(format!(
            "{error}. The command 'rollout-host trajectory' reads it without the server"
        ))
    })
}

impl Source<'_> {
    fn transcript(&self) -> Option<&Transcript> {
        match self {
            Self::Live { remains, .. } => Some(remains.transcript),
            Self::Stored { transcript, .. } => Some(transcript),
            Self::Summary(_) => None,
        }
    }

    /// Returns the whole request or reply of a turn.
    pub(super) fn whole_text(&self, turn: usize, message: usize) -> Option<String> {
        whole_text(self.transcript()?, turn, message)
    }

    /// Returns the content of an artifact.
    pub(super) fn artifact(&self, name: &str) -> Option<SentArtifact> {
        let content = match self {
            Self::Live { remains, .. } => remains.artifacts.get(name)?,
            Self::Stored { stored, .. } => {
                &stored.artifacts().iter().find(|artifact| artifact.name == name)?.content
            }
            Self::Summary(_) => return None,
        };
        Some(SentArtifact::new(name, content))
    }

    /// Makes the page.
    pub(super) fn page(self, frame: Frame, turns: PageOfTurns, log: usize) -> RolloutPage {
        self.with_source(|source| RolloutPage::new(frame, source, turns, log))
    }

    /// Returns the data of the page.
    pub(super) fn data(self, turns: PageOfTurns) -> RolloutData {
        self.with_source(|source| RolloutData::new(source, turns))
    }

    fn with_source<T>(&self, make: impl FnOnce(&RolloutSource<'_>) -> T) -> T {
        match self {
            Self::Live { id, phase, facts, remains, family } => {
                make(&RolloutSource { family: family.clone(), ..live_source(id, *phase, facts, remains) })
            }
            Self::Stored { stored, transcript, family } => {
                make(&RolloutSource { family: family.clone(), ..stored_source(stored, transcript) })
            }
            Self::Summary(ended) => make(&summary_source(ended, &Transcript::default())),
        }
    }
}

/// Returns the source of the page of a rollout that is alive.
fn live_source<'a>(
    id: &'a RolloutId,
    phase: Phase,
    facts: &'a LiveFacts,
    remains: &'a Remains<'a>,
) -> RolloutSource<'a> {
    RolloutSource {
        id,
        plugin: facts.plugin.as_deref(),
        phase: Some(phase_word(phase)),
        admitted_at: facts.admitted_at,
        time: now().duration_since(facts.admitted_at).unwrap_or_default(),
        workflow_started_at: None,
        grader_started_at: None,
        transcript: remains.transcript,
        outcome: None,
        finished: None,
        fork: facts.fork.as_ref(),
        group: facts.group.as_ref(),
        family: Vec::new(),
        log: remains.log,
        log_dropped: remains.log_dropped,
        artifacts: remains.artifacts.iter().map(|(name, content)| (&**name, &**content)).collect(),
        journal: None,
        caveat: None,
    }
}

/// Returns the source of the page of a rollout of which only the summary is left.
fn summary_source<'a>(ended: &'a EndedRollout, transcript: &'a Transcript) -> RolloutSource<'a> {
    RolloutSource {
        id: &ended.id,
        plugin: ended.plugin.as_deref(),
        phase: None,
        admitted_at: ended.ended_at - ended.duration,
        time: ended.duration,
        workflow_started_at: None,
        grader_started_at: None,
        transcript,
        outcome: Some(&ended.outcome),
        finished: None,
        fork: None,
        group: None,
        family: Vec::new(),
        log: &[],
        log_dropped: 0,
        artifacts: Vec::new(),
        journal: None,
        caveat: Some(
            "This server has no journal, so the conversation is not kept after the rollout. 'serve --journal DIR' keeps \
             conversations."
                .to_owned(),
        ),
    }
}

/// Returns the source of the page of a rollout in a journal.
fn stored_source<'a>(stored: &'a StoredRollout, transcript: &'a Transcript) -> RolloutSource<'a> {
    let finished: Option<&Finished> = stored.outcome.as_deref();
    let outcome: Option<&Outcome> = finished.map(|finished| &finished.outcome);
    let artifacts = stored.artifacts().iter();
    RolloutSource {
        id: &stored.request.id,
        plugin: stored.deployment.served_as.as_ref().map(|served| &*served.plugin),
        phase: if finished.is_some() { None } else { Some("unfinished") },
        admitted_at: stored.admitted_at,
        time: finished.map_or(Duration::ZERO, |finished| finished.duration),
        workflow_started_at: stored.workflow_started_at,
        grader_started_at: stored.grader_started_at,
        transcript,
        outcome,
        finished,
        fork: stored.request.fork.as_ref().map(|fork| &fork.point),
        group: stored.request.group.as_ref(),
        family: Vec::new(),
        log: stored.log(),
        log_dropped: stored.log_dropped(),
        artifacts: artifacts.map(|artifact| (&*artifact.name, &*artifact.content)).collect(),
        journal: None,
        caveat: None,
    }
}
