//! The history that a fork shares with a rollout in the journal.

use std::io;

use super::{DeploymentId, Journal, StoredRollout, kind, kinds};
use crate::model::RolloutRequest;
use rollout_core::budget::{Budget, Charge, OverBudget, Use};
use rollout_guest::imports::{Ancestor, ClockStart, ForkOrigin, ForkPoint, Role};
use rollout_transcript::{Event, StoredCall};

/// The events of a workflow's run up to the point of a fork.
#[derive(Debug)]
pub struct ForkPast {
    pub(super) events: Vec<Event>,
    /// The date that the other rollout's clocks started with.
    pub(crate) clock_begins: ClockStart,
    /// The charge for the events until they are in the fork's journal.
    _charge: Charge,
}

/// Memory for reading a rollout, in multiples of its size in files: the bytes, the events, and the events once more if
/// the model has another name.
const MEMORY_FACTOR: u64 = 3;

/// Error of a rollout that cannot be forked.
pub(crate) enum NoParent {
    /// The journal has no such rollout.
    Unknown,
    /// The rollout has fewer turns.
    TooFew(TooFewTurns),
    /// There is no room for reading it.
    NoRoom(OverBudget),
    /// It cannot be read.
    Unreadable(io::Error),
}

impl From<io::Error> for NoParent {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// A rollout that is being forked.
pub(crate) struct Parent {
    /// Its request, including the origin of the fork.
    pub request: RolloutRequest,
    pub deployment: DeploymentId,
    pub past: ForkPast,
}

/// Error of a fork beyond the answered calls of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has {answered} calls of the model that were answered in sequence, fewer than the {turn} requested"
)]
pub struct TooFewTurns {
    /// Number of consecutive answered calls.
    pub answered: u32,
    /// Number of calls that the fork should share.
    pub turn: u32,
}

impl Journal {
    /// Reads the last rollout with this id up to the point of a fork, with requests to a model of this name. Charges it
    /// before reading. Reads files and blocks.
    pub(crate) fn parent(&self, point: &ForkPoint, model: &str, budget: &Budget) -> Result<Parent, NoParent> {
        let found = self.store.find(point.rollout_id.as_str())?.into_iter().next();
        let found = found.ok_or(NoParent::Unknown)?;
        let bytes = usize::try_from(found.bytes()?.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
        let mut charge = budget.charge(Use::Request, bytes).map_err(NoParent::NoRoom)?;
        // The journal may have deleted the rollout in the meantime, as its oldest one.
        let mut written = found.read()?.ok_or(NoParent::Unknown)?;
        let of_workflow = kinds(Role::Workflow);
        written.events.retain(|event| event.kind == kind::ADMITTED || of_workflow.contains(&event.kind));
        let stored = StoredRollout::read(&written)?;
        let deployment = stored.deployment.clone();
        let (request, events) = stored.forked(point.turn, model).map_err(NoParent::TooFew)?;
        let bytes_of = |event: &Event| size_of::<Event>() + event.bytes();
        charge.shrink_to(events.iter().map(bytes_of).sum());
        let past = ForkPast { events, clock_begins: deployment.clock_begins, _charge: charge };
        Ok(Parent { request, deployment, past })
    }
}

impl StoredRollout {
    /// Returns the request of a fork and the shared events of the workflow's run, with requests to a model of this
    /// name.
    pub(crate) fn forked(self, turn: u32, model: &str) -> Result<(RolloutRequest, Vec<Event>), TooFewTurns> {
        let Self { mut request, mut workflow, .. } = self;
        let count = shared_events(&workflow, turn)?;
        workflow.truncate(count);
        if request.model.name != model {
            workflow = workflow.into_iter().map(|event| event.with_model(model)).collect();
        }
        let point = ForkPoint { rollout_id: request.id.clone(), turn };
        request.fork = Some(origin(&request, point, count));
        // The seat belongs to the other rollout.
        request.group = None;
        Ok((request, workflow))
    }
}

/// Returns the origin of a fork: its ancestors, with the number of events that each contributed.
fn origin(request: &RolloutRequest, point: ForkPoint, count: usize) -> ForkOrigin {
    let mut ancestors = request.fork.as_ref().map(|fork| fork.ancestors.clone()).unwrap_or_default();
    // A part of the events may come from an ancestor of the forked rollout.
    match ancestors.iter().position(|ancestor| count <= ancestor.events) {
        Some(last) => ancestors.truncate(last + 1),
        None => {
            let RolloutRequest { id, caller_id, attempt, .. } = request;
            let (id, caller_id, attempt) = (id.clone(), caller_id.clone(), *attempt);
            ancestors.push(Ancestor { id, caller_id, attempt, events: count });
        }
    }
    if let Some(last) = ancestors.last_mut() {
        last.events = count;
    }
    ForkOrigin { point, ancestors }
}

/// Returns the number of events up to the response of the `turn`-th call of the model.
fn shared_events(events: &[Event], turn: u32) -> Result<usize, TooFewTurns> {
    let mut calls: Vec<u32> = Vec::new();
    for event in events {
        match event {
            Event::Started { call, request, .. } if StoredCall::is_to_policy(request) => calls.push(*call),
            Event::Cut { calls: made, .. } => calls.retain(|call| call <= made),
            _ => {}
        }
    }
    let calls = calls.into_iter().map(Some).chain(std::iter::repeat(None));
    let mut count = 0;
    for (answered, call) in (0..turn).zip(calls) {
        let is_it = |event: &Event| matches!(event, Event::Answered { call: of, .. } if Some(*of) == call);
        let at = events.iter().rposition(is_it).ok_or(TooFewTurns { answered, turn })?;
        count = count.max(at + 1);
    }
    Ok(count)
}
