//! Reads rows from Parquet, flat or nested. Columns that are not used are not decoded.

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::{Type, TypePtr};
use serde_json::value::to_raw_value;
use serde_json::{Map, Number, Value};

use super::cell::Cell;
use super::cells::{check_names, is_known, same};
use super::{Collector, Position};

/// Reads every row. Returns errors of the file; problems of rows are added to `found`.
pub(super) fn read(file: impl ChunkReader + 'static, found: &mut Collector<'_>) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields = schema.get_fields();
    let names: Vec<String> = fields.iter().map(|field| field.name().to_owned()).collect();
    if let Err(what) = check_names(&names, found.columns()) {
        found.bad_row(Position::Header, what);
        return Ok(());
    }
    let known: Vec<TypePtr> =
        fields.iter().filter(|field| is_known(field.name(), found.columns())).cloned().collect();
    let known = Type::group_type_builder(schema.name()).with_fields(known).build()?;
    let prompt = found.columns().prompt().map(|path| path.column().to_owned());
    for row in reader.get_row_iter(Some(known))? {
        let position = Position::Row(found.next_index());
        let columns: Result<Vec<(String, Cell)>, String> = row?
            .into_columns()
            .into_iter()
            .map(|(name, field)| {
                let is_prompt =
                    same(&name, "prompt") || prompt.as_ref().is_some_and(|prompt| same(&name, prompt));
                let cell = cell(&name, field, if is_prompt { Nulls::LeftOut } else { Nulls::Kept })?;
                Ok((name, cell))
            })
            .collect();
        match columns {
            Ok(columns) => found.row(position, columns),
            Err(what) => found.bad_row(position, what),
        }
    }
    Ok(())
}

fn cell(name: &str, field: Field, nulls: Nulls) -> Result<Cell, String> {
    let value = value(&field, nulls)
        .map_err(|NotText| format!("`{name}` has bytes that are not UTF-8; encode it as UTF-8 text"))?;
    Ok(match value {
        Value::Null => Cell::Null,
        Value::String(text) => Cell::Text(text),
        value => Cell::Json(to_raw_value(&value).expect("a JSON value can be written as JSON")),
    })
}

/// Treatment of a null field of a struct.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nulls {
    Kept,
    LeftOut,
}

/// Error of bytes that are not UTF-8.
struct NotText;

/// Converts a value of a column to JSON. Decimals, dates and times become texts.
fn value(field: &Field, nulls: Nulls) -> Result<Value, NotText> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => float(f64::from(*value)),
        Field::Float(value) => float(shortest(*value)),
        Field::Double(value) => float(*value),
        Field::Str(text) => Value::from(text.as_str()),
        Field::Bytes(bytes) => Value::from(std::str::from_utf8(bytes.data()).or(Err(NotText))?),
        Field::Decimal(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => Value::from(field.to_string()),
        Field::Group(row) => {
            let mut object = Map::new();
            for (name, field) in row.get_column_iter() {
                insert(&mut object, name.clone(), field, nulls)?;
            }
            Value::Object(object)
        }
        Field::ListInternal(list) => {
            let elements = list.elements().iter().map(|field| value(field, nulls));
            Value::Array(elements.collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let mut object = Map::new();
            for (key, field) in map.entries() {
                let key = match value(key, nulls)? {
                    Value::String(key) => key,
                    key => key.to_string(),
                };
                insert(&mut object, key, field, nulls)?;
            }
            Value::Object(object)
        }
    })
}

fn insert(object: &mut Map<String, Value>, name: String, field: &Field, nulls: Nulls) -> Result<(), NotText> {
    let value = value(field, nulls)?;
    if nulls == Nulls::Kept || !value.is_null() {
        object.insert(name, value);
    }
    Ok(())
}

/// Converts a number. NaN, which data frames write for a missing number and JSON does not have, is null.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Returns the `f64` with the same shortest decimal text as an `f32`: 0.1 stays 0.1.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
