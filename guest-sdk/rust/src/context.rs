//! Input and output of a workflow.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::{Agent, AgentRun};
use crate::bindings::imports::{context as host, samples};
use crate::message::Message;
use crate::sample::{OpenError, Sample};
use crate::{OrError, Result, settings};

/// An agent that records its conversations as samples.
///
/// `C` is the type of the operator's configuration, `()` for none. It is deserialized like a configuration
/// file: unknown fields are ignored unless the type denies them, and a missing field without a default is
/// reported by name.
///
/// ```
/// use rollout_sdk::{Context, Output, Result, Workflow};
///
/// struct Polite;
///
/// impl Workflow for Polite {
///     fn run(ctx: Context) -> Result<Output> {
///         Ok(ctx.agent()?.system("Be polite.").run()?.into())
///     }
/// }
/// ```
pub trait Workflow<C: DeserializeOwned = ()> {
    /// Runs one rollout.
    ///
    /// # Errors
    ///
    /// An error leaves the rollout without a reward. The recorded samples are stored for inspection.
    fn run(ctx: Context<C>) -> Result<Output>;
}

/// Output of a workflow: the messages of its only sample, or nothing if it recorded samples itself, as an
/// [`Agent`] does.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) metrics: Vec<(String, f64)>,
}

impl Output {
    /// Adds a measurement of the rollout's only sample.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }
}

impl From<()> for Output {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<AgentRun> for Output {
    fn from(_: AgentRun) -> Self {
        Self::default()
    }
}

impl From<Vec<Message>> for Output {
    /// Uses these messages as the history of the rollout's only sample, replacing the recorded one. With
    /// several open samples the rollout fails.
    fn from(messages: Vec<Message>) -> Self {
        Self { messages: Some(messages), metrics: Vec::new() }
    }
}

/// The current rollout.
#[derive(Debug)]
pub struct Context<C = ()> {
    prompt: Vec<Message>,
    config: C,
}

impl<C: DeserializeOwned> Context<C> {
    pub(crate) fn read(prompt: Vec<Message>) -> Result<Self> {
        let config = config()?;
        Ok(Self { prompt, config })
    }
}

impl<C> Context<C> {
    /// Returns the rollout's id, which the caller chose.
    pub fn rollout_id(&self) -> String {
        host::rollout_id()
    }

    /// Returns the number of the attempt: 1 at first, one more each time the rollout restarts.
    pub fn attempt(&self) -> u32 {
        host::attempt()
    }

    /// Returns the messages of the prompt.
    pub fn prompt(&self) -> &[Message] {
        &self.prompt
    }

    /// Returns the operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Deserializes the metadata of the data set's row. A row without metadata counts as an object without
    /// fields.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        metadata()
    }

    /// Returns the metadata of the data set's row, if there is any.
    ///
    /// # Errors
    ///
    /// Returns an invalid-input error if the metadata is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        metadata_json()
    }

    /// Returns the time until the host ends this run, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        time_left()
    }

    /// Returns the maximum number of samples that this rollout's caller accepts, which may be 1.
    pub fn samples_max(&self) -> u32 {
        samples::limit()
    }

    /// Opens a sample with a random id.
    ///
    /// # Errors
    ///
    /// Fails if this rollout's caller accepts no more samples.
    pub fn sample(&self) -> Result<Sample, OpenError> {
        Sample::open(None)
    }

    /// Opens a sample with this name as its id: 1 to 128 visible ASCII characters, unique within the rollout.
    ///
    /// # Errors
    ///
    /// Fails if the name is invalid or taken, or if this rollout's caller accepts no more samples.
    pub fn sample_named(&self, name: &str) -> Result<Sample, OpenError> {
        Sample::open(Some(name))
    }

    /// Returns an agent that starts from the prompt and records into a new sample.
    ///
    /// # Errors
    ///
    /// Fails if this rollout's caller accepts no more samples.
    pub fn agent(&self) -> Result<Agent, OpenError> {
        Ok(Agent::new(self.sample()?, self.prompt.clone()))
    }
}

pub(crate) fn config<C: DeserializeOwned>() -> Result<C> {
    settings::read("config", host::config().as_deref())
}

pub(crate) fn metadata<T: DeserializeOwned>() -> Result<T> {
    settings::read("metadata", host::metadata().as_deref())
}

pub(crate) fn metadata_json() -> Result<Option<Value>> {
    let parse = |text: String| serde_json::from_str(&text);
    host::metadata().map(parse).transpose().or_invalid("metadata")
}

pub(crate) fn time_left() -> Option<Duration> {
    host::time_left_ms().map(Duration::from_millis)
}
