//! Whose move it is after a failure.

use std::fmt;

/// Who has to act. It comes from the cause, not from where the failure surfaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The author of the workflow or grader.
    Plugin,
    /// Whoever runs the model's endpoint, or the judge's.
    Model,
    /// Whoever asked for the rollout.
    Caller,
    /// The operator of this host.
    Host,
}

impl Fault {
    /// The word that reports and wire bodies carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Model => "model",
            Self::Caller => "caller",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
