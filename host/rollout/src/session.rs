//! Sessions of environments: a caller's model acts, one episode after the other.
//!
//! A [`Session`] holds a slot from its start to its end, as a running rollout does, so slots, quotas and shares limit both
//! together. Each episode has an instance of its own: a reset drops the instance of the episode before. An instance makes
//! progress only during a call.
//!
//! With a grader in the deployment, the host removes the label from the arguments of a reset before the environment sees
//! them, and the grader rates the episode when it ends. Its verdict is the reward of the last step.

#![expect(clippy::disallowed_types, reason = "a request is limited in size, and its arguments are changed")]

mod description;
mod history;

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::activity::LiveFacts;
use super::episode::{Observed, checked, take_label};
use super::host::Host;
use super::model::Phase;
use super::slots::{AdmitError, Entered, Handle, SessionCount, SlotGuard};
use rollout_core::budget::Holder;
use rollout_core::limits::SessionLimits;
use rollout_guest::imports::{Imports, Live, Record, Role, RunContext};
use rollout_guest::instance::{
    self, Bounds, Episode, EpisodeFailure, EpisodeStart, Permit, RunError, SampleToGrade,
};
use rollout_wire::id::RolloutId;
use rollout_wire::openai::CallerParams;

pub use description::DescribeError;
use history::History;
pub use rollout_guest::instance::{EpisodeAction, SplitKind, TaskSplit};

/// Error of a session that was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenSessionError {
    /// The plugin has no environment.
    #[error(
        "this plugin has no environment; serve one that exports `environment`, in Rust with \
         `rollout_sdk::export!(environment = …)`"
    )]
    NoEnvironment,
    /// All slots that sessions may have are taken.
    #[error("Server at capacity: {active}/{max} sessions active. Cannot accept new connections.")]
    AtCapacity {
        /// Number of open sessions.
        active: u32,
        /// Maximum number of sessions.
        max: u32,
    },
    /// The host refuses it for another reason.
    #[error(transparent)]
    Refused(#[from] AdmitError),
}

/// Error of a call in a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The request or the action does not fit.
    #[error("{0}")]
    Invalid(String),
    /// The environment failed, or the request is not possible now. The episode goes on.
    #[error("{0}")]
    Failed(String),
    /// A time limit of the environment's own passed. The episode goes on.
    #[error("{0}")]
    TimedOut(String),
    /// The episode has ended without a result. The session goes on with the next reset.
    #[error("{0}; the episode has ended, send a reset to begin another")]
    EpisodeOver(String),
    /// The session has ended.
    #[error("{0}")]
    SessionOver(String),
}

impl From<EpisodeFailure> for SessionError {
    fn from(failure: EpisodeFailure) -> Self {
        match failure {
            EpisodeFailure::Failed(reason) => Self::Failed(reason),
            EpisodeFailure::Invalid(reason) => Self::Invalid(reason),
            EpisodeFailure::TimedOut(reason) => Self::TimedOut(reason),
        }
    }
}

/// Parameters of a reset.
#[derive(Clone, Debug, Default)]
pub struct Reset {
    /// Seed of random choices.
    pub seed: Option<u64>,
    /// The caller's name of the episode.
    pub episode_id: Option<String>,
    /// Further arguments.
    pub arguments: Map<String, Value>,
}

/// One caller's use of an environment.
pub struct Session {
    host: Host,
    id: RolloutId,
    limits: SessionLimits,
    episode: Option<CurrentEpisode>,
    /// Number of resets.
    resets: u32,
    holder: Holder,
    handle: Handle,
    permit: Permit,
    // Dropped last, after the instance.
    _count: SessionCount,
    _guard: SlotGuard,
    _phase: watch::Sender<Phase>,
}

/// An episode that was begun.
struct CurrentEpisode {
    instance: Episode,
    record: Arc<Record>,
    id: String,
    steps: u64,
    is_done: bool,
    /// Label and history for the grader, if there is one.
    rated: Option<Rated>,
}

/// The label and the history of an episode that a grader rates.
struct Rated {
    label: Option<String>,
    history: History,
}

impl Host {
    /// Returns whether the deployment has an environment.
    pub fn has_environment(&self) -> bool {
        self.0.deployment.workflow.about().environment
    }

    /// Opens a session, as soon as there is a slot for it. `id` is random.
    pub async fn open_session(
        &self,
        id: RolloutId,
        limits: SessionLimits,
    ) -> Result<Session, OpenSessionError> {
        if !self.has_environment() {
            return Err(OpenSessionError::NoEnvironment);
        }
        let slots = self.0.runtime.slots();
        let at_capacity = || {
            let (active, max) = slots.tenant().sessions(limits.slots_share);
            OpenSessionError::AtCapacity { active, max }
        };
        self.0.runtime.check_quotas().map_err(AdmitError::from)?;
        self.budget().check_new_work(0).map_err(AdmitError::from)?;
        let count = slots.tenant().add_session(limits.slots_share).ok_or_else(at_capacity)?;
        let entered = slots.enter(&id, false).map_err(|error| match error {
            AdmitError::Full { .. } => at_capacity(),
            error => error.into(),
        })?;
        let Entered { mut guard, handle, phase } = entered;
        let holder = self.budget().holder(handle.cancel.clone());
        let turn = async {
            let slot = slots.first().await;
            holder.may_start().await;
            slot
        };
        let slot = match tokio::time::timeout(limits.queue_time_max, turn).await {
            Ok(Some(slot)) => slot,
            Ok(None) => return Err(AdmitError::Closed.into()),
            Err(_) => return Err(at_capacity()),
        };
        guard.leave_queue();
        phase.send_replace(Phase::Running);
        self.set_session_facts(&handle);
        Ok(Session {
            host: self.clone(),
            id,
            limits,
            episode: None,
            resets: 0,
            holder,
            handle,
            permit: Permit::counted(slot),
            _count: count,
            _guard: guard,
            _phase: phase,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "people read the time of the start")]
    fn set_session_facts(&self, handle: &Handle) {
        let (plugin, admitted_at) = (self.0.deployment.plugin_name(), SystemTime::now());
        handle.set_facts(LiveFacts { plugin, admitted_at, fork: None, record: Weak::new() });
    }
}

impl Session {
    /// Returns the id.
    pub fn id(&self) -> &RolloutId {
        &self.id
    }

    /// Returns the token that is cancelled when the host ends the session.
    pub fn cancelled(&self) -> CancellationToken {
        self.handle.cancel.clone()
    }

    /// Returns the reason why the host ended the session.
    pub fn end_reason(&self) -> String {
        end_reason(&self.holder)
    }

    /// Returns whether an episode runs that has not ended.
    pub fn is_in_episode(&self) -> bool {
        self.episode.as_ref().is_some_and(|episode| !episode.is_done)
    }

    /// Begins an episode in a new instance. The one before is dropped.
    pub async fn reset(&mut self, reset: Reset) -> Result<Observed, SessionError> {
        self.episode = None;
        let Reset { seed, episode_id, mut arguments } = reset;
        let rated = self.host.grader().is_some();
        let rated = rated.then(|| Rated { label: take_label(&mut arguments), history: History::default() });
        self.resets = self.resets.saturating_add(1);
        let record = Arc::new(Record::without_rollout(self.holder.clone()));
        let deployment = &self.host.0.deployment;
        let run = self.context(deployment.plugin_config.clone());
        let outside = Live { tools: deployment.tools.clone(), ..Live::until(None) };
        let imports =
            Imports::new(Role::Environment, run, deployment.limits.clone(), outside, record.clone());
        let linked = deployment.workflow.linked();
        let call_time_max = self.limits.call_time_max;
        let mut episode = CurrentEpisode {
            instance: instance::start_episode(linked, imports, self.bounds(None), call_time_max),
            record,
            id: episode_id.clone().unwrap_or_else(|| format!("{}-{}", self.id, self.resets)),
            steps: 0,
            is_done: false,
            rated,
        };
        let start = EpisodeStart { seed, episode_id, arguments: Value::Object(arguments).to_string() };
        let cancel = self.handle.cancel.clone();
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(self.end_reason())),
            outcome = episode.instance.reset(start) => outcome,
        };
        let outcome = outcome.map_err(|error| explain(&episode.record, &error))??;
        let observed = checked(outcome, true).map_err(SessionError::EpisodeOver)?;
        if let Some(rated) = &mut episode.rated {
            let limits = &self.host.0.deployment.limits;
            let kept = rated.history.observe(&observed.observation, &episode.record, limits);
            kept.map_err(SessionError::EpisodeOver)?;
        }
        episode.is_done = observed.done;
        self.episode = Some(episode);
        self.rated(observed).await
    }

    /// Takes an action in the episode.
    pub async fn step(&mut self, action: EpisodeAction) -> Result<Observed, SessionError> {
        let limits = self.host.0.deployment.limits.clone();
        let cancel = self.handle.cancel.clone();
        let holder = self.holder.clone();
        let episode = self.episode.as_mut().ok_or_else(|| {
            SessionError::Failed("there is no episode in this session; send a reset first".to_owned())
        })?;
        if episode.is_done {
            let reason = "the episode has ended; send a reset to begin another";
            return Err(SessionError::Failed(reason.to_owned()));
        }
        let is_value = matches!(action, EpisodeAction::Value(_));
        let acted = episode.rated.is_some().then(|| action.clone());
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(end_reason(&holder))),
            outcome = episode.instance.step(action) => outcome,
        };
        let checked = match outcome {
            Ok(Ok(outcome)) => {
                episode.steps += 1;
                checked(outcome, is_value).map_err(SessionError::EpisodeOver)
            }
            Ok(Err(failure)) => return Err(failure.into()),
            Err(error) => Err(explain(&episode.record, &error)),
        };
        let kept = checked.and_then(|observed| {
            if let Some((rated, action)) = episode.rated.as_mut().zip(acted) {
                let kept = rated.history.step(&action, &observed.observation, &episode.record, &limits);
                kept.map_err(SessionError::EpisodeOver)?;
            }
            Ok(observed)
        });
        match kept {
            Ok(observed) => {
                episode.is_done = observed.done;
                self.rated(observed).await
            }
            Err(error) => {
                self.episode = None;
                Err(error)
            }
        }
    }

    /// Returns the visible state: the environment's own members, besides `episode_id` and `step_count`.
    pub async fn state(&mut self) -> Result<Map<String, Value>, SessionError> {
        let mut state = Map::new();
        let cancel = self.handle.cancel.clone();
        let Some(episode) = &mut self.episode else {
            state.insert("episode_id".to_owned(), Value::Null);
            state.insert("step_count".to_owned(), 0.into());
            return Ok(state);
        };
        state.insert("episode_id".to_owned(), episode.id.as_str().into());
        state.insert("step_count".to_owned(), episode.steps.into());
        let own = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(self.end_reason())),
            own = episode.instance.state() => own,
        };
        let own = match own {
            Ok(own) => own?,
            Err(error) => {
                let error = explain(&episode.record, &error);
                self.episode = None;
                return Err(error);
            }
        };
        match serde_json::from_str(&own) {
            Ok(Value::Object(own)) => state.extend(own),
            _ => {
                return Err(SessionError::Failed(
                    "the environment gave a state that is not a JSON object".to_owned(),
                ));
            }
        }
        Ok(state)
    }

    /// Returns the result of a reset or a step, with the grader's reward if the episode has ended and there is a grader.
    async fn rated(&mut self, observed: Observed) -> Result<Observed, SessionError> {
        let Some(Rated { label, history }) = self.episode.as_mut().and_then(|episode| match observed.done {
            true => episode.rated.take(),
            false => None,
        }) else {
            // The grader rates the whole episode, so the steps before its end have no reward.
            let reward = observed.reward.filter(|_| self.host.grader().is_none());
            return Ok(Observed { reward, ..observed });
        };
        let graded = self.grade(label, history).await;
        let reward = graded.map_err(|reason| SessionError::EpisodeOver(format!("the grader {reason}")))?;
        Ok(Observed { reward: Some(reward), ..observed })
    }

    /// Runs the grader on the episode.
    async fn grade(&mut self, label: Option<String>, history: History) -> Result<f64, String> {
        let Some(grader) = self.host.grader() else { return Err("is missing".to_owned()) };
        let deployment = &self.host.0.deployment;
        let limits = deployment.limits.clone();
        let deadline = Instant::now() + limits.grader_time_max.min(self.limits.call_time_max);
        let outside = Live { judge: deployment.judge.clone(), ..Live::until(Some(deadline)) };
        let record = Arc::new(Record::without_rollout(self.holder.clone()));
        let run = self.context(deployment.config_of_grader().cloned());
        let imports = Imports::new(Role::Grader, run, limits, outside, record.clone());
        let id = self.id.as_str().to_owned();
        let sample = SampleToGrade { id: id.clone(), messages: history.into_messages(), metrics: Vec::new() };
        let bounds = self.bounds(Some(deadline));
        let grading = instance::run_grader(grader.linked(), imports, bounds, label.as_deref(), vec![sample]);
        let verdicts = tokio::select! {
            biased;
            () = self.handle.cancel.cancelled() => return Err("was stopped".to_owned()),
            verdicts = grading => verdicts,
        };
        let verdicts = verdicts.map_err(|error| run_error_text(&record, &error))?;
        let [verdict] = &verdicts[..] else {
            return Err(format!("gave {} verdicts on one episode", verdicts.len()));
        };
        if verdict.sample_id != id {
            return Err("rated a sample that it was not given".to_owned());
        }
        match verdict.reward {
            Some(reward) if reward.is_finite() => Ok(reward),
            Some(reward) => Err(format!("gave the reward {reward}, which is not a finite number")),
            None => Err("gave the episode no reward".to_owned()),
        }
    }

    /// Returns the context of an instance in the current episode.
    fn context(&self, config: Option<Arc<RawValue>>) -> Arc<RunContext> {
        Arc::new(RunContext {
            rollout_id: self.id.clone(),
            caller_id: None,
            attempt: self.resets,
            config,
            metadata: None,
            samples_max: 0,
            caller_params: CallerParams::default(),
            fork: None,
            clock_begins: self.host.0.deployment.id().clock_begins,
            metrics: self.host.metrics().clone(),
        })
    }

    fn bounds(&self, deadline: Option<Instant>) -> Bounds {
        let memory_bytes_max = self.host.0.deployment.limits.memory_bytes_max;
        Bounds { memory_bytes_max, deadline, permit: self.permit.clone() }
    }

    /// Returns the time after which the session ends without a request.
    pub fn idle_time_max(&self) -> Duration {
        self.limits.idle_time_max
    }
}

/// Returns the reason why the host ended the session of a holder.
fn end_reason(holder: &Holder) -> String {
    if holder.evicted() {
        holder.why_evicted()
    } else {
        "the session was cancelled, or the server is shutting down".to_owned()
    }
}

/// Converts the error of an instance, which has ended.
fn explain(record: &Record, error: &RunError) -> SessionError {
    SessionError::EpisodeOver(format!("the environment {}", run_error_text(record, error)))
}

/// Returns the text of an error. A panic's message replaces the engine's.
fn run_error_text(record: &Record, error: &RunError) -> String {
    match error {
        RunError::Trapped { .. } => record.last_panic().unwrap_or_else(|| error.to_string()),
        error => error.to_string(),
    }
}
