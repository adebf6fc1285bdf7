//! What a rollout takes over of another one that is in the journal.

use std::io;

use super::{DeploymentId, Journal, StoredRollout, kind, kinds};
use crate::budget::{Budget, Charge, OverBudget, Use};
use crate::imports::{Ancestor, ClockStart, ForkOrigin, ForkPoint, Role};
use crate::rollout::model::RolloutRequest;
use rollout_transcript::{Event, StoredCall};

/// What happened in a workflow's run up to where another rollout goes on, as it is kept.
#[derive(Debug)]
pub struct ForkPast {
    pub(super) events: Vec<Event>,
    /// The date that the other one's clocks began at.
    pub(in crate::rollout) clock_begins: ClockStart,
    /// What it is charged to until it is in the other one's journal.
    _charge: Charge,
}

/// What reading a rollout takes, in multiples of what it takes in files: as it was read, as events, and
/// those once more where its model has another name.
const MEMORY_FACTOR: u64 = 3;

/// Why there is nothing to go on from.
pub(in crate::rollout) enum NoParent {
    /// There is no such rollout.
    Unknown,
    /// It did not get so far.
    TooFew(TooFewTurns),
    /// There is no room for what is read of it.
    NoRoom(OverBudget),
    /// It cannot be read.
    Unreadable(io::Error),
}

impl From<io::Error> for NoParent {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// A rollout that another one goes on from.
pub(in crate::rollout) struct Parent {
    /// Its request, with where the other one comes from.
    pub request: RolloutRequest,
    pub deployment: DeploymentId,
    pub past: ForkPast,
}

/// A rollout has fewer answered calls of the model than another one is to have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has {answered} calls of the model that were answered, one after the other, and {turn} are asked for"
)]
pub struct TooFewTurns {
    /// How many it has.
    pub answered: u32,
    /// How many are asked for.
    pub turn: u32,
}

impl Journal {
    /// The last rollout of this name, as far as it is to be shared, asked of a model of this name, and
    /// charged before it is read. Reads files, and blocks.
    pub(in crate::rollout) fn parent(
        &self,
        point: &ForkPoint,
        model: &str,
        budget: &Budget,
    ) -> Result<Parent, NoParent> {
        let found = self.store.find(point.rollout_id.as_str())?.into_iter().next();
        let found = found.ok_or(NoParent::Unknown)?;
        let bytes = usize::try_from(found.bytes()?.saturating_mul(MEMORY_FACTOR)).unwrap_or(usize::MAX);
        let mut charge = budget.charge(Use::Request, bytes).map_err(NoParent::NoRoom)?;
        // It may have been dropped since, as the oldest.
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
    /// Its request, with where a rollout comes from that goes on from this one, and what happened in its
    /// workflow's run until then, as if a model of this name had been asked.
    pub(in crate::rollout) fn forked(
        self,
        turn: u32,
        model: &str,
    ) -> Result<(RolloutRequest, Vec<Event>), TooFewTurns> {
        let Self { mut request, mut workflow, .. } = self;
        let count = shared_events(&workflow, turn)?;
        workflow.truncate(count);
        if request.model.name != model {
            workflow = workflow.into_iter().map(|event| event.with_model(model)).collect();
        }
        let point = ForkPoint { rollout_id: request.id.clone(), turn };
        request.fork = Some(origin(&request, point, count));
        Ok((request, workflow))
    }
}

/// Whose past the first events of a rollout's run are.
fn origin(request: &RolloutRequest, point: ForkPoint, count: usize) -> ForkOrigin {
    let mut ancestors = request.fork.as_ref().map(|fork| fork.ancestors.clone()).unwrap_or_default();
    // Some of it may be shared with the one that this is a fork of itself.
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

/// Returns the number of events until the first calls of the model were all answered.
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
