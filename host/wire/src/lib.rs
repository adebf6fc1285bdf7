//! JSON as it travels: bodies of requests and replies, and nothing that acts on them.
//!
//! What belongs to the user stays raw text ([`serde_json::value::RawValue`]), so that
//! numbers, key order and unknown fields come through as they were written.

pub mod atif;
pub mod closed;
pub mod data;
pub mod digest;
pub mod function;
pub mod id;
pub mod messages;
pub mod metadata;
pub mod openai;
pub mod params;
pub mod stream;
pub mod strict;
pub mod text;
pub mod tokens;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

/// As JSON what is text, numbers that were checked, and JSON that was parsed before. The messages in it have
/// so many bytes: a conversation is not copied again and again while it is written, and has no room to spare.
pub fn json_with(value: &(impl Serialize + ?Sized), message_bytes: usize) -> Bytes {
    const REST_BYTES: usize = 1024;
    let mut text = Vec::with_capacity(message_bytes + message_bytes / 64 + REST_BYTES);
    let written = serde_json::to_writer(&mut text, value);
    text.shrink_to_fit();
    written.map(|()| text.into()).unwrap_or_default()
}

/// Checks that the text is one JSON value that [all readers take](strict), and keeps it as
/// it is, without the white space around it.
pub fn value(text: &str) -> Result<&RawValue, String> {
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
