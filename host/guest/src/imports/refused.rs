//! Uses that a guest's own runtime refused: a component has no processes, no files of the machine, no network and one
//! thread.
//!
//! Programs swallow such refusals, and what they make of them looks like a result. So runtimes report them, the host
//! counts them by kind with the place of the first one, and whoever reads a reward sees them beside it. There are as
//! many entries as kinds, however often a guest reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bindings::rollout::plugin::log::RefusedUse as Reported;
use rollout_wire::text;

/// How much of a place is kept, in bytes. It is a guest's text.
const PLACE_BYTES_MAX: usize = 256;

/// What one kind costs of the record, at the most.
pub(super) const KIND_BYTES: usize = PLACE_BYTES_MAX + size_of::<(RefusedKind, RefusedUse)>();

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusedKind {
    /// Starting a process.
    Process,
    /// Opening, making or changing a file that a component does not have.
    File,
    /// Reaching the network.
    Network,
    /// Going on in a thread that waits for another one.
    Thread,
    /// Being interrupted by an alarm.
    Alarm,
    /// Importing a module that a component does not have.
    Module,
}

impl RefusedKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Process, Self::File, Self::Network, Self::Thread, Self::Alarm, Self::Module];

    /// The word that reports carry.
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

    /// What the guest did, for a person: the predicate of a sentence.
    pub fn what(self) -> &'static str {
        match self {
            Self::Process => "tried to start a process",
            Self::File => "tried to use a file that a component does not have",
            Self::Network => "tried to reach the network",
            Self::Thread => "waited for a thread that never runs",
            Self::Alarm => "set an alarm, which interrupts no computation in a component",
            Self::Module => "imported a module that a component does not have",
        }
    }

    /// Whether the guest got something else than it asked for. An alarm is set; it only comes later than elsewhere.
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
    /// How many.
    pub count: u64,
    /// Where the first one was, in the guest's words.
    pub first: String,
}

/// The refused uses of one rollout, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RefusedUses(BTreeMap<RefusedKind, RefusedUse>);

impl RefusedUses {
    /// Whether there are some of this kind.
    pub(super) fn has(&self, kind: RefusedKind) -> bool {
        self.0.contains_key(&kind)
    }

    /// Removes what was counted of a kind.
    pub(super) fn clear(&mut self, kind: RefusedKind) {
        self.0.remove(&kind);
    }

    /// Counts so many. The place is kept with the first of a kind.
    pub(super) fn add(&mut self, kind: RefusedKind, count: u32, place: &str) {
        let uses = self.0.entry(kind).or_insert_with(|| RefusedUse {
            count: 0,
            // Escaping makes it longer, so it is cut again.
            first: text::beginning(
                &text::printable(&text::beginning(place, PLACE_BYTES_MAX)),
                PLACE_BYTES_MAX,
            ),
        });
        uses.count = uses.count.saturating_add(count.into());
    }

    /// Whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each kind of which there were some.
    pub fn iter(&self) -> impl Iterator<Item = (RefusedKind, &RefusedUse)> {
        self.0.iter().map(|(kind, uses)| (*kind, uses))
    }

    /// How many there were that gave the guest something else than it asked for.
    pub fn failures(&self) -> u64 {
        let failures = self.0.iter().filter(|(kind, _)| kind.is_failure());
        failures.fold(0, |sum, (_, uses)| sum.saturating_add(uses.count))
    }

    /// The first kind that is a failure, in a sentence's predicate with its place.
    pub fn first_failure(&self) -> Option<String> {
        let (kind, uses) = self.0.iter().find(|(kind, _)| kind.is_failure())?;
        Some(format!("{} ({})", kind.what(), uses.first))
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
