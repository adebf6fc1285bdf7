//! Sessions of environments: a caller's model acts, one episode after the other.
//!
//! A [`Session`] holds a slot from its start to its end, as a running rollout does, so slots, quotas and shares limit
//! sessions and rollouts together. Each episode has an instance of its own: a reset drops the instance of the previous
//! episode. An instance makes progress only during a call.
//!
//! With a grader in the deployment, the host removes the label from the arguments of a reset before the environment sees
//! them, and the grader rates the episode when it ends. Its verdict is the reward of the last step.
//!
//! A session that its caller can name again is stored in the journal: each episode has a log with its calls, their
//! answers and all data that the environment received from outside. When the session is next used after a restart, the
//! new process repeats the calls of the last episode in a new instance ([`StoredSession`]).

#![expect(clippy::disallowed_types, reason = "a request is limited in size, and its arguments are changed")]

mod call;
mod description;
mod grading;
mod history;
mod repeat;
mod stored;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
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
use super::journal::Continuation;
use super::model::Phase;
use super::slots::{AdmitError, Entered, Handle, SessionCount, SlotGuard};
use call::{Answer, AnswerLine, CallLine, SessionCall};
use rollout_core::budget::{Charge, Holder, Use};
use rollout_core::error::Fault;
use rollout_core::limits::SessionLimits;
use rollout_core::storage::{OverStorage, StorageAccount};
use rollout_guest::imports::{Boundary, HostTools, Imports, Live, Past, Record, Role, RunContext};
use rollout_guest::instance::{
    self, Bounds, Episode, EpisodeFailure, EpisodeOutcome, EpisodeStart, Permit, RunError,
};
use rollout_transcript::Run;
use rollout_wire::id::RolloutId;
use rollout_wire::openai::CallerParams;
use rollout_wire::quota::Quota;

pub use description::DescribeError;
use history::History;
pub use rollout_guest::instance::{EpisodeAction, SplitKind, TaskSplit};
use stored::JournaledSession;
pub use stored::StoredSession;

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
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The request or the action is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no episode, or it has ended.
    #[error("{0}")]
    NoEpisode(String),
    /// The environment failed, or the request is not possible now. The episode continues.
    #[error("{0}")]
    Failed(String),
    /// A time limit of the environment's own passed. The episode continues.
    #[error("{0}")]
    TimedOut(String),
    /// The episode has ended without a result. The session continues with the next reset.
    #[error("{reason}; the episode has ended, send a reset to begin another")]
    EpisodeOver {
        /// The reason.
        reason: String,
        /// The party that must act.
        fault: Fault,
    },
    /// The session has ended.
    #[error("{0}")]
    SessionOver(String),
}

impl SessionError {
    /// Returns the party that must act.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoEpisode(_) => Fault::Caller,
            Self::Invalid(_) | Self::Failed(_) | Self::TimedOut(_) => Fault::Plugin,
            Self::EpisodeOver { fault, .. } => *fault,
            Self::SessionOver(_) => Fault::Host,
        }
    }

    /// Creates the end of an episode by its plugin.
    fn of_plugin(reason: String) -> Self {
        Self::EpisodeOver { reason, fault: Fault::Plugin }
    }
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

/// Maximum number of named answers that a session holds for a caller that fetches one again, and their bytes.
const ANSWERS_MAX: usize = 32;
const ANSWERS_BYTES_MAX: usize = 1 << 20;

/// One caller's use of an environment.
pub struct Session {
    host: Host,
    id: RolloutId,
    limits: SessionLimits,
    episode: Option<CurrentEpisode>,
    /// Number of resets.
    resets: u32,
    /// Whether the caller can name the session again.
    is_named: bool,
    /// Whether the grader runs when an episode ends, if there is one.
    is_rated: bool,
    /// The session in the journal, if it is stored.
    kept: Option<JournaledSession>,
    /// The last answers to calls that the caller named.
    answers: Answers,
    /// The account of the data that the session writes, if its tenant has a quota.
    storage: Option<Arc<StorageAccount>>,
    holder: Holder,
    handle: Handle,
    permit: Permit,
    // Dropped last, after the instance.
    _count: SessionCount,
    _guard: SlotGuard,
    _phase: watch::Sender<Phase>,
}

/// The last answers to calls that the caller named.
#[derive(Default)]
struct Answers {
    all: VecDeque<(Arc<str>, Result<Answer, SessionError>, Charge)>,
    /// Whether an answer was dropped because there were too many.
    is_short: bool,
}

/// An episode that was begun.
struct CurrentEpisode {
    instance: Episode,
    record: Arc<Record>,
    id: String,
    steps: u64,
    is_done: bool,
    /// Digest of the reset, by which a repeated one is recognized.
    reset: u64,
    /// Result of the reset, if the session has a name.
    first: Option<Observed>,
    /// Label and history for the grader, if there is one.
    rated: Option<Rated>,
}

/// The label and the history of an episode that a grader rates.
struct Rated {
    label: Option<String>,
    history: History,
}

/// The way in which a session gets its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// The caller opens it.
    New,
    /// An earlier process opened it, so it needs no room in the queue and no quota.
    Stored,
}

impl Host {
    /// Returns the tools that the operator provides to the plugin.
    pub fn tools(&self) -> Option<Arc<dyn HostTools>> {
        self.0.deployment.tools.clone()
    }

    /// Returns whether the deployment has an environment.
    pub fn has_environment(&self) -> bool {
        self.0.deployment.workflow.about().environment
    }

    /// Opens a session, as soon as there is a slot for it. `id` is random. It ends with the process.
    pub async fn open_session(
        &self,
        id: RolloutId,
        limits: SessionLimits,
    ) -> Result<Session, OpenSessionError> {
        self.enter_session(id, limits, Entry::New).await
    }

    /// Opens a session that its caller can name again. If there is a journal, it is stored there, with the driver that
    /// continues it in another process, and stays there until [`Session::end`].
    pub async fn open_kept_session(
        &self,
        id: RolloutId,
        limits: SessionLimits,
        continuation: Continuation,
    ) -> Result<Session, OpenSessionError> {
        let mut session = self.enter_session(id, limits, Entry::New).await?;
        session.is_named = true;
        if let Some(journal) = self.0.runtime.journal() {
            journal.check().map_err(AdmitError::from)?;
            let kept = JournaledSession::begin(journal, &session.host, &session.id, continuation);
            let kept = kept.map_err(AdmitError::from)?;
            kept.log().admitted().await.map_err(|error| AdmitError::NotKept(error.into()))?;
            session.kept = Some(kept);
        }
        Ok(session)
    }

    /// Reopens a session that an earlier process stored. Its last episode is repeated at the next call.
    pub async fn open_stored_session(
        &self,
        stored: &StoredSession,
        limits: SessionLimits,
    ) -> Result<Session, OpenSessionError> {
        let mut session = self.enter_session(stored.id().clone(), limits, Entry::Stored).await?;
        session.is_named = true;
        session.kept = Some(JournaledSession::resume(stored));
        Ok(session)
    }

    async fn enter_session(
        &self,
        id: RolloutId,
        limits: SessionLimits,
        entry: Entry,
    ) -> Result<Session, OpenSessionError> {
        if !self.has_environment() {
            return Err(OpenSessionError::NoEnvironment);
        }
        let slots = self.0.runtime.slots();
        let at_capacity = || {
            let (active, max) = slots.tenant().sessions(limits.slots_share);
            OpenSessionError::AtCapacity { active, max }
        };
        if entry == Entry::New {
            self.0.runtime.check_quotas().map_err(AdmitError::from)?;
        }
        self.budget().check_new_work(0).map_err(AdmitError::from)?;
        let count = slots.tenant().add_session(limits.slots_share).ok_or_else(at_capacity)?;
        let entered = slots.enter(&id, entry == Entry::Stored).map_err(|error| match error {
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
            is_named: false,
            is_rated: true,
            kept: None,
            answers: Answers::default(),
            storage: self.0.runtime.storage().map(|quota| quota.account(handle.cancel.clone())),
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
        handle.set_facts(LiveFacts { plugin, admitted_at, fork: None, group: None, record: Weak::new() });
    }
}

impl Session {
    /// Returns the id.
    pub fn id(&self) -> &RolloutId {
        &self.id
    }

    /// Leaves the episodes to a caller that has the grader rate them itself: the grader does not run when they end.
    pub fn without_grader(mut self) -> Self {
        self.is_rated = false;
        self
    }

    /// Returns the token that is cancelled when the host ends the session.
    pub fn cancelled(&self) -> CancellationToken {
        self.handle.cancel.clone()
    }

    /// Returns the reason why the host ended the session.
    pub fn end_reason(&self) -> String {
        end_reason(&self.holder, self.storage.as_deref())
    }

    /// Returns whether an episode has begun and not ended.
    pub fn is_in_episode(&self) -> bool {
        self.episode.as_ref().is_some_and(|episode| !episode.is_done)
    }

    /// Returns whether the session has been reset.
    pub async fn has_begun(&mut self) -> Result<bool, SessionError> {
        self.repeat_past().await?;
        Ok(self.resets > 0)
    }

    /// Returns whether another process continues the session after this one.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Ends the session in the journal, and waits until that is written: no process continues it.
    pub async fn end(&mut self) {
        if let Some(kept) = self.kept.take() {
            stored::end(kept.log()).await;
        }
    }

    /// Begins an episode in a new instance. The previous episode is dropped.
    pub async fn reset(&mut self, reset: Reset) -> Result<Observed, SessionError> {
        let call = self.reset_call(reset);
        self.call(call, None).await.and_then(observed)
    }

    fn reset_call(&self, Reset { seed, episode_id, mut arguments }: Reset) -> SessionCall {
        let label = self.host.grader().is_some().then(|| take_label(&mut arguments)).flatten();
        let arguments = Value::Object(arguments).to_string();
        SessionCall::Reset { seed, episode_id, arguments, label }
    }

    /// Returns whether the current episode was begun by this reset, if the session has a name.
    pub async fn is_begun_by(&mut self, reset: Reset) -> Result<bool, SessionError> {
        self.repeat_past().await?;
        let digest = digest(&self.reset_call(reset));
        Ok(self.episode.as_ref().is_some_and(|episode| episode.first.is_some() && episode.reset == digest))
    }

    /// Takes an action in the episode.
    pub async fn step(&mut self, action: EpisodeAction) -> Result<Observed, SessionError> {
        self.call(action.into(), None).await.and_then(observed)
    }

    /// Takes an action in the episode, by a call whose answer [`Session::answer_of`] returns again.
    pub async fn step_named(&mut self, name: &str, action: EpisodeAction) -> Result<Observed, SessionError> {
        self.call(action.into(), Some(name)).await.and_then(observed)
    }

    /// Returns the answer of a named call, or `None` if the call was not made. Fails if the call may have been made
    /// and its answer is no longer stored.
    pub async fn answer_of(
        &mut self,
        name: &str,
    ) -> Result<Option<Result<Observed, SessionError>>, SessionError> {
        self.repeat_past().await?;
        match self.answers.find(name) {
            Some(answer) => Ok(Some(answer.and_then(observed))),
            None if self.answers.is_short => {
                Err(SessionError::Invalid(format!("the answer of the call {name} is not stored any more")))
            }
            None => Ok(None),
        }
    }

    /// Returns the result of the reset of the current episode, if the session has a name.
    pub async fn first_observation(&mut self) -> Result<Option<Observed>, SessionError> {
        self.repeat_past().await?;
        Ok(self.episode.as_ref().and_then(|episode| episode.first.clone()))
    }

    /// Returns the visible state: the environment's own members, besides `episode_id` and `step_count`.
    pub async fn state(&mut self) -> Result<Map<String, Value>, SessionError> {
        self.repeat_past().await?;
        let mut state = Map::new();
        let Some(episode) = &self.episode else {
            state.insert("episode_id".to_owned(), Value::Null);
            state.insert("step_count".to_owned(), 0.into());
            return Ok(state);
        };
        state.insert("episode_id".to_owned(), episode.id.as_str().into());
        state.insert("step_count".to_owned(), episode.steps.into());
        if let Answer::State(own) = self.call(SessionCall::State, None).await?
            && let Ok(Value::Object(own)) = serde_json::from_str(own.get())
        {
            state.extend(own);
        }
        Ok(state)
    }

    /// Makes a call, and stores it and its answer. If the earlier process was stopped during this call, the
    /// repetition of the episode has completed it, and its stored answer is returned.
    async fn call(&mut self, call: SessionCall, name: Option<&str>) -> Result<Answer, SessionError> {
        self.repeat_past().await?;
        // A caller may read the state before it repeats its call.
        let is_action = call != SessionCall::State;
        if let Some((interrupted, answer)) =
            self.kept.as_mut().filter(|_| is_action).and_then(JournaledSession::take_interrupted)
            && interrupted == call
        {
            return answer;
        }
        self.check_call(&call)?;
        let name: Option<Arc<str>> = name.map(Into::into);
        let is_reset = matches!(call, SessionCall::Reset { .. });
        let resets = self.resets.saturating_add(u32::from(is_reset));
        if let Some(kept) = &mut self.kept {
            let line = CallLine { key: name.clone(), resets, call };
            kept.add_call(&self.host, &self.id, &line, self.storage.as_ref()).await?;
            self.resets = resets;
            let answer = self.perform(&line.call, None).await;
            return self.store_answer(name, answer).await;
        }
        self.resets = resets;
        let answer = self.perform(&call, None).await;
        if let Some(name) = name {
            self.answers.add(name, answer.clone(), &self.holder);
        }
        answer
    }

    /// Stores the answer to a call before the caller receives it.
    async fn store_answer(
        &mut self,
        name: Option<Arc<str>>,
        mut answer: Result<Answer, SessionError>,
    ) -> Result<Answer, SessionError> {
        if let Some(kept) = &mut self.kept
            && let Some(line) = AnswerLine::of(&answer)
        {
            let max = self.host.0.deployment.limits.record_bytes_max;
            let storage = self.storage.as_ref();
            if !kept.add_answer(&line, max, storage).map_err(over_quota)? {
                self.episode = None;
                let reason = format!(
                    "the calls of the episode and their answers exceed record-bytes-max of {max} bytes; the operator can \
                     raise it"
                );
                answer = Err(SessionError::of_plugin(reason));
                if let Some(line) = AnswerLine::of(&answer) {
                    kept.add_answer(&line, usize::MAX, storage).map_err(over_quota)?;
                }
            }
            let written = kept.log().written().await;
            written.map_err(|error| SessionError::SessionOver(format!("the journal has failed: {error}")))?;
        }
        if let Some(name) = name {
            self.answers.add(name, answer.clone(), &self.holder);
        }
        answer
    }

    /// Checks that there is an episode for a call.
    fn check_call(&self, call: &SessionCall) -> Result<(), SessionError> {
        if matches!(call, SessionCall::Reset { .. } | SessionCall::State) {
            return Ok(());
        }
        match &self.episode {
            None => {
                let reason = "there is no episode in this session; send a reset first";
                Err(SessionError::NoEpisode(reason.to_owned()))
            }
            Some(episode) if episode.is_done => {
                let reason = "the episode has ended; send a reset to begin another";
                Err(SessionError::NoEpisode(reason.to_owned()))
            }
            Some(_) => Ok(()),
        }
    }

    /// Has the environment answer a call. With the stored answer of a call that is repeated, the grader does not run.
    async fn perform(
        &mut self,
        call: &SessionCall,
        stored: Option<&AnswerLine>,
    ) -> Result<Answer, SessionError> {
        let past = Past::default();
        match call {
            SessionCall::Reset { .. } => self.begin_episode(call, past, stored).await,
            SessionCall::Act(_) | SessionCall::Call { .. } => self.take_step(call, stored).await,
            SessionCall::State => self.read_state().await,
        }
    }

    /// Begins an episode. Its run repeats the given past, if there is one.
    async fn begin_episode(
        &mut self,
        call: &SessionCall,
        past: Past,
        stored: Option<&AnswerLine>,
    ) -> Result<Answer, SessionError> {
        let SessionCall::Reset { seed, episode_id, arguments, label } = call.clone() else {
            return Err(SessionError::SessionOver("an episode begins with a reset".to_owned()));
        };
        self.episode = None;
        let is_rated = self.is_rated && self.host.grader().is_some();
        let record = Arc::new(Record::without_rollout(self.holder.clone()));
        let deployment = &self.host.0.deployment;
        let run = self.context(deployment.plugin_config.clone());
        let outside = Live { tools: deployment.tools.clone(), ..Live::until(None) };
        let imports =
            Imports::new(Role::Environment, run, deployment.limits.clone(), outside, record.clone());
        let log = self.kept.as_ref().map(|kept| kept.log().run_log(Role::Environment, self.storage.clone()));
        let imports = imports.across(Arc::new(Boundary::new(Run::Workflow, log, past)));
        let linked = deployment.workflow.linked();
        let call_time_max = self.limits.call_time_max;
        let mut episode = CurrentEpisode {
            instance: instance::start_episode(linked, imports, self.bounds(None), call_time_max),
            record,
            id: episode_id.clone().unwrap_or_else(|| format!("{}-{}", self.id, self.resets)),
            steps: 0,
            is_done: false,
            reset: digest(call),
            first: None,
            rated: is_rated.then(|| Rated { label, history: History::default() }),
        };
        let start = EpisodeStart { seed, episode_id, arguments };
        let cancel = self.handle.cancel.clone();
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(self.end_reason())),
            outcome = episode.instance.reset(start) => outcome,
        };
        let outcome = outcome.map_err(|error| explain(&episode.record, &error))??;
        let observed = checked(outcome, true).map_err(SessionError::of_plugin)?;
        if let Some(rated) = &mut episode.rated {
            let limits = &self.host.0.deployment.limits;
            let kept = rated.history.observe(&observed.observation, &episode.record, limits);
            kept.map_err(SessionError::of_plugin)?;
        }
        if self.is_named {
            let limits = &self.host.0.deployment.limits;
            let charged =
                episode.record.charge(answer_bytes(&Ok(Answer::Observed(observed.clone()))), limits);
            charged.map_err(|limit| {
                SessionError::of_plugin(format!("the observation cannot be stored for its caller: {limit}"))
            })?;
            episode.first = Some(observed.clone());
        }
        episode.is_done = observed.done;
        self.episode = Some(episode);
        self.rated(observed, stored).await.map(Answer::Observed)
    }

    /// Takes a step in the current episode. An episode that ends without a result is dropped.
    async fn take_step(
        &mut self,
        call: &SessionCall,
        stored: Option<&AnswerLine>,
    ) -> Result<Answer, SessionError> {
        let limits = self.host.0.deployment.limits.clone();
        let cancel = self.handle.cancel.clone();
        let (holder, storage) = (self.holder.clone(), self.storage.clone());
        let (Some(episode), Some(action)) = (self.episode.as_mut(), call.action()) else {
            return Err(SessionError::SessionOver("there is no episode in this session".to_owned()));
        };
        let is_value = matches!(action, EpisodeAction::Value(_));
        let acted = episode.rated.is_some().then(|| action.clone());
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(end_reason(&holder, storage.as_deref()))),
            outcome = episode.instance.step(action) => outcome,
        };
        let check = |outcome: EpisodeOutcome| checked(outcome, is_value).map_err(SessionError::of_plugin);
        let observed = match outcome {
            Ok(Ok(outcome)) => {
                episode.steps += 1;
                check(outcome)
            }
            Ok(Err(failure)) => return Err(failure.into()),
            Err(error) => Err(explain(&episode.record, &error)),
        };
        let observed = observed.and_then(|observed| {
            if let Some((rated, action)) = episode.rated.as_mut().zip(acted) {
                let kept = rated.history.step(&action, &observed.observation, &episode.record, &limits);
                kept.map_err(SessionError::of_plugin)?;
            }
            Ok(observed)
        });
        match observed {
            Ok(observed) => {
                episode.is_done = observed.done;
                self.rated(observed, stored).await.map(Answer::Observed)
            }
            Err(error) => {
                self.episode = None;
                Err(error)
            }
        }
    }

    /// Returns the environment's own part of the state.
    async fn read_state(&mut self) -> Result<Answer, SessionError> {
        let cancel = self.handle.cancel.clone();
        let (holder, storage) = (self.holder.clone(), self.storage.clone());
        let Some(episode) = &mut self.episode else {
            return Err(SessionError::NoEpisode("there is no episode in this session".to_owned()));
        };
        let own = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SessionError::SessionOver(end_reason(&holder, storage.as_deref()))),
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
        let own = rollout_wire::object(&own)
            .map_err(|wrong| SessionError::Failed(format!("the environment gave a state that is {wrong}")))?;
        Ok(Answer::State(own.to_owned()))
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

impl Answers {
    fn find(&self, name: &str) -> Option<Result<Answer, SessionError>> {
        self.all.iter().find(|(of, ..)| **of == *name).map(|(_, answer, _)| answer.clone())
    }

    /// Adds an answer, which is charged to the session, and drops the oldest ones beyond the limits.
    fn add(&mut self, name: Arc<str>, answer: Result<Answer, SessionError>, holder: &Holder) {
        let bytes = name.len() + answer_bytes(&answer);
        let mut charge = holder.nothing(Use::Record);
        if charge.grow(bytes).is_err() {
            self.is_short = true;
            return;
        }
        self.all.push_back((name, answer, charge));
        let held = |all: &VecDeque<(_, _, Charge)>| all.iter().map(|(_, _, charge)| charge.bytes()).sum();
        let mut bytes: usize = held(&self.all);
        while self.all.len() > ANSWERS_MAX || bytes > ANSWERS_BYTES_MAX && self.all.len() > 1 {
            self.all.pop_front();
            self.is_short = true;
            bytes = held(&self.all);
        }
    }
}

/// Returns the digest of a call within this process.
fn digest(call: &SessionCall) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.hash(&mut hasher);
    hasher.finish()
}

/// Returns the size of an answer's texts.
fn answer_bytes(answer: &Result<Answer, SessionError>) -> usize {
    match answer {
        Ok(Answer::Observed(Observed { observation, metadata, .. })) => {
            observation.get().len() + metadata.as_ref().map_or(0, |metadata| metadata.get().len())
        }
        Ok(Answer::State(state)) => state.get().len(),
        Err(error) => error.to_string().len(),
    }
}

/// Returns the result of a reset or a step.
fn observed(answer: Answer) -> Result<Observed, SessionError> {
    match answer {
        Answer::Observed(observed) => Ok(observed),
        Answer::State(_) => {
            Err(SessionError::SessionOver("the stored answer is that of another call".to_owned()))
        }
    }
}

/// Returns the error of a session whose data would exceed its tenant's quota.
fn over_quota(over: OverStorage) -> SessionError {
    SessionError::SessionOver(quota_reason(over))
}

fn quota_reason(OverStorage { used, max }: OverStorage) -> String {
    format!(
        "the session was ended: the quota {} of this tenant is used up: its unfinished rollouts, open sessions and unread \
         results need {used} of {max} bytes; open fewer at once, or the operator can raise the quota",
        Quota::StoredBytes.as_str()
    )
}

/// Returns the reason why the host ended the session of a holder.
fn end_reason(holder: &Holder, storage: Option<&StorageAccount>) -> String {
    if let Some(over) = storage.and_then(StorageAccount::excess) {
        quota_reason(over)
    } else if holder.evicted() {
        holder.why_evicted()
    } else {
        "the session was cancelled, or the server is shutting down".to_owned()
    }
}

/// Converts the error of an instance, which has ended.
fn explain(record: &Record, error: &RunError) -> SessionError {
    let reason = format!("the environment {}", run_error_text(record, error));
    SessionError::EpisodeOver { reason, fault: error.fault() }
}

/// Returns the text of an error. A panic's message replaces the engine's.
fn run_error_text(record: &Record, error: &RunError) -> String {
    match error {
        RunError::Trapped { .. } => record.last_panic().unwrap_or_else(|| error.to_string()),
        error => error.to_string(),
    }
}
