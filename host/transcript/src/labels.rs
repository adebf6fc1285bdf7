//! Closed sets of words, which trajectories, metrics and events share.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A closed set of words.
pub trait Label: Copy + 'static {
    /// All of them, in the order of their indexes.
    const ALL: &'static [Self];

    /// Returns the word.
    fn as_str(self) -> &'static str;

    /// Returns the index in [`Label::ALL`].
    fn place(self) -> usize;
}

/// Declares an enumeration of words that implements [`Label`](crate::Label). On disk a value is its word.
#[macro_export]
macro_rules! labels {
    ($(#[$doc:meta])* $set:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $set {
            $($(#[$case_doc])* #[serde(rename = $word)] $case,)*
        }

        impl $crate::Label for $set {
            const ALL: &'static [Self] = &[$(Self::$case),*];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$case => $word,)*
                }
            }

            fn place(self) -> usize {
                self as usize
            }
        }
    };
}

/// One of the two runs of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// The run of the workflow or agent loop, which calls the policy and tools.
    #[default]
    Workflow,
    /// The run of the grader, which calls the judge.
    Grader,
}

impl Run {
    /// Returns the model that the guest of this run calls.
    pub fn model(self) -> ModelRole {
        match self {
            Self::Workflow => ModelRole::Policy,
            Self::Grader => ModelRole::Judge,
        }
    }
}

/// Role of a model in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelRole {
    /// The model that is trained or evaluated.
    Policy,
    /// The model that judges.
    Judge,
}

/// The party that must act after a failure. It follows from the cause, not from where the failure surfaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The author of the workflow or grader.
    Plugin,
    /// The operator of the model's endpoint, or the judge's.
    Model,
    /// The caller that requested the rollout.
    Caller,
    /// The operator of this host.
    Host,
}

impl Fault {
    /// Returns the word that reports and wire bodies carry.
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

labels! {
    /// Implementation of a host-provided tool.
    ToolKind {
        /// A component of the contract's kind.
        Component = "component",
        /// A server that speaks the Model Context Protocol.
        Mcp = "mcp",
        /// An address that is called over HTTP.
        Http = "http",
        /// None: the name is not provided.
        None = "none",
    }
}

labels! {
    /// Outcome of a call of a host-provided tool.
    ToolOutcome {
        /// The tool returned its result.
        Answered = "answered",
        /// The tool reported that it failed.
        Failed = "failed",
        /// The tool returned no result.
        Unavailable = "unavailable",
        /// A limit prevented the call, or its result.
        OverLimit = "over-limit",
        /// The call was abandoned before there was an answer.
        Abandoned = "abandoned",
    }
}

labels! {
    /// A limit of one rollout, under the name that raises it.
    Limit {
        /// Memories and tables of an instance.
        Memory = "memory-bytes-max",
        /// Memory of all rollouts together.
        MemoryBudget = "memory-budget-bytes",
        /// CPU time of an instance.
        GuestCpu = "guest-cpu-secs-max",
        /// The host's wall time for a workflow.
        WorkflowTime = "workflow-secs-max",
        /// The host's wall time for a grader.
        GraderTime = "grader-secs-max",
        /// The wall time that the caller set, for workflow or grader.
        CallerTime = "caller-deadline",
        /// Calls of the contract's imports by an instance.
        HostCalls = "host-calls-max",
        /// Bytes passed in one call of the host.
        HostCallBytes = "host-call-bytes-max",
        /// Handles held at once.
        Handles = "handles-max",
        /// Samples of one rollout.
        Samples = "samples-max",
        /// Calls of the model.
        ChatCalls = "chat-calls-max",
        /// Tokens of all calls of the model.
        ChatTokens = "chat-tokens-max",
        /// Bytes of all requests to models.
        ChatBytes = "chat-bytes-max",
        /// Concurrent calls.
        ConcurrentCalls = "concurrent-calls-max",
        /// Calls of the judge.
        JudgeCalls = "judge-calls-max",
        /// Tokens of all calls of the judge.
        JudgeTokens = "judge-tokens-max",
        /// One message.
        MessageBytes = "message-bytes-max",
        /// Messages, fields and exchanges in the record.
        RecordBytes = "record-bytes-max",
        /// Artifacts in number.
        Artifacts = "artifacts-max",
        /// Artifacts in bytes.
        ArtifactBytes = "artifact-bytes-max",
        /// Log entries in number.
        LogLines = "log-lines-max",
        /// Log entries in bytes.
        LogBytes = "log-bytes-max",
        /// Uses that the guest's own runtime refused.
        RefusedUses = "refused-uses-max",
        /// Random bytes requested in one call.
        RandomBytes = "random-bytes-max",
        /// A reply of the model's server.
        ReplyBytes = "reply-bytes-max",
        /// Calls of one host-provided tool.
        ToolCalls = "tools.calls-max",
        /// Concurrent calls of the tools of one entry.
        ToolConcurrent = "tools.concurrent-max",
        /// Wall time of one call of a host-provided tool.
        ToolTime = "tools.deadline-secs",
        /// CPU time of one call of a component's tool.
        ToolCpu = "tools.cpu-secs-max",
        /// Memory of one call of a component's tool.
        ToolMemory = "tools.memory-bytes-max",
        /// The result of one call of a host-provided tool.
        ToolResultBytes = "tools.result-bytes-max",
    }
}
