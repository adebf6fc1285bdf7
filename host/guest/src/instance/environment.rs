//! Episodes of environments: an instance that lives for many calls, and its data in the host's own types.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::imports::bindings::exports::rollout::plugin::environment as contract;
use crate::imports::bindings::rollout::plugin::types;

use super::RunError;

/// Description of an environment as the guest returned it: unchecked JSON text.
#[derive(Clone, Debug)]
pub struct EnvironmentDescription {
    /// The environment's name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// The environment's own version.
    pub version: Option<String>,
    /// JSON Schema of an action. `None` if only tools are called.
    pub action: Option<String>,
    /// JSON Schema of an observation.
    pub observation: String,
    /// JSON Schema of the state.
    pub state: Option<String>,
    /// OpenAI function tools.
    pub tools: Vec<String>,
    /// Splits of the tasks.
    pub splits: Vec<TaskSplit>,
}

/// A named part of an environment's tasks.
#[derive(Clone, Debug)]
pub struct TaskSplit {
    /// The split's name.
    pub name: String,
    /// Its purpose.
    pub kind: SplitKind,
    /// Number of its tasks.
    pub tasks: u64,
}

/// Purpose of a split of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitKind {
    /// For training.
    Train,
    /// For choices during training.
    Validation,
    /// For measurements.
    Test,
}

/// Parameters of an episode.
#[derive(Clone, Debug)]
pub struct EpisodeStart {
    /// Seed of random choices.
    pub seed: Option<u64>,
    /// The caller's name of the episode.
    pub episode_id: Option<String>,
    /// Further arguments, a JSON object.
    pub arguments: String,
}

/// An action in an episode.
#[derive(Clone, Debug)]
pub enum EpisodeAction {
    /// A JSON object of the schema of actions.
    Value(String),
    /// A call of a tool with arguments, a JSON object.
    Call {
        /// The tool's name.
        name: String,
        /// The arguments, a JSON object.
        arguments: String,
    },
}

/// Result of a reset or a step as the guest returned it, unchecked.
#[derive(Clone, Debug)]
pub struct EpisodeOutcome {
    /// The observation, or the result of a tool: JSON text.
    pub observation: String,
    /// The reward.
    pub reward: Option<f64>,
    /// Whether the episode has ended.
    pub done: bool,
    /// Data for people, a JSON object.
    pub metadata: Option<String>,
}

/// Failure of a call that the guest reports. The episode continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EpisodeFailure {
    /// The environment could not do its work.
    Failed(String),
    /// The request or the action is invalid.
    Invalid(String),
    /// A time limit of the environment's own passed.
    TimedOut(String),
}

/// Result of one call in an episode.
type Reply<T> = oneshot::Sender<Result<T, EpisodeFailure>>;

/// A call of an environment's function.
pub(super) enum EpisodeCall {
    Reset(EpisodeStart, Reply<EpisodeOutcome>),
    Step(EpisodeAction, Reply<EpisodeOutcome>),
    State(Reply<String>),
}

/// The instance of one episode. It makes progress only while a call waits for its result, and is dropped with this
/// value.
pub struct Episode {
    calls: mpsc::Sender<EpisodeCall>,
    run: Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>,
}

impl Episode {
    pub(super) fn new(
        calls: mpsc::Sender<EpisodeCall>,
        run: impl Future<Output = Result<(), RunError>> + Send + 'static,
    ) -> Self {
        Self { calls, run: Box::pin(run) }
    }

    /// Begins the episode. To be called once, before all other calls. After a [`RunError`], the episode is over.
    pub async fn reset(
        &mut self,
        start: EpisodeStart,
    ) -> Result<Result<EpisodeOutcome, EpisodeFailure>, RunError> {
        self.call(|reply| EpisodeCall::Reset(start, reply)).await
    }

    /// Takes an action. After a [`RunError`], the episode is over.
    pub async fn step(
        &mut self,
        action: EpisodeAction,
    ) -> Result<Result<EpisodeOutcome, EpisodeFailure>, RunError> {
        self.call(|reply| EpisodeCall::Step(action, reply)).await
    }

    /// Returns the state: a JSON object as unchecked text. After a [`RunError`], the episode is over.
    pub async fn state(&mut self) -> Result<Result<String, EpisodeFailure>, RunError> {
        self.call(EpisodeCall::State).await
    }

    async fn call<T>(
        &mut self,
        call: impl FnOnce(Reply<T>) -> EpisodeCall,
    ) -> Result<Result<T, EpisodeFailure>, RunError> {
        let (reply, replied) = oneshot::channel();
        let ended = || RunError::Host("the episode has ended".to_owned());
        // The channel has room, because each call waits for its result.
        self.calls.try_send(call(reply)).map_err(|_| ended())?;
        tokio::select! {
            biased;
            Ok(result) = replied => Ok(result),
            run = &mut self.run => Err(run.err().unwrap_or_else(ended)),
        }
    }
}

/// Makes the requested calls of the guest one after the other, until the sender of requests is dropped.
pub(super) async fn serve(
    guest: &contract::Guest,
    store: &mut wasmtime::Store<super::InstanceState>,
    calls: &mut mpsc::Receiver<EpisodeCall>,
    call_time_max: Duration,
) -> Result<(), RunError> {
    /// Waits for a call of the guest, within its time.
    macro_rules! within {
        ($call:expr) => {{
            let timed = tokio::time::timeout(call_time_max, $call).await;
            timed.map_err(|_| RunError::Deadline)?.map_err(|error| super::running(store, &error))?
        }};
    }
    while let Some(call) = calls.recv().await {
        // The send fails only if the caller no longer waits for the reply.
        match call {
            EpisodeCall::Reset(start, reply) => {
                let result = within!(guest.call_reset(&mut *store, &start.into()));
                let _ = reply.send(result.map(Into::into).map_err(Into::into));
            }
            EpisodeCall::Step(action, reply) => {
                let result = within!(guest.call_step(&mut *store, &action.into()));
                let _ = reply.send(result.map(Into::into).map_err(Into::into));
            }
            EpisodeCall::State(reply) => {
                let result = within!(guest.call_state(&mut *store));
                let _ = reply.send(result.map_err(Into::into));
            }
        }
    }
    Ok(())
}

impl From<contract::Description> for EnvironmentDescription {
    fn from(description: contract::Description) -> Self {
        let contract::Description { name, description, version, action, observation, state, tools, splits } =
            description;
        let splits = splits.into_iter().map(Into::into).collect();
        Self { name, description, version, action, observation, state, tools, splits }
    }
}

impl From<contract::Split> for TaskSplit {
    fn from(contract::Split { name, kind, tasks }: contract::Split) -> Self {
        let kind = match kind {
            contract::SplitKind::Train => SplitKind::Train,
            contract::SplitKind::Validation => SplitKind::Validation,
            contract::SplitKind::Test => SplitKind::Test,
        };
        Self { name, kind, tasks }
    }
}

impl From<EpisodeStart> for contract::ResetRequest {
    fn from(EpisodeStart { seed, episode_id, arguments }: EpisodeStart) -> Self {
        Self { seed, episode_id, arguments }
    }
}

impl From<EpisodeAction> for contract::Action {
    fn from(action: EpisodeAction) -> Self {
        match action {
            EpisodeAction::Value(value) => Self::Value(value),
            EpisodeAction::Call { name, arguments } => Self::Call(contract::ToolAction { name, arguments }),
        }
    }
}

impl From<contract::Outcome> for EpisodeOutcome {
    fn from(contract::Outcome { observation, reward, done, metadata }: contract::Outcome) -> Self {
        Self { observation, reward, done, metadata }
    }
}

impl From<types::Failure> for EpisodeFailure {
    fn from(failure: types::Failure) -> Self {
        match failure {
            types::Failure::Failed(reason) => Self::Failed(reason),
            types::Failure::Invalid(reason) => Self::Invalid(reason),
            types::Failure::TimedOut(reason) => Self::TimedOut(reason),
        }
    }
}
