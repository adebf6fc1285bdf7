//! `log`: lines and events for debugging a rollout.

use serde_json::value::RawValue;

use super::Imports;
use super::bindings::rollout::plugin::log::{self, Level, RefusedUse};
use super::gate::Import;
use super::record::{LogEntry, LogLevel};
use rollout_wire as wire;
use rollout_wire::text::printable;

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

/// Returns an event's value unchanged, or as a JSON string if it is not valid JSON.
fn event_data(data: &str) -> Box<RawValue> {
    let as_text = |_| serde_json::value::to_raw_value(data).unwrap_or_else(|_| RawValue::NULL.to_owned());
    wire::value(data).map_or_else(as_text, ToOwned::to_owned)
}

impl log::Host for Imports {
    fn line(&mut self, level: Level, text: String) -> wasmtime::Result<()> {
        self.enter(Import::LOG_LINE)?;
        let entry = || LogEntry::Line { level: level.into(), text: printable(&text) };
        self.record.lock().log(text.len(), &self.limits, entry);
        Ok(())
    }

    fn event(&mut self, name: String, data: String) -> wasmtime::Result<()> {
        self.enter(Import::LOG_EVENT)?;
        // The log checks that it has room before either text is copied or parsed.
        let bytes = name.len().saturating_add(data.len());
        let entry = || LogEntry::Event { event: printable(&name), data: event_data(&data) };
        self.record.lock().log(bytes, &self.limits, entry);
        Ok(())
    }

    fn refused(&mut self, kind: RefusedUse, count: u32, place: String) -> wasmtime::Result<()> {
        self.enter(Import::LOG_REFUSED)?;
        self.record.lock().refused(kind.into(), count, &place);
        Ok(())
    }
}
