//! A rollout that goes on from where another one was.
//!
//! It has what happened to the other one's workflow up to its first so many calls of the model, and
//! does it again with that, as a rollout does that a process before admitted. From there on it is on
//! its own: calls are made, and random numbers are others.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::host::Host;
use super::journal::{NoParent, Parent, Started, StoredRollout, TooFewTurns};
use super::model::{ForkPoint, ModelAddress, RequestSecrets, RolloutRequest};
use super::run::{PastOf, Resources, Resumed, Rollout};
use super::slots::AdmitError;
use rollout_guest::imports::Then;
use rollout_outbound::ModelEndpoint;
use rollout_wire::id::RolloutId;

/// Why a rollout cannot go on from another one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// Nothing is kept.
    #[error(
        "this host keeps no journal, without which there is nothing to fork; start it with --journal DIR"
    )]
    NoJournal,
    /// There is none of this id.
    #[error("there is no rollout '{0}' in the journal")]
    Unknown(RolloutId),
    /// It did not get so far.
    #[error("rollout '{0}' cannot be forked there: {1}")]
    TooFew(RolloutId, TooFewTurns),
    /// The same again needs the same plugin.
    #[error("rollout '{0}' ran on another plugin: {1}")]
    OtherPlugin(RolloutId, String),
    /// The same again needs the same input.
    #[error("{0} is not that of the rollout which is forked; send the same")]
    Differs(&'static str),
    /// The host takes no more, or has no room for what it takes over.
    #[error(transparent)]
    Refused(#[from] AdmitError),
    /// What is kept of it cannot be read.
    #[error("what is kept of the rollout cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Why a rollout that was read cannot be gone on from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredForkError {
    /// It did not get so far.
    #[error(transparent)]
    TooFew(#[from] TooFewTurns),
    /// The host takes no more.
    #[error(transparent)]
    Refused(#[from] AdmitError),
}

impl Host {
    /// Makes of a request, which is to be admitted next, one that goes on from another rollout: what
    /// the workflow is given is that one's, and so is the label where the request has none.
    pub async fn fork(
        &self,
        point: &ForkPoint,
        request: &mut RolloutRequest,
        resources: &mut Resources,
    ) -> Result<(), ForkError> {
        let journal = self.0.runtime.journal().cloned().ok_or(ForkError::NoJournal)?;
        // What is not written cannot be read, and where it cannot be written that is not waited for. Nor is anything
        // read for what would be refused after it.
        self.check_entry(request).inspect_err(|error| self.metrics().refused(error.into()))?;
        let readers = journal.clone();
        let _reads = readers.readers.acquire().await;
        // What is read goes to the journal again.
        journal.room().await;
        journal.written().await.map_err(io::Error::other)?;
        let (id, budget) = (&point.rollout_id, self.budget().clone());
        let (point, model) = (point.clone(), request.model.name.clone());
        let read = tokio::task::spawn_blocking(move || journal.parent(&point, &model, &budget)).await;
        let parent = read.map_err(io::Error::from)?.map_err(|why| match why {
            NoParent::Unknown => ForkError::Unknown(id.clone()),
            NoParent::TooFew(few) => ForkError::TooFew(id.clone(), few),
            NoParent::NoRoom(over) => ForkError::Refused(over.into()),
            NoParent::Unreadable(error) => ForkError::Unreadable(error),
        })?;
        let Parent { request: of, deployment, past } = parent;
        if let Some(differs) = deployment.difference(self.0.deployment.id()) {
            return Err(ForkError::OtherPlugin(id.clone(), differs));
        }
        if request.prompt != of.prompt {
            return Err(ForkError::Differs("the prompt"));
        }
        let metadata = |request: &RolloutRequest| {
            request.metadata.as_ref().map(|metadata| metadata.whole().get().to_owned())
        };
        if request.metadata.is_some() && metadata(request) != metadata(&of) {
            return Err(ForkError::Differs("the metadata"));
        }
        let before = request.memory_bytes();
        request.metadata = of.metadata;
        request.loop_options = of.loop_options;
        request.label = request.label.take().or(of.label);
        request.fork = of.fork;
        if let Some(charge) = &mut resources.charge {
            charge.grow(request.memory_bytes().saturating_sub(before)).map_err(AdmitError::from)?;
        }
        resources.past = Some(past);
        Ok(())
    }

    /// The same of a rollout that was read, without a journal of its own: what it shares with that
    /// one is here.
    #[expect(clippy::disallowed_methods, reason = "from here its time counts")]
    pub fn fork_stored(
        &self,
        stored: StoredRollout,
        turn: u32,
        id: RolloutId,
        model: (ModelAddress, Arc<ModelEndpoint>),
    ) -> Result<Box<Rollout>, StoredForkError> {
        let (address, model) = model;
        let clock_begins = stored.deployment.clock_begins;
        let (mut request, workflow) = stored.forked(turn, &address.name)?;
        (request.id, request.caller_id, request.model) = (id, None, address);
        let entered = self.enter(&request)?;
        let resources = Resources {
            model,
            secrets: RequestSecrets::default(),
            charge: None,
            continuation: None,
            past: None,
        };
        let events = [workflow, Vec::new()].into();
        let resumed = Resumed {
            admitted_at: SystemTime::now(),
            started: Started::default(),
            differs: None,
            clock_begins,
            past: PastOf::Here { events, then: [Then::GoesOn; 2], end: Arc::default() },
        };
        Ok(Box::new(Rollout::new(self.clone(), request, resources, entered, Some(resumed))))
    }
}
