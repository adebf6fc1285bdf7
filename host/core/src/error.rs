//! The party that must act on a failure.

pub use rollout_transcript::Fault;
