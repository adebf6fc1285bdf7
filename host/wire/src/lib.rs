//! JSON of requests and replies: parsing, checks and construction, without I/O.
//!
//! Data of users stays raw text ([`serde_json::value::RawValue`]), so that numbers, key order and unknown fields are passed
//! on unchanged.

pub mod atif;
pub mod closed;
pub mod data;
pub mod digest;
pub mod function;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod id;
pub mod messages;
pub mod metadata;
pub mod openai;
pub mod params;
pub mod quota;
pub mod stream;
pub mod strict;
pub mod text;
pub mod tokens;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

/// Serializes a value whose serialization cannot fail: texts, checked numbers, and JSON that was parsed before.
/// `message_bytes` is the size of the messages in it, so that the buffer does not grow again and again.
pub fn json_with(value: &(impl Serialize + ?Sized), message_bytes: usize) -> Bytes {
    const REST_BYTES: usize = 1024;
    let mut text = Vec::with_capacity(message_bytes + message_bytes / 64 + REST_BYTES);
    let written = serde_json::to_writer(&mut text, value);
    text.shrink_to_fit();
    written.map(|()| text.into()).unwrap_or_default()
}

/// Parses a text as one JSON value that [all readers accept](strict). Surrounding white space is removed.
pub fn value(text: &str) -> Result<&RawValue, String> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    strict::check(raw.get()).map_err(|unfit| unfit.to_string())?;
    Ok(raw)
}

/// Parses a text as one JSON object. Surrounding white space is removed. The error has the position of the mistake.
pub fn object(text: &str) -> Result<&RawValue, String> {
    let raw = value(text)?;
    if raw.get().starts_with('{') {
        Ok(raw)
    } else {
        Err(format!("not a JSON object but {}", kind(raw.get())))
    }
}

/// Returns the type of a valid JSON value, for error messages.
pub fn kind(json: &str) -> &'static str {
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
