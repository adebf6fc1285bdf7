//! The event log for debugging: the events that the guests of a rollout logged, one file for each rollout.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::value::RawValue;

use rollout_wire::id::RolloutId;
use rollout_wire::stream::{Stopped, members};

/// Appends a rollout's events to its file in the folder. A failure is logged as a warning and never changes the
/// outcome.
pub(super) async fn write(
    folder: PathBuf,
    id: RolloutId,
    shown_id: String,
    events: Vec<(String, Box<RawValue>)>,
) {
    if events.is_empty() {
        return;
    }
    // The name has no separators, whatever id the caller chose.
    let path = folder.join(format!("{}.jsonl", id.dir_name()));
    let append = move || -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        let mut line = Vec::new();
        for (event, data) in &events {
            line.clear();
            write_line(&mut line, event, &shown_id, data)?;
            file.write_all(&line)?;
        }
        Ok(())
    };
    match tokio::task::spawn_blocking(append).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(folder = %folder.display(), %error, "cannot write the event log"),
        Err(error) => tracing::warn!(%error, "cannot write the event log"),
    }
}

/// Members of a line that the host writes, which the data cannot override.
const RESERVED: [&str; 2] = ["event", "rollout_id"];

/// Writes one JSON object on a line: the event, the rollout, and the fields of the data unchanged. Data that is not an
/// object becomes the field `data`. A field with a reserved name is omitted, because parsers use the last of two.
fn write_line(text: &mut Vec<u8>, event: &str, id: &str, data: &RawValue) -> io::Result<()> {
    text.extend_from_slice(b"{\"event\":");
    serde_json::to_writer(&mut *text, event)?;
    text.extend_from_slice(b",\"rollout_id\":");
    serde_json::to_writer(&mut *text, id)?;
    let mut field = |name: &str, value: &RawValue| -> io::Result<()> {
        text.push(b',');
        serde_json::to_writer(&mut *text, name)?;
        text.push(b':');
        // Replaces line breaks of the data's layout; strings contain none unescaped.
        let bytes = value.get().bytes();
        text.extend(bytes.map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        Ok(())
    };
    if data.get().starts_with('{') {
        let fields =
            members(
                data.get(),
                |name, value: &RawValue| {
                    if RESERVED.contains(&&*name) { Ok(()) } else { field(&name, value) }
                },
            );
        fields.map_err(|stopped| match stopped {
            Stopped::Json(error) => error.into(),
            Stopped::Taker(error) => error,
        })?;
    } else {
        field("data", data)?;
    }
    text.extend_from_slice(b"}\n");
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "parses the written line")]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_unchanged_fields() {
        fn check(data: &str, expected: &str) {
            let mut text = Vec::new();
            write_line(&mut text, "a\"b", "r/1", serde_json::from_str(data).unwrap()).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!(text, format!("{{\"event\":\"a\\\"b\",\"rollout_id\":\"r/1\"{expected}}}\n"));
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        check("{}", "");
        check("{ }", "");
        check(r#"{"x":1.10,"y":[2]}"#, r#","x":1.10,"y":[2]"#);
        check("{\n\"x\": 1}", r#","x":1"#);
        check(r#"{"rollout_id":"other","x":1,"event":{},"rollout\u005fid":2}"#, r#","x":1"#);
        check("[1,\n2]", r#","data":[1, 2]"#);
        check("\"text\"", r#","data":"text""#);
    }
}
