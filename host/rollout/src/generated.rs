//! Rollouts that never run, for measuring the cost of pages with many rollouts.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use super::activity::{EndedRollout, LiveFacts};
use super::model::{Failure, FailureKind, Outcome, Phase, Stage};
use super::slots::{AdmitError, Entered, Slots};
use rollout_core::error::Fault;
use rollout_guest::imports::RolloutUsage;
use rollout_wire::id::RolloutId;

/// Generated rollouts of a plugin.
pub struct GeneratedRollouts {
    slots: Slots,
    live: VecDeque<(RolloutId, Entered)>,
    next: u64,
}

impl GeneratedRollouts {
    /// Creates no rollouts yet.
    pub fn new(slots: Slots) -> Self {
        Self { slots, live: VecDeque::new(), next: 0 }
    }

    /// Starts a rollout.
    #[expect(clippy::disallowed_methods, reason = "people read the time of the admission")]
    pub fn start(&mut self) -> Result<(), AdmitError> {
        let name = format!("generated-{:07}", self.next);
        // The name has neither slashes nor spaces.
        let Ok(id) = RolloutId::parse(name) else { return Ok(()) };
        self.next += 1;
        let mut entered = self.slots.enter(&id, true)?;
        entered.handle.set_facts(LiveFacts {
            plugin: None,
            admitted_at: SystemTime::now(),
            fork: None,
            group: None,
            record: Weak::new(),
        });
        entered.guard.leave_queue();
        entered.phase.send_replace(Phase::Running);
        self.slots.tenant().activity().changed();
        self.live.push_back((id, entered));
        Ok(())
    }

    /// Ends the oldest rollout: each tenth with a failure, the others with a reward.
    pub fn end(&mut self) {
        let Some((id, entered)) = self.live.pop_front() else { return };
        let number = self.next;
        let outcome = if number.is_multiple_of(10) {
            let reason = "the guest gave up".to_owned();
            Outcome::Unscored(Failure::new(Stage::Workflow, FailureKind::NoReward, Fault::Plugin, reason))
        } else {
            Outcome::Scored { reward: (number % 100) as f64 / 100.0 }
        };
        let usage = RolloutUsage {
            chat_calls: number % 7,
            prompt_tokens: number % 5000,
            completion_tokens: number % 900,
            ..RolloutUsage::default()
        };
        let time = Duration::from_millis(number % 100_000);
        let ended = EndedRollout::now(id, None, None, &outcome, time, &usage);
        self.slots.tenant().activity().ended(ended);
        drop(entered);
    }
}
