//! The core of a host that runs agent code written by its users.
//!
//! Workflows (agent loops) and graders (reward functions) are WebAssembly components. Each rollout runs in its own
//! instances, gets access to a model and a place to register its samples, and ends with exactly one outcome.
//! `ARCHITECTURE.md` describes the stages of a rollout and the invariants of each.
//!
//! This crate knows no protocol, no data set and no command.

pub mod budget;
pub mod capacity;
pub mod child;
pub mod engine;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod harden;
pub mod http1;
pub mod imports;
pub mod instance;
pub mod limits;
pub mod moments;
pub mod outbound;
pub mod plugin;
pub mod rollout;
pub mod seal;
mod stack;
pub mod telemetry;
pub mod toolbox;

pub use rollout_wire::{self as wire, digest, id, text};
