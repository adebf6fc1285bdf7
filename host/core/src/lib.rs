//! Basic services for all other crates of the host: memory budget, storage quota, limits, the machine's capacity, metrics, logs and
//! traces, hardening of processes, and child processes.
//!
//! This crate knows no guest, no rollout, no connection and no protocol.

pub mod budget;
pub mod capacity;
pub mod child;
pub mod error;
pub mod harden;
pub mod limits;
pub mod moments;
pub mod storage;
pub mod telemetry;
