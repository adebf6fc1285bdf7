//! Formatting of log fields so that each event is one line.
//!
//! Ids, errors and names in fields often contain text of a caller, a guest or a model's server. Every field of every
//! line is escaped here, so such text can neither start a line of its own nor control the reader's terminal. Lines in
//! JSON have their own escapes.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use rollout_wire::text::OneLine;

/// Formats fields as `name=value`, and the message without a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneLineFields;

impl<'w> FormatFields<'w> for OneLineFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = Visitor { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl Visitor<'_> {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if self.result.is_ok() {
            self.result = self.try_put(field.name(), value);
        }
    }

    fn try_put(&mut self, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        match name {
            "message" => {}
            name if self.writer.has_ansi_escapes() => {
                write!(self.writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m")?;
            }
            name => write!(self.writer, "{name}=")?,
        }
        OneLine(&mut self.writer).write_fmt(value)
    }
}

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put(field, format_args!("{value}")),
            _ => self.put(field, format_args!("{value:?}")), // not shown as is, but quoted
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // The `log` crate's metadata arrives in fields with this prefix.
        if !field.name().starts_with("log.") {
            self.put(field, format_args!("{value:?}")); // not shown: the value of a log field
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_with_any_text_in_its_fields() {
        let sink = Sink::default();
        let writer = sink.clone();
        let logs = tracing_subscriber::fmt()
            .fmt_fields(OneLineFields)
            .with_writer(move || writer.clone())
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .finish();
        let evil = "a\nERROR forged\r\u{1b}[2J\u{2028}\u{202e}b";
        tracing::subscriber::with_default(logs, || {
            let span = tracing::error_span!("rollout", rollout_id = %evil);
            let _in = span.enter();
            tracing::info!(plain = evil, shown = %evil, debug = ?evil, number = 3, "message {evil}");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let shown = r"a\nERROR forged\r\u{1b}[2J\u{2028}\u{202e}b";
        let line = text.strip_suffix('\n').unwrap();
        assert_eq!(
            line.trim_start(),
            format!(
                "INFO rollout{{rollout_id={shown}}}: message {shown} plain=\"{shown}\" shown={shown} debug=\"{shown}\" number=3"
            )
        );
    }
}
