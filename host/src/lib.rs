//! A host that runs other people's agent code.
//!
//! Workflows (agent loops) and graders (reward functions) arrive as WebAssembly
//! components. Every rollout runs in instances of its own, is lent a model and a
//! place to register its samples, and ends in exactly one outcome. `ARCHITECTURE.md`
//! tells the life of a rollout and what holds at every step of it.

#![warn(missing_docs)]
// Their macros panic where a reader went away; `cli/print.rs` has those that do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod assembly;
pub mod bench;
pub mod budget;
pub mod capacity;
pub mod cli;
pub mod config;
pub mod connection;
pub mod dialect;
pub mod digest;
pub mod engine;
pub mod error;
pub mod eval;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod harden;
mod http1;
pub mod id;
pub mod imports;
pub mod instance;
pub mod limits;
pub mod mock_model;
mod moments;
pub mod outbound;
pub mod plugin;
mod random;
pub mod rollout;
pub mod server;
pub mod telemetry;
pub mod text;
pub mod toolbox;
pub mod wire;
