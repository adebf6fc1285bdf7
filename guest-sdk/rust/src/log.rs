//! Log lines and events for debugging a rollout.
//!
//! The host limits their number; it counts and drops the rest. Formatted text is passed as
//! `log::info(format_args!("{turns} turns"))`.
//! `log::info(format_args!("{turns} turns"))`.

use std::fmt::Display;

use serde_json::Value;

use crate::bindings::imports::log::{self, Level};

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
