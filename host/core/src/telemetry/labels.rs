//! Label values of metrics. Each set is closed, so that no text that a caller or a guest chooses (an id, a name, a URL)
//! becomes a time series.

/// A closed set of label values.
pub trait Label: Copy + 'static {
    /// All values, in the order of their indices.
    const ALL: &'static [Self];

    /// Returns the value.
    fn as_str(self) -> &'static str;

    /// Returns the index in [`Label::ALL`].
    fn place(self) -> usize;
}

macro_rules! labels {
    ($(#[$doc:meta])* $set:ident { $($(#[$case_doc:meta])* $case:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $set {
            $($(#[$case_doc])* $case,)*
        }

        impl Label for $set {
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

labels! {
    /// Reason for refusing a rollout.
    Refusal {
        /// All slots and the queue are full.
        Full = "full",
        /// A quota is used up.
        Quota = "quota",
        /// The memory budget is used up.
        Memory = "memory",
        /// The id is in use.
        Duplicate = "duplicate",
        /// The journal cannot store it.
        NotKept = "not-kept",
        /// The host is shutting down.
        Closed = "closed",
        /// The request is invalid.
        Invalid = "invalid",
    }
}

labels! {
    /// Outcome of a call of the model, including retries.
    ModelOutcome {
        /// The server returned a completion.
        Replied = "replied",
        /// The server refused the request.
        Refused = "refused",
        /// The server returned no completion until the last retry.
        Unavailable = "unavailable",
        /// This host may not connect to the server's address.
        Forbidden = "forbidden",
        /// The host could not send the request until the last retry.
        Host = "host",
        /// The rollout ended before a reply arrived.
        Abandoned = "abandoned",
    }
}

labels! {
    /// Outcome of a callback, including retries.
    CallbackOutcome {
        /// The caller confirmed it.
        Delivered = "delivered",
        /// The caller refused it.
        Refused = "refused",
        /// The caller was not reached until the last retry.
        Unavailable = "unavailable",
        /// This host may not connect to the caller's address.
        Forbidden = "forbidden",
        /// The host could not open a connection until the last retry.
        Host = "host",
        /// The host stopped before a reply arrived.
        Abandoned = "abandoned",
    }
}

labels! {
    /// Implementation of a host-provided tool.
    ToolKind {
        /// A component of the contract's kind.
        Component = "component",
        /// An MCP server.
        Mcp = "mcp",
        /// An HTTP endpoint.
        Http = "http",
        /// None: no tool has the name.
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
    /// A timed part of a rollout.
    Step {
        /// Waiting for a slot after admission.
        Queue = "queue",
        /// Creating an instance of a plugin.
        InstanceStart = "instance_start",
        /// Running a workflow, including the start of its instance.
        Workflow = "workflow",
        /// A call of the model, including retries.
        ModelCall = "model_call",
        /// Running a grader, including the start of its instance.
        Grader = "grader",
        /// A call of the judge, including retries.
        JudgeCall = "judge_call",
        /// A callback, including retries.
        Callback = "callback",
        /// Writing trajectory, artifacts and log.
        TrajectoryWrite = "trajectory_write",
        /// The whole rollout, from admission until the trajectory is written.
        Rollout = "rollout",
    }
}

labels! {
    /// A limit of one rollout, by the name of the key that raises it.
    Limit {
        /// Memories and tables of an instance.
        Memory = "memory-bytes-max",
        /// Memory held for all rollouts together.
        MemoryBudget = "memory-budget-bytes",
        /// CPU time of an instance.
        GuestCpu = "guest-cpu-secs-max",
        /// The host's wall time for a workflow.
        WorkflowTime = "workflow-secs-max",
        /// The host's wall time for a grader.
        GraderTime = "grader-secs-max",
        /// The wall time that the caller set for workflow or grader.
        CallerTime = "caller-deadline",
        /// Calls of the contract's imports by an instance.
        HostCalls = "host-calls-max",
        /// Bytes passed in one host call.
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
        /// Calls in progress at once.
        ConcurrentCalls = "concurrent-calls-max",
        /// Calls of the judge.
        JudgeCalls = "judge-calls-max",
        /// Tokens of all calls of the judge.
        JudgeTokens = "judge-tokens-max",
        /// One message.
        MessageBytes = "message-bytes-max",
        /// Stored messages, fields and exchanges.
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
        /// A reply of the model's server.
        ReplyBytes = "reply-bytes-max",
        /// Calls of one host-provided tool.
        ToolCalls = "tools.calls-max",
        /// Calls in progress at once of the tools of one configuration entry.
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

/// Number of hits of each limit of one rollout, and the amount requested at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitHits([Hits; Limit::ALL.len()]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hits {
    times: u64,
    amount: u64,
}

impl LimitHits {
    /// Counts a hit.
    pub fn add(&mut self, limit: Limit) {
        self.0[limit.place()].times += 1;
    }

    /// Counts a hit, with the amount that would have been in use.
    pub fn add_asked(&mut self, limit: Limit, asked: usize) {
        self.add(limit);
        self.note_asked(limit, asked);
    }

    /// Stores the amount that would have been in use, without counting a hit.
    pub fn note_asked(&mut self, limit: Limit, asked: usize) {
        let amount = &mut self.0[limit.place()].amount;
        *amount = (*amount).max(asked as u64);
    }

    /// Returns the number of hits of a limit.
    pub fn times(&self, limit: Limit) -> u64 {
        self.0[limit.place()].times
    }

    /// Returns the largest amount that would have been in use at a hit, if it is known.
    pub fn asked(&self, limit: Limit) -> Option<u64> {
        Some(self.0[limit.place()].amount).filter(|amount| *amount > 0)
    }

    /// Iterates over the limits that were hit, with their numbers of hits.
    pub fn iter(&self) -> impl Iterator<Item = (Limit, u64)> {
        Limit::ALL.iter().map(|limit| (*limit, self.times(*limit))).filter(|(_, times)| *times > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_a_label_is_its_position() {
        fn check<L: Label + PartialEq>() {
            assert!(L::ALL.iter().enumerate().all(|(at, label)| label.place() == at));
        }
        check::<Refusal>();
        check::<ModelOutcome>();
        check::<CallbackOutcome>();
        check::<ToolKind>();
        check::<ToolOutcome>();
        check::<Step>();
        check::<Limit>();
    }

    #[test]
    fn only_limits_that_were_hit_are_listed() {
        let mut hits = LimitHits::default();
        hits.add_asked(Limit::LogBytes, 12);
        hits.add_asked(Limit::LogBytes, 7);
        hits.add(Limit::Memory);
        assert_eq!(hits.iter().collect::<Vec<_>>(), [(Limit::Memory, 1), (Limit::LogBytes, 2)]);
        assert_eq!((hits.asked(Limit::LogBytes), hits.asked(Limit::Memory)), (Some(12), None));
    }
}
