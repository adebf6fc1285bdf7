//! Rows as a Parquet file, written column by column without Arrow, which would add ten crates.
//!
//! A row is split into the leaves of its columns. Each leaf has values, and for each entry a definition level
//! and a repetition level, with which Parquet encodes lists in columns. Leaves are buffered up to
//! [`ROW_GROUP_BYTES`] and then written, so that the memory does not depend on the size of the file.

use std::io::Write;
use std::mem::size_of;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use crate::columns::{COLUMNS, Cell, Column, Kind};

/// Size of the buffered rows at which a row group is written. Readers read one group at a time.
const ROW_GROUP_BYTES: usize = 16 << 20;

/// Writer of a Parquet file.
pub(crate) struct ParquetFile<W: Write + Send> {
    file: SerializedFileWriter<W>,
    leaves: Vec<Leaf>,
    row_group_bytes: usize,
}

impl<W: Write + Send> ParquetFile<W> {
    /// Creates a writer with row groups of the default size.
    pub(crate) fn new(to: W) -> Result<Self> {
        Self::with_row_group_bytes(to, ROW_GROUP_BYTES)
    }

    /// Creates a writer with row groups of this size.
    pub(crate) fn with_row_group_bytes(to: W, row_group_bytes: usize) -> Result<Self> {
        let fields: Vec<TypePtr> = COLUMNS.iter().map(schema_type).collect::<Result<_>>()?;
        let schema = Type::group_type_builder("rows").with_fields(fields).build()?;
        let properties =
            WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let file = SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties))?;
        let mut leaves = Vec::new();
        COLUMNS.iter().for_each(|column| add_leaves(column.kind, &mut leaves));
        Ok(Self { file, leaves, row_group_bytes })
    }

    /// Buffers a row and writes a row group if the buffer is full.
    pub(crate) fn push(&mut self, row: &[Cell<'_>]) -> Result<()> {
        let mut leaves = self.leaves.as_mut_slice();
        for (Column { kind, .. }, cell) in COLUMNS.iter().zip(row) {
            let rest = leaf_count(*kind);
            let (own, others) = leaves.split_at_mut(rest);
            collect(*kind, cell, Levels::default(), own);
            leaves = others;
        }
        if self.leaves.iter().map(Leaf::bytes).sum::<usize>() >= self.row_group_bytes {
            self.write_row_group()?;
        }
        Ok(())
    }

    /// Writes the buffered rows and the end of the file.
    pub(crate) fn finish(mut self) -> Result<W> {
        if self.leaves.iter().any(|leaf| !leaf.definition.is_empty()) {
            self.write_row_group()?;
        }
        self.file.into_inner()
    }

    fn write_row_group(&mut self) -> Result<()> {
        let mut group = self.file.next_row_group()?;
        for leaf in &mut self.leaves {
            if let Some(mut column) = group.next_column()? {
                leaf.write(&mut column)?;
                column.close()?;
            }
            leaf.clear();
        }
        group.close().map(drop)
    }
}

/// Returns the Parquet type of a column. Lists have three levels, with the names of Parquet's specification.
fn schema_type(Column { name, kind }: &Column) -> Result<TypePtr> {
    let primitive =
        |physical| Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    let built = match kind {
        Kind::Bool => primitive(Physical::BOOLEAN).build(),
        Kind::Int => primitive(Physical::INT64).build(),
        Kind::Double => primitive(Physical::DOUBLE).build(),
        Kind::Text => primitive(Physical::BYTE_ARRAY)
            .with_logical_type(Some(LogicalType::String))
            .with_converted_type(ConvertedType::UTF8)
            .build(),
        Kind::Struct(members) => Type::group_type_builder(name)
            .with_repetition(Repetition::OPTIONAL)
            .with_fields(members.iter().map(schema_type).collect::<Result<_>>()?)
            .build(),
        Kind::List(of) => {
            let element = schema_type(&Column { name: "element", kind: **of })?;
            let list = Type::group_type_builder("list")
                .with_repetition(Repetition::REPEATED)
                .with_fields(vec![element])
                .build()?;
            Type::group_type_builder(name)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(Some(LogicalType::List))
                .with_converted_type(ConvertedType::LIST)
                .with_fields(vec![Arc::new(list)])
                .build()
        }
    };
    built.map(Arc::new)
}

/// Buffer of a leaf.
struct Leaf {
    values: Values,
    text_bytes: usize,
    /// Definition level of each entry: the number of optional and repeated types on its path that are
    /// present.
    definition: Vec<i16>,
    /// Repetition level of each entry: the innermost list of which it is not the first element.
    repetition: Vec<i16>,
}

enum Values {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Double(Vec<f64>),
    Text(Vec<ByteArray>),
}

impl Leaf {
    fn new(values: Values) -> Self {
        Self { values, text_bytes: 0, definition: Vec::new(), repetition: Vec::new() }
    }

    fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::Bool(values) => values.len(),
            Values::Int(values) => size_of_val(values.as_slice()),
            Values::Double(values) => size_of_val(values.as_slice()),
            Values::Text(values) => size_of_val(values.as_slice()) + self.text_bytes,
        };
        values + 2 * size_of::<i16>() * self.definition.len()
    }

    fn clear(&mut self) {
        match &mut self.values {
            Values::Bool(values) => values.clear(),
            Values::Int(values) => values.clear(),
            Values::Double(values) => values.clear(),
            Values::Text(values) => values.clear(),
        }
        self.text_bytes = 0;
        self.definition.clear();
        self.repetition.clear();
    }

    fn write(&self, column: &mut SerializedColumnWriter<'_>) -> Result<()> {
        let (definition, repetition) = (Some(self.definition.as_slice()), Some(self.repetition.as_slice()));
        match &self.values {
            Values::Bool(values) => column.typed::<BoolType>().write_batch(values, definition, repetition),
            Values::Int(values) => column.typed::<Int64Type>().write_batch(values, definition, repetition),
            Values::Double(values) => {
                column.typed::<DoubleType>().write_batch(values, definition, repetition)
            }
            Values::Text(values) => {
                column.typed::<ByteArrayType>().write_batch(values, definition, repetition)
            }
        }
        .map(drop)
    }

    fn null(&mut self, at: Levels) {
        self.definition.push(at.definition);
        self.repetition.push(at.repetition);
    }

    fn push(&mut self, cell: &Cell<'_>, at: Levels) {
        match (&mut self.values, cell) {
            (Values::Bool(values), Cell::Bool(value)) => values.push(*value),
            (Values::Int(values), Cell::Int(value)) => values.push(*value),
            (Values::Double(values), Cell::Double(value)) => values.push(*value),
            (Values::Text(values), Cell::Text(text)) => {
                self.text_bytes += text.len();
                values.push(ByteArray::from(text.as_bytes().to_vec()));
            }
            _ => return self.null(at),
        }
        self.null(Levels { definition: at.definition + 1, ..at });
    }
}

/// Levels of a value in its row.
#[derive(Clone, Copy, Default)]
struct Levels {
    /// Definition level.
    definition: i16,
    /// Repetition level.
    repetition: i16,
    /// Number of lists around the value.
    lists: i16,
}

impl Levels {
    /// Returns the levels of an element of a list with these levels.
    fn element(self, index: usize) -> Self {
        let lists = self.lists + 1;
        Self {
            definition: self.definition + 2,
            repetition: if index == 0 { self.repetition } else { lists },
            lists,
        }
    }
}

fn add_leaves(kind: Kind, to: &mut Vec<Leaf>) {
    match kind {
        Kind::Bool => to.push(Leaf::new(Values::Bool(Vec::new()))),
        Kind::Int => to.push(Leaf::new(Values::Int(Vec::new()))),
        Kind::Double => to.push(Leaf::new(Values::Double(Vec::new()))),
        Kind::Text => to.push(Leaf::new(Values::Text(Vec::new()))),
        Kind::List(of) => add_leaves(*of, to),
        Kind::Struct(members) => members.iter().for_each(|member| add_leaves(member.kind, to)),
    }
}

fn leaf_count(kind: Kind) -> usize {
    match kind {
        Kind::Bool | Kind::Int | Kind::Double | Kind::Text => 1,
        Kind::List(of) => leaf_count(*of),
        Kind::Struct(members) => members.iter().map(|member| leaf_count(member.kind)).sum(),
    }
}

/// Adds a value to its leaves.
fn collect(kind: Kind, cell: &Cell<'_>, at: Levels, leaves: &mut [Leaf]) {
    match (kind, cell) {
        (Kind::List(of), Cell::List(cells)) => {
            collect_list(cells.len(), at, leaves, |index, at, leaves| {
                collect(*of, &cells[index], at, leaves);
            });
        }
        (Kind::List(_), Cell::Ints(values)) => collect_list(values.len(), at, leaves, |index, at, leaves| {
            leaves[0].push(&Cell::Int(values[index]), at);
        }),
        (Kind::List(_), Cell::Doubles(values)) => {
            collect_list(values.len(), at, leaves, |index, at, leaves| {
                leaves[0].push(&Cell::Double(values[index]), at);
            });
        }
        (Kind::Struct(members), Cell::Struct(cells)) => {
            let mut leaves = leaves;
            for (member, cell) in members.iter().zip(cells) {
                let (own, others) = leaves.split_at_mut(leaf_count(member.kind));
                collect(member.kind, cell, Levels { definition: at.definition + 1, ..at }, own);
                leaves = others;
            }
        }
        (Kind::List(_) | Kind::Struct(_), _) => leaves.iter_mut().for_each(|leaf| leaf.null(at)),
        (_, cell) => leaves[0].push(cell, at),
    }
}

fn collect_list(
    length: usize,
    at: Levels,
    leaves: &mut [Leaf],
    mut each: impl FnMut(usize, Levels, &mut [Leaf]),
) {
    if length == 0 {
        leaves.iter_mut().for_each(|leaf| leaf.null(Levels { definition: at.definition + 1, ..at }));
    }
    for index in 0..length {
        each(index, at.element(index), leaves);
    }
}
