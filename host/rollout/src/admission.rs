//! Admission of rollouts.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::groups::GroupRefused;
use super::host::Host;
use super::journal::{DeploymentId, JournaledSecrets, Started, StoredRollout, UnfinishedRollout};
use super::model::{GroupSeat, RequestSecrets, RolloutRequest};
use super::run::{PastLocation, ReplayEnd, Resources, Resumed, Rollout};
use super::slots::AdmitError;
use rollout_core::budget::Use;
use rollout_guest::imports::Then;
use rollout_outbound::ModelEndpoint;

impl Host {
    /// Admits a rollout or fails immediately. The rollout is boxed, so that the futures that hold it while they wait
    /// are small.
    pub fn admit(&self, request: RolloutRequest, resources: Resources) -> Result<Box<Rollout>, AdmitError> {
        let admitted = self.enter_and_journal(request, resources);
        match &admitted {
            Ok(_) => self.metrics().accepted(),
            Err(error) => self.metrics().refused(error.into()),
        }
        admitted
    }

    #[expect(clippy::disallowed_methods, reason = "the time of a fork starts here")]
    fn enter_and_journal(
        &self,
        request: RolloutRequest,
        mut resources: Resources,
    ) -> Result<Box<Rollout>, AdmitError> {
        let groups = &self.0.runtime.groups;
        let places = self.0.runtime.slots().tenant().places();
        if let Some(GroupSeat { id, size, .. }) =
            request.group.as_ref().filter(|seat| u64::from(seat.size) > places)
        {
            return Err(GroupRefused::NoPlaces { id: id.clone(), size: *size, places }.into());
        }
        let seat = request.group.as_ref().map(|seat| groups.take(seat, &request.id)).transpose()?;
        let entered = match &resources.past {
            Some(_) => self.enter_within_quotas(&request)?,
            None => self.enter(&request)?,
        };
        let mut resumed = None;
        let journal = self.0.runtime.journal();
        if let Some((journal, continuation)) = journal.zip(resources.continuation.take()) {
            let secrets = JournaledSecrets {
                request: std::mem::take(&mut resources.secrets),
                driver: continuation.secret.clone(),
            };
            let deployment = self.0.deployment.id();
            let clock_begins =
                resources.past.as_ref().map_or(deployment.clock_begins, |past| past.clock_begins);
            let deployment = DeploymentId { clock_begins, ..deployment.clone() };
            let log = journal.admit(&request, deployment, &secrets, continuation)?;
            if let Some(past) = resources.past.take() {
                log.append_past(past);
                resumed = Some(Resumed {
                    admitted_at: SystemTime::now(),
                    started: Started::default(),
                    differs: None,
                    clock_begins,
                    past: PastLocation::Journal,
                });
            }
            entered.handle.set_log(log);
        }
        if let Some(seat) = &seat {
            seat.admitted(entered.handle.log());
        }
        let mut rollout = Box::new(Rollout::new(self.clone(), request, resources, entered, resumed));
        rollout.sit(seat);
        Ok(rollout)
    }

    /// Resumes a rollout that an earlier process admitted, with its id and its remaining time. Fails if the id was
    /// taken in the meantime or the host is closing.
    pub fn resume(
        &self,
        unfinished: UnfinishedRollout,
        model: Arc<ModelEndpoint>,
    ) -> Result<Box<Rollout>, AdmitError> {
        let UnfinishedRollout { log, request, deployment, admitted_at, started, is_cancelled, group, .. } =
            unfinished;
        let entered = self.0.runtime.slots().enter(&request.id, true)?;
        let groups = &self.0.runtime.groups;
        let seat = request.group.as_ref().map(|seat| groups.restore(seat, (&request.id, &log), group));
        entered.handle.set_log(log);
        if is_cancelled {
            // The journal has the cancellation already.
            entered.handle.stop();
        }
        let differs = deployment.difference(self.0.deployment.id());
        let charge = self.budget().charge_anyway(Use::Request, request.memory_bytes());
        let secrets = RequestSecrets::default();
        let resources = Resources { model, secrets, charge: Some(charge), continuation: None, past: None };
        let clock_begins = deployment.clock_begins;
        let resumed = Resumed { admitted_at, started, differs, clock_begins, past: PastLocation::Journal };
        self.metrics().accepted();
        let mut rollout = Box::new(Rollout::new(self.clone(), request, resources, entered, Some(resumed)));
        rollout.sit(seat);
        Ok(rollout)
    }

    /// Reruns a rollout from its record, with the host's own deadlines and without requests to the outside. It ends at
    /// the end of its recorded history, or where it first diverges from it.
    pub fn replay(&self, stored: StoredRollout, model: ModelEndpoint) -> Result<Replay, AdmitError> {
        let then = if stored.outcome.is_some() { Then::Nothing } else { Then::Unknown };
        let group = stored.group.clone();
        let mut replay = self.rerun(stored, model, [then; 2])?;
        replay.rollout.decide_by(group);
        Ok(replay)
    }

    /// Grades a finished rollout again: reruns the workflow from its record without requests to the outside, and runs
    /// the grader again with requests to its judge.
    pub fn regrade(&self, stored: StoredRollout, model: ModelEndpoint) -> Result<Replay, AdmitError> {
        let stored = StoredRollout { grader: Vec::new(), ..stored };
        self.rerun(stored, model, [Then::Nothing, Then::Continues])
    }

    #[expect(clippy::disallowed_methods, reason = "the time of the rollout starts here")]
    fn rerun(
        &self,
        stored: StoredRollout,
        model: ModelEndpoint,
        then: [Then; 2],
    ) -> Result<Replay, AdmitError> {
        let StoredRollout { mut request, deployment, workflow, grader, .. } = stored;
        // These limits applied to the original run, whose outcome is known.
        (request.workflow_secs, request.grader_secs) = (None, None);
        let entered = self.0.runtime.slots().enter(&request.id, true)?;
        let end = Arc::<OnceLock<ReplayEnd>>::default();
        let resources = Resources {
            model: Arc::new(model),
            secrets: RequestSecrets::default(),
            charge: None,
            continuation: None,
            past: None,
        };
        let resumed = Resumed {
            admitted_at: SystemTime::now(),
            started: Started::default(),
            differs: None,
            clock_begins: deployment.clock_begins,
            past: PastLocation::Here { events: [workflow, grader].into(), then, end: end.clone() },
        };
        let rollout = Box::new(Rollout::new(self.clone(), request, resources, entered, Some(resumed)));
        Ok(Replay { rollout, end })
    }
}

/// A rollout that is rerun from its record.
pub struct Replay {
    /// The rollout, to be driven.
    pub rollout: Box<Rollout>,
    /// The reason why the replay stopped; set when it has ended, unless it ended on its own.
    pub end: Arc<OnceLock<ReplayEnd>>,
}
