//! `log`: lines and events for whoever debugs a rollout.

use super::Imports;
use super::bindings::rollout::plugin::log::{self, Level};
use super::record::{LogEntry, LogLevel};
use crate::text::printable;
use crate::wire;

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}

impl log::Host for Imports {
    fn line(&mut self, level: Level, text: String) -> wasmtime::Result<()> {
        self.called()?;
        let entry = LogEntry::Line { level: level.into(), text: printable(&text) };
        self.record.lock().log(entry, &self.limits);
        Ok(())
    }

    fn event(&mut self, name: String, data: String) -> wasmtime::Result<()> {
        self.called()?;
        let data = match wire::value(&data) {
            Ok(raw) => raw.to_owned(),
            Err(_) => serde_json::value::to_raw_value(&data)?,
        };
        self.record.lock().log(LogEntry::Event { event: printable(&name), data }, &self.limits);
        Ok(())
    }
}
