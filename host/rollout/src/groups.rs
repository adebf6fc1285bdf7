//! Groups of live rollouts: their seats, the members that wait, and the result of each group.
//!
//! A rollout takes its [`Seat`] when it is admitted and [arrives](Seat::arrive) when it has ended, with samples or
//! with a failure. When every member has arrived, one of them [leads](Turn::Lead): it grades the group. The decision is
//! stored in the log of every member before any of them ends. So a group can be rebuilt after a crash from the
//! members that have not ended: either these are all members, or one of them has the decision. A cancelled member
//! leaves at once, and the logs of the others record that first.
//!
//! A group exists as long as one of its members has a seat, so there are at most as many groups as live rollouts.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::RolloutLog;
use super::model::{FailedMember, Failure, GroupDecision, GroupEvent, GroupSeat, SampleRating};
use rollout_transcript::SampleRecord;
use rollout_wire::id::{RolloutId, SampleId};
use rollout_wire::text::beginning;

/// Maximum number of bytes of a failed member's reason.
const REASON_BYTES_MAX: usize = 256;

/// Error of a rollout that cannot take its seat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupRefused {
    /// The group has another size.
    #[error("group '{id}' has {size} members, and this request says {given}")]
    OtherSize {
        /// The group.
        id: RolloutId,
        /// Its number of members.
        size: u32,
        /// The number in the request.
        given: u32,
    },
    /// Another rollout has the seat.
    #[error("member {member} of group '{id}' is rollout '{rollout}'; give each member its own number")]
    Taken {
        /// The group.
        id: RolloutId,
        /// The seat.
        member: u32,
        /// The rollout that has it.
        rollout: RolloutId,
    },
    /// The host has room for fewer rollouts than the group has members, so that they could never wait for each other.
    #[error(
        "group '{id}' has {size} members, and this host has room for {places} rollouts (max-concurrent and queue-max \
         together); make the group smaller, or raise them"
    )]
    NoPlaces {
        /// The group.
        id: RolloutId,
        /// Its number of members.
        size: u32,
        /// Maximum number of live rollouts.
        places: u64,
    },
    /// The group is complete or has waited long enough.
    #[error("group '{id}' takes no more members, because it is being graded; begin a group with another id")]
    Closed {
        /// The group.
        id: RolloutId,
    },
}

/// The groups of a plugin.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Mutex<HashMap<RolloutId, Group>>,
    /// Number of seats so far, by which a seat differs from a later one of the same member.
    seats: AtomicU64,
    /// Whether the rollouts of an earlier process have taken their seats, if there is a journal.
    resumed: Option<watch::Receiver<bool>>,
}

#[derive(Debug)]
struct Group {
    size: u32,
    seats: BTreeMap<u32, Member>,
    /// Members that left without waiting.
    left: BTreeMap<u32, FailedMember>,
    /// Whether a member grades the group.
    is_led: bool,
    decision: Option<Arc<GroupDecision>>,
    /// Whether the decision is stored, so that members may end.
    is_stored: bool,
    /// Whether the group no longer waits for missing members.
    is_closed: bool,
    closes_at: Instant,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Member {
    /// Number of its seat.
    seat: u64,
    rollout: RolloutId,
    log: Option<RolloutLog>,
    /// Whether the rollout was admitted. Otherwise the seat is free again when it is dropped.
    is_admitted: bool,
    /// Whether the log has the decision.
    has_decision: bool,
    arrival: Option<Arrival>,
}

#[derive(Debug)]
enum Arrival {
    Ready(Arc<ReadyMember>),
    Failed(String),
}

/// The samples of a member that ended.
#[derive(Debug)]
pub(crate) struct ReadyMember {
    pub label: Option<String>,
    /// The samples that were not withdrawn; at least one.
    pub samples: Vec<SampleRecord>,
    pub rewards: HashMap<SampleId, f64>,
}

/// The next step of a member that has arrived.
pub(crate) enum Turn {
    /// Wait for a change of the group, or until this time if it is known when the group closes.
    Wait(Option<Instant>),
    /// Grade the group.
    Lead(Lead),
    /// The group is decided.
    Decided(Arc<GroupDecision>),
}

/// The members of a group that is graded.
pub(crate) struct ReadyGroup {
    /// Members with samples, by number.
    pub members: Vec<(u32, RolloutId, Arc<ReadyMember>)>,
    /// The other members, by number.
    pub failed: Vec<FailedMember>,
}

impl Group {
    fn new(GroupSeat { size, join_secs, .. }: &GroupSeat) -> Self {
        Self {
            size: *size,
            seats: BTreeMap::new(),
            left: BTreeMap::new(),
            is_led: false,
            decision: None,
            is_stored: false,
            is_closed: false,
            closes_at: Instant::now() + Duration::from_secs(u64::from(*join_secs)),
            changed: watch::Sender::new(()),
        }
    }

    /// Returns whether the group can be decided: every member has arrived or left, or the group no longer waits for it.
    /// While rollouts of an earlier process are read, a member that left may still take its seat again.
    fn is_complete(&self, is_resumed: bool) -> bool {
        let is_gone = |number: &&u32| is_resumed && !self.seats.contains_key(number);
        let left = self.left.keys().filter(is_gone).count();
        let all_arrived = self.seats.values().all(|member| member.arrival.is_some());
        all_arrived && (self.is_closed || self.seats.len() + left >= self.size as usize)
    }

    /// Returns whether this member is the one to grade the group: the first that is ready, if there is one.
    fn is_led_by(&self, number: u32) -> bool {
        let is_ready = |member: &Member| matches!(member.arrival, Some(Arrival::Ready(_)));
        let first = self.seats.iter().find(|(_, member)| is_ready(member));
        first.is_none_or(|(first, _)| *first == number)
    }

    fn failed(&self) -> Vec<FailedMember> {
        let failed = |member: u32| match (self.seats.get(&member), self.left.get(&member)) {
            (Some(Member { arrival: Some(Arrival::Failed(reason)), rollout, .. }), _) => {
                Some(FailedMember { member, rollout_id: Some(rollout.clone()), reason: reason.clone() })
            }
            (Some(_), _) => None,
            (None, Some(left)) => Some(left.clone()),
            (None, None) => {
                let reason = "no request for this member arrived in time".to_owned();
                Some(FailedMember { member, rollout_id: None, reason })
            }
        };
        (0..self.size).filter_map(failed).collect()
    }

    fn ready(&self) -> ReadyGroup {
        let ready = |(number, member): (&u32, &Member)| match &member.arrival {
            Some(Arrival::Ready(ready)) => Some((*number, member.rollout.clone(), ready.clone())),
            Some(Arrival::Failed(_)) | None => None,
        };
        ReadyGroup { members: self.seats.iter().filter_map(ready).collect(), failed: self.failed() }
    }

    /// Removes a member that left before the group was decided, and records it in the logs of the others.
    fn remove_member(&mut self, number: u32, reason: &str) {
        let Some(Member { rollout, .. }) = self.seats.remove(&number) else { return };
        let reason = beginning(reason, REASON_BYTES_MAX);
        let left = FailedMember { member: number, rollout_id: Some(rollout), reason };
        let event = GroupEvent::Left(left.clone());
        self.seats.values().filter_map(|member| member.log.as_ref()).for_each(|log| log.group(&event));
        self.left.insert(number, left);
    }
}

impl Groups {
    /// Creates the groups of a plugin. `resumed` becomes `true` when the rollouts of an earlier process have taken
    /// their seats.
    pub(crate) fn new(resumed: Option<watch::Receiver<bool>>) -> Arc<Self> {
        Arc::new(Self { resumed, ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RolloutId, Group>> {
        // A group is plain data, and each change of it is complete before the lock is released.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_resumed(&self) -> bool {
        self.resumed.as_ref().is_none_or(|resumed| *resumed.borrow())
    }

    /// Changes a group, and removes it if it is no longer needed: it has no members, and the journal has no further
    /// members to read.
    fn change<T>(&self, id: &RolloutId, change: impl FnOnce(&mut Group) -> T) -> Option<T> {
        let mut groups = self.lock();
        let group = groups.get_mut(id)?;
        let changed = change(group);
        if group.seats.is_empty() && self.is_resumed() {
            groups.remove(id);
        }
        Some(changed)
    }

    /// Takes the seat of a rollout that is being admitted.
    pub(crate) fn take(
        self: &Arc<Self>,
        seat: &GroupSeat,
        rollout: &RolloutId,
    ) -> Result<Seat, GroupRefused> {
        let GroupSeat { id, size, member, .. } = seat;
        let mut groups = self.lock();
        if self.is_resumed() {
            groups.retain(|_, group| !group.seats.is_empty());
        }
        if let Some(group) = groups.get(id) {
            if group.size != *size {
                return Err(GroupRefused::OtherSize { id: id.clone(), size: group.size, given: *size });
            }
            if let Some(Member { rollout, .. }) = group.seats.get(member) {
                let rollout = rollout.clone();
                return Err(GroupRefused::Taken { id: id.clone(), member: *member, rollout });
            }
            if group.is_closed || group.is_led || group.decision.is_some() {
                return Err(GroupRefused::Closed { id: id.clone() });
            }
        }
        Ok(self.seat(&mut groups, seat, rollout))
    }

    /// Takes the seat of a rollout that an earlier process admitted, with the events of its group in its log.
    pub(crate) fn restore(
        self: &Arc<Self>,
        seat: &GroupSeat,
        (rollout, log): (&RolloutId, &RolloutLog),
        events: Vec<GroupEvent>,
    ) -> Seat {
        let mut groups = self.lock();
        let taken = self.seat(&mut groups, seat, rollout);
        if let Some(group) = groups.get_mut(&seat.id) {
            let mut has_decision = false;
            for event in events {
                match event {
                    GroupEvent::Left(left) => drop(group.left.insert(left.member, left)),
                    // All decisions of a group that were reported with any member are the same.
                    GroupEvent::Decided(decision) => {
                        has_decision = true;
                        group.decision.get_or_insert_with(|| Arc::new(decision));
                        group.is_stored = true;
                    }
                }
            }
            if let Some(member) = group.seats.get_mut(&seat.member) {
                member.log = Some(log.clone());
                (member.is_admitted, member.has_decision) = (true, has_decision);
            }
            group.changed.send_replace(());
        }
        taken
    }

    fn seat(
        self: &Arc<Self>,
        groups: &mut HashMap<RolloutId, Group>,
        seat: &GroupSeat,
        rollout: &RolloutId,
    ) -> Seat {
        let group = groups.entry(seat.id.clone()).or_insert_with(|| Group::new(seat));
        let number = self.seats.fetch_add(1, Ordering::Relaxed);
        let member = Member {
            seat: number,
            rollout: rollout.clone(),
            log: None,
            is_admitted: false,
            has_decision: false,
            arrival: None,
        };
        group.seats.insert(seat.member, member);
        let changed = group.changed.subscribe();
        Seat { groups: self.clone(), place: seat.clone(), number, changed }
    }
}

/// The seat of a rollout in its group. A live rollout that drops it before the group is decided counts as a failed
/// member.
#[derive(Debug)]
pub(crate) struct Seat {
    groups: Arc<Groups>,
    place: GroupSeat,
    number: u64,
    changed: watch::Receiver<()>,
}

impl Seat {
    /// Returns the member, unless it left.
    fn member<'a>(&self, group: &'a mut Group) -> Option<&'a mut Member> {
        group.seats.get_mut(&self.place.member).filter(|member| member.seat == self.number)
    }

    /// Returns the group and the number of the member.
    pub(crate) fn place(&self) -> &GroupSeat {
        &self.place
    }

    /// Records that the rollout was admitted, with its log if it has one.
    pub(crate) fn admitted(&self, log: Option<&RolloutLog>) {
        self.groups.change(&self.place.id, |group| {
            if let Some(log) = log {
                group.left.values().for_each(|left| log.group(&GroupEvent::Left(left.clone())));
            }
            if let Some(member) = self.member(group) {
                (member.is_admitted, member.log) = (true, log.cloned());
            }
        });
    }

    /// Records that the rollout has ended, with its samples or the reason of its failure.
    pub(crate) fn arrive(&self, ended: Result<ReadyMember, &str>) {
        let arrival = match ended {
            Ok(ready) => Arrival::Ready(Arc::new(ready)),
            Err(reason) => Arrival::Failed(beginning(reason, REASON_BYTES_MAX)),
        };
        self.groups.change(&self.place.id, |group| {
            if let Some(member) = self.member(group) {
                member.arrival = Some(arrival);
            }
            group.changed.send_replace(());
        });
    }

    /// Returns the next step.
    pub(crate) fn turn(&mut self) -> Turn {
        self.changed.mark_unchanged();
        let is_resumed = self.groups.is_resumed();
        let (groups, id) = (self.groups.clone(), self.place.id.clone());
        let turn = self.groups.change(&self.place.id, |group| {
            if let Some(decision) = group.decision.as_ref().filter(|_| group.is_stored) {
                return Turn::Decided(decision.clone());
            }
            if is_resumed && !group.is_closed && Instant::now() >= group.closes_at {
                group.is_closed = true;
                group.changed.send_replace(());
            }
            let is_decided = group.is_led || group.decision.is_some();
            if is_decided || !group.is_complete(is_resumed) || !group.is_led_by(self.place.member) {
                return Turn::Wait(Some(group.closes_at).filter(|_| is_resumed && !group.is_closed));
            }
            group.is_led = true;
            Turn::Lead(Lead { groups, id, ready: group.ready() })
        });
        // A seat that is held keeps its group.
        turn.unwrap_or_else(|| Turn::Decided(Arc::default()))
    }

    /// Waits for a change of the group.
    pub(crate) async fn changed(&mut self) {
        let mut resumed = self.groups.resumed.clone().filter(|resumed| !*resumed.borrow());
        let all_resumed = async {
            match &mut resumed {
                Some(resumed) => drop(resumed.wait_for(|resumed| *resumed).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.changed.changed() => {}
            () = all_resumed => {}
        }
    }

    /// Leaves the group for this reason. Returns `false` if the group is decided already; the decision then applies.
    pub(crate) fn leave(&self, reason: &str) -> bool {
        let left = self.groups.change(&self.place.id, |group| {
            if group.decision.is_some() {
                return false;
            }
            if self.member(group).is_some() {
                group.remove_member(self.place.member, reason);
            }
            group.changed.send_replace(());
            true
        });
        left.unwrap_or(true)
    }

    /// Stores the decision in the rollout's own log, unless the log has it already.
    pub(crate) fn store(&self, decision: &GroupDecision) {
        self.groups.change(&self.place.id, |group| {
            let Some(member) = self.member(group) else { return };
            if let Some(log) = member.log.as_ref().filter(|_| !member.has_decision) {
                log.group(&GroupEvent::Decided(decision.clone()));
            }
            member.has_decision = true;
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.groups.change(&self.place.id, |group| {
            let Some(is_admitted) = self.member(group).map(|member| member.is_admitted) else { return };
            if is_admitted && group.decision.is_none() {
                group.remove_member(self.place.member, "the host ended the rollout");
            } else {
                group.seats.remove(&self.place.member);
            }
            group.changed.send_replace(());
        });
    }
}

/// The right of one member to decide its group. Dropped without a decision, it passes to another member.
pub(crate) struct Lead {
    groups: Arc<Groups>,
    id: RolloutId,
    /// The members when the right was obtained.
    pub ready: ReadyGroup,
}

impl Lead {
    /// Decides the group, and appends the decision to the log of every member. The decision is effective when this right
    /// is dropped, which must be after the journal has stored it.
    pub(crate) fn decide(&self, ratings: Result<Option<BTreeMap<u32, Vec<SampleRating>>>, Failure>) {
        self.groups.change(&self.id, |group| {
            let (ratings, failure) = match ratings {
                Ok(ratings) => (ratings, None),
                Err(failure) => (None, Some(failure)),
            };
            // Members may have left meanwhile.
            let decision = GroupDecision { ratings, failure, failed: group.failed() };
            let event = GroupEvent::Decided(decision.clone());
            for member in group.seats.values_mut() {
                if let Some(log) = &member.log {
                    log.group(&event);
                }
                member.has_decision = true;
            }
            group.decision = Some(Arc::new(decision));
        });
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.groups.change(&self.id, |group| {
            group.is_led = false;
            group.is_stored = group.decision.is_some();
            group.changed.send_replace(());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(member: u32) -> GroupSeat {
        GroupSeat { id: id("g"), size: 2, member, join_secs: 600 }
    }

    fn id(name: &str) -> RolloutId {
        RolloutId::parse(name).unwrap()
    }

    fn seat(groups: &Arc<Groups>, member: u32) -> Seat {
        let seat = groups.take(&place(member), &id(&format!("r{member}"))).unwrap();
        seat.admitted(None);
        seat
    }

    fn ready() -> Result<ReadyMember, &'static str> {
        Ok(ReadyMember { label: None, samples: Vec::new(), rewards: HashMap::new() })
    }

    fn waits(seat: &mut Seat) -> bool {
        matches!(seat.turn(), Turn::Wait(_))
    }

    #[test]
    fn the_first_ready_member_grades_and_the_next_one_does_if_it_gives_up() {
        let groups = Groups::new(None);
        let (mut first, mut second) = (seat(&groups, 0), seat(&groups, 1));
        second.arrive(ready());
        assert!(waits(&mut second), "the first has not arrived");
        first.arrive(ready());
        assert!(waits(&mut second), "the first grades");
        let Turn::Lead(lead) = first.turn() else { panic!("it is complete") };
        assert_eq!(lead.ready.members.len(), 2);
        drop(lead);
        assert!(first.leave("cancelled"));

        let Turn::Lead(lead) = second.turn() else { panic!("the first left") };
        lead.decide(Ok(None));

        assert!(waits(&mut second), "the decision is not stored");
        assert!(!second.leave("cancelled"), "it is too late");
        drop(lead);
        let Turn::Decided(decision) = second.turn() else { panic!("it is stored") };
        assert_eq!(decision.failed.iter().map(|failed| failed.member).collect::<Vec<_>>(), [0]);
        drop((first, second));
        assert!(groups.lock().is_empty(), "nothing is held for a group without members");
    }

    #[test]
    fn a_failed_member_waits_and_a_dropped_one_counts_as_failed() {
        let groups = Groups::new(None);
        let (mut first, second) = (seat(&groups, 0), seat(&groups, 1));
        first.arrive(Err("it failed"));
        assert!(waits(&mut first));

        drop(second);

        let Turn::Lead(lead) = first.turn() else { panic!("no other member is left") };
        assert!(lead.ready.members.is_empty());
        assert_eq!(lead.ready.failed.len(), 2);
    }

    #[test]
    fn a_seat_that_was_not_admitted_is_free_again() {
        let groups = Groups::new(None);
        let first = seat(&groups, 0);
        drop(groups.take(&place(1), &id("refused")).unwrap());

        let second = seat(&groups, 1);

        assert!(groups.take(&place(1), &id("other")).is_err());
        drop((first, second));
        assert!(groups.lock().is_empty());
    }

    #[test]
    fn a_group_is_not_decided_while_members_of_an_earlier_process_may_return() {
        let resumed = watch::Sender::new(false);
        let groups = Groups::new(Some(resumed.subscribe()));
        let (mut first, second) = (seat(&groups, 0), seat(&groups, 1));
        first.arrive(ready());
        assert!(second.leave("cancelled"));
        assert!(waits(&mut first));

        resumed.send_replace(true);

        assert!(matches!(first.turn(), Turn::Lead(_)));
    }

    #[test]
    fn a_decision_of_an_earlier_process_is_kept_until_all_its_members_returned() {
        let resumed = watch::Sender::new(false);
        let groups = Groups::new(Some(resumed.subscribe()));
        let mut first = seat(&groups, 0);
        first.arrive(ready());
        groups.change(&id("g"), |group| {
            (group.decision, group.is_stored) = (Some(Arc::default()), true);
        });
        assert!(matches!(first.turn(), Turn::Decided(_)));
        drop(first);

        let mut second = groups.seat(&mut groups.lock(), &place(1), &id("r1"));

        assert!(matches!(second.turn(), Turn::Decided(_)));
        drop(second);
        resumed.send_replace(true);
        drop(groups.take(&place(0), &id("another")).unwrap());
        assert!(groups.lock().is_empty());
    }
}
