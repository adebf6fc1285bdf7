//! `log`: lines and events for whoever debugs a rollout.

use serde_json::value::RawValue;

use super::Imports;
use super::bindings::rollout::plugin::log::{self, Level};
use super::record::{LogEntry, LogLevel};

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

/// A guest's text with control characters escaped, so that it cannot drive the
/// terminal of whoever reads it. Tabs stay.
pub(super) fn printable(text: &str) -> String {
    if !text.contains(|c: char| c.is_control() && c != '\t') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c.is_control() && c != '\t' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

impl log::Host for Imports {
    fn line(&mut self, level: Level, text: String) -> wasmtime::Result<()> {
        let entry = LogEntry::Line { level: level.into(), text: printable(&text) };
        self.record.lock().log(entry, &self.limits);
        Ok(())
    }

    fn event(&mut self, name: String, data: String) -> wasmtime::Result<()> {
        let data = match serde_json::from_str::<&RawValue>(&data) {
            Ok(raw) => raw.to_owned(),
            Err(_) => serde_json::value::to_raw_value(&data)?,
        };
        self.record.lock().log(LogEntry::Event { event: printable(&name), data }, &self.limits);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        fn check(text: &str, expected: &str) {
            assert_eq!(printable(text), expected);
        }
        check("plain\té", "plain\té");
        check("\u{1b}[2J\r", "\\u{1b}[2J\\r");
        check("\u{9b}1m", "\\u{9b}1m");
    }
}
