//! Values of columns as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::{Type, Value as Sql, ValueRef};
use serde_json::{Value, json};

/// Converts a value of a column to JSON. Returns `None` for a value of a kind that no table has, such as a fraction.
pub(super) fn to_json(value: ValueRef<'_>) -> Option<Value> {
    Some(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(_) => return None,
        ValueRef::Text(text) => std::str::from_utf8(text).ok()?.into(),
        ValueRef::Blob(bytes) => json!({"base64": STANDARD.encode(bytes)}),
    })
}

/// Returns the error for a column whose value cannot be converted.
pub(super) fn invalid(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}

/// Converts JSON back to a value of a column. Returns `None` for JSON that [`to_json`] never returns.
pub(super) fn from_json(value: &Value) -> Option<Sql> {
    Some(match value {
        Value::Null => Sql::Null,
        Value::Number(number) => Sql::Integer(number.as_i64()?),
        Value::String(text) => Sql::Text(text.clone()),
        Value::Object(object) => Sql::Blob(STANDARD.decode(object.get("base64")?.as_str()?).ok()?),
        Value::Bool(_) | Value::Array(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_after_both_conversions() {
        let texts = [Sql::Null, Sql::Integer(i64::MIN), Sql::Text("a'b".to_owned()), Sql::Blob(vec![0, 255])];
        for value in texts {
            let json = to_json(ValueRef::from(&value)).unwrap();
            assert_eq!(from_json(&json), Some(value), "{json}");
        }
        assert_eq!(to_json(ValueRef::Real(0.5)), None);
        assert_eq!(from_json(&json!(0.5)), None);
        assert_eq!(from_json(&json!([1])), None);
    }
}
