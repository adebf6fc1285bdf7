//! Output of rows: a file, which appears when it is complete, or a stream.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

use crate::columns::Cell;
use crate::inspect::InspectLog;
use crate::jsonl;
use crate::parquet_file::ParquetFile;
use crate::row::Row;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Parquet file.
    Parquet,
    /// JSON Lines, one row per line.
    JsonLines,
    /// A log of Inspect.
    Inspect,
}

/// Error of writing rows. An incomplete file is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// An operation on the file failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation, such as `create`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Writing to the stream failed.
    #[error("cannot write the rows")]
    Stream(#[source] io::Error),
}

/// Writer of rows.
pub struct Output {
    rows: Rows,
    /// The file; `None` for a stream.
    file: Option<PartialFile>,
}

type Destination = BufWriter<Box<dyn Write + Send>>;

enum Rows {
    Parquet(Box<ParquetFile<Destination>>),
    JsonLines(Destination),
    Inspect(Box<InspectLog<Destination>>),
}

impl Output {
    /// Creates an output to a file, which appears when it is complete. An existing file is replaced at that moment.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub fn to_file(path: &Path, format: Format) -> Result<Self, OutputError> {
        let mut name = OsString::from(path);
        name.push(".partial");
        let partial = PathBuf::from(name);
        let create = || {
            let file = File::create(&partial)?;
            Ok((file.try_clone()?, file))
        };
        let (file, to) = create().map_err(|source| OutputError::File {
            action: "create",
            path: partial.clone(),
            source,
        })?;
        let partial_file = PartialFile { file, partial, path: path.to_owned() };
        match Rows::new(Box::new(to), format) {
            Ok(rows) => Ok(Self { rows, file: Some(partial_file) }),
            Err(source) => Err(partial_file.failed("write to", source)),
        }
    }

    /// Creates an output to a stream.
    ///
    /// # Errors
    ///
    /// Writing to the stream fails.
    pub fn to_stream(to: impl Write + Send + 'static, format: Format) -> Result<Self, OutputError> {
        let rows = Rows::new(Box::new(to), format).map_err(OutputError::Stream)?;
        Ok(Self { rows, file: None })
    }

    /// Writes a row, whose cells are given.
    ///
    /// # Errors
    ///
    /// Writing to the file or the stream fails.
    pub fn push(&mut self, row: &Row<'_>, cells: &[Cell<'_>]) -> Result<(), OutputError> {
        let written = match &mut self.rows {
            Rows::Parquet(file) => file.push(cells).map_err(io_error),
            Rows::JsonLines(to) => jsonl::write(cells, to),
            Rows::Inspect(log) => log.push(row),
        };
        written.map_err(|source| self.failed(source))
    }

    /// Writes the remaining rows and moves the file to its path.
    ///
    /// # Errors
    ///
    /// Writing to the file or the stream fails.
    pub fn finish(self) -> Result<(), OutputError> {
        let Self { rows, file } = self;
        let written = match rows {
            Rows::Parquet(rows) => rows.finish().map_err(io_error).and_then(|mut to| to.flush()),
            Rows::JsonLines(mut to) => to.flush(),
            Rows::Inspect(log) => log.finish().and_then(|mut to| to.flush()),
        };
        match (written, file) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(file)) => file.finish(),
            (Err(source), None) => Err(OutputError::Stream(source)),
            (Err(source), Some(file)) => Err(file.failed("write to", source)),
        }
    }

    fn failed(&self, source: io::Error) -> OutputError {
        match &self.file {
            Some(file) => file.failed("write to", source),
            None => OutputError::Stream(source),
        }
    }
}

impl Rows {
    fn new(to: Box<dyn Write + Send>, format: Format) -> io::Result<Self> {
        let to = BufWriter::with_capacity(BUFFER_BYTES, to);
        Ok(match format {
            Format::Parquet => Self::Parquet(Box::new(ParquetFile::new(to).map_err(io_error)?)),
            Format::JsonLines => Self::JsonLines(to),
            Format::Inspect => Self::Inspect(Box::new(InspectLog::new(to)?)),
        })
    }
}

/// Extracts the error of the operating system, if there is one.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}

/// A temporary file, which is renamed when it is complete and otherwise removed on drop.
struct PartialFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl PartialFile {
    fn finish(self) -> Result<(), OutputError> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.partial, &self.path));
        done.map_err(|source| self.failed("write", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> OutputError {
        OutputError::File { action, path: self.path.clone(), source }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After the rename, no file has this name.
        let _ = std::fs::remove_file(&self.partial);
    }
}
