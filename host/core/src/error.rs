//! The party that must act on a failure.

use std::fmt;

/// The party that must act on a failure. It follows from the cause, not from the place where the failure surfaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The author of the workflow or grader.
    Plugin,
    /// The operator of the model's or the judge's endpoint.
    Model,
    /// The caller that requested the rollout.
    Caller,
    /// The operator of this host.
    Host,
}

impl Fault {
    /// Returns the word for reports and response bodies.
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
