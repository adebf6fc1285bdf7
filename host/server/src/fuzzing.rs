//! What is fuzzed of a server: the requests of its protocols.

use crate::dialect::osmosis::fuzzing::{cancel, start_rollout};

/// A target: what any bytes are given to.
pub type Target = fn(&[u8]);

/// The targets of this crate, by the names of their programs and of the directories of their corpora.
pub const TARGETS: [(&str, Target); 2] = [("start_rollout", start_rollout), ("cancel", cancel)];

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
