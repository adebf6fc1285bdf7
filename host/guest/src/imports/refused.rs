//! Uses of the machine that a guest's own runtime refused: a component has no processes, no files of the
//! machine, no network and one thread.
//!
//! Programs often ignore such refusals and produce values that look like results. So runtimes report them,
//! the host counts them by kind with the location of the first one, and the counts accompany the reward. The
//! number of entries is the number of kinds, however often a guest reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bindings::rollout::plugin::log::RefusedUse as Reported;
use rollout_wire::text;

/// Number of bytes of a location that are stored. The location is a guest's text.
const PLACE_BYTES_MAX: usize = 256;

/// Maximum number of bytes that one kind takes in the record.
pub(super) const KIND_BYTES: usize = PLACE_BYTES_MAX + size_of::<(RefusedKind, RefusedUse)>();

/// Kind of a refused use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusedKind {
    /// Starting a process.
    Process,
    /// Opening, creating or changing a file that a component does not have.
    File,
    /// Reaching the network.
    Network,
    /// Continuing in a thread that waits for another one.
    Thread,
    /// Being interrupted by an alarm.
    Alarm,
    /// Importing a module that a component does not have.
    Module,
}

impl RefusedKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Process, Self::File, Self::Network, Self::Thread, Self::Alarm, Self::Module];

    /// Returns the kind's name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::File => "file",
            Self::Network => "network",
            Self::Thread => "thread",
            Self::Alarm => "alarm",
            Self::Module => "module",
        }
    }

    /// Describes the guest's action for a reader, as the predicate of a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Process => "tried to start a process",
            Self::File => "tried to use a file that a component does not have",
            Self::Network => "tried to reach the network",
            Self::Thread => "waited for a thread that never runs",
            Self::Alarm => "set an alarm, which interrupts no computation in a component",
            Self::Module => "imported a module that a component does not have",
        }
    }

    /// Returns whether the guest did not get what it requested. An alarm is set, but arrives later than on
    /// other systems.
    pub fn is_failure(self) -> bool {
        self != Self::Alarm
    }
}

impl From<Reported> for RefusedKind {
    fn from(kind: Reported) -> Self {
        match kind {
            Reported::Process => Self::Process,
            Reported::File => Self::File,
            Reported::Network => Self::Network,
            Reported::Thread => Self::Thread,
            Reported::Alarm => Self::Alarm,
            Reported::Module => Self::Module,
        }
    }
}

/// Refused uses of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedUse {
    /// Number of uses.
    pub count: u64,
    /// Location of the first use, in the guest's words.
    pub first: String,
}

/// The refused uses of one rollout, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RefusedUses(BTreeMap<RefusedKind, RefusedUse>);

impl RefusedUses {
    /// Returns whether there are uses of this kind.
    pub(super) fn has(&self, kind: RefusedKind) -> bool {
        self.0.contains_key(&kind)
    }

    /// Removes the uses of a kind.
    pub(super) fn clear(&mut self, kind: RefusedKind) {
        self.0.remove(&kind);
    }

    /// Adds uses of a kind. Only the location of the kind's first report is stored.
    pub(super) fn add(&mut self, kind: RefusedKind, count: u32, place: &str) {
        let uses = self.0.entry(kind).or_insert_with(|| RefusedUse {
            count: 0,
            // Escaping makes the text longer, so it is cut again.
            first: text::beginning(
                &text::printable(&text::beginning(place, PLACE_BYTES_MAX)),
                PLACE_BYTES_MAX,
            ),
        });
        uses.count = uses.count.saturating_add(count.into());
    }

    /// Returns whether no use was refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the kinds that have uses.
    pub fn iter(&self) -> impl Iterator<Item = (RefusedKind, &RefusedUse)> {
        self.0.iter().map(|(kind, uses)| (*kind, uses))
    }

    /// Returns the number of uses that are failures.
    pub fn failures(&self) -> u64 {
        let failures = self.0.iter().filter(|(kind, _)| kind.is_failure());
        failures.fold(0, |sum, (_, uses)| sum.saturating_add(uses.count))
    }

    /// Describes the first kind that is a failure with its location, as the predicate of a sentence.
    pub fn first_failure(&self) -> Option<String> {
        let (kind, uses) = self.0.iter().find(|(kind, _)| kind.is_failure())?;
        Some(format!("{} ({})", kind.description(), uses.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_with_the_place_of_the_first_however_often_it_is_reported() {
        let mut uses = RefusedUses::default();
        for at in 0..1000 {
            uses.add(RefusedKind::File, 2, &format!("a.py:{at}"));
        }
        uses.add(RefusedKind::File, u32::MAX, "");
        uses.add(RefusedKind::Alarm, 1, &format!("\u{1b}[31m{}", "x".repeat(10_000)));

        let kinds: Vec<_> = uses.iter().map(|(kind, uses)| (kind, uses.count)).collect();
        assert_eq!(kinds, [(RefusedKind::File, 2000 + u64::from(u32::MAX)), (RefusedKind::Alarm, 1)]);
        assert_eq!(uses.failures(), 2000 + u64::from(u32::MAX));
        assert_eq!(
            uses.first_failure().as_deref(),
            Some("tried to use a file that a component does not have (a.py:0)")
        );
        let (_, alarm) = uses.iter().nth(1).unwrap();
        assert!(
            alarm.first.len() <= PLACE_BYTES_MAX + 32 && !alarm.first.contains('\u{1b}'),
            "{}",
            alarm.first
        );
        let again: RefusedUses = serde_json::from_str(&serde_json::to_string(&uses).unwrap()).unwrap();
        assert_eq!(again, uses);
    }
}
