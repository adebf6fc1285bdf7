//! Closed sets of words, which trajectories, metrics and events share.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A closed set of words.
pub trait Label: Copy + 'static {
    /// All words, in the order of their indices.
    const ALL: &'static [Self];

    /// Returns the word.
    fn as_str(self) -> &'static str;

    /// Returns the index in [`Label::ALL`].
    fn index(self) -> usize;
}

/// Declares an enumeration of words that implements [`Label`](crate::Label). A value is serialized as its word.
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

            fn index(self) -> usize {
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

/// Role of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelRole {
    /// The model that is trained or evaluated.
    Policy,
    /// The model that grades.
    Judge,
}

/// The party that must act on a failure. It depends on the cause of the failure, not on the component that noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

labels! {
    /// Implementation of a host-provided tool.
    ToolKind {
        /// A WebAssembly component that implements the contract.
        Component = "component",
        /// An MCP server.
        Mcp = "mcp",
        /// An HTTP endpoint.
        Http = "http",
        /// No implementation, because no tool has the name.
        None = "none",
    }
}

labels! {
    /// Outcome of a call of a host-provided tool.
    ToolOutcome {
        /// The tool returned its result.
        Answered = "answered",
        /// The tool reported a failure.
        Failed = "failed",
        /// The tool returned no result.
        Unavailable = "unavailable",
        /// A limit kept the call from starting or its result from being returned.
        OverLimit = "over-limit",
        /// The rollout ended before a result arrived.
        Abandoned = "abandoned",
    }
}

labels! {
    /// A limit of one rollout. Its word is the configuration key that raises it.
    Limit {
        /// Bytes of an instance's memories and tables.
        Memory = "memory-bytes-max",
        /// Memory of all rollouts together.
        MemoryBudget = "memory-budget-bytes",
        /// CPU time of an instance.
        GuestCpu = "guest-cpu-secs-max",
        /// Wall time that the host permits a workflow.
        WorkflowTime = "workflow-secs-max",
        /// Wall time that the host permits a grader.
        GraderTime = "grader-secs-max",
        /// Wall time that the caller permits the workflow or the grader.
        CallerTime = "caller-deadline",
        /// Calls of the contract's imports by an instance.
        HostCalls = "host-calls-max",
        /// Bytes passed in one host call.
        HostCallBytes = "host-call-bytes-max",
        /// Handles that a guest holds at once.
        Handles = "handles-max",
        /// Samples of one rollout.
        Samples = "samples-max",
        /// Calls of the model.
        ChatCalls = "chat-calls-max",
        /// Tokens of all calls of the model.
        ChatTokens = "chat-tokens-max",
        /// Bytes of all requests to models.
        ChatBytes = "chat-bytes-max",
        /// Calls in progress at once.
        ConcurrentCalls = "concurrent-calls-max",
        /// Calls of the judge.
        JudgeCalls = "judge-calls-max",
        /// Tokens of all calls of the judge.
        JudgeTokens = "judge-tokens-max",
        /// Bytes of one message.
        MessageBytes = "message-bytes-max",
        /// Bytes of stored messages, fields and exchanges.
        RecordBytes = "record-bytes-max",
        /// Number of artifacts.
        Artifacts = "artifacts-max",
        /// Bytes of artifacts.
        ArtifactBytes = "artifact-bytes-max",
        /// Number of log entries.
        LogLines = "log-lines-max",
        /// Bytes of log entries.
        LogBytes = "log-bytes-max",
        /// Uses that the guest's own language runtime refused.
        RefusedUses = "refused-uses-max",
        /// Random bytes requested in one call.
        RandomBytes = "random-bytes-max",
        /// Bytes of one reply of the model's server.
        ReplyBytes = "reply-bytes-max",
        /// Calls of one host-provided tool.
        ToolCalls = "tools.calls-max",
        /// Concurrent calls of the tools of one configuration entry.
        ToolConcurrent = "tools.concurrent-max",
        /// Wall time of one call of a host-provided tool.
        ToolTime = "tools.deadline-secs",
        /// CPU time of one call of a component's tool.
        ToolCpu = "tools.cpu-secs-max",
        /// Memory of one call of a component's tool.
        ToolMemory = "tools.memory-bytes-max",
        /// Bytes of the result of one call of a host-provided tool.
        ToolResultBytes = "tools.result-bytes-max",
    }
}
