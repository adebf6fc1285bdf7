//! Log lines and events for debugging a rollout.
//!
//! The host limits the number of lines and events; it counts and drops the rest. Formatted text is passed as
//! `log::info(format_args!("{turns} turns"))`.

use std::fmt::Display;

use serde_json::Value;

use crate::bindings::imports::log::{self, Level, RefusedUse};

/// Logs a detail for debugging.
pub fn debug(text: impl Display) {
    log::line(Level::Debug, &text.to_string());
}

/// Logs normal progress.
pub fn info(text: impl Display) {
    log::line(Level::Info, &text.to_string());
}

/// Logs an unexpected event that was handled.
pub fn warn(text: impl Display) {
    log::line(Level::Warn, &text.to_string());
}

/// Logs a failure.
pub fn error(text: impl Display) {
    log::line(Level::Error, &text.to_string());
}

/// Logs a named event with a JSON value, for programs.
pub fn event(name: &str, data: impl Into<Value>) {
    log::event(name, &data.into().to_string());
}

/// A feature that a component does not have and that a library may try to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// A process.
    Process,
    /// A file that is not the component's own.
    File,
    /// The network. The host counts sockets and host names by itself.
    Network,
    /// Another thread.
    Thread,
    /// An alarm that interrupts a computation.
    Alarm,
    /// A module that is not in the component.
    Module,
}

/// Reports that the guest tried to use a feature that a component does not have, and continued without it. `place`
/// describes the use.
///
/// The host counts such uses by kind and shows them beside the reward, because a reward that was computed without the
/// feature may be meaningless. The standard library returns an error for a file, a process or a thread and reports
/// nothing; a grader that continues after such an error reports it with this function.
///
/// ```no_run
/// # use rollout_sdk::log::{self, Refused};
/// if let Err(error) = std::process::Command::new("python3").status() {
///     log::refused(Refused::Process, format_args!("check of the answer: {error}"));
/// }
/// ```
pub fn refused(kind: Refused, place: impl Display) {
    let kind = match kind {
        Refused::Process => RefusedUse::Process,
        Refused::File => RefusedUse::File,
        Refused::Network => RefusedUse::Network,
        Refused::Thread => RefusedUse::Thread,
        Refused::Alarm => RefusedUse::Alarm,
        Refused::Module => RefusedUse::Module,
    };
    log::refused(kind, 1, &place.to_string());
}
