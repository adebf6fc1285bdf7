//! Rows of a data set: prompts, labels and metadata from a file.
//!
//! [`load`] reads a whole file, checks every row and returns either all rows or an error that lists the
//! problems (it describes the first `PROBLEMS_SHOWN_MAX` and counts the rest).
//!
//! # Columns
//!
//! Names are compared case-insensitively. A null counts as absent, and so does an empty CSV cell, because
//! CSV cannot tell the two apart.
//!
//! | column | value |
//! |---|---|
//! | `system_prompt` | text, optional; becomes the first message |
//! | `user_prompt` | text; becomes the user message |
//! | `prompt` | instead of `user_prompt`: a list of message objects, or text, which is then the user prompt |
//! | `ground_truth` or `label` | text, optional; any other JSON value becomes its JSON text |
//! | `metadata` | an object, or JSON text of one, optional |
//!
//! [`Options::columns`] maps columns with other names to these.
//!
//! In CSV, TSV and Parquet, a `prompt` text that begins with `[{` is read as the JSON text of
//! a list of messages; in JSON a text is always text. Other columns are ignored: data that a
//! workflow or grader needs belongs in `metadata`.
//!
//! Messages and metadata of a JSON file, or of JSON text in a cell, are preserved byte for
//! byte. In nested Parquet columns, a null field of a message is left out, because a
//! Parquet struct has every field in every row; metadata keeps its nulls.

mod cell;
mod cells;
mod columns;
mod from_csv;
mod from_json;
mod from_parquet;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod selection;
mod source;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

pub use columns::{ColumnMap, InvalidMapping, Mapping, TARGETS};
pub use selection::Selection;

use cell::Cell;
use columns::CellPath;
use source::Source;

/// Number of bad rows that a [`DataError::Rows`] describes; the rest are counted. Ten show
/// a pattern and still fit a screen.
pub(crate) const PROBLEMS_SHOWN_MAX: usize = 10;

/// Extensions that [`load`] knows, for messages and help texts.
pub(crate) const EXTENSIONS: &str = ".jsonl, .ndjson, .json, .csv, .tsv, .parquet or .pq, perhaps with .gz";

/// One row of a data set: the prompt of a rollout, and the label and metadata for its grader.
#[derive(Clone, Debug)]
pub struct Row {
    /// Position among the rows of the file, from 0. Blank lines and headers do not count.
    pub index: usize,
    /// The chat messages, at least one, each a JSON object with a text `role`.
    pub prompt: Vec<Box<RawValue>>,
    /// The expected answer, for the grader only.
    pub label: Option<String>,
    /// A JSON object.
    pub metadata: Option<Box<RawValue>>,
}

/// All rows of one file.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// The rows in the order of the file, at least one.
    pub rows: Vec<Row>,
    /// SHA-256 of the file's uncompressed bytes, in lower-case hex.
    pub digest: String,
}

/// Options of reading a data set.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; if `None`, the file's extension decides.
    pub format: Option<Format>,
    /// Mappings of columns with other names.
    pub columns: ColumnMap,
    /// System prompt of the rows that have none.
    pub system_prompt: Option<String>,
    /// Marker in every label; only the text after its last occurrence is used.
    pub label_after: Option<String>,
}

/// Error of loading a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be read.
    #[error("cannot read data set {}; check that it is a file and may be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file's extension is not that of a known format.
    #[error(
        "cannot tell the format of data set {} from its name; name it {EXTENSIONS}, \
         or give --data-format ({FORMATS})",
        .path.display()
    )]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// The file has no row.
    #[error("data set {} has no rows; use a file with at least one", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has the extension of Parquet but another content.
    #[error(
        "cannot read data set {} as Parquet; check that it was written completely",
        .path.display()
    )]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Error of the decoder.
        #[source]
        source: ::parquet::errors::ParquetError,
    },
    /// Rows are malformed. A file with a bad row is refused as a whole, because an evaluation
    /// of part of a data set would have other figures.
    #[error("{}", RowsDisplay { path, problems, total: *.total })]
    Rows {
        /// The file.
        path: PathBuf,
        /// The first problems, at most `PROBLEMS_SHOWN_MAX`, each different.
        problems: Vec<RowProblem>,
        /// Number of problems.
        total: usize,
    },
}

/// A problem with one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowProblem {
    /// Position of the row.
    pub position: Position,
    /// Description of the problem, and how to correct it.
    pub message: String,
    /// Number of later rows with the same problem.
    pub more: usize,
}

/// A position in a data set file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The names of the columns.
    Header,
    /// A line of a text file, from 1.
    Line(usize),
    /// A line of a text file and a column in bytes, both from 1.
    LineColumn(usize, usize),
    /// A row of a binary file, from 0 as in [`Row::index`].
    Row(usize),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "columns"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::LineColumn(line, column) => write!(f, "line {line}, column {column}"),
            Self::Row(index) => write!(f, "row {index} (counted from 0)"),
        }
    }
}

/// Reads the data set at `path`; `-` is standard input. If the options have no format, the
/// extension decides, which must be one of `EXTENSIONS`.
///
/// # Errors
///
/// Fails if the file cannot be read or any row is malformed ([`DataError`]).
pub fn load(path: &Path, options: &Options) -> Result<DataSet, DataError> {
    let name = if source::is_standard_input(path) { Path::new("standard input") } else { path };
    let format = options.format.or_else(|| Format::of(path));
    let format = format.ok_or_else(|| DataError::Extension { path: name.to_owned() })?;
    let unreadable = |source| DataError::Read { path: name.to_owned(), source };
    let no_parquet = |source| DataError::Parquet { path: name.to_owned(), source };
    let mut found = Collector::new(format, options);
    let source = Source::open(path).map_err(unreadable)?;
    let digest = match (format, source) {
        (Format::Parquet, Source::File(mut file)) => {
            let digest = digest_of(&mut file).map_err(unreadable)?;
            from_parquet::read(file, &mut found).map_err(no_parquet)?;
            digest
        }
        (Format::Parquet, Source::Bytes(bytes)) => {
            let digest = hex(&Sha256::digest(&bytes));
            from_parquet::read(bytes::Bytes::from(bytes), &mut found).map_err(no_parquet)?;
            digest
        }
        (_, source) => {
            let bytes = source.into_bytes().map_err(unreadable)?;
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            read_text(format, text, &mut found);
            hex(&Sha256::digest(&bytes))
        }
    };
    let rows = found.finish(name)?;
    Ok(DataSet { rows, digest })
}

/// Reads the rows of a text format.
fn read_text(format: Format, text: &[u8], found: &mut Collector<'_>) {
    match format {
        Format::JsonLines => from_json::read_lines(text, found),
        Format::JsonArray => from_json::read_array(text, found),
        Format::Tsv => from_csv::read(text, b'\t', found),
        Format::Csv | Format::Parquet => from_csv::read(text, b',', found),
    }
}

/// The names of the formats, for messages.
pub(crate) const FORMATS: &str = "jsonl, json, csv, tsv or parquet";

/// The format of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    JsonLines,
    /// One JSON list of objects.
    JsonArray,
    /// A header and records, separated by commas.
    Csv,
    /// A header and records, separated by tabs.
    Tsv,
    /// Apache Parquet.
    Parquet,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Ok(Self::JsonLines),
            "json" => Ok(Self::JsonArray),
            "csv" => Ok(Self::Csv),
            "tsv" | "tab" => Ok(Self::Tsv),
            "parquet" | "pq" => Ok(Self::Parquet),
            _ => Err(format!("unknown format '{name}'; use {FORMATS}")),
        }
    }
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let extension = |path: &Path| path.extension()?.to_str().map(str::to_ascii_lowercase);
        match extension(path)?.as_str() {
            "gz" => extension(&path.with_extension(""))?.parse().ok(),
            other => other.parse().ok(),
        }
    }
}

/// Collects the rows that a reader finds, numbers them and keeps the first problems.
struct Collector<'a> {
    options: &'a Options,
    /// Mapped columns that no row had so far.
    unseen: Vec<&'a CellPath>,
    /// The columns of the first row.
    columns_found: Vec<String>,
    /// Whether a text cell may hold the JSON text of a list of messages.
    text_holds_json: bool,
    rows: Vec<Row>,
    rows_seen: usize,
    problems: Vec<RowProblem>,
    problems_total: usize,
}

impl<'a> Collector<'a> {
    fn new(format: Format, options: &'a Options) -> Self {
        Self {
            options,
            unseen: options.columns.cells().collect(),
            columns_found: Vec::new(),
            text_holds_json: matches!(format, Format::Csv | Format::Tsv | Format::Parquet),
            rows: Vec::new(),
            rows_seen: 0,
            problems: Vec::new(),
            problems_total: 0,
        }
    }

    /// Returns the mappings of columns.
    fn columns(&self) -> &'a ColumnMap {
        &self.options.columns
    }

    /// Returns the index of the next row.
    fn next_index(&self) -> usize {
        self.rows_seen
    }

    /// Adds a row of these columns, which are in the order of the file.
    fn row(&mut self, position: Position, columns: Vec<(String, Cell)>) {
        if self.columns_found.is_empty() {
            self.columns_found = columns.iter().map(|(name, _)| name.clone()).collect();
        }
        self.unseen.retain(|path| !columns.iter().any(|(name, _)| cells::same(name, path.column())));
        match cells::interpret(columns, self.options, self.text_holds_json) {
            Ok(content) => {
                self.rows.push(Row {
                    index: self.rows_seen,
                    prompt: content.prompt,
                    label: content.label,
                    metadata: content.metadata,
                });
                self.rows_seen += 1;
            }
            Err(message) => self.bad_row(position, message),
        }
    }

    /// Adds the problem of a malformed row.
    fn bad_row(&mut self, position: Position, message: String) {
        self.rows_seen += 1;
        self.problems_total += 1;
        if let Some(same) = self.problems.iter_mut().find(|problem| problem.message == message) {
            same.more += 1;
        } else if self.problems.len() < PROBLEMS_SHOWN_MAX {
            self.problems.push(RowProblem { position, message, more: 0 });
        }
    }

    fn finish(mut self, path: &Path) -> Result<Vec<Row>, DataError> {
        let path = path.to_owned();
        // A mapped column that no row has is a typing error; one that some rows lack is not.
        if self.rows_seen > 0 && self.problems.first().is_none_or(|first| first.position != Position::Header)
        {
            let missing: Vec<String> =
                self.unseen.iter().map(|path| format!("`{}`", path.column())).collect();
            if !missing.is_empty() {
                let message = cells::no_column(&missing, &cells::listed(&self.columns_found));
                let problem = RowProblem { position: Position::Header, message, more: 0 };
                self.problems = vec![problem];
                self.problems_total = 1;
            }
        }
        if self.problems_total > 0 {
            return Err(DataError::Rows { path, problems: self.problems, total: self.problems_total });
        }
        if self.rows.is_empty() {
            return Err(DataError::Empty { path });
        }
        Ok(self.rows)
    }
}

struct RowsDisplay<'a> {
    path: &'a Path,
    problems: &'a [RowProblem],
    total: usize,
}

impl fmt::Display for RowsDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data set {} has ", self.path.display())?;
        match self.total {
            1 => write!(f, "1 problem; correct it and start again")?,
            total => write!(f, "{total} problems; correct them and start again")?,
        }
        for problem in self.problems {
            match problem.more {
                0 => write!(f, "\n  {}: {}", problem.position, problem.message)?,
                more => write!(f, "\n  {} and {more} more: {}", problem.position, problem.message)?,
            }
        }
        let hidden = self.total - self.problems.iter().map(|problem| 1 + problem.more).sum::<usize>();
        if hidden > 0 {
            write!(f, "\n  and {hidden} more")?;
        }
        Ok(())
    }
}

/// Returns the SHA-256 of the whole file in hex and rewinds it.
fn digest_of(file: &mut File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    file.rewind()?;
    Ok(hex(&hasher.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
