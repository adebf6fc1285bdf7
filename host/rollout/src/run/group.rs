//! A rollout's part in its group: it waits for the other members, and one member grades them all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::deadline::Deadline;
use super::grade::to_grade;
use super::{Rollout, brief};
use crate::groups::{Lead, ReadyGroup, ReadyMember, Seat, Turn};
use crate::model::{
    Failure, FailureKind, GroupDecision, GroupOutcome, GroupSeat, Phase, SampleRating, Stage,
};
use rollout_core::budget::Use;
use rollout_core::error::Fault;
use rollout_core::moments::Moments;
use rollout_guest::imports::{Boundary, Imports, JudgeFailure, Live, Past, Record, Role};
use rollout_guest::instance::{self, GroupToGrade, GuestRating, MemberToGrade, Permit, RunError};
use rollout_guest::plugin::Plugin;
use rollout_transcript::{Run, SampleRecord};
use rollout_wire::id::SampleId;

/// Maximum size of the metrics that a group grader returns for a group, in bytes. Every member's log has all of them.
const METRICS_BYTES_MAX: usize = 64 << 10;

/// Ratings of a group by member; `None` if there is no group grader, or nothing to rate.
type Ratings = Option<BTreeMap<u32, Vec<SampleRating>>>;

impl Rollout {
    /// Waits until the rollout's group is decided, and applies the decision, if it is a member of one. A cancelled
    /// rollout leaves its group instead. `through` is the result of its steps so far.
    pub(crate) async fn settle_group(&mut self, through: Result<(), Failure>) -> Result<(), Failure> {
        if let Some((decision, place)) = self.decided.take().zip(self.request.group.clone()) {
            self.take_own_reward();
            self.settle_by(place, &decision);
            return through;
        }
        let Some(mut seat) = self.seat.take() else { return through };
        // Other members may need the slot.
        drop(self.slot.take());
        self.take_own_reward();
        let place = seat.place().clone();
        let decision = match self.wait_for_group(&mut seat).await {
            Ok(decision) => decision,
            Err(stopped) => {
                let (failed, own_reward) = (Vec::new(), self.own_mean());
                self.group = Some(GroupOutcome { seat: place, graded: false, own_reward, failed });
                self.failure.get_or_insert_with(|| stopped.clone());
                return Err(stopped);
            }
        };
        seat.store(&decision);
        self.settle_by(place, &decision);
        through
    }

    fn settle_by(&mut self, place: GroupSeat, decision: &GroupDecision) {
        let own_reward = self.own_mean();
        let graded = self.apply_decision(&place, decision);
        self.group = Some(GroupOutcome { seat: place, graded, own_reward, failed: decision.failed.clone() });
    }

    /// Returns the mean of the rewards so far.
    fn own_mean(&self) -> Option<f64> {
        let samples = self.record.samples();
        let counted = samples.iter().filter(|sample| !sample.withdrawn);
        counted.filter_map(|sample| self.rewards.get(&sample.id).copied()).collect::<Moments>().mean()
    }

    /// Waits for the decision, and makes it if this member leads. The error is the failure of a rollout that was
    /// cancelled before the decision.
    async fn wait_for_group(&mut self, seat: &mut Seat) -> Result<Arc<GroupDecision>, Failure> {
        let cancel = self.handle.cancel.clone();
        if !cancel.is_cancelled() {
            match self.ready_member() {
                Ok(ready) => seat.arrive(Ok(ready)),
                Err(reason) => seat.arrive(Err(&reason)),
            }
        }
        loop {
            if cancel.is_cancelled() {
                let stopped = self.stopped();
                if seat.leave(&stopped.reason) {
                    return Err(stopped);
                }
            }
            match seat.turn() {
                Turn::Decided(decision) => return Ok(decision),
                Turn::Lead(lead) => {
                    let graded = tokio::select! {
                        biased;
                        () = cancel.cancelled() => continue,
                        graded = self.grade_group(seat.place(), &lead) => graded,
                    };
                    lead.decide(graded);
                    if let Some(journal) = self.host.0.runtime.journal() {
                        // If the journal fails, no result can be reported either, and the driver reports that.
                        let _ = journal.written().await;
                    }
                }
                Turn::Wait(until) => {
                    let closes = async {
                        match until {
                            Some(until) => tokio::time::sleep_until(until).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = seat.changed() => {}
                        () = closes => {}
                        () = cancel.cancelled(), if !cancel.is_cancelled() => {}
                    }
                }
            }
        }
    }

    /// Returns the failure of a rollout that was cancelled.
    fn stopped(&self) -> Failure {
        let cancelled = Failure::cancelled(Stage::Grader);
        let stopped = self.unless_evicted(Stage::Grader, Err(cancelled.clone())).err().unwrap_or(cancelled);
        self.failure.clone().unwrap_or(stopped)
    }

    /// Returns the samples for the group, or the reason why there are none.
    fn ready_member(&self) -> Result<ReadyMember, String> {
        if let Some(failure) = &self.failure {
            return Err(failure.reason.clone());
        }
        let samples = self.record.samples();
        let is_empty = samples.is_empty();
        let samples: Vec<SampleRecord> = samples.into_iter().filter(|sample| !sample.withdrawn).collect();
        match samples.is_empty() {
            true if is_empty => Err("it registered no sample".to_owned()),
            true => Err("every sample was withdrawn".to_owned()),
            false => {
                let (label, rewards) = (self.request.label.clone(), self.rewards.clone());
                Ok(ReadyMember { label, samples, rewards })
            }
        }
    }

    /// Applies the decision to the rollout's samples. Returns whether the group grader rated them.
    fn apply_decision(&mut self, place: &GroupSeat, decision: &GroupDecision) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if let Some(failure) = &decision.failure {
            self.failure = Some(failure.clone());
            return false;
        }
        let ratings = decision.ratings.as_ref().and_then(|ratings| ratings.get(&place.member));
        let Some(ratings) = ratings else { return false };
        for SampleRating { sample: id, reward, metrics } in ratings {
            self.rewards.insert(id.clone(), *reward);
            self.record.with_samples(|kept| {
                if let Some(sample) = kept.iter_mut().find(|sample| sample.id == *id) {
                    sample.metrics.extend(metrics.iter().map(|(name, value)| (name.clone(), *value)));
                }
            });
        }
        self.graded = true;
        true
    }

    /// Runs the group grader on the members' samples, within this rollout's time for its grader.
    async fn grade_group(&mut self, place: &GroupSeat, lead: &Lead) -> Result<Ratings, Failure> {
        let host = self.host.clone();
        let Some(plugin) = host.0.deployment.group_grader() else { return Ok(None) };
        let ready = &lead.ready;
        if ready.members.is_empty() {
            return Ok(None);
        }
        self.enter(Phase::Grading);
        if self.slot.is_none() {
            self.slot = host.0.runtime.slots().next().await.map(Permit::counted);
        }
        if self.slot.is_none() {
            return Err(Failure::host(Stage::Grader, "the host is shutting down"));
        }
        let graded = self.run_group_grader(place, plugin, ready).await;
        drop(self.slot.take());
        graded
    }

    async fn run_group_grader(
        &self,
        place: &GroupSeat,
        plugin: &Plugin,
        ready: &ReadyGroup,
    ) -> Result<Ratings, Failure> {
        let fail = |kind, reason: String| Failure::new(Stage::Grader, kind, Fault::Plugin, reason);
        let limits = self.host.0.deployment.limits.clone();
        let began = Instant::now();
        let deadline = Deadline::new(self.request.grader_secs, began, began, limits.grader_time_max);
        let judge = self.host.0.deployment.judge.clone();
        let outside = Live { judge, ..Live::until(Some(deadline.at)) };
        // Calls of the judge belong to the group. A crash before the decision repeats them.
        let record = Arc::new(Record::for_rollout(self.record.trace().clone(), self.holder.clone()));
        let run = self.grader_run();
        let boundary = Arc::new(Boundary::new(Run::Grader, None, Past::default()));
        let imports = Imports::new(Role::GroupGrader, run, limits.clone(), outside, record.clone());
        let imports = imports.across(boundary.clone());
        let bounds = self.bounds(&deadline)?;
        let texts = ready.members.iter().flat_map(|(_, _, member)| &member.samples);
        let bytes = texts.map(|sample| sample.messages.text_bytes()).sum();
        let copied = self.host.budget().charge_anyway(Use::Record, bytes);
        let ran = instance::run_group_grader(plugin.linked(), imports, bounds, to_rate(place, ready)).await;
        drop(copied);
        boundary.end(&record, &limits);
        let mut entries = Vec::new();
        record.with_remains(|remains| entries.extend_from_slice(remains.log));
        self.record.add_log(entries, &limits);
        let ratings = match ran {
            Ok(ratings) => ratings,
            Err(error) if deadline.ended(&error) => {
                return Err(self.over_time(&deadline, Stage::Grader, Duration::ZERO));
            }
            Err(error) => return Err(self.blame_group_grader(&record, &error)),
        };
        self.check_refused_uses_in(&record, Stage::Grader)?;
        let named = ratings.iter().flat_map(|rating| &rating.metrics);
        let bytes: usize = named.map(|(name, _)| name.len() + size_of::<(String, f64)>()).sum();
        if bytes > METRICS_BYTES_MAX {
            let reason = format!("group grader gave metrics of {bytes} bytes, more than {METRICS_BYTES_MAX}");
            return Err(fail(FailureKind::Limit, reason));
        }
        checked(ready, ratings).map(Some).map_err(|reason| fail(FailureKind::Invalid, reason))
    }

    /// Converts the error of a group grader. The grader is not at fault if its judge failed it.
    fn blame_group_grader(&self, record: &Record, error: &RunError) -> Failure {
        let failure = self.explain(Stage::Grader, error);
        let reason = match failure.reason.strip_prefix("grader ") {
            Some(rest) => format!("group grader {rest}"),
            None => format!("group grader: {}", failure.reason),
        };
        let failure = Failure { reason, ..failure };
        match record.judge_failure() {
            Some(JudgeFailure { fault, .. }) if failure.kind == FailureKind::Error => {
                Failure { kind: FailureKind::Judge, fault, ..failure }
            }
            _ => failure,
        }
    }
}

/// Returns the group as its grader receives it.
fn to_rate(place: &GroupSeat, ready: &ReadyGroup) -> GroupToGrade {
    let members = ready.members.iter().map(|(number, rollout, member)| {
        let sample = |sample: &SampleRecord| (to_grade(sample), member.rewards.get(&sample.id).copied());
        MemberToGrade {
            number: *number,
            rollout_id: rollout.as_str().to_owned(),
            label: member.label.clone(),
            samples: member.samples.iter().map(sample).collect(),
        }
    });
    GroupToGrade {
        id: place.id.as_str().to_owned(),
        size: place.size,
        members: members.collect(),
        failed: ready.failed.iter().map(|failed| (failed.member, failed.reason.clone())).collect(),
    }
}

/// Checks that there is one valid rating for each sample.
fn checked(
    ready: &ReadyGroup,
    ratings: Vec<GuestRating>,
) -> Result<BTreeMap<u32, Vec<SampleRating>>, String> {
    let samples = ready.members.iter().flat_map(|(number, _, member)| {
        member.samples.iter().map(|sample| ((*number, sample.id.as_str().to_owned()), &sample.id))
    });
    let mut unrated: HashMap<(u32, String), &SampleId> = samples.collect();
    let mut by_member: BTreeMap<u32, Vec<SampleRating>> = BTreeMap::new();
    for GuestRating { member, sample_id, reward, metrics } in ratings {
        let name = format!("sample '{}' of member {member}", brief(&sample_id));
        let Some(sample) = unrated.remove(&(member, sample_id)) else {
            return Err(format!("group grader rated {name} twice, or was not given it"));
        };
        if !reward.is_finite() {
            return Err(format!(
                "group grader gave {name} the reward {reward}, which is not a finite number"
            ));
        }
        if let Some((metric, value)) = metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(format!(
                "group grader gave metric '{}' the value {value}, which is not a finite number",
                brief(metric)
            ));
        }
        let rating = SampleRating { sample: sample.clone(), reward, metrics: metrics.into_iter().collect() };
        by_member.entry(member).or_default().push(rating);
    }
    match unrated.into_keys().min() {
        Some((member, sample)) => {
            Err(format!("group grader gave no rating of sample '{}' of member {member}", brief(&sample)))
        }
        None => Ok(by_member),
    }
}
