//! What a workflow is given, and what it gives back.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::{Agent, AgentRun};
use crate::bindings::imports::{context as host, samples};
use crate::message::Message;
use crate::sample::{OpenError, Sample};
use crate::{OrError, Result, settings};

/// An agent that registers what it did as samples.
///
/// `C` is the type of the operator's configuration, `()` for none. It is read like a
/// configuration file: unknown fields are left alone unless the type denies them, and
/// a missing field without a default is an invalid configuration that names it.
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
    /// An error leaves the rollout without a reward. Samples that were registered are
    /// kept for whoever looks into it.
    fn run(ctx: Context<C>) -> Result<Output>;
}

/// What a workflow gives back: the messages of its only sample, or nothing where it
/// registered its samples, as an [`Agent`] does.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) metrics: Vec<(String, f64)>,
}

impl Output {
    /// The same, with a measurement of the rollout's only sample.
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
    /// The history of the rollout's only sample. It takes the place of what was pushed
    /// to that; with several samples open it is a failure.
    fn from(messages: Vec<Message>) -> Self {
        Self { messages: Some(messages), metrics: Vec::new() }
    }
}

/// The rollout that a workflow runs.
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
    /// The rollout's id, as the caller chose it.
    pub fn rollout_id(&self) -> String {
        host::rollout_id()
    }

    /// 1 for the first try, one more each time the rollout is started over.
    pub fn attempt(&self) -> u32 {
        host::attempt()
    }

    /// The messages to start from.
    pub fn prompt(&self) -> &[Message] {
        &self.prompt
    }

    /// The operator's configuration of this plugin.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The data set row's metadata, read into a type. A row without metadata is read as
    /// an object without fields.
    ///
    /// # Errors
    ///
    /// An invalid one, if the metadata does not fit the type.
    pub fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        metadata()
    }

    /// The data set row's metadata as it is, or `None`.
    ///
    /// # Errors
    ///
    /// An invalid one, if it is not JSON.
    pub fn metadata_json(&self) -> Result<Option<Value>> {
        metadata_json()
    }

    /// Time until the host ends this run; `None` where it has no deadline.
    pub fn time_left(&self) -> Option<Duration> {
        time_left()
    }

    /// The most samples that this rollout's caller takes. Some callers take one.
    pub fn samples_max(&self) -> u32 {
        samples::limit()
    }

    /// Registers a sample with a random id.
    ///
    /// # Errors
    ///
    /// If this rollout's caller takes no more samples.
    pub fn sample(&self) -> Result<Sample, OpenError> {
        Sample::open(None)
    }

    /// Registers a sample whose id is this name: 1 to 128 visible ASCII characters,
    /// used once in a rollout.
    ///
    /// # Errors
    ///
    /// If the name is not one or is taken, or this rollout's caller takes no more
    /// samples.
    pub fn sample_named(&self, name: &str) -> Result<Sample, OpenError> {
        Sample::open(Some(name))
    }

    /// An agent that starts from the prompt and records in a sample of its own.
    ///
    /// # Errors
    ///
    /// If this rollout's caller takes no more samples.
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
