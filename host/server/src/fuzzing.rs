//! Fuzz targets of the server: the requests of its protocols.

use crate::dialect::osmosis::fuzzing::{cancel, start_rollout};

/// A fuzz target: a function that must accept any bytes.
pub type Target = fn(&[u8]);

/// The targets of this crate, by the name that their program and the directory of their corpus share.
pub const TARGETS: [(&str, Target); 2] = [("start_rollout", start_rollout), ("cancel", cancel)];

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
