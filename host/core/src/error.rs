//! The party that must act after a failure.

pub use rollout_transcript::Fault;
