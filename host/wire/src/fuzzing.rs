//! Fuzz targets: texts of guests, and bodies from outside. A target takes any bytes and panics if an invariant does not hold.
//!
//! Compiled only in tests and with the feature `fuzzing`, which no released build has.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;

use serde_json::value::RawValue;

use crate::id::{RolloutId, SampleId};
use crate::openai::{self, Completion};
use crate::{stream, strict, text};

/// A fuzz target: a function that accepts any bytes.
pub type Target = fn(&[u8]);

/// The crate's targets with the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 4] =
    [("completion", completion), ("chat_request", chat_request), ("ids", ids), ("json_parts", json_parts)];

/// Maximum size of an error message about an input of any size, in bytes.
const ERROR_BYTES_MAX: usize = 4096;

/// Parses a reply of the model's server.
fn completion(body: &[u8]) {
    match Completion::parse(&bytes::Bytes::copy_from_slice(body)) {
        Ok(completion) => {
            assert!(
                crate::object(completion.message()).is_ok(),
                "a guest can push each message that it gets"
            );
            assert!(
                completion.tool_calls().iter().all(|call| !call.id.is_empty()),
                "a result can name its call"
            );
            let usage = completion.usage.unwrap_or_default();
            let _ = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        }
        Err(what) => assert!(!what.is_empty() && what.len() < ERROR_BYTES_MAX, "{} bytes", what.len()),
    }
}

/// Splits a list or an object, and compares the parts with those of a parser.
fn json_parts(bytes: &[u8]) {
    let Ok(Ok(json)) = std::str::from_utf8(bytes).map(serde_json::from_str::<&RawValue>) else { return };
    let json = json.get();
    if let Ok(expected) = serde_json::from_str::<Vec<&RawValue>>(json) {
        let mut found = Vec::new();
        strict::elements(json, |value, checked| found.push((value, checked)));
        let checked = |value: &RawValue| strict::check(value.get());
        assert!(
            found.into_iter().eq(expected.into_iter().map(|value| (value.get(), checked(value)))),
            "a list has the values that a parser reads"
        );
    }
    let mut expected: Vec<(Cow<'_, str>, &str)> = Vec::new();
    let read = stream::members(json, |name, value: &RawValue| {
        expected.push((name, value.get()));
        Ok::<(), Infallible>(())
    });
    if read.is_ok() {
        let mut found = Vec::new();
        let split = strict::members(json, |name, value| found.push((stream::text(name), value)));
        assert_eq!(split, strict::check(json), "the parts of an object are checked like the whole");
        let is_equal = found.into_iter().eq(expected.into_iter().map(|(name, value)| (Some(name), value)));
        assert!(is_equal || split.is_err(), "an object has the members that a parser reads");
    }
}

/// Builds a guest's request to the model from messages, tools and parameters, one a line.
fn chat_request(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n').map(str::to_owned);
    let params = lines.next().filter(|line| !line.is_empty());
    let (tools, messages): (Vec<String>, Vec<String>) = lines.partition(|line| line.starts_with("{\"type\""));
    let (caller, allowed) = (openai::CallerParams::default(), openai::AllowedParams::default());
    let messages: Vec<&str> =
        messages.iter().filter_map(|text| Some(crate::object(text).ok()?.get())).collect();
    match openai::request_template("a-model", &tools, params.as_deref(), &caller, &allowed) {
        Ok(template) => {
            let body = template.around(messages.iter().copied(), 0);
            let sent = std::str::from_utf8(&body).expect("a body is text");
            // Compared as text, because a number may be one that no float represents; checking it is the server's task.
            let read: BTreeMap<String, &RawValue> = serde_json::from_str(sent).expect("a body is an object");
            let model = read["model"].get();
            assert_eq!(model, "\"a-model\"", "no parameter overrides a field that the host sets");
            assert_eq!(read["stream"].get(), "false");
            let sent: Vec<&RawValue> = serde_json::from_str(read["messages"].get()).expect("a list");
            assert_eq!(sent.len(), messages.len());
        }
        Err(invalid) => assert!(invalid.to_string().len() < ERROR_BYTES_MAX, "an error is short"),
    }
}

/// Parses ids of rollouts and samples, and converts them to their other forms.
fn ids(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(id) = RolloutId::parse(text.as_ref()) {
        assert_eq!(id.as_str(), text, "an id is the caller's text");
        let json = serde_json::to_string(&id).expect("an id is a text");
        assert_eq!(serde_json::from_str::<RolloutId>(&json).expect("an id can be parsed again"), id);
        let dir = id.dir_name();
        assert!(dir.len() <= 255 && !dir.contains(['/', '\\', '\0']) && dir != "." && dir != "..", "{dir:?}");
        let header = id.header_value();
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header:?}");
        assert_eq!(header.trim(), header, "a header neither starts nor ends with a space");
    }
    if let Ok(id) = SampleId::parse(&text) {
        assert_eq!(id.as_str(), text);
        let part = id.file_part();
        assert!(!part.is_empty() && !part.starts_with('.') && !part.contains('/'), "{part:?}");
    }
    let shown = text::printable(&text);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
    let cut = text::beginning(&text, 16);
    // The number of omitted bytes is appended in words.
    assert!(cut.len() <= 16 + 48, "{cut:?}");
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
