//! Samples: conversations that are graded and trained on.
//!
//! A [`Sample`] is registered with the host the moment it is opened, and what is pushed
//! to it is kept even if the rollout is cut short. Chat calls are made in its name.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use serde_json::Value;

use crate::bindings::imports::samples;
use crate::chat::ChatRequest;
use crate::message::{self, Message};

/// One conversation, registered with the host. Dropping it does not take it back.
#[derive(Debug)]
pub struct Sample {
    handle: samples::Sample,
    id: String,
    recorded: Rc<Recorded>,
}

/// What is known here of a sample's history.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// How many messages it has, where that is known.
    count: Cell<Option<usize>>,
    /// How often it was replaced.
    epoch: Cell<u32>,
    /// So many of its first messages are nowhere here any more.
    left: Cell<usize>,
    /// These, once the history that had them was replaced.
    saved: RefCell<Vec<Message>>,
}

impl Recorded {
    /// So many more are in it.
    pub(crate) fn add(&self, count: usize) {
        self.count.set(self.count.get().map(|known| known + count));
    }

    /// Nobody here can tell.
    pub(crate) fn lose_count(&self) {
        self.count.set(None);
    }
}

impl Sample {
    /// Registers a sample. Its id is the name, or a random one.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, OpenError> {
        let handle = samples::Sample::open(name)?;
        let id = handle.id();
        let (count, epoch, left) = (Cell::new(Some(0)), Cell::new(0), Cell::new(0));
        Ok(Self { handle, id, recorded: Rc::new(Recorded { count, epoch, left, saved: RefCell::default() }) })
    }

    /// The id that every chat call of this sample carries.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Prepares a request to the model. The messages are sent as they are and are not
    /// pushed: what belongs to the history is the workflow's choice.
    pub fn chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        ChatRequest::explicit(self, messages)
    }

    /// Prepares a request with the whole history and these messages at its end, which are
    /// pushed when it is sent. So is the reply when it is given, unless
    /// [`keep_reply`](ChatRequest::keep_reply) says otherwise. The tenth turn of a conversation
    /// costs no more than the first.
    pub fn continue_chat(&self, messages: &[Message]) -> ChatRequest<'_> {
        ChatRequest::history(self, messages)
    }

    /// Adds a message at the end of the history.
    ///
    /// # Errors
    ///
    /// If a limit of this rollout is reached; nothing was added then.
    pub fn push(&self, message: &Message) -> Result<(), RecordError> {
        self.push_all(std::slice::from_ref(message))
    }

    /// Adds messages at the end of the history, all of them or none.
    ///
    /// # Errors
    ///
    /// If a limit of this rollout is reached; nothing was added then.
    pub fn push_all(&self, messages: &[Message]) -> Result<(), RecordError> {
        self.handle.push(&message::to_json(messages))?;
        self.recorded.add(messages.len());
        Ok(())
    }

    /// Puts these messages in place of the whole history.
    ///
    /// # Errors
    ///
    /// If a limit of this rollout is reached; the history is as it was then.
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

    /// The whole history as it is now, from the host, which keeps it.
    pub fn messages(&self) -> Vec<Message> {
        self.first_messages(usize::MAX)
    }

    /// Records a measurement; the last one under a name stays.
    ///
    /// # Errors
    ///
    /// If the value is not finite, or a limit of this rollout is reached.
    pub fn metric(&self, name: &str, value: f64) -> Result<(), RecordError> {
        Ok(self.handle.set_metric(name, value)?)
    }

    /// Records a JSON value beside the messages; the last one under a name stays.
    ///
    /// # Errors
    ///
    /// If a limit of this rollout is reached.
    pub fn field(&self, name: &str, value: impl Into<Value>) -> Result<(), RecordError> {
        Ok(self.handle.set_field(name, &value.into().to_string())?)
    }

    /// Asks that this sample be graded but not trained on.
    pub fn withdraw(&self) {
        self.handle.withdraw();
    }

    /// The first messages of its history.
    fn first_messages(&self, count: usize) -> Vec<Message> {
        if count == 0 {
            return Vec::new();
        }
        let texts = self.handle.history(0, u32::try_from(count).unwrap_or(u32::MAX));
        // The host takes nothing else.
        let read = |text: &String| Message::from_json(text).expect("a history is of JSON objects");
        texts.iter().map(read).collect()
    }

    /// Whether its history has so many messages since it was replaced so often, none of them another's.
    pub(crate) fn has_recorded(&self, count: usize, epoch: u32) -> bool {
        self.recorded.count.get() == Some(count) && self.recorded.epoch.get() == epoch
    }

    /// How often its history was replaced.
    pub(crate) fn epoch(&self) -> u32 {
        self.recorded.epoch.get()
    }

    /// From here on nobody but the host has the first messages of the history.
    pub(crate) fn leave(&self, count: usize) {
        self.recorded.left.set(count);
    }

    /// The messages that were left to the host, whatever became of the history since.
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

/// Why a sample was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// This rollout's caller takes no more samples than this number.
    TooMany(u32),
    /// This name was used already by a sample of this rollout.
    Taken(String),
    /// The name is not 1 to 128 visible ASCII characters: the reason.
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

/// Why something was not recorded in a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// It is not what it has to be: which, and why.
    Invalid(String),
    /// A limit of this rollout is reached: which, and its value.
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
