//! Label values of metrics. Each set is closed, so that no text that a caller or a guest chooses (an id, a name, a URL)
//! becomes a time series.

use rollout_transcript::labels;
pub use rollout_transcript::{Label, Limit, ToolKind, ToolOutcome};

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
        /// The journal cannot store the rollout.
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
        /// The server returned no completion, even after the last retry.
        Unavailable = "unavailable",
        /// This host may not connect to the server's address.
        Forbidden = "forbidden",
        /// The host could not send the request, even at the last retry.
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
        /// The caller could not be reached, even at the last retry.
        Unavailable = "unavailable",
        /// This host may not connect to the caller's address.
        Forbidden = "forbidden",
        /// The host could not open a connection, even at the last retry.
        Host = "host",
        /// The host stopped before a reply arrived.
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

/// Number of hits of each limit in one rollout, and the largest amount that was requested at a hit.
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
        self.0[limit.index()].times += 1;
    }

    /// Counts a hit, with the amount that would have been in use.
    pub fn add_requested(&mut self, limit: Limit, asked: usize) {
        self.add(limit);
        self.note_requested(limit, asked);
    }

    /// Stores the amount that would have been in use, without counting a hit.
    pub fn note_requested(&mut self, limit: Limit, asked: usize) {
        let amount = &mut self.0[limit.index()].amount;
        *amount = (*amount).max(asked as u64);
    }

    /// Returns the number of hits of a limit.
    pub fn times(&self, limit: Limit) -> u64 {
        self.0[limit.index()].times
    }

    /// Returns the largest amount that would have been in use at a hit, if it is known.
    pub fn requested_max(&self, limit: Limit) -> Option<u64> {
        Some(self.0[limit.index()].amount).filter(|amount| *amount > 0)
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
            assert!(L::ALL.iter().enumerate().all(|(at, label)| label.index() == at));
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
        hits.add_requested(Limit::LogBytes, 12);
        hits.add_requested(Limit::LogBytes, 7);
        hits.add(Limit::Memory);
        assert_eq!(hits.iter().collect::<Vec<_>>(), [(Limit::Memory, 1), (Limit::LogBytes, 2)]);
        assert_eq!(
            (hits.requested_max(Limit::LogBytes), hits.requested_max(Limit::Memory)),
            (Some(12), None)
        );
    }
}
