//! The words that metrics are told apart by. Each set is closed, so that nothing which a
//! caller or a guest chooses (an id, a name, a URL) ever becomes a time series.

use rollout_transcript::labels;
pub use rollout_transcript::{Label, Limit, ToolKind, ToolOutcome};

labels! {
    /// Why a rollout was not admitted.
    Refusal {
        /// Every slot and every place in the queue is taken.
        Full = "full",
        /// A quota is used up.
        Quota = "quota",
        /// Too much memory is held for others.
        Memory = "memory",
        /// The id is in use.
        Duplicate = "duplicate",
        /// The journal takes no more.
        NotKept = "not-kept",
        /// The host is shutting down.
        Closed = "closed",
        /// The request is not what it has to be.
        Invalid = "invalid",
    }
}

labels! {
    /// What came of a call of the model, retries included.
    ModelOutcome {
        /// There was a completion.
        Replied = "replied",
        /// The server said no.
        Refused = "refused",
        /// There was no completion for as long as was tried.
        Unavailable = "unavailable",
        /// The server may not be asked from this host.
        Forbidden = "forbidden",
        /// The host could not ask for as long as it tried.
        Host = "host",
        /// Whoever wanted it was gone before there was an answer.
        Abandoned = "abandoned",
    }
}

labels! {
    /// What came of a callback, retries included.
    CallbackOutcome {
        /// The caller confirmed it.
        Delivered = "delivered",
        /// The caller answered that it does not take it.
        Refused = "refused",
        /// The caller was not reached for as long as was tried.
        Unavailable = "unavailable",
        /// The caller's address is one that this host may not reach.
        Forbidden = "forbidden",
        /// The host could not open a connection for as long as it tried.
        Host = "host",
        /// The host stopped before there was an answer.
        Abandoned = "abandoned",
    }
}

labels! {
    /// A part of a rollout that takes time.
    Step {
        /// From admission to a slot.
        Queue = "queue",
        /// Making an instance of a plugin.
        InstanceStart = "instance_start",
        /// A workflow, instance start included.
        Workflow = "workflow",
        /// A call of the model, retries included.
        ModelCall = "model_call",
        /// A grader, instance start included.
        Grader = "grader",
        /// A call of the judge, retries included.
        JudgeCall = "judge_call",
        /// A callback, retries included.
        Callback = "callback",
        /// Writing trajectory, artifacts and log.
        TrajectoryWrite = "trajectory_write",
        /// All of it, from admission until the trajectory is written.
        Rollout = "rollout",
    }
}

/// How often each limit of one rollout was hit, and what was asked for then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitHits([Hits; Limit::ALL.len()]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hits {
    times: u64,
    asked: u64,
}

impl LimitHits {
    /// Counts one.
    pub fn add(&mut self, limit: Limit) {
        self.0[limit.place()].times += 1;
    }

    /// Counts one, at which so much would have been in use.
    pub fn add_asked(&mut self, limit: Limit, asked: usize) {
        self.add(limit);
        self.note_asked(limit, asked);
    }

    /// Notes how much would have been in use, without counting.
    pub fn note_asked(&mut self, limit: Limit, asked: usize) {
        let noted = &mut self.0[limit.place()].asked;
        *noted = (*noted).max(asked as u64);
    }

    /// How often the limit was hit.
    pub fn times(&self, limit: Limit) -> u64 {
        self.0[limit.place()].times
    }

    /// The most that would have been in use when the limit was hit, where that is known.
    pub fn asked(&self, limit: Limit) -> Option<u64> {
        Some(self.0[limit.place()].asked).filter(|asked| *asked > 0)
    }

    /// Those that were hit, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Limit, u64)> {
        Limit::ALL.iter().map(|limit| (*limit, self.times(*limit))).filter(|(_, times)| *times > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_where_it_says() {
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
    fn only_limits_that_fired_are_told() {
        let mut hits = LimitHits::default();
        hits.add_asked(Limit::LogBytes, 12);
        hits.add_asked(Limit::LogBytes, 7);
        hits.add(Limit::Memory);
        assert_eq!(hits.iter().collect::<Vec<_>>(), [(Limit::Memory, 1), (Limit::LogBytes, 2)]);
        assert_eq!((hits.asked(Limit::LogBytes), hits.asked(Limit::Memory)), (Some(12), None));
    }
}
