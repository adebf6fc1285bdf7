//! Values of cells.

use serde_json::value::RawValue;

/// The value of a cell, in any format.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Absent.
    Null,
    /// Text.
    Text(String),
    /// Any other JSON value: a number, a boolean, a list or an object.
    Json(Box<RawValue>),
}

impl Cell {
    /// Converts a JSON value.
    pub(crate) fn of(value: &RawValue) -> Result<Self, serde_json::Error> {
        Ok(match value.get().as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b'"') => Self::Text(serde_json::from_str(value.get())?),
            _ => Self::Json(value.to_owned()),
        })
    }
}

/// Returns the message of a JSON error without the position that serde_json appends.
pub(super) fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
