//! The programs that fuzz the host: one for each target in the `fuzzing` modules of its crates, which state the
//! invariants.

#[doc(hidden)]
pub use libfuzzer_sys;
use rollout_wire::fuzzing::Target;

/// Returns the target of this name.
pub fn target(name: &str) -> Target {
    let mut targets = rollout_assembly::fuzzing::TARGETS
        .into_iter()
        .chain(rollout_eval::fuzzing::TARGETS)
        .chain(rollout_guest::fuzzing::TARGETS)
        .chain(rollout_journal::fuzzing::TARGETS)
        .chain(rollout_mock_model::fuzzing::TARGETS)
        .chain(rollout_outbound::fuzzing::TARGETS)
        .chain(rollout_rollout::fuzzing::TARGETS)
        .chain(rollout_server::fuzzing::TARGETS)
        .chain(rollout_wire::fuzzing::TARGETS);
    let found = targets.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("there is no target {name}")).1
}

/// Generates the program of a target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::target($name)(bytes));
    };
}
