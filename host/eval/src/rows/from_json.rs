//! Reads rows from JSON: one object per line, or one list of objects.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::cell::{Cell, json_problem};
use super::{Collector, Position};

/// Reads one object per line. Blank lines are skipped.
pub(super) fn read_lines(bytes: &[u8], found: &mut Collector<'_>) {
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let number = at + 1;
        match std::str::from_utf8(line) {
            Ok(line) => read_row(line, number, found),
            Err(error) => not_utf8(number, error.valid_up_to(), found),
        }
    }
}

/// Reads one list of objects.
pub(super) fn read_array(bytes: &[u8], found: &mut Collector<'_>) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = &bytes[..error.valid_up_to()];
            let line = newlines(good) + 1;
            let line_start = good.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
            return not_utf8(line, good.len() - line_start, found);
        }
    };
    let start = text.trim_ascii_start();
    if start.is_empty() {
        return;
    }
    if !start.starts_with('[') {
        let what = "not a list of rows; put the rows into one list, \
                    or use the extension .jsonl for a file with one object a line";
        let line = newlines(&bytes[..text.len() - start.len()]) + 1;
        return found.bad_row(Position::Line(line), what.to_owned());
    }
    let elements: Vec<&RawValue> = match serde_json::from_str(text) {
        Ok(elements) => elements,
        Err(error) => {
            let position = Position::LineColumn(error.line(), error.column());
            return found.bad_row(position, not_json(&error));
        }
    };
    let (mut line, mut counted) = (1, 0);
    for element in elements {
        let element = element.get();
        // An element is a part of `text`, so the difference is its offset.
        let offset = element.as_ptr().addr() - text.as_ptr().addr();
        line += newlines(&bytes[counted..offset]);
        counted = offset;
        read_row(element, line, found);
    }
}

/// Reads one object, whose first byte is on line `line`.
fn read_row(text: &str, line: usize, found: &mut Collector<'_>) {
    if let Ok(value) = serde_json::from_str::<&RawValue>(text)
        && !value.get().starts_with('{')
    {
        let what = "not an object; write a row as {\"user_prompt\": …}";
        return found.bad_row(Position::Line(line), what.to_owned());
    }
    match serde_json::from_str::<Object>(text) {
        Ok(Object(columns)) => found.row(Position::Line(line), columns),
        Err(error) => {
            // Within a list, the row may span lines; its own first line is line 1.
            let position = Position::LineColumn(line + error.line() - 1, error.column());
            found.bad_row(position, not_json(&error));
        }
    }
}

/// The columns of one row in the order of the file, with duplicate names.
struct Object(Vec<(String, Cell)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut columns = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value: &RawValue = map.next_value()?;
            let cell = Cell::of(value).map_err(|error| serde::de::Error::custom(json_problem(&error)))?;
            columns.push((name, cell));
        }
        Ok(Object(columns))
    }
}

fn not_json(error: &serde_json::Error) -> String {
    format!("not valid JSON ({}); correct it", json_problem(error))
}

fn not_utf8(line: usize, valid_bytes: usize, found: &mut Collector<'_>) {
    let what = "not UTF-8; save the file as UTF-8";
    found.bad_row(Position::LineColumn(line, valid_bytes + 1), what.to_owned());
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}
