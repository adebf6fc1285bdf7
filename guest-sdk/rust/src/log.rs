//! Lines and events for whoever debugs this rollout.
//!
//! Bounded by the host: past the limit they are counted and dropped. With arguments,
//! `log::info(format_args!("{turns} turns"))`.

use std::fmt::Display;

use serde_json::Value;

use crate::bindings::imports::log::{self, Level};

/// A line that only matters to who looks for it.
pub fn debug(text: impl Display) {
    log::line(Level::Debug, &text.to_string());
}

/// A line about what goes on.
pub fn info(text: impl Display) {
    log::line(Level::Info, &text.to_string());
}

/// A line about something unexpected that was dealt with.
pub fn warn(text: impl Display) {
    log::line(Level::Warn, &text.to_string());
}

/// A line about something that went wrong.
pub fn error(text: impl Display) {
    log::line(Level::Error, &text.to_string());
}

/// A named event with a JSON value, for programs to read.
pub fn event(name: &str, data: impl Into<Value>) {
    log::event(name, &data.into().to_string());
}
