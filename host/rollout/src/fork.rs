//! Forks: rollouts that continue from a point in another rollout.
//!
//! A fork has the recorded history of the other rollout's workflow up to a number of calls of the model, and reruns it,
//! as a rollout that was admitted by an earlier process does. From there on it is independent: it makes its own calls
//! and has other random numbers.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::host::Host;
use super::journal::{NoParent, Parent, Started, StoredRollout, TooFewTurns};
use super::model::{ForkPoint, ModelAddress, RequestSecrets, RolloutRequest};
use super::run::{PastLocation, Resources, Resumed, Rollout};
use super::slots::AdmitError;
use rollout_guest::imports::Then;
use rollout_outbound::ModelEndpoint;
use rollout_wire::id::RolloutId;

/// Error of a rollout that cannot be forked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The host has no journal.
    #[error(
        "this host has no journal, and only journaled rollouts can be forked; start it with --journal DIR"
    )]
    NoJournal,
    /// The journal has no rollout with this id.
    #[error("there is no rollout '{0}' in the journal")]
    Unknown(RolloutId),
    /// The rollout has fewer turns.
    #[error("rollout '{0}' cannot be forked at this turn: {1}")]
    TooFew(RolloutId, TooFewTurns),
    /// The rollout ran on another plugin, which would behave differently.
    #[error("rollout '{0}' ran on another plugin: {1}")]
    OtherPlugin(RolloutId, String),
    /// The request has another input, with which the plugin would behave differently.
    #[error("{0} differs from that of the forked rollout; send the same one")]
    Differs(&'static str),
    /// The host admits no more rollouts, or has no room for the history.
    #[error(transparent)]
    Refused(#[from] AdmitError),
    /// The stored rollout cannot be read.
    #[error("cannot read the stored rollout: {0}")]
    Unreadable(#[from] io::Error),
}

/// Error of a stored rollout that cannot be forked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredForkError {
    /// The rollout has fewer turns.
    #[error(transparent)]
    TooFew(#[from] TooFewTurns),
    /// The host admits no more rollouts.
    #[error(transparent)]
    Refused(#[from] AdmitError),
}

impl Host {
    /// Turns a request, before its admission, into a fork of another rollout. The workflow gets the other rollout's
    /// input, and the grader its label if the request has none.
    pub async fn fork(
        &self,
        point: &ForkPoint,
        request: &mut RolloutRequest,
        resources: &mut Resources,
    ) -> Result<(), ForkError> {
        let journal = self.0.runtime.journal().cloned().ok_or(ForkError::NoJournal)?;
        // Checked first, so that a request that must be refused anyway does not wait for a journal that cannot write.
        // Entries can be read only after they are written.
        self.check_entry(request).inspect_err(|error| self.metrics().refused(error.into()))?;
        let readers = journal.clone();
        let _reads = readers.readers.acquire().await;
        // The entries that are read are written to the journal again.
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

    /// Forks a rollout that was already read, without a journal of its own: the shared history stays in memory.
    #[expect(clippy::disallowed_methods, reason = "the time of the rollout starts here")]
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
            past: PastLocation::Here { events, then: [Then::Continues; 2], end: Arc::default() },
        };
        Ok(Box::new(Rollout::new(self.clone(), request, resources, entered, Some(resumed))))
    }
}
