//! The crate's fuzz target, which tests the texts, numbers and files that a guest passes to its imports. A target takes
//! any bytes and panics if an invariant does not hold.
//!
//! This module is compiled only in tests and with the feature `fuzzing`, which released builds do not enable.

/// A fuzz target.
pub type Target = fn(&[u8]);

/// The crate's targets with the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 1] = [("imports", crate::imports::fuzzing::imports)];

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
