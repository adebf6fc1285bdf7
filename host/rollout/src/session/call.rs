//! Calls of a session's caller and their answers, in memory and in the journal.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::SessionError;
use crate::episode::Observed;
use rollout_core::error::Fault;
use rollout_guest::instance::EpisodeAction;
use rollout_wire::data::exact_option;

/// A call of a session's caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SessionCall {
    /// Begins an episode.
    Reset {
        seed: Option<u64>,
        episode_id: Option<String>,
        /// The arguments without the label, a JSON object.
        arguments: String,
        label: Option<String>,
    },
    /// Takes an action of the environment's schema.
    Act(String),
    /// Calls a tool.
    Call { name: String, arguments: String },
    /// Reads the visible state.
    State,
}

impl SessionCall {
    /// Returns the action of a step.
    pub(super) fn action(&self) -> Option<EpisodeAction> {
        match self {
            Self::Reset { .. } | Self::State => None,
            Self::Act(value) => Some(EpisodeAction::Value(value.clone())),
            Self::Call { name, arguments } => {
                Some(EpisodeAction::Call { name: name.clone(), arguments: arguments.clone() })
            }
        }
    }
}

impl From<EpisodeAction> for SessionCall {
    fn from(action: EpisodeAction) -> Self {
        match action {
            EpisodeAction::Value(value) => Self::Act(value),
            EpisodeAction::Call { name, arguments } => Self::Call { name, arguments },
        }
    }
}

/// A call in the journal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CallLine {
    /// The caller's name of the call, by which it fetches the answer again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Number of the session's resets, including this call.
    pub resets: u32,
    pub call: SessionCall,
}

/// Answer to a call.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The result of a reset or a step.
    Observed(Observed),
    /// The environment's part of the state: a JSON object.
    State(Box<RawValue>),
}

/// The answer to a call, or its error, in the journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AnswerLine {
    Observed {
        observation: String,
        #[serde(with = "exact_option")]
        reward: Option<f64>,
        done: bool,
        metadata: Option<String>,
    },
    State(String),
    Invalid(String),
    Failed(String),
    TimedOut(String),
    EpisodeOver {
        reason: String,
        fault: Fault,
    },
}

impl AnswerLine {
    /// Returns the line of an answer. Returns `None` for the end of the session and for a call without an episode, which
    /// are not stored.
    pub(super) fn of(answer: &Result<Answer, SessionError>) -> Option<Self> {
        Some(match answer.clone() {
            Ok(Answer::Observed(Observed { observation, reward, done, metadata })) => Self::Observed {
                observation: observation.get().to_owned(),
                reward,
                done,
                metadata: metadata.map(|metadata| metadata.get().to_owned()),
            },
            Ok(Answer::State(state)) => Self::State(state.get().to_owned()),
            Err(SessionError::Invalid(reason)) => Self::Invalid(reason),
            Err(SessionError::Failed(reason)) => Self::Failed(reason),
            Err(SessionError::TimedOut(reason)) => Self::TimedOut(reason),
            Err(SessionError::EpisodeOver { reason, fault }) => Self::EpisodeOver { reason, fault },
            Err(SessionError::NoEpisode(_) | SessionError::SessionOver(_)) => return None,
        })
    }

    /// Returns the answer.
    pub(super) fn answer(&self) -> Result<Answer, SessionError> {
        let raw = |text: &str| {
            let raw = RawValue::from_string(text.to_owned());
            raw.map_err(|error| SessionError::SessionOver(format!("a stored answer is not JSON: {error}")))
        };
        match self {
            Self::Observed { observation, reward, done, metadata } => Ok(Answer::Observed(Observed {
                observation: raw(observation)?,
                reward: *reward,
                done: *done,
                metadata: metadata.as_deref().map(raw).transpose()?,
            })),
            Self::State(state) => Ok(Answer::State(raw(state)?)),
            Self::Invalid(reason) => Err(SessionError::Invalid(reason.clone())),
            Self::Failed(reason) => Err(SessionError::Failed(reason.clone())),
            Self::TimedOut(reason) => Err(SessionError::TimedOut(reason.clone())),
            Self::EpisodeOver { reason, fault } => {
                Err(SessionError::EpisodeOver { reason: reason.clone(), fault: *fault })
            }
        }
    }

    /// Returns whether no episode is left after this answer to a call.
    pub(super) fn ends_episode(&self, call: &SessionCall) -> bool {
        match self {
            Self::EpisodeOver { .. } => true,
            Self::Invalid(_) | Self::Failed(_) | Self::TimedOut(_) => {
                matches!(call, SessionCall::Reset { .. })
            }
            Self::Observed { .. } | Self::State(_) => false,
        }
    }

    /// Returns whether the environment gave the same answer again. The reward is not compared, because it may come from
    /// the grader, which does not run again.
    pub(super) fn is_repeated_by(&self, again: &Self) -> bool {
        match (self, again) {
            (
                Self::Observed { observation, done, metadata, reward: _ },
                Self::Observed { observation: again, done: done_again, metadata: metadata_again, reward: _ },
            ) => observation == again && done == done_again && metadata == metadata_again,
            (then, now) => then == now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_stored_without_loss() {
        let check = |answer: Result<Answer, SessionError>| {
            let line = AnswerLine::of(&answer).unwrap();
            let read: AnswerLine = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
            assert_eq!(read, line);
            assert_eq!(AnswerLine::of(&read.answer()).unwrap(), line);
        };
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        for reward in [None, Some(0.1 + 0.2), Some(-1.0 / 3.0), Some(5e-324)] {
            let (observation, metadata) = (raw("{\"a\": [1, 2.50]}"), Some(raw("{}")));
            check(Ok(Answer::Observed(Observed { observation, reward, done: true, metadata })));
        }
        check(Ok(Answer::State(raw("{\"n\": 1}"))));
        check(Err(SessionError::Invalid("i".to_owned())));
        check(Err(SessionError::Failed("f".to_owned())));
        check(Err(SessionError::TimedOut("t".to_owned())));
        check(Err(SessionError::EpisodeOver { reason: "e".to_owned(), fault: Fault::Host }));
        assert!(AnswerLine::of(&Err(SessionError::SessionOver("s".to_owned()))).is_none());
    }
}
