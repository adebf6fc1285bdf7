//! JSON as it travels: bodies of requests and replies, and nothing that acts on them.
//!
//! What belongs to the user stays raw text ([`serde_json::value::RawValue`]), so that
//! numbers, key order and unknown fields come through as they were written.

pub mod atif;
pub mod closed;
pub mod openai;

use serde_json::value::RawValue;

/// The deepest nesting of arrays and objects that passes. Parsers of callers stop at 128
/// (some at more), and what they cannot read is a result lost to them.
pub const DEPTH_MAX: usize = 100;

/// Checks that the text is one JSON value that callers can read, and keeps it as it is,
/// without the white space around it.
pub fn value(text: &str) -> Result<&RawValue, String> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    if is_too_deep(raw.get()) {
        return Err(format!("nested more than {DEPTH_MAX} deep"));
    }
    Ok(raw)
}

/// Whether valid JSON is nested deeper than [`DEPTH_MAX`].
fn is_too_deep(json: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
    }
    false
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_callers_cannot_read_does_not_pass() {
        fn check(text: &str, passes: bool) {
            assert_eq!(value(text).is_ok(), passes, "{}", &text[..text.len().min(40)]);
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&nested(DEPTH_MAX), true);
        check(&nested(DEPTH_MAX + 1), false);
        check(&nested(100_000), false);
        check(&format!("[{}]", vec!["[]"; 1000].join(",")), true);
        check(&format!("\"{}\"", "[\\\"{".repeat(200)), true);
        check("[1", false);
    }
}
