//! Samples: conversations that are graded and trained on.
//!
//! A [`Sample`] is registered with the host as soon as it is opened, and its messages are stored even if the
//! rollout is aborted. Chat calls belong to a sample.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use serde_json::Value;

use crate::bindings::imports::samples;
use crate::chat::ChatRequest;
use crate::message::{self, Message};

/// One conversation, registered with the host. Dropping it does not withdraw it.
#[derive(Debug)]
pub struct Sample {
    handle: samples::Sample,
    id: String,
    recorded: Rc<Recorded>,
}

/// The guest's knowledge of a sample's history.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Number of messages, if it is known.
    count: Cell<Option<usize>>,
    /// Number of replacements of the history.
    epoch: Cell<u32>,
    /// Number of messages at the beginning that the guest no longer stores.
    left: Cell<usize>,
    /// The dropped messages, fetched when the history that contained them was replaced.
    saved: RefCell<Vec<Message>>,
}

impl Recorded {
    /// Adds messages to the known number.
    pub(crate) fn add(&self, count: usize) {
        self.count.set(self.count.get().map(|known| known + count));
    }

    /// Marks the number of messages as unknown.
    pub(crate) fn lose_count(&self) {
        self.count.set(None);
    }
}

impl Sample {
    /// Opens a sample. Its id is the name, or random without a name.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, OpenError> {
        let handle = samples::Sample::open(name)?;
        let id = handle.id();
        let (count, epoch, left) = (Cell::new(Some(0)), Cell::new(0), Cell::new(0));
        Ok(Self { handle, id, recorded: Rc::new(Recorded { count, epoch, left, saved: RefCell::default() }) })
    }

    /// Returns the id, which every chat call of this sample carries.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Creates a request to the model with these messages. They are not pushed: the workflow decides what
    /// belongs to the history.
    pub fn chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        ChatRequest::explicit(self, messages)
    }

    /// Creates a request with the whole history followed by these messages, which are pushed when it is sent.
    /// The reply is pushed when it is received, unless [`keep_reply`](ChatRequest::keep_reply) prevents that.
    /// Guest and host transfer only the new messages, so a late turn costs no more than the first.
    pub fn continue_chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        ChatRequest::history(self, messages)
    }

    /// Appends a message to the history.
    ///
    /// # Errors
    ///
    /// Fails if a limit of this rollout is reached; then nothing was appended.
    pub fn push(&self, message: &Message) -> Result<(), RecordError> {
        self.push_all(std::slice::from_ref(message))
    }

    /// Appends messages to the history, all of them or none.
    ///
    /// # Errors
    ///
    /// Fails if a limit of this rollout is reached; then nothing was appended.
    pub fn push_all(&self, messages: &[Message]) -> Result<(), RecordError> {
        self.handle.push(&message::to_json(messages))?;
        self.recorded.add(messages.len());
        Ok(())
    }

    /// Replaces the whole history with these messages.
    ///
    /// # Errors
    ///
    /// Fails if a limit of this rollout is reached; then the history is unchanged.
    pub fn replace(&self, messages: &[Message]) -> Result<(), RecordError> {
        let left = self.first_messages(self.recorded.left.get());
        self.handle.replace(&message::to_json(messages))?;
        self.recorded.count.set(Some(messages.len()));
        self.recorded.epoch.set(self.recorded.epoch.get() + 1);
        if !left.is_empty() {
            self.recorded.left.set(0);
            self.recorded.saved.replace(left);
        }
        Ok(())
    }

    /// Fetches the whole history from the host.
    pub fn messages(&self) -> Vec<Message> {
        self.first_messages(usize::MAX)
    }

    /// Records a measurement, replacing an earlier one of this name.
    ///
    /// # Errors
    ///
    /// Fails if the value is not finite or a limit of this rollout is reached.
    pub fn metric(&self, name: &str, value: f64) -> Result<(), RecordError> {
        Ok(self.handle.set_metric(name, value)?)
    }

    /// Records a JSON value, replacing an earlier one of this name.
    ///
    /// # Errors
    ///
    /// Fails if a limit of this rollout is reached.
    pub fn field(&self, name: &str, value: impl Into<Value>) -> Result<(), RecordError> {
        Ok(self.handle.set_field(name, &value.into().to_string())?)
    }

    /// Requests that this sample be graded but not trained on.
    pub fn withdraw(&self) {
        self.handle.withdraw();
    }

    /// Fetches the first messages of the history.
    fn first_messages(&self, count: usize) -> Vec<Message> {
        if count == 0 {
            return Vec::new();
        }
        let texts = self.handle.history(0, u32::try_from(count).unwrap_or(u32::MAX));
        // The host accepts only JSON objects.
        let read = |text: &String| Message::from_json(text).expect("a history consists of JSON objects");
        texts.iter().map(read).collect()
    }

    /// Returns whether the history has this number of messages after this number of replacements, all pushed
    /// by the caller.
    pub(crate) fn has_recorded(&self, count: usize, epoch: u32) -> bool {
        self.recorded.count.get() == Some(count) && self.recorded.epoch.get() == epoch
    }

    /// Returns the number of replacements of the history.
    pub(crate) fn epoch(&self) -> u32 {
        self.recorded.epoch.get()
    }

    /// Marks the first messages of the history as stored by the host alone.
    pub(crate) fn leave(&self, count: usize) {
        self.recorded.left.set(count);
    }

    /// Returns the messages that the host alone stores, even if the history has been replaced since.
    pub(crate) fn left(&self, count: usize) -> Vec<Message> {
        let saved = self.recorded.saved.borrow();
        if saved.is_empty() {
            self.first_messages(count)
        } else {
            saved.iter().take(count).cloned().collect()
        }
    }

    pub(crate) fn recorded(&self) -> &Rc<Recorded> {
        &self.recorded
    }

    pub(crate) fn handle(&self) -> &samples::Sample {
        &self.handle
    }
}

/// Error of opening a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The caller of this rollout accepts at most this number of samples.
    TooMany(u32),
    /// Another sample of this rollout has this name.
    Taken(String),
    /// The name is invalid, for this reason. A valid name has 1 to 128 visible ASCII characters.
    Invalid(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(most) => write!(
                out,
                "this rollout takes {most} samples at the most (samples-max of the host, or less where its caller takes fewer)"
            ),
            Self::Taken(name) => write!(out, "the sample name `{name}` is taken"),
            Self::Invalid(reason) => write!(out, "not a sample name: {reason}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<samples::OpenError> for OpenError {
    fn from(error: samples::OpenError) -> Self {
        match error {
            samples::OpenError::TooMany(most) => Self::TooMany(most),
            samples::OpenError::Taken(name) => Self::Taken(name),
            samples::OpenError::Invalid(reason) => Self::Invalid(reason),
        }
    }
}

/// Error of recording data in a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// A value is invalid. The text names the value and the reason.
    Invalid(String),
    /// A limit of this rollout is reached. The text names the limit and its value.
    OverLimit(String),
}

impl fmt::Display for RecordError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(reason) => write!(out, "not recorded: {reason}"),
            Self::OverLimit(limit) => write!(out, "not recorded, a limit is reached: {limit}"),
        }
    }
}

impl std::error::Error for RecordError {}

impl From<samples::RecordError> for RecordError {
    fn from(error: samples::RecordError) -> Self {
        match error {
            samples::RecordError::Invalid(reason) => Self::Invalid(reason),
            samples::RecordError::OverLimit(limit) => Self::OverLimit(limit),
        }
    }
}
