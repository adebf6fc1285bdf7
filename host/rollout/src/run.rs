//! A rollout and its steps: workflow, grader, finish.

mod agent;
mod deadline;
mod grade;
mod group;
mod past;
mod play;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::activity::LiveFacts;
use super::groups::Seat;
use super::host::Host;
use super::journal::{Continuation, ForkPast, RolloutLog, ServedAs};
use super::limit_table::{self, RunTimes};
use super::model::{
    AgentForm, Failure, FailureKind, Finished, FinishedSample, GroupDecision, GroupOutcome, HOST_VERSION,
    LoopReport, Outcome, Phase, RequestSecrets, RolloutRequest, Stage,
};
use super::outcome_counter::OutcomeCounter;
use super::slots::{Entered, Handle, SlotGuard};
use super::trajectory::{AliveFolder, SampleTokens};
use super::{events, trajectory};
use rollout_core::budget::{Charge, Holder};
use rollout_core::error::Fault;
use rollout_core::moments::Moments;
use rollout_core::storage::{OverStorage, StorageAccount};
use rollout_core::telemetry::{Limit, RolloutTrace, Step, TraceParent};
use rollout_guest::imports::{
    Boundary, Imports, JudgeFailure, Live, LogEntry, ModelAccess, Record, Role, RunContext,
};
use rollout_guest::instance::{Bounds, Permit, RunError};
use rollout_outbound::ModelEndpoint;
use rollout_transcript::SampleRecord;
use rollout_wire::id::{RolloutId, SampleId};
use rollout_wire::openai::CallerParams;
use rollout_wire::quota::Quota;

use deadline::Deadline;
pub use past::ReplayEnd;
use past::ago;
pub(super) use past::{PastLocation, Resumed};

/// Resources of a rollout that are not part of its request's data.
pub struct Resources {
    /// The connection to the model.
    pub model: Arc<ModelEndpoint>,
    /// Secrets of the request, which must not be written unencrypted.
    pub secrets: RequestSecrets,
    /// The charge for the request's bytes, if there is one.
    pub charge: Option<Charge>,
    /// Data that the driver needs to resume the rollout in another process. Without it, the rollout ends with this
    /// process.
    pub continuation: Option<Continuation>,
    /// The history of the rollout that this one is a fork of.
    pub past: Option<ForkPast>,
}

/// An admitted rollout that has not ended.
pub struct Rollout {
    host: Host,
    request: RolloutRequest,
    model: Arc<ModelEndpoint>,
    _charge: Option<Charge>,
    run: Arc<RunContext>,
    record: Arc<Record>,
    holder: Holder,
    /// The account of its bytes on disk, if its tenant has a quota for them.
    storage: Option<Arc<StorageAccount>>,
    handle: Handle,
    admitted_at: Instant,
    queued: Duration,
    workflow_time: Duration,
    failure: Option<Failure>,
    rewards: HashMap<SampleId, f64>,
    graded: bool,
    returned_messages: bool,
    own_reward: Option<f64>,
    loop_report: Option<LoopReport>,
    /// The boundaries of its runs, of the workflow and the grader.
    boundaries: [Option<Arc<Boundary>>; 2],
    /// The permit of its slot, shared with the instance, which may live a moment longer.
    slot: Option<Permit>,
    account: OutcomeCounter,
    /// The folder of its files, if it has any.
    folder: Option<AliveFolder>,
    /// Its seat in a group, until the group is decided or the rollout left it.
    seat: Option<Seat>,
    /// The decision of its group when it ran before, for a rollout that is rerun.
    decided: Option<GroupDecision>,
    /// Its part in the outcome of the group.
    group: Option<GroupOutcome>,
    // Dropped last: the rollout counts as alive until all fields above are dropped, and only then does closing `phase`
    // wake the tasks that wait for its end.
    guard: SlotGuard,
    phase: watch::Sender<Phase>,
    resumed: Option<Resumed>,
}

/// Time for which a rollout keeps its slot while its caller is notified, before the grader runs. Most callers respond
/// sooner, and then the grader runs immediately; a slow one does not delay other rollouts.
const SLOT_KEPT_MAX: Duration = Duration::from_millis(100);

impl Rollout {
    #[expect(clippy::disallowed_methods, reason = "people read the time of the admission")]
    pub(super) fn new(
        host: Host,
        mut request: RolloutRequest,
        resources: Resources,
        entered: Entered,
        resumed: Option<Resumed>,
    ) -> Self {
        let Entered { guard, handle, phase } = entered;
        let Resources { model, secrets: _, charge, continuation: _, past: _ } = resources;
        let run = RunContext {
            rollout_id: request.id.clone(),
            caller_id: request.caller_id.take(),
            attempt: request.attempt,
            config: host.0.deployment.plugin_config.clone(),
            metadata: request.metadata.as_ref().map(|metadata| match grades_itself(&host) {
                true => metadata.whole().clone(),
                false => metadata.public().clone(),
            }),
            samples_max: request.samples_max.min(host.0.deployment.limits.samples_max),
            caller_params: request
                .loop_options
                .completion_params
                .as_deref()
                .map_or_else(CallerParams::default, CallerParams::read),
            fork: request.fork.clone().map(Arc::new),
            // A resumed rollout keeps its clock.
            clock_begins: resumed
                .as_ref()
                .map_or(host.0.deployment.id().clock_begins, |resumed| resumed.clock_begins),
            metrics: host.metrics().clone(),
        };
        let trace = host.metrics().trace(request.id.as_str());
        trace.set("rollout.attempt", i64::from(request.attempt));
        let holder = host.budget().holder(handle.cancel.clone());
        let record = Arc::new(Record::for_rollout(trace, holder.clone()));
        let is_stored = handle.log().is_some() || host.0.runtime.settings.artifact_root.is_some();
        let storage = host.0.runtime.storage().filter(|_| is_stored);
        let storage = storage.map(|quota| quota.account(handle.cancel.clone()));
        if let Some(account) = &storage {
            record.charge_storage(account);
        }
        let admitted_at = resumed.as_ref().map_or_else(Instant::now, |resumed| ago(resumed.admitted_at));
        let fork = request.fork.as_ref().map(|fork| fork.point.clone());
        handle.set_facts(LiveFacts {
            plugin: host.0.deployment.plugin_name(),
            admitted_at: SystemTime::now() - admitted_at.elapsed(),
            fork: fork.clone(),
            group: request.group.clone(),
            record: Arc::downgrade(&record),
        });
        Self {
            run: Arc::new(run),
            account: OutcomeCounter::new(
                host.clone(),
                record.clone(),
                handle.phases(),
                admitted_at,
                request.id.clone(),
                fork,
            ),
            record,
            holder,
            storage,
            admitted_at,
            queued: Duration::ZERO,
            workflow_time: Duration::ZERO,
            failure: None,
            rewards: HashMap::new(),
            graded: false,
            returned_messages: false,
            own_reward: None,
            loop_report: None,
            boundaries: [None, None],
            slot: None,
            seat: None,
            decided: None,
            group: None,
            folder: host.0.runtime.settings.artifact_root.as_ref().map(|root| root.alive(&request.id)),
            host,
            request,
            model,
            _charge: charge,
            handle,
            phase,
            guard,
            resumed,
        }
    }

    /// Gives the rollout its seat in a group.
    pub(super) fn sit(&mut self, seat: Option<Seat>) {
        self.seat = seat;
    }

    /// Applies this decision of the rollout's group in place of a new one.
    pub(super) fn decide_by(&mut self, decision: Option<GroupDecision>) {
        self.decided = decision;
    }

    /// Returns the id.
    pub fn id(&self) -> &RolloutId {
        &self.request.id
    }

    /// Returns the rollout's log in the journal, if there is one.
    pub fn log(&self) -> Option<&RolloutLog> {
        self.handle.log()
    }

    /// Returns the tokens of the model's replies in the first sample, as the host observed them.
    pub fn sample_tokens(&self) -> SampleTokens {
        let Some(sample) = self.record.samples().into_iter().next() else { return SampleTokens::default() };
        let mut tokens = SampleTokens::default();
        self.record.with_remains(|remains| {
            tokens = trajectory::sample_tokens(&sample, remains.transcript.policy.exchanges());
        });
        tokens
    }

    /// Calls `show` for each log entry when it is stored. To be called before the rollout runs.
    pub fn watch_log(&self, show: impl Fn(&LogEntry) + Send + Sync + 'static) {
        self.record.watch_log(show);
    }

    /// Returns a handle for other tasks.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns the trace, as a child of the caller's if there is one, for spans of the caller's notifications. To be
    /// called before the rollout runs.
    pub fn traced_below(&self, parent: Option<TraceParent>) -> RolloutTrace {
        let trace = self.record.trace();
        if let Some(parent) = parent {
            trace.child_of(parent);
        }
        trace.clone()
    }

    /// Returns the span of all its log lines, for the driver. It has the level ERROR, so that it exists with any
    /// filter.
    pub(super) fn span(&self) -> tracing::Span {
        let rollout_id = &self.request.id;
        let tenant = self.host.0.runtime.settings.tenant.as_deref();
        match (tenant, self.host.0.deployment.id().served_as.as_ref()) {
            (Some(tenant), Some(ServedAs { plugin, version })) => {
                tracing::error_span!("rollout", tenant, plugin, version, %rollout_id)
            }
            _ => tracing::error_span!("rollout", %rollout_id),
        }
    }

    /// Waits for a slot and runs the workflow. The error is stored for [`Rollout::finish`], too.
    pub(super) async fn run_workflow(&mut self) -> Result<(), Failure> {
        let cancel = self.handle.cancel.clone();
        let result = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(None),
            result = self.wait_and_run() => result.map_err(Some),
        };
        self.workflow_time = self.record.meter().wall();
        let stage = if self.slot.is_some() { Stage::Workflow } else { Stage::Queue };
        let result = result.map_err(|failure| failure.unwrap_or_else(|| Failure::cancelled(stage)));
        let result = self.unless_evicted(stage, result).and_then(|()| self.check_refused_uses(stage));
        self.failure = result.clone().err();
        result
    }

    /// Fails if the guests' language runtimes refused more uses than the operator allows, even if the guests handled
    /// the refusals.
    fn check_refused_uses(&self, stage: Stage) -> Result<(), Failure> {
        self.check_refused_uses_in(&self.record, stage)
    }

    fn check_refused_uses_in(&self, record: &Record, stage: Stage) -> Result<(), Failure> {
        let max = self.host.0.deployment.limits.refused_uses_max;
        let refused = record.refused_uses();
        let Some(first) = refused.first_failure().filter(|_| refused.failures() > max) else { return Ok(()) };
        self.record.limit_hit(Limit::RefusedUses);
        let reason = format!("{} {first}; refused-uses-max is {max}", stage.as_str());
        Err(Failure::new(stage, FailureKind::Limit, Fault::Plugin, reason))
    }

    /// Enters a phase.
    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.host.0.runtime.slots().tenant().activity().changed();
    }

    async fn wait_and_run(&mut self) -> Result<(), Failure> {
        let limits = self.host.0.deployment.limits.clone();
        if let Some(differs) = self.resumed.as_ref().and_then(|resumed| resumed.differs.as_ref()) {
            let reason = format!("its plugin has changed since it started in another process: {differs}");
            return Err(Failure::new(Stage::Queue, FailureKind::Resume, Fault::Host, reason));
        }
        let (requested_secs, now) = (self.request.workflow_secs, Instant::now());
        let waiting = Deadline::new(requested_secs, self.admitted_at, now, Duration::MAX / 4);
        let queue_span = self.record.trace().first_phase("queue");
        let turn = async {
            let slot = self.host.0.runtime.slots().first().await;
            self.holder.may_start().await;
            slot
        };
        let slot = tokio::time::timeout_at(waiting.at, turn).await;
        self.queued = self.admitted_at.elapsed();
        drop(queue_span);
        match slot {
            Ok(slot) => self.slot = slot.map(Permit::counted),
            Err(_) => return Err(self.over_time(&waiting, Stage::Queue, self.queued)),
        }
        if self.slot.is_none() {
            return Err(Failure::host(Stage::Queue, "the host is shutting down"));
        }
        self.guard.leave_queue();
        self.host.metrics().took(Step::Queue, self.queued);
        self.enter(Phase::Running);
        if let Some(conversation) = self.request.conversation.take() {
            self.take_task_label();
            return self.settle_request(&conversation);
        }

        let began = self.record_start(Role::Workflow);
        let deadline = Deadline::new(requested_secs, self.admitted_at, began, limits.workflow_time_max);
        let outside = Live {
            deadline: Some(deadline.at),
            policy: Some(ModelAccess {
                client: self.host.0.runtime.settings.chat.clone(),
                endpoint: self.model.clone(),
            }),
            judge: None,
            tools: self.host.0.deployment.tools.clone(),
        };
        let (run, record) = (self.run.clone(), self.record.clone());
        let boundary = self.boundary(Role::Workflow).await?;
        let imports = Imports::new(Role::Workflow, run, limits.clone(), outside, record);
        let imports = imports.across(boundary.clone());
        let bounds = self.bounds(&deadline)?;
        let _timing = self.host.metrics().time(Step::Workflow);
        let mut span = self.record.trace().phase("workflow");
        let ran = self.run_agent(Box::new(imports), bounds, &boundary).await;
        let result = match ran {
            Ok(settled) => settled,
            Err(error) if deadline.ended(&error) => {
                Err(self.over_time(&deadline, Stage::Workflow, self.queued))
            }
            Err(error) => Err(self.blame(&error)),
        };
        result.inspect_err(|failure| span.failed(failure.kind.as_str(), &failure.reason))
    }

    /// Replaces the result if the rollout was evicted or ended for a quota, even if its guest handled the refusal.
    fn unless_evicted(&self, stage: Stage, result: Result<(), Failure>) -> Result<(), Failure> {
        if let Some(OverStorage { used, max }) = self.storage.as_ref().and_then(|storage| storage.excess()) {
            let reason = format!(
                "{} was ended: the quota {} of this tenant is used up: its unfinished rollouts and unread results need \
                 {used} of {max} bytes; run fewer rollouts at once, or the operator can raise the quota",
                stage.as_str(),
                Quota::StoredBytes.as_str()
            );
            return Err(Failure::new(stage, FailureKind::Limit, Fault::Host, reason));
        }
        if !self.holder.evicted() {
            return result;
        }
        self.record.limit_hit(Limit::MemoryBudget);
        Err(Failure::new(stage, FailureKind::Memory, Fault::Host, self.holder.why_evicted()))
    }

    /// Returns the bounds of an instance, which requires a slot.
    fn bounds(&self, deadline: &Deadline) -> Result<Bounds, Failure> {
        let Some(permit) = self.slot.clone() else {
            return Err(Failure::host(Stage::Queue, "the rollout has no slot"));
        };
        let memory_bytes_max = self.host.0.deployment.limits.memory_bytes_max;
        Ok(Bounds { memory_bytes_max, deadline: Some(deadline.at), permit })
    }

    /// Returns the failure of a deadline that passed, and counts it as a hit of a limit.
    fn over_time(&self, deadline: &Deadline, stage: Stage, queued: Duration) -> Failure {
        self.record.limit_hit(deadline.limit(stage));
        deadline.exceeded(stage, queued)
    }

    /// Converts the error of a workflow. The workflow is not at fault if the model's server or the host failed it.
    fn blame(&self, error: &RunError) -> Failure {
        let failure = self.explain(Stage::Workflow, error);
        match self.record.model_failure() {
            Some(Fault::Host) if failure.kind == FailureKind::Error => {
                Failure { kind: FailureKind::Host, fault: Fault::Host, ..failure }
            }
            Some(fault) if failure.kind == FailureKind::Error => {
                Failure { kind: FailureKind::Model, fault, ..failure }
            }
            _ => failure,
        }
    }

    /// Converts the error of a grader. The grader is not at fault if its judge failed it.
    fn blame_judge(&self, error: &RunError) -> Failure {
        let failure = self.explain(Stage::Grader, error);
        match self.record.judge_failure() {
            Some(JudgeFailure { fault, .. }) if failure.kind == FailureKind::Error => {
                Failure { kind: FailureKind::Judge, fault, ..failure }
            }
            _ => failure,
        }
    }

    /// Converts an error. For a trap, the guest's panic message replaces the engine's.
    fn explain(&self, stage: Stage, error: &RunError) -> Failure {
        let mut failure = Failure::from_run_error(stage, error);
        match failure.kind {
            FailureKind::Memory => self.record.limit_hit(Limit::Memory),
            FailureKind::Cpu => self.record.limit_hit(Limit::GuestCpu),
            _ => {}
        }
        if failure.kind == FailureKind::Trap
            && let Some(panic) = self.record.last_panic()
        {
            failure = Failure::new(stage, failure.kind, failure.fault, format!("{} {panic}", stage.as_str()));
        }
        failure
    }

    /// Waits for work that needs no guest, such as a callback. If it takes long, the slot is released. If the rollout
    /// is cancelled meanwhile, the work is dropped; the error is stored for [`Rollout::finish`], too.
    pub(super) async fn notify<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let cancel = self.handle.cancel.clone();
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            done = &mut work => Some(done),
            () = tokio::time::sleep(SLOT_KEPT_MAX) => {
                drop(self.slot.take());
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => None,
                    done = work => Some(done),
                }
            }
        };
        let Some(done) = done else {
            let stopped = Failure::cancelled(Stage::Workflow);
            let stopped = self.unless_evicted(Stage::Workflow, Err(stopped.clone())).err().unwrap_or(stopped);
            self.failure.get_or_insert_with(|| stopped.clone());
            return Err(stopped);
        };
        Ok(done)
    }

    /// Charges data that a guest returned to the rollout's record.
    fn charge(&self, what: &str, bytes: usize) -> Result<(), String> {
        let charged = self.record.charge(bytes, &self.host.0.deployment.limits);
        charged.map_err(|limit| format!("{what} that cannot be stored: {limit}"))
    }

    /// Ends the rollout: frees the slot, writes the trajectory, and returns the outcome. A rollout without a grader's
    /// verdict ends without a reward.
    pub(super) async fn finish(self: Box<Self>) -> Finished {
        Box::pin(self.settle_and_write()).await
    }

    async fn settle_and_write(mut self: Box<Self>) -> Finished {
        self.record.seal();
        self.close_calls();
        self.take_own_reward();
        let (with_request, with_reply) =
            (self.record.samples_with_request(), self.record.samples_with_reply());
        let finished_sample = |record: SampleRecord| FinishedSample {
            reward: self.rewards.get(&record.id).copied(),
            has_request: with_request.contains(&record.id),
            replied: with_reply.contains(&record.id),
            record,
        };
        let samples: Vec<FinishedSample> = self.record.samples().into_iter().map(finished_sample).collect();
        let outcome = self.outcome(&samples);
        let mut usage = self.record.usage();
        let conversations = samples.iter().map(|sample| &sample.record.messages);
        let counted = |hasher: &_| self.record.tool_call_ids(hasher);
        usage.tool_calls = trajectory::calls_made(conversations, &self.request.prompt, counted);
        let mut carried = Vec::new();
        self.record.end_storage_charge();
        if let Some(log) = self.handle.log() {
            let deployment = &self.host.0.deployment;
            let plugins = [Some(deployment.digest()), deployment.grader_digest()];
            self.record.with_remains(|remains| {
                log.remains(remains, plugins);
                carried = remains.transcript.carried();
            });
        }
        let times = RunTimes {
            workflow: self.workflow_time,
            grader: usage.guest_wall.saturating_sub(self.workflow_time),
        };
        let (hits, _) = self.record.limits_hit();
        let finished = Finished {
            id: self.request.id.clone(),
            outcome,
            samples,
            returned_messages: self.returned_messages,
            loop_report: self.loop_report.take(),
            usage,
            refused_uses: self.record.refused_uses(),
            limits: limit_table::build(
                &self.host.0.deployment.limits,
                self.run.samples_max,
                &usage,
                times,
                &hits,
            ),
            duration: self.admitted_at.elapsed(),
            queued: self.queued,
            trajectories: Vec::new(),
            group: self.group.take(),
        };
        let is_replay_cut = self.resumed.as_ref().is_some_and(|resumed| resumed.past.is_cut());
        self.account.settle(&finished.outcome, is_replay_cut);
        // The guests are gone; other rollouts may run while this one is written.
        drop(self.slot.take());
        if let Some(folder) = self.host.0.runtime.settings.event_log.clone() {
            let shown_id = self.run.caller_id.as_deref().unwrap_or(finished.id.as_str()).to_owned();
            events::write(folder, finished.id.clone(), shown_id, self.record.events()).await;
        }
        let log = self.handle.log().cloned();
        let finished = match self.folder.take() {
            Some(folder) => self.write_trajectories(folder, finished).await,
            None => {
                // The request is in the journal and need not stay in memory while the outcome is written.
                drop(self);
                finished
            }
        };
        if let Some(log) = log {
            log.outcome(&finished, &carried);
        }
        finished
    }

    /// Writes the trajectories and returns the rollout with them.
    async fn write_trajectories(mut self: Box<Self>, folder: AliveFolder, finished: Finished) -> Finished {
        let _timing = self.host.metrics().time(Step::TrajectoryWrite);
        let _span = self.record.trace().span("trajectory_write");
        let job = trajectory::Job {
            prompt: std::mem::take(&mut self.request.prompt),
            label: self.request.label.take(),
            samples_max: self.request.samples_max,
            model: self.request.model.name.clone(),
            extra: self.request.trajectory_extra.take(),
            metadata: self.request.metadata.clone(),
            attempt: self.request.attempt,
            fork: self.request.fork.take().map(|fork| fork.point),
            recorded: self.record.take(),
            host: HOST_VERSION.into(),
            plugins: trajectory::Plugins {
                workflow: self.host.0.deployment.digest().to_owned(),
                grader: self.host.0.deployment.grader_digest().map(str::to_owned),
            },
        };
        let metrics = self.host.metrics().clone();
        trajectory::write(folder, job, finished, &metrics).await
    }

    fn outcome(&self, samples: &[FinishedSample]) -> Outcome {
        if let Some(failure) = &self.failure {
            return Outcome::Unscored(failure.clone());
        }
        if !self.graded && self.own_reward.is_none() {
            let reason = "no reward was requested";
            return Outcome::Unscored(Failure::new(
                Stage::Grader,
                FailureKind::NotGraded,
                Fault::Caller,
                reason,
            ));
        }
        let rewards: Moments = samples.iter().filter_map(FinishedSample::public_reward).collect();
        match rewards.mean() {
            Some(reward) => Outcome::Scored { reward },
            None => Outcome::Unscored(Failure::new(
                Stage::Grader,
                FailureKind::Withdrawn,
                Fault::Plugin,
                "every sample was withdrawn",
            )),
        }
    }
}

/// Returns whether the agent grades itself: an agent loop or an environment without a grader.
fn grades_itself(host: &Host) -> bool {
    host.form() != AgentForm::Workflow && host.grader().is_none()
}

/// Returns the beginning of a guest's text, for an error message.
fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}
