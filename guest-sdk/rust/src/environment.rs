//! Environments: a caller's model acts, and the plugin answers with observations and rewards.

use std::borrow::Cow;
use std::cell::RefCell;
use std::thread::LocalKey;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::bindings::environment as contract;
use crate::{Error, Result, context, settings, tool};

/// An environment in which a caller's model acts. A value of the type is one episode: [`reset`](Self::reset)
/// begins it, and each [`step`](Self::step) takes an action. Every episode runs in an instance of its own.
///
/// `C` is the type of the operator's configuration, as for a [`Workflow`](crate::Workflow).
///
/// ```
/// use rollout_sdk::*;
///
/// /// A guess.
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Guess {
///     number: u64,
/// }
///
/// #[derive(serde::Serialize, schemars::JsonSchema)]
/// struct Hint {
///     text: String,
/// }
///
/// struct Hunt {
///     hidden: u64,
/// }
///
/// impl Environment for Hunt {
///     type Action = Guess;
///     type Observation = Hint;
///     const NAME: &str = "hunt";
///     const DESCRIPTION: &str = "Guess the hidden number between 0 and 99.";
///
///     fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Hint>)> {
///         let hidden = episode.seed().unwrap_or_default() % 100;
///         Ok((Self { hidden }, Turn::new(Hint { text: "Guess.".to_owned() })))
///     }
///
///     fn step(&mut self, guess: Guess) -> Result<Turn<Hint>> {
///         let text = if guess.number < self.hidden { "Higher." } else { "Lower." };
///         if guess.number == self.hidden {
///             return Ok(Turn::new(Hint { text: "Found.".to_owned() }).reward(1.0).done());
///         }
///         Ok(Turn::new(Hint { text: text.to_owned() }))
///     }
/// }
///
/// export!(environment = Hunt);
/// ```
pub trait Environment<C: DeserializeOwned = ()>: Sized + 'static {
    /// An action: a type whose schema is an object, or [`ToolsOnly`].
    type Action: DeserializeOwned + JsonSchema;

    /// An observation: a type whose schema is an object. The caller reads it, so it must not contain the label.
    type Observation: Serialize + JsonSchema;

    /// The environment's name.
    const NAME: &'static str;

    /// One or two sentences for people.
    const DESCRIPTION: &'static str;

    /// The environment's own version.
    const VERSION: Option<&'static str> = None;

    /// Begins an episode. It is called once for each value, in an instance of its own.
    ///
    /// # Errors
    ///
    /// The caller receives the error, and no episode begins.
    fn reset(episode: EpisodeStart<C>) -> Result<(Self, Turn<Self::Observation>)>;

    /// Takes an action.
    ///
    /// # Errors
    ///
    /// The caller receives the error, and the episode continues. An action that does not fit is an invalid-input error.
    fn step(&mut self, action: Self::Action) -> Result<Turn<Self::Observation>>;

    /// Returns the part of the state that the caller may see: a JSON object, which must not contain the label.
    fn state(&self) -> Value {
        json!({})
    }

    /// Returns the tools that the caller's model may call in a step.
    fn tools() -> Vec<EnvironmentTool<Self>> {
        Vec::new()
    }

    /// Returns the splits of the tasks.
    fn splits() -> Vec<Split> {
        Vec::new()
    }

    /// Returns a task of a split, which a caller passes to a reset as its arguments.
    ///
    /// # Errors
    ///
    /// Fails if there is no such task.
    fn task(split: &str, index: u64) -> Result<Value> {
        Err(Error::invalid(format_args!("there is no task {index} of the split '{split}'")))
    }
}

/// The action type of an environment in which callers act by tools only. The type has no values.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum ToolsOnly {}

impl JsonSchema for ToolsOnly {
    fn schema_name() -> Cow<'static, str> {
        "ToolsOnly".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        false.into()
    }
}

/// Parameters of an episode.
#[derive(Debug)]
pub struct EpisodeStart<C = ()> {
    config: C,
    seed: Option<u64>,
    episode_id: Option<String>,
    arguments: String,
}

impl<C> EpisodeStart<C> {
    /// Returns the operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Returns the caller's seed of random choices.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the caller's name of the episode.
    pub fn episode_id(&self) -> Option<&str> {
        self.episode_id.as_deref()
    }

    /// Deserializes the arguments of the reset, such as the data set's row. With a grader in the plugin, the label
    /// is not among them.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if they do not fit the type.
    pub fn arguments<T: DeserializeOwned>(&self) -> Result<T> {
        settings::read("the arguments of the reset", Some(&self.arguments))
    }
}

/// Result of a reset or a step.
#[derive(Clone, Debug)]
pub struct Turn<O> {
    observation: O,
    reward: Option<f64>,
    done: bool,
    metadata: Map<String, Value>,
}

impl<O> Turn<O> {
    /// Creates the result with an observation, without a reward.
    pub fn new(observation: O) -> Self {
        Self { observation, reward: None, done: false, metadata: Map::new() }
    }

    /// Sets the reward of this step, a finite number.
    pub fn reward(self, reward: f64) -> Self {
        Self { reward: Some(reward), ..self }
    }

    /// Ends the episode.
    pub fn done(self) -> Self {
        Self { done: true, ..self }
    }

    /// Adds a value for people and logs.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }
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

/// A named part of an environment's tasks.
#[derive(Clone, Debug)]
pub struct Split {
    name: String,
    kind: SplitKind,
    tasks: u64,
}

impl Split {
    /// Creates a split with a number of tasks.
    pub fn new(name: impl Into<String>, kind: SplitKind, tasks: u64) -> Self {
        Self { name: name.into(), kind, tasks }
    }
}

/// Function from the episode and the arguments of a call to the result.
type RunTool<E> = dyn Fn(&mut E, &str) -> Result<Turn<Value>>;

/// A tool of an environment `E`, which changes the episode.
pub struct EnvironmentTool<E> {
    name: String,
    schema: Value,
    run: Box<RunTool<E>>,
}

impl<E> EnvironmentTool<E> {
    /// Creates a tool from a function of the episode and one argument: a type whose fields are the tool's
    /// parameters, or `()` for none.
    pub fn new<A, R, F>(name: impl Into<String>, description: &str, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        R: Serialize,
        F: Fn(&mut E, A) -> Result<Turn<R>> + 'static,
    {
        let name = name.into();
        let schema = tool::schema_of::<A>(&name, description);
        let run = move |episode: &mut E, arguments: &str| {
            let arguments = settings::read("the arguments", Some(arguments))?;
            let Turn { observation, reward, done, metadata } = function(episode, arguments)?;
            let observation = serde_json::to_value(observation).map_err(not_json)?;
            Ok(Turn { observation, reward, done, metadata })
        };
        Self { name, schema, run: Box::new(run) }
    }
}

impl<E> std::fmt::Debug for EnvironmentTool<E> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("EnvironmentTool").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The episode of an instance.
pub type EpisodeCell<E> = RefCell<Option<E>>;

/// Returns the schema of a type, with its name as the title and all references resolved.
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Describes the author's environment.
pub(crate) fn describe<E: Environment<C>, C: DeserializeOwned>() -> contract::Description {
    // A root schema is never false: the generator writes it as an object.
    let has_action = E::Action::json_schema(&mut SchemaGenerator::default()) != false;
    let action = has_action.then(schema_of::<E::Action>);
    let splits = E::splits().into_iter().map(|Split { name, kind, tasks }| {
        let kind = match kind {
            SplitKind::Train => contract::SplitKind::Train,
            SplitKind::Validation => contract::SplitKind::Validation,
            SplitKind::Test => contract::SplitKind::Test,
        };
        contract::Split { name, kind, tasks }
    });
    contract::Description {
        name: E::NAME.to_owned(),
        description: E::DESCRIPTION.to_owned(),
        version: E::VERSION.map(ToOwned::to_owned),
        action: action.map(|schema| schema.to_string()),
        observation: schema_of::<E::Observation>().to_string(),
        state: None,
        tools: E::tools().iter().map(|tool| tool.schema.to_string()).collect(),
        splits: splits.collect(),
    }
}

/// Returns a task of the author's environment.
pub(crate) fn task<E: Environment<C>, C: DeserializeOwned>(split: &str, index: u64) -> Result<String> {
    Ok(E::task(split, index)?.to_string())
}

/// Begins an episode of the author's environment.
pub(crate) fn reset<E: Environment<C>, C: DeserializeOwned>(
    cell: &'static LocalKey<EpisodeCell<E>>,
    request: contract::ResetRequest,
) -> Result<contract::Outcome> {
    let contract::ResetRequest { seed, episode_id, arguments } = request;
    let (episode, turn) = E::reset(EpisodeStart { config: context::config()?, seed, episode_id, arguments })?;
    cell.set(Some(episode));
    outcome(turn)
}

/// Takes an action in the episode.
pub(crate) fn step<E: Environment<C>, C: DeserializeOwned>(
    cell: &'static LocalKey<EpisodeCell<E>>,
    action: contract::Action,
) -> Result<contract::Outcome> {
    cell.with_borrow_mut(|episode| {
        let episode = episode.as_mut().ok_or_else(no_episode)?;
        match action {
            contract::Action::Value(value) => {
                outcome(episode.step(settings::read("the action", Some(&value))?)?)
            }
            contract::Action::Call(contract::ToolAction { name, arguments }) => {
                let tool = E::tools().into_iter().find(|tool| tool.name == name);
                let tool =
                    tool.ok_or_else(|| Error::invalid(format_args!("there is no tool '{name}' here")))?;
                outcome((tool.run)(episode, &arguments)?)
            }
        }
    })
}

/// Returns the visible state of the episode.
pub(crate) fn state<E: Environment<C>, C: DeserializeOwned>(
    cell: &'static LocalKey<EpisodeCell<E>>,
) -> Result<String> {
    cell.with_borrow(|episode| Ok(episode.as_ref().ok_or_else(no_episode)?.state().to_string()))
}

fn no_episode() -> Error {
    Error::failed("the episode was not reset")
}

fn not_json(error: serde_json::Error) -> Error {
    Error::failed(format_args!("the observation is not JSON: {error}"))
}

fn outcome<O: Serialize>(turn: Turn<O>) -> Result<contract::Outcome> {
    let Turn { observation, reward, done, metadata } = turn;
    let observation = serde_json::to_string(&observation).map_err(not_json)?;
    let metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string());
    Ok(contract::Outcome { observation, reward, done, metadata })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrError;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Add {
        number: i64,
    }

    #[derive(Serialize, JsonSchema)]
    struct Total {
        total: i64,
    }

    struct Sum {
        total: i64,
    }

    impl Environment for Sum {
        type Action = Add;
        type Observation = Total;
        const NAME: &str = "sum";
        const DESCRIPTION: &str = "Adds.";

        fn reset(episode: EpisodeStart) -> Result<(Self, Turn<Total>)> {
            let total = i64::try_from(episode.seed().unwrap_or_default()).or_invalid("the seed")?;
            Ok((Self { total }, Turn::new(Total { total })))
        }

        fn step(&mut self, Add { number }: Add) -> Result<Turn<Total>> {
            self.total += number;
            Ok(Turn::new(Total { total: self.total }).reward(0.5).metadata("added", number))
        }

        fn tools() -> Vec<EnvironmentTool<Self>> {
            let double = |sum: &mut Self, (): ()| {
                sum.total *= 2;
                Ok(Turn::new(sum.total).done())
            };
            vec![EnvironmentTool::new("double", "Doubles the total.", double)]
        }

        fn state(&self) -> Value {
            json!({"total": self.total})
        }
    }

    thread_local! {
        static EPISODE: EpisodeCell<Sum> = const { RefCell::new(None) };
    }

    fn act(action: contract::Action) -> Result<contract::Outcome> {
        step::<Sum, ()>(&EPISODE, action)
    }

    #[test]
    fn an_episode_keeps_its_state_between_actions_and_tools() {
        let value = |text: &str| contract::Action::Value(text.to_owned());
        let before = act(value(r#"{"number": 1}"#)).unwrap_err();
        assert_eq!(before.to_string(), "the episode was not reset");
        EPISODE.set(Some(Sum { total: 3 }));

        let added = act(value(r#"{"number": 4}"#)).unwrap();
        let call = contract::ToolAction { name: "double".to_owned(), arguments: "{}".to_owned() };
        let doubled = act(contract::Action::Call(call)).unwrap();

        assert_eq!(
            (added.observation.as_str(), added.reward, added.done),
            (r#"{"total":7}"#, Some(0.5), false)
        );
        assert_eq!(added.metadata.as_deref(), Some(r#"{"added":4}"#));
        assert_eq!((doubled.observation.as_str(), doubled.reward, doubled.done), ("14", None, true));
        assert_eq!(state::<Sum, ()>(&EPISODE).unwrap(), r#"{"total":14}"#);
    }

    #[test]
    fn an_action_that_does_not_fit_is_refused_with_the_field() {
        EPISODE.set(Some(Sum { total: 0 }));
        let check = |action: contract::Action, expected: &str| {
            let error = act(action).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(contract::Action::Value(r#"{"number": "x"}"#.to_owned()), "the action: field `number`");
        check(contract::Action::Value("{}".to_owned()), "missing field `number`");
        let call = contract::ToolAction { name: "halve".to_owned(), arguments: "{}".to_owned() };
        check(contract::Action::Call(call), "there is no tool 'halve' here");
    }

    struct Idle;

    impl Environment for Idle {
        type Action = ToolsOnly;
        type Observation = Total;
        const NAME: &str = "idle";
        const DESCRIPTION: &str = "Has only tools.";

        fn reset(_: EpisodeStart) -> Result<(Self, Turn<Total>)> {
            Ok((Self, Turn::new(Total { total: 0 })))
        }

        fn step(&mut self, action: ToolsOnly) -> Result<Turn<Total>> {
            match action {}
        }
    }

    #[test]
    fn an_environment_with_only_tools_has_no_schema_of_actions() {
        assert_eq!(describe::<Idle, ()>().action, None);
        assert!(describe::<Sum, ()>().action.is_some());
    }

    #[test]
    fn the_description_has_titled_schemas_and_tools() {
        let described = describe::<Sum, ()>();

        let action: Value = serde_json::from_str(&described.action.unwrap()).unwrap();
        assert_eq!((&action["title"], &action["type"]), (&json!("Add"), &json!("object")));
        assert_eq!(action["additionalProperties"], json!(false));
        let tool: Value = serde_json::from_str(&described.tools[0]).unwrap();
        assert_eq!(tool["function"]["name"], "double");
        assert_eq!(schema_of::<ToolsOnly>(), json!({"title": "ToolsOnly", "not": {}}), "no value fits");
    }
}
