//! Errors of runs, derived from the engine's errors.

use wasmtime::component::ResourceTableError;
use wasmtime::{Store, Trap};
use wasmtime_wasi::I32Exit;

use super::InstanceState;
use super::memory::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use crate::imports::bindings::rollout::plugin::types;
use crate::imports::{ContractViolation, Diverged, PastOver};
use rollout_core::error::Fault;
use rollout_core::telemetry::Limit;

/// Error of a run that ended without the guest's own result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The wall time is used up.
    #[error("ran past its deadline")]
    Deadline,
    /// The guest reported a failure.
    #[error("{0}")]
    Failed(String),
    /// The guest reported that its input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The guest reported that a time limit that it set itself expired.
    #[error("{0}")]
    TimedOut(String),
    /// The guest needed more memory than allowed.
    #[error(
        "needed more memory than memory-bytes-max of {max} bytes; use less, or ask the operator to raise it"
    )]
    Memory {
        /// The limit.
        max: usize,
    },
    /// The guest used more CPU time than allowed.
    #[error("used more CPU time than guest-cpu-secs-max, {0} s; do less, or ask the operator to raise it")]
    Cpu(f64),
    /// The guest passed more bytes in one host call, or held more handles, than allowed.
    #[error("{0}")]
    Limit(String),
    /// The guest trapped.
    #[error("trapped: {reason}")]
    Trapped {
        /// The trap, with the innermost functions of the guest whose names are known.
        reason: String,
    },
    /// The guest called exit.
    #[error("called exit({0}) instead of returning")]
    Exited(i32),
    /// The guest violated the contract.
    #[error("broke the contract: {0}")]
    Contract(String),
    /// The guest was rerun from a record and behaved differently.
    #[error("diverged from its recorded history: {0}")]
    Diverged(Diverged),
    /// The guest was rerun from a record and has reached the end of the record.
    #[error("reached the end of its recorded history")]
    PastOver,
    /// The plugin has no such export.
    #[error("the plugin has no {0}")]
    Missing(&'static str),
    /// The host could not run the guest.
    #[error("the host failed while running the plugin: {0}")]
    Host(String),
}

impl RunError {
    /// Returns the party that must act.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Deadline
            | Self::Failed(_)
            | Self::Invalid(_)
            | Self::TimedOut(_)
            | Self::Memory { .. }
            | Self::Cpu(_)
            | Self::Limit(_)
            | Self::Trapped { .. }
            | Self::Exited(_)
            | Self::Contract(_)
            | Self::Diverged(_) => Fault::Plugin,
            Self::Missing(_) | Self::Host(_) | Self::PastOver => Fault::Host,
        }
    }
}

impl From<types::Failure> for RunError {
    fn from(failure: types::Failure) -> Self {
        match failure {
            types::Failure::Failed(reason) => Self::Failed(reason),
            types::Failure::Invalid(reason) => Self::Invalid(reason),
            types::Failure::TimedOut(reason) => Self::TimedOut(reason),
        }
    }
}

/// Converts an error that the guest did not cause.
pub(super) fn host_failed(error: wasmtime::Error) -> RunError {
    RunError::Host(format!("{error:#}"))
}

/// Converts the error of an instance that could not be created.
pub(super) fn starting(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    // A start function is guest code and fails in the same ways.
    if error.is::<Trap>()
        || error.is::<I32Exit>()
        || error.is::<ContractViolation>()
        || error.is::<Diverged>()
    {
        return running(store, error);
    }
    // The engine has no type for this error.
    let message = error.root_cause().to_string();
    if message.starts_with("resource limit exceeded") {
        return RunError::Limit(format!(
            "has more parts than {CORE_INSTANCES_MAX} core instances, {MEMORIES_MAX} memories and \
             {TABLES_MAX} tables: {message}"
        ));
    }
    RunError::Host(format!("{error:#}"))
}

/// Converts an error of an import that the host's own code called.
pub(super) fn of_import(error: &wasmtime::Error) -> RunError {
    of_history_or_contract(error).unwrap_or_else(|| RunError::Host(format!("{error:#}")))
}

/// Converts an error of an import that no error of the contract reports.
fn of_history_or_contract(error: &wasmtime::Error) -> Option<RunError> {
    if let Some(violation) = error.downcast_ref::<ContractViolation>() {
        return Some(RunError::Contract(violation.to_string()));
    }
    if let Some(diverged) = error.downcast_ref::<Diverged>() {
        return Some(RunError::Diverged(diverged.clone()));
    }
    error.is::<PastOver>().then_some(RunError::PastOver)
}

/// Converts the error of a guest that did not return.
pub(super) fn running(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return RunError::Exited(*code);
    }
    if let Some(error) = of_history_or_contract(error) {
        return error;
    }
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    let limits = store.data().imports.limits();
    // The engine has no public types for these two errors.
    let message = error.root_cause().to_string();
    if message.contains("fuel") {
        store.data().imports.record().limit_hit(Limit::HostCallBytes);
        let max = limits.host_call_bytes_max;
        return RunError::Limit(format!(
            "passed more than host-call-bytes-max, {max} bytes, in one call; the operator can raise it"
        ));
    }
    if message.contains("handle") && message.contains("limit")
        || error
            .downcast_ref::<ResourceTableError>()
            .is_some_and(|error| matches!(error, ResourceTableError::Full))
    {
        store.data().imports.record().limit_hit(Limit::Handles);
        let max = limits.handles_max;
        return RunError::Limit(format!(
            "holds, or names in one call, more handles than handles-max, {max}; the operator can raise it"
        ));
    }
    if let Some(requested) = requested_random_bytes(&message) {
        store.data().imports.record().random_refused(requested);
        let max = limits.random_bytes_max;
        return RunError::Limit(format!(
            "requested {requested} random bytes in one call, more than random-bytes-max, {max}; the operator can \
             raise it"
        ));
    }
    RunError::Trapped { reason: trap_text(error) }
}

/// Returns the number of random bytes that a guest requested, if it was too large. The engine reports it as text only:
/// `requested len 70000 exceeds limit 65536`.
fn requested_random_bytes(message: &str) -> Option<usize> {
    let (requested, limit) = message.strip_prefix("requested len ")?.split_once(" exceeds limit ")?;
    limit.parse::<u64>().ok()?;
    requested.parse().ok()
}

/// Frames that are part of every panic and say nothing about its origin.
const RUNTIME_FRAMES: [&str; 5] = ["panic", "abort", "rust_begin_unwind", "rt::lang_start", "__rust_"];

/// Formats the trap and the innermost frames that have a name.
fn trap_text(error: &wasmtime::Error) -> String {
    const FRAMES_SHOWN: usize = 4;
    let message = error.root_cause().to_string();
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return message };
    let frames: Vec<String> = backtrace
        .frames()
        .iter()
        .filter_map(|frame| frame.func_name().map(demangled))
        .filter(|name| !RUNTIME_FRAMES.iter().any(|part| name.contains(part)))
        .take(FRAMES_SHOWN)
        .collect();
    if frames.is_empty() { message } else { format!("{message} (in {})", frames.join(" < ")) }
}

/// Returns the demangled name of a function, without Rust's hash.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}
