//! Why a run ended without a result: what the engine's errors mean to whoever reads of them.

use wasmtime::component::ResourceTableError;
use wasmtime::{Store, Trap};
use wasmtime_wasi::I32Exit;

use super::InstanceState;
use super::memory::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use crate::imports::bindings::rollout::plugin::types;
use crate::imports::{Diverged, Ended, PastOver};
use rollout_core::error::Fault;
use rollout_core::telemetry::Limit;

/// Why a run ended without the guest's own result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its wall time is over.
    #[error("ran past its deadline")]
    Deadline,
    /// The guest says so.
    #[error("{0}")]
    Failed(String),
    /// The guest says that what it was given is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The guest says that a time limit of its own passed.
    #[error("{0}")]
    TimedOut(String),
    /// It asked for more memory than it may have, and could not do without.
    #[error(
        "needed more memory than memory-bytes-max of {max} bytes; use less, or ask the operator to raise it"
    )]
    Memory {
        /// The limit.
        max: usize,
    },
    /// It used more CPU time than it may.
    #[error("used more CPU time than guest-cpu-secs-max, {0} s; do less, or ask the operator to raise it")]
    Cpu(f64),
    /// It handed more over in one call of the host, or holds more handles, than it may.
    #[error("{0}")]
    Limit(String),
    /// It did what no wasm may do.
    #[error("trapped: {reason}")]
    Trapped {
        /// Which trap, and where in the guest as far as its names are known.
        reason: String,
    },
    /// It called exit.
    #[error("called exit({0}) instead of returning")]
    Exited(i32),
    /// It broke the contract.
    #[error("broke the contract: {0}")]
    Contract(String),
    /// It was made again, and did not do what it did before.
    #[error("did not do again what it did before: {0}")]
    Diverged(Diverged),
    /// It was made again, and is where its past ends.
    #[error("is where its past ends")]
    PastOver,
    /// The plugin has no such half.
    #[error("the plugin has no {0}")]
    Missing(&'static str),
    /// The host could not run it.
    #[error("the host failed while running the plugin: {0}")]
    Host(String),
}

impl RunError {
    /// Whose move it is.
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

/// A failure that is not the guest's.
pub(super) fn host_failed(error: wasmtime::Error) -> RunError {
    RunError::Host(format!("{error:#}"))
}

/// Why an instance did not come to be.
pub(super) fn starting(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    // A start function is the guest's, and does all that others do.
    if error.is::<Trap>() || error.is::<I32Exit>() || error.is::<Ended>() || error.is::<Diverged>() {
        return running(store, error);
    }
    // The engine has no type for this one.
    let what = error.root_cause().to_string();
    if what.starts_with("resource limit exceeded") {
        return RunError::Limit(format!(
            "has more parts than {CORE_INSTANCES_MAX} core instances, {MEMORIES_MAX} memories and \
             {TABLES_MAX} tables: {what}"
        ));
    }
    RunError::Host(format!("{error:#}"))
}

/// Why a guest did not return.
pub(super) fn running(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return RunError::Exited(*code);
    }
    if let Some(ended) = error.downcast_ref::<Ended>() {
        return RunError::Contract(ended.to_string());
    }
    if let Some(diverged) = error.downcast_ref::<Diverged>() {
        return RunError::Diverged(diverged.clone());
    }
    if error.is::<PastOver>() {
        return RunError::PastOver;
    }
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    let limits = store.data().imports.limits();
    // The engine has no type for these two that could be told apart from outside.
    let what = error.root_cause().to_string();
    if what.contains("fuel") {
        store.data().imports.record().limit_hit(Limit::HostCallBytes);
        let max = limits.host_call_bytes_max;
        return RunError::Limit(format!(
            "handed over more than host-call-bytes-max, {max} bytes, in one call; the operator can raise it"
        ));
    }
    if what.contains("handle") && what.contains("limit")
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
    if let Some(asked) = random_bytes_asked(&what) {
        store.data().imports.record().random_refused(asked);
        let max = limits.random_bytes_max;
        return RunError::Limit(format!(
            "asked for {asked} random bytes in one call, more than random-bytes-max, {max}; the operator can \
             raise it"
        ));
    }
    RunError::Trapped { reason: trap_text(error) }
}

/// How many random bytes a guest asked for when that was too many, which the engine
/// says in words only: `requested len 70000 exceeds limit 65536`.
fn random_bytes_asked(what: &str) -> Option<usize> {
    let (asked, limit) = what.strip_prefix("requested len ")?.split_once(" exceeds limit ")?;
    limit.parse::<u64>().ok()?;
    asked.parse().ok()
}

/// Frames that every panic goes through, and that say nothing of where it came from.
const RUNTIME_FRAMES: [&str; 5] = ["panic", "abort", "rust_begin_unwind", "rt::lang_start", "__rust_"];

/// The trap and the innermost frames that have a name.
fn trap_text(error: &wasmtime::Error) -> String {
    const FRAMES_SHOWN: usize = 4;
    let what = error.root_cause().to_string();
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return what };
    let frames: Vec<String> = backtrace
        .frames()
        .iter()
        .filter_map(|frame| frame.func_name().map(demangled))
        .filter(|name| !RUNTIME_FRAMES.iter().any(|part| name.contains(part)))
        .take(FRAMES_SHOWN)
        .collect();
    if frames.is_empty() { what } else { format!("{what} (in {})", frames.join(" < ")) }
}

/// A function's name as its author wrote it, without the hash of Rust's mangling.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}
