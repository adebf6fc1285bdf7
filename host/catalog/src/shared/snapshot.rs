//! Snapshots of all shared rows. A copy that is behind the beginning of the log continues from a snapshot.
//!
//! ```text
//! "ROLLSNP1" | SHA-256 of the rest, 32 bytes | gzip of lines of JSON: the head, then a row each
//! ```
//!
//! A snapshot is the state at a checkpoint, a change without rows. The head names it by sequence and digest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rollout_wire::digest::Digest;
use rusqlite::types::Value as Sql;
use rusqlite::{OptionalExtension, Transaction, params, params_from_iter};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::apply::{Applied, NotApplied, apply};
use super::capture::values_of;
use super::change::RowChange;
use super::value::from_json;
use super::{TABLES, Table};

const MAGIC: &[u8; 8] = b"ROLLSNP1";

const HEAD_BYTES: usize = MAGIC.len() + 32;

/// The last change of the shared log that a copy has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Position {
    pub sequence: u64,
    pub digest: Option<Digest>,
    /// Digest of the very first change, by which a copy recognizes its log even after the beginning was cut off.
    pub origin: Option<Digest>,
}

impl Position {
    /// Returns the position after the next change.
    pub(crate) fn after(self, sequence: u64, digest: Digest) -> Self {
        let origin = if self.sequence == 0 { Some(digest) } else { self.origin };
        Self { sequence, digest: Some(digest), origin }
    }
}

/// The first line of a snapshot.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    checkpoint: Position,
    /// Highest id that each table has ever had.
    ids: BTreeMap<String, i64>,
}

/// Reason why a snapshot cannot be written or applied.
#[derive(Debug)]
pub(crate) enum SnapshotError {
    Sql(rusqlite::Error),
    Io(io::Error),
    /// The contents are wrong, as the text describes.
    Damaged(String),
    /// Another version of the program wrote the snapshot.
    Unknown(String),
}

impl From<rusqlite::Error> for SnapshotError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<NotApplied> for SnapshotError {
    fn from(error: NotApplied) -> Self {
        match error {
            NotApplied::Sql(error) => Self::Sql(error),
            NotApplied::Unknown(what) => Self::Unknown(what),
        }
    }
}

/// A writer that computes the digest of its bytes.
struct Hashed<W> {
    to: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes the shared rows, as the transaction reads them, to an empty file. `checkpoint` is the position of this copy.
pub(crate) fn write(
    transaction: &Transaction<'_>,
    checkpoint: Position,
    file: File,
) -> Result<(), SnapshotError> {
    let mut to = BufWriter::new(file);
    to.write_all(&[0; HEAD_BYTES])?;
    let mut lines = GzEncoder::new(Hashed { to, hash: Sha256::new() }, Compression::fast());
    let mut ids = BTreeMap::new();
    let mut statement = transaction.prepare("SELECT name, seq FROM main.sqlite_sequence")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if Table::named(&name).is_some() {
            ids.insert(name, row.get(1)?);
        }
    }
    write_line(&mut lines, &Head { checkpoint, ids })?;
    each_row(transaction, |row| Ok::<_, SnapshotError>(write_line(&mut lines, &row)?))?;
    let Hashed { to, hash } = lines.finish()?;
    let mut file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(MAGIC)?;
    Ok(file.write_all(&hash.finalize())?)
}

/// Calls a function with each shared row, in the order of tables and keys.
pub(crate) fn each_row<E: From<rusqlite::Error>>(
    transaction: &Transaction<'_>,
    mut take: impl FnMut(RowChange) -> Result<(), E>,
) -> Result<(), E> {
    for table in &TABLES {
        let select = format!("SELECT * FROM main.{} ORDER BY {}", table.name, table.key.join(", "));
        let mut statement = transaction.prepare(&select)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = values_of(table, row)?;
            let key = table.key.iter().filter_map(|column| values.get(*column).cloned()).collect();
            take(RowChange { table: table.name.to_owned(), key, row: Some(values) })?;
        }
    }
    Ok(())
}

fn write_line(lines: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *lines, line)?;
    lines.write_all(b"\n")
}

/// Result of preparing to apply changes.
pub(crate) enum Preparation {
    /// The changes can be applied, after this snapshot if there is one.
    Ready(Option<Snapshot>),
    /// The log was cut meanwhile and must be read again.
    ReadAgain,
}

/// A snapshot whose checksum is right.
pub(crate) struct Snapshot {
    file: File,
    head: Head,
}

impl Snapshot {
    /// Opens a snapshot and checks it.
    pub(crate) fn open(path: &Path) -> Result<Self, SnapshotError> {
        let damaged = |what: &str| SnapshotError::Damaged(what.to_owned());
        let mut file = File::open(path)?;
        let mut start = Vec::new();
        (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut start)?;
        let expected = start.strip_prefix(MAGIC).filter(|digest| digest.len() == 32);
        let expected = expected.ok_or_else(|| damaged("it does not begin like one of this version"))?;
        let mut hashed = Hashed { to: io::sink(), hash: Sha256::new() };
        io::copy(&mut file, &mut hashed)?;
        if hashed.hash.finalize()[..] != *expected {
            return Err(damaged("its digest is wrong"));
        }
        let mut lines = lines(&file)?;
        let head = lines.next().ok_or_else(|| damaged("it is empty"))??;
        let head = serde_json::from_str(&head).map_err(|error| SnapshotError::Unknown(error.to_string()))?;
        drop(lines);
        Ok(Self { file, head })
    }

    /// Returns the position of a copy that has the snapshot.
    pub(crate) fn checkpoint(&self) -> Position {
        self.head.checkpoint
    }

    /// Returns all rows, in order.
    fn rows(&self) -> Result<impl Iterator<Item = Result<RowChange, SnapshotError>>, SnapshotError> {
        Ok(lines(&self.file)?.skip(1).map(|line| {
            serde_json::from_str(&line?).map_err(|error| SnapshotError::Unknown(error.to_string()))
        }))
    }

    /// Changes the shared rows of a copy to those of the snapshot. Columns and tables that are not shared stay as
    /// they are.
    pub(crate) fn apply(&self, transaction: &Transaction<'_>) -> Result<Applied, SnapshotError> {
        // A new row may have the unique name of a deleted one.
        let mut applied = apply(transaction, &self.missing(transaction)?)?;
        for row in self.rows()? {
            let row = row?;
            let (table, key) = table_and_key(&row)?;
            let select = format!("SELECT * FROM main.{} WHERE {}", table.name, table.condition());
            let now = transaction
                .query_row(&select, params_from_iter(key), |row| values_of(table, row))
                .optional()?
                .unwrap_or_default();
            let is_same = row.row.iter().flatten().all(|(column, value)| now.get(column) == Some(value));
            if !is_same {
                applied.add(apply(transaction, std::slice::from_ref(&row))?);
            }
        }
        for (name, id) in &self.head.ids {
            let update = "UPDATE main.sqlite_sequence SET seq = max(seq, ?2) WHERE name = ?1";
            if transaction.execute(update, params![name, id])? == 0 {
                transaction.execute(
                    "INSERT INTO main.sqlite_sequence (name, seq) VALUES (?1, ?2)",
                    params![name, id],
                )?;
            }
        }
        Ok(applied)
    }

    /// Returns the deletions of the rows that the snapshot does not have.
    fn missing(&self, transaction: &Transaction<'_>) -> Result<Vec<RowChange>, SnapshotError> {
        transaction.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS snapshot_rows (
                 name TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (name, key)
             ) STRICT, WITHOUT ROWID;
             DELETE FROM temp.snapshot_rows",
        )?;
        for row in self.rows()? {
            let row = row?;
            let (table, key) = table_and_key(&row)?;
            let places = (2..=key.len() + 1).map(|at| format!("?{at}")).collect::<Vec<_>>().join(", ");
            let insert = format!("INSERT INTO temp.snapshot_rows VALUES (?1, json_array({places}))");
            let name = Sql::Text(table.name.to_owned());
            transaction.execute(&insert, params_from_iter(std::iter::once(name).chain(key)))?;
        }
        let mut missing = Vec::new();
        for Table { name, key, .. } in TABLES {
            let key = format!("json_array({})", key.join(", "));
            let select = format!(
                "SELECT {key} FROM main.{name}
                 WHERE {key} NOT IN (SELECT s.key FROM temp.snapshot_rows s WHERE s.name = ?1)"
            );
            let mut statement = transaction.prepare(&select)?;
            let mut rows = statement.query([name])?;
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                let key = serde_json::from_str(&key).map_err(|error| super::value::invalid(0, error))?;
                missing.push(RowChange { table: name.to_owned(), key, row: None });
            }
        }
        transaction.execute("DELETE FROM temp.snapshot_rows", [])?;
        Ok(missing)
    }
}

/// Returns the lines of a snapshot's contents.
fn lines(mut file: &File) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
    Ok(BufReader::new(GzDecoder::new(BufReader::new(file))).lines())
}

/// Returns the table of a row and the values of its key.
fn table_and_key(row: &RowChange) -> Result<(&'static Table, Vec<Sql>), SnapshotError> {
    let table = Table::named(&row.table);
    let key: Option<Vec<Sql>> = row.key.iter().map(from_json).collect();
    let found = table.zip(key).filter(|(table, key)| key.len() == table.key.len() && row.row.is_some());
    found.ok_or_else(|| SnapshotError::Unknown(format!("a row of the table '{}'", row.table)))
}
