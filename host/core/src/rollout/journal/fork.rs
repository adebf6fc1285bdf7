//! What a rollout takes over of another one that is in the journal.

use std::io;

use rollout_journal as store;
use serde::Deserialize;

use super::unfinished::{UnreadableRollout, read_admission};
use super::{DeploymentId, Journal, StoredRollout, base};
use crate::budget::{Budget, Charge, OverBudget, Use};
use crate::id::RolloutId;
use crate::imports::{Ancestor, ForkOrigin, ForkPoint, Role, RunEvent};
use crate::rollout::model::{ModelAddress, RolloutRequest};
use crate::telemetry::ModelRole;

/// What happened in a workflow's run up to where another rollout goes on, as it is kept.
#[derive(Debug)]
pub struct ForkPast {
    pub(super) events: Vec<store::Event>,
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
    pub request: RolloutRequest,
    pub deployment: DeploymentId,
    pub origin: ForkOrigin,
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
        let written = found.read()?.ok_or(NoParent::Unknown)?;
        let unreadable = |reason: String| UnreadableRollout::of(&written.name, reason);
        let admitted =
            written.events.first().ok_or_else(|| unreadable("nothing is known of it".to_owned()))?;
        let (line, _sealed) = read_admission(&admitted.payload).map_err(unreadable)?;
        let base = base(Role::Workflow);
        let mut events = written.events;
        events.retain(|event| (base..base + RunEvent::KINDS).contains(&event.kind));
        let read = events.iter().map(|event| RunEvent::read(event.kind - base, &event.payload));
        let read = read.collect::<Result<Vec<_>, _>>();
        let read = read.map_err(|error| UnreadableRollout::of(&written.name, error.to_string()))?;
        let request = line.request.into_owned();
        let count = shared_events(&read, point.turn).map_err(NoParent::TooFew)?;
        events.truncate(count);
        let origin = origin(&request, point.clone(), count);
        if request.model.name != model {
            events = read.into_iter().take(count).map(|event| of_model(event, model)).collect();
        }
        charge.shrink_to(events.iter().map(|event| size_of::<store::Event>() + event.payload.len()).sum());
        let past = ForkPast { events, _charge: charge };
        Ok(Parent { request, deployment: line.deployment, origin, past })
    }
}

/// An event of a workflow's run as it is kept, with its model under this name.
fn of_model(event: RunEvent, model: &str) -> store::Event {
    let (kind, parts) = event.of_model(model).parts();
    store::Event { kind: base(Role::Workflow) + kind, payload: parts.concat().into() }
}

impl StoredRollout {
    /// The request of a rollout that goes on from this one, under another id and at this model, and
    /// what happened in its workflow's run until then.
    pub(in crate::rollout) fn forked(
        self,
        turn: u32,
        id: RolloutId,
        model: ModelAddress,
    ) -> Result<(RolloutRequest, Vec<RunEvent>), TooFewTurns> {
        let Self { mut request, mut workflow, .. } = self;
        let count = shared_events(&workflow, turn)?;
        workflow.truncate(count);
        if request.model.name != model.name {
            workflow = workflow.into_iter().map(|event| event.of_model(&model.name)).collect();
        }
        let point = ForkPoint { rollout_id: request.id.clone(), turn };
        request.fork = Some(origin(&request, point, count));
        (request.id, request.caller_id, request.model) = (id, None, model);
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

/// How many events there are until the first calls of the model were all answered.
fn shared_events(events: &[RunEvent], turn: u32) -> Result<usize, TooFewTurns> {
    #[derive(Deserialize)]
    struct Asked {
        #[serde(default)]
        asked: Option<ModelRole>,
    }
    let calls_model = |what: &[u8]| {
        serde_json::from_slice::<Asked>(what).is_ok_and(|what| what.asked == Some(ModelRole::Policy))
    };
    let calls = events.iter().filter_map(|event| match event {
        RunEvent::Asked { call, what, .. } if calls_model(what) => Some(*call),
        _ => None,
    });
    let mut count = 0;
    for (answered, call) in (0..turn).zip(calls.map(Some).chain(std::iter::repeat(None))) {
        let is_it =
            |event: &RunEvent| matches!(event, RunEvent::Answered { call: of, .. } if Some(*of) == call);
        let at = events.iter().position(is_it).ok_or(TooFewTurns { answered, turn })?;
        count = count.max(at + 1);
    }
    Ok(count)
}
