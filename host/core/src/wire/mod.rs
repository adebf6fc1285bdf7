//! JSON as it travels: bodies of requests and replies, and nothing that acts on them.
//!
//! What belongs to the user stays raw text ([`serde_json::value::RawValue`]), so that
//! numbers, key order and unknown fields come through as they were written.

pub mod atif;
pub mod closed;
pub mod data;
pub mod function;
pub mod messages;
pub mod metadata;
pub mod openai;
pub mod params;
pub mod stream;
pub mod strict;

use serde_json::value::RawValue;

/// Checks that the text is one JSON value that [all readers take](strict), and keeps it as
/// it is, without the white space around it.
pub(crate) fn value(text: &str) -> Result<&RawValue, String> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    strict::check(raw.get()).map_err(|unfit| unfit.to_string())?;
    Ok(raw)
}

/// Checks that the text is one JSON object and keeps it as it is, without the white
/// space around it. The error says where it stops being one.
pub fn object(text: &str) -> Result<&RawValue, String> {
    let raw = value(text)?;
    if raw.get().starts_with('{') {
        Ok(raw)
    } else {
        Err(format!("not a JSON object but {}", kind(raw.get())))
    }
}

/// What sort of JSON value a valid text is, for error messages.
pub(crate) fn kind(json: &str) -> &'static str {
    match json.trim_start().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(_) => "a number",
        None => "nothing",
    }
}
