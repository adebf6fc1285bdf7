//! The core of a host that runs other people's agent code.
//!
//! Workflows (agent loops) and graders (reward functions) arrive as WebAssembly
//! components. Every rollout runs in instances of its own, is provided a model and a
//! place to register its samples, and ends in exactly one outcome. `ARCHITECTURE.md`
//! tells the life of a rollout and what holds at every step of it.
//!
//! Nothing here knows a protocol, a data set or a command.

pub mod budget;
pub mod capacity;
pub mod child;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod harden;
pub mod http1;
pub mod limits;
pub mod moments;
pub mod outbound;
pub mod telemetry;
