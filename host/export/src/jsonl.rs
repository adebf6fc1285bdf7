//! Rows as JSON Lines. Every column is present, null if it has no value.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

use crate::columns::{COLUMNS, Cell, Column, Kind};

/// Writes a row as a line.
pub(crate) fn write(row: &[Cell<'_>], to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, &Members { columns: COLUMNS, cells: row })?;
    to.write_all(b"\n")
}

struct Members<'a> {
    columns: &'static [Column],
    cells: &'a [Cell<'a>],
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut members = to.serialize_map(Some(self.columns.len()))?;
        for (Column { name, kind }, cell) in self.columns.iter().zip(self.cells) {
            members.serialize_entry(name, &Value { kind: *kind, cell })?;
        }
        members.end()
    }
}

struct Value<'a> {
    kind: Kind,
    cell: &'a Cell<'a>,
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match (self.kind, self.cell) {
            (_, Cell::Bool(value)) => to.serialize_bool(*value),
            (_, Cell::Int(value)) => to.serialize_i64(*value),
            (_, Cell::Double(value)) => to.serialize_f64(*value),
            (_, Cell::Text(text)) => to.serialize_str(text),
            (_, Cell::Ints(values)) => values.serialize(to),
            (_, Cell::Doubles(values)) => values.serialize(to),
            (Kind::List(kind), Cell::List(cells)) => {
                let mut list = to.serialize_seq(Some(cells.len()))?;
                for cell in cells {
                    list.serialize_element(&Value { kind: *kind, cell })?;
                }
                list.end()
            }
            (Kind::Struct(columns), Cell::Struct(cells)) => Members { columns, cells }.serialize(to),
            (_, Cell::Null | Cell::List(_) | Cell::Struct(_)) => to.serialize_unit(),
        }
    }
}
