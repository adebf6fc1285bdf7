//! Classification of a rollout's outcome.
//!
//! Every rollout of a bench has the same prompt, scripted reply and label, so only success with a reward of 1
//! is right. Every other outcome is counted under an [`ErrorKind`].

use std::fmt;

use serde::Deserialize;

use rollout_outbound::http1::Broken;

/// The reward of a right result.
const REWARD: f64 = 1.0;
/// Number of characters of a body that an error quotes.
const EXCERPT_CHARS_MAX: usize = 160;

/// Kind of a failed rollout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Admission was answered with this status, which is neither 202 nor 429.
    Admission(u16),
    /// A read of the result was answered with this status, which is not 200.
    Result(u16),
    /// A connection failed, closed early, or carried something other than HTTP.
    Transport,
    /// A body violates the protocol.
    Malformed,
    /// The rollout ended without success.
    Unscored,
    /// Success without a reward of 1.
    WrongReward,
    /// The result names another rollout.
    WrongId,
    /// The result arrived before the workflow was reported complete (generation C).
    OutOfOrder,
    /// The rollout did not end within its time.
    Lost,
    /// A second result arrived for a rollout that had ended (generation C).
    Doubled,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admission(status) => write!(f, "admission {status}"),
            Self::Result(status) => write!(f, "result {status}"),
            Self::Transport => f.write_str("transport"),
            Self::Malformed => f.write_str("malformed"),
            Self::Unscored => f.write_str("unscored"),
            Self::WrongReward => f.write_str("wrong reward"),
            Self::WrongId => f.write_str("wrong id"),
            Self::OutOfOrder => f.write_str("out of order"),
            Self::Lost => f.write_str("lost"),
            Self::Doubled => f.write_str("doubled"),
        }
    }
}

/// A failed rollout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    /// Description of the failure, for people.
    pub(super) detail: String,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// Returns a failure that quotes the unexpected body.
    pub(super) fn from_body(kind: ErrorKind, body: &[u8]) -> Self {
        Self::new(kind, excerpt(body))
    }
}

impl From<Broken> for Failure {
    fn from(error: Broken) -> Self {
        Self::new(ErrorKind::Transport, error.to_string())
    }
}

/// The body of a result (D) or of a grader callback (C).
#[derive(Debug, Deserialize)]
struct ResultBody<'a> {
    #[serde(borrow)]
    rollout_id: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow)]
    status: std::borrow::Cow<'a, str>,
    sample: Option<Sample>,
}

#[derive(Debug, Deserialize)]
struct Sample {
    reward: Option<f64>,
}

/// Classifies the result of rollout `id`.
pub(super) fn judge(body: &[u8], id: &str) -> Result<Judgement, Failure> {
    let wrong = |kind| Err(Failure::from_body(kind, body));
    let Ok(result) = serde_json::from_slice::<ResultBody<'_>>(body) else {
        return wrong(ErrorKind::Malformed);
    };
    if result.rollout_id.as_deref() != Some(id) {
        return wrong(ErrorKind::WrongId);
    }
    match &*result.status {
        "queued" | "running" | "grading" | "pending" => Ok(Judgement::NotYet),
        "success" => match result.sample.and_then(|sample| sample.reward) {
            Some(REWARD) => Ok(Judgement::Right),
            _ => wrong(ErrorKind::WrongReward),
        },
        "failure" | "cancelled" | "unknown" => wrong(ErrorKind::Unscored),
        _ => wrong(ErrorKind::Malformed),
    }
}

/// Classification of a result that is not wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judgement {
    NotYet,
    Right,
}

/// Returns the beginning of a body as one line.
fn excerpt(body: &[u8]) -> String {
    if body.is_empty() {
        return "an empty body".to_owned();
    }
    let text = String::from_utf8_lossy(body);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_with_the_full_reward_is_right() {
        fn check(body: &str, expected: Result<Judgement, ErrorKind>) {
            assert_eq!(judge(body.as_bytes(), "r").map_err(|failure| failure.kind), expected, "{body}");
        }
        let success = |sample: &str| format!(r#"{{"rollout_id":"r","status":"success","sample":{sample}}}"#);
        check(&success(r#"{"messages":[{"x":1}],"label":"5","reward":1.0,"more":{}}"#), Ok(Judgement::Right));
        check(&success(r#"{"reward":1}"#), Ok(Judgement::Right));
        check(&success(r#"{"reward":0.0}"#), Err(ErrorKind::WrongReward));
        check(&success(r#"{"reward":null}"#), Err(ErrorKind::WrongReward));
        check(&success("null"), Err(ErrorKind::WrongReward));
        check(r#"{"rollout_id":"s","status":"success","sample":{"reward":1.0}}"#, Err(ErrorKind::WrongId));
        check(r#"{"status":"success","sample":{"reward":1.0}}"#, Err(ErrorKind::WrongId));
        check(r#"{"rollout_id":"r","status":"grading","sample":null}"#, Ok(Judgement::NotYet));
        check(r#"{"rollout_id":"r","status":"failure","sample":null}"#, Err(ErrorKind::Unscored));
        check(r#"{"rollout_id":"r","status":"done"}"#, Err(ErrorKind::Malformed));
        check("<html>", Err(ErrorKind::Malformed));
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt(b""), "an empty body");
        assert_eq!(excerpt(b"a\n\x1b[31mb"), "a  [31mb");
        assert_eq!(excerpt("é".repeat(500).as_bytes()).chars().count(), EXCERPT_CHARS_MAX + 1);
    }
}
