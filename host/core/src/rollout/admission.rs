//! Admits a rollout, or says at once why not.

use std::sync::Arc;

use super::host::Host;
use super::journal::{JournaledSecrets, UnfinishedRollout};
use super::model::{RequestSecrets, RolloutRequest};
use super::run::{Resources, Resumed, Rollout};
use super::slots::AdmitError;
use crate::budget::Use;
use crate::outbound::ModelEndpoint;

impl Host {
    /// Admits a rollout, or says at once why not. In a box, because every future that it
    /// is handed through would have its size again, for as long as it waits.
    pub fn admit(&self, request: RolloutRequest, resources: Resources) -> Result<Box<Rollout>, AdmitError> {
        let admitted = self.enter_and_keep(request, resources);
        match &admitted {
            Ok(_) => self.metrics().accepted(),
            Err(error) => self.metrics().refused(error.into()),
        }
        admitted
    }

    fn enter_and_keep(
        &self,
        request: RolloutRequest,
        mut resources: Resources,
    ) -> Result<Box<Rollout>, AdmitError> {
        let entered = self.enter(&request)?;
        let journal = self.0.runtime.settings.journal.as_ref();
        if let Some((journal, continuation)) = journal.zip(resources.continuation.take()) {
            let secrets = JournaledSecrets {
                request: std::mem::take(&mut resources.secrets),
                driver: continuation.secret.clone(),
            };
            let deployment = self.0.deployment.id().clone();
            let log = journal.admit(&request, deployment, &secrets, continuation)?;
            entered.handle.is_kept_in(log);
        }
        Ok(Box::new(Rollout::new(self.clone(), request, resources, entered, None)))
    }

    /// Goes on with a rollout that a process before admitted, under its id and with the time that it
    /// has left. The error is that of an id which was taken meanwhile, or of a host that closes.
    pub fn resume(
        &self,
        unfinished: UnfinishedRollout,
        model: Arc<ModelEndpoint>,
    ) -> Result<Box<Rollout>, AdmitError> {
        let UnfinishedRollout { log, request, deployment, admitted_at, started, is_cancelled, .. } =
            unfinished;
        let entered = self.0.runtime.slots.enter(&request.id, true)?;
        entered.handle.is_kept_in(log);
        if is_cancelled {
            // That it is to be cancelled is kept already.
            entered.handle.stop();
        }
        let differs = deployment.difference(self.0.deployment.id());
        let charge = self.budget().charge(Use::Request, request.memory_bytes()).ok();
        let resources = Resources { model, secrets: RequestSecrets::default(), charge, continuation: None };
        let resumed = Resumed { admitted_at, started, differs };
        self.metrics().accepted();
        Ok(Box::new(Rollout::new(self.clone(), request, resources, entered, Some(resumed))))
    }
}
