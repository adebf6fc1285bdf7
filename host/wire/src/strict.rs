//! A check that valid JSON can be read by other JSON readers.
//!
//! The grammar allows more than readers do: an escape of half a character (`\ud800` without its other half) cannot be
//! encoded as text, a number such as `1e999` becomes infinity, which is not JSON, and parsers have a depth limit. The
//! host refuses such a value when it arrives, so its own output never contains one.

use memchr::memchr2;
use serde_json::value::RawValue;

/// Maximum depth of arrays and objects. Callers' parsers stop at 128 or more, and would lose a deeper result.
pub const DEPTH_MAX: usize = 100;

/// Number of digits up to which every number without an exponent is in range; the largest double has 309.
const DIGITS_IN_RANGE: usize = 300;

/// Number of bytes of a number that an error shows.
const SHOWN_MAX: usize = 32;

/// Error of valid JSON that some readers cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// Arrays and objects are nested deeper than `DEPTH_MAX`.
    #[error("nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// A text has half of a surrogate pair.
    #[error("not text that can be encoded: the escape {escape} at byte {at} is half a character")]
    LoneSurrogate {
        /// The escape in the text.
        escape: String,
        /// Its position in the text.
        at: usize,
    },
    /// A number is infinite as a double.
    #[error("not readable as a finite number: {number} at byte {at} is out of the range of a double")]
    OutOfRange {
        /// Beginning of the number in the text.
        number: String,
        /// Its position in the text.
        at: usize,
    },
}

/// Checks a text that is one valid JSON value. Reads each byte once, and allocates only for an error.
pub fn check(json: &str) -> Result<(), Unfit> {
    next_value(json, 0).map_or(Ok(()), |start| end_of_value(json, start, 0).map(drop))
}

/// Passes each value of a list to `take`, with the result of its check. The list is valid JSON. Reads each byte once, except
/// those of a value that is refused.
pub fn elements<'a>(list: &'a str, mut take: impl FnMut(&'a str, Result<(), Unfit>)) {
    let mut next = next_value(list, 1);
    while let Some(rest) = next.and_then(|start| list.get(start..)) {
        let (length, checked) = match end_of_value(rest, 0, 0) {
            Ok(length) => (length, Ok(())),
            Err(unfit) => (unchecked_length(rest), Err(unfit)),
        };
        take(&rest[..length], checked);
        next = next_value(list, list.len() - rest.len() + length);
    }
}

/// Checks an object and passes the name of each member, with quotation marks and escapes, and its value to `take`. The object
/// is valid JSON, and a name may occur more than once. Reads each byte once.
pub fn members<'a>(object: &'a str, mut take: impl FnMut(&'a str, &'a str)) -> Result<(), Unfit> {
    let mut next = next_value(object, 1);
    while let Some(start) = next {
        let name_end = end_of_value(object, start, 1)?;
        let Some(value) = next_value(object, name_end) else { return Ok(()) };
        let end = end_of_value(object, value, 1)?;
        take(&object[start..name_end], &object[value..end]);
        next = next_value(object, end);
    }
    Ok(())
}

/// Returns the position of the next value at or after a position, unless a list or an object ends before it.
fn next_value(json: &str, from: usize) -> Option<usize> {
    let rest = json.as_bytes().get(from..)?;
    let skipped = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':'))?;
    (!matches!(rest[skipped], b']' | b'}')).then_some(from + skipped)
}

/// Checks the value that begins at `start`, within `outer` arrays and objects; returns the position after it.
fn end_of_value(json: &str, start: usize, outer: usize) -> Result<usize, Unfit> {
    let bytes = json.as_bytes();
    let (mut at, mut depth) = (start, outer);
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'"' => end_of_string(json, at)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(Unfit::TooDeep);
                }
                at + 1
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            b'-' | b'0'..=b'9' => end_of_number(json, at)?,
            // `true`, `false` or `null`.
            b'a'..=b'z' => {
                let rest = &bytes[at..];
                at + rest.iter().position(|byte| !byte.is_ascii_lowercase()).unwrap_or(rest.len())
            }
            _ => at + 1,
        };
        if depth <= outer {
            return Ok(at);
        }
    }
    Ok(bytes.len())
}

/// Returns the length of the value at the beginning of a text, which may be one that is refused.
fn unchecked_length(json: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<&RawValue>();
    values.next().and_then(Result::ok).map_or(json.len(), |value| value.get().len())
}

/// Returns the position after the string that begins at `start`.
fn end_of_string(json: &str, start: usize) -> Result<usize, Unfit> {
    let bytes = json.as_bytes();
    let mut at = start + 1;
    while let Some(skipped) = memchr2(b'"', b'\\', &bytes[at..]) {
        at += skipped;
        if bytes[at] == b'"' {
            return Ok(at + 1);
        }
        at += match unit(bytes, at) {
            None => 2,
            Some(0xD800..=0xDBFF) if matches!(unit(bytes, at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => {
                let escape = json.get(at..at + 6).unwrap_or_default().to_owned();
                return Err(Unfit::LoneSurrogate { escape, at });
            }
            Some(_) => 6,
        };
    }
    Ok(bytes.len())
}

/// Returns the UTF-16 unit of an escape `\uXXXX`, if there is one.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

/// Returns the position after the number that begins at `start`.
fn end_of_number(json: &str, start: usize) -> Result<usize, Unfit> {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let rest = &json.as_bytes()[start..];
    let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    let has_exponent = rest[..length].iter().any(|byte| matches!(byte, b'e' | b'E'));
    let number = &json[start..start + length];
    if (has_exponent || length > DIGITS_IN_RANGE) && !number.parse::<f64>().is_ok_and(f64::is_finite) {
        let number = number.chars().take(SHOWN_MAX).collect();
        return Err(Unfit::OutOfRange { number, at: start });
    }
    Ok(start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_some_readers_cannot_read_are_refused() {
        fn check_one(text: &str, expected: &str) {
            serde_json::from_str::<&serde_json::value::RawValue>(text).expect("the text is valid JSON");
            let seen = check(text).map_or_else(|unfit| unfit.to_string(), |()| "fit".to_owned());
            assert!(seen.starts_with(expected), "{}: {seen}", &text[..text.len().min(40)]);
        }
        for fit in [
            "null",
            "-0.0e-9999",
            "[1e308,-1.7e308,123456789012345678901234567890]",
            r#""\\ud800""#,
            r#""\ud83d\ude42 \u00e9 \\ \" \uD83D\uDE42""#,
            r#"{"\u0041":"[\\\"{","b":[]}"#,
            "\"\u{1f642}\"",
        ] {
            check_one(fit, "fit");
        }
        check_one(&"9".repeat(308), "fit");
        check_one(&format!("0.{}", "9".repeat(1000)), "fit");
        check_one(&"9".repeat(310), "not readable as a finite number: 99999999999999999999999999999999 at");
        check_one(r#"{"a":[1e999]}"#, "not readable as a finite number: 1e999 at byte 6");
        check_one("[-1E+400]", "not readable as a finite number: -1E+400 at byte 1");
        check_one(r#"["\ud800"]"#, r"not text that can be encoded: the escape \ud800 at byte 2");
        check_one(r#""\ud800\u0041""#, r"not text that can be encoded: the escape \ud800");
        check_one(r#""\ud800\ud800\udc00""#, r"not text that can be encoded: the escape \ud800 at byte 1");
        check_one(r#""\\\udFFF""#, r"not text that can be encoded: the escape \udFFF at byte 3");
        check_one(r#"{"\udc00":1}"#, r"not text that can be encoded: the escape \udc00");
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check_one(&nested(DEPTH_MAX), "fit");
        check_one(&format!("[{}]", vec!["[]"; 1000].join(",")), "fit");
        assert_eq!(check(&nested(DEPTH_MAX + 1)), Err(Unfit::TooDeep));
        assert_eq!(check(&nested(100_000)), Err(Unfit::TooDeep));
    }

    #[test]
    fn a_list_is_split_into_the_values_that_a_parser_reads() {
        fn check_one(list: &str) {
            let expected: Vec<&RawValue> = serde_json::from_str(list).unwrap();
            let mut found = Vec::new();
            elements(list, |value, checked| found.push((value, checked)));
            let expected: Vec<_> = expected.iter().map(|value| (value.get(), check(value.get()))).collect();
            assert_eq!(found, expected, "{}", &list[..list.len().min(60)]);
        }
        for list in [
            "[]",
            "[ ]",
            "[null]",
            "[ 1 , -2.5e3,true,false ,null,\"a,]\\\"\" ]",
            r#"[{"a":[1,{"b":"}"}]},[],{} , {"\u0041": "\ud83d\ude42"}]"#,
            r#"["\ud800",1e999,{"a":"\udc00"},{"b":2}]"#,
            "[\"\u{1f642}\",\n\t{ }\r]",
        ] {
            check_one(list);
        }
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        check_one(&format!("[{deep},1,{deep}]"));
    }

    #[test]
    fn an_object_is_split_into_names_and_values() {
        let split = |object| {
            let mut found = Vec::new();
            members(object, |name, value| found.push((name, value))).map(|()| found)
        };
        assert_eq!(split("{}"), Ok(vec![]));
        assert_eq!(
            split(r#"{ "a" : 1,"\u0062":{"c":[null,"}"]} ,"a":"x" , "d":true}"#),
            Ok(vec![
                (r#""a""#, "1"),
                (r#""\u0062""#, r#"{"c":[null,"}"]}"#),
                (r#""a""#, r#""x""#),
                (r#""d""#, "true")
            ])
        );
        assert!(matches!(split(r#"{"a":1,"\ud800":2}"#), Err(Unfit::LoneSurrogate { at: 8, .. })));
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(members(&nested(DEPTH_MAX), |_, _| ()), check(&nested(DEPTH_MAX)));
        assert_eq!(check(&nested(DEPTH_MAX)), Err(Unfit::TooDeep));
        assert_eq!(members(&nested(DEPTH_MAX - 1), |_, _| ()), Ok(()));
    }
}
