//! The programs that fuzz the host: one a target of `rollout_host::fuzzing`, where what
//! has to hold is written down.

#[doc(hidden)]
pub use libfuzzer_sys;
use rollout_host::fuzzing::{TARGETS, Target};

/// The target of this name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("there is no target {name}")).1
}

/// Makes the program of a target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::target($name)(bytes));
    };
}
