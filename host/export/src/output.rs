//! Where rows go: a file that is there when it is whole, or a stream.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

use crate::columns::Cell;
use crate::jsonl;
use crate::parquet_file::ParquetFile;

/// What is written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Parquet file.
    Parquet,
    /// A line of JSON for each row.
    JsonLines,
}

/// Why rows were not written. Nothing is left of what was begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The operating system refused it.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The stream took no more.
    #[error("cannot write the rows")]
    Stream(#[source] io::Error),
}

/// Takes rows.
pub struct Output {
    rows: Rows,
    /// The file that they go to; none where they go to a stream.
    file: Option<Unfinished>,
}

type To = BufWriter<Box<dyn Write + Send>>;

enum Rows {
    Parquet(Box<ParquetFile<To>>),
    JsonLines(To),
}

impl Output {
    /// To a file, which is in its place only when all is written. One that is there is replaced then.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn to_file(path: &Path, format: Format) -> Result<Self, OutputError> {
        let mut name = OsString::from(path);
        name.push(".partial");
        let partial = PathBuf::from(name);
        let begin = || {
            let file = File::create(&partial)?;
            Ok((file.try_clone()?, file))
        };
        let (file, to) =
            begin().map_err(|source| OutputError::File { what: "make", path: partial.clone(), source })?;
        let unfinished = Unfinished { file, partial, path: path.to_owned() };
        match Rows::new(Box::new(to), format) {
            Ok(rows) => Ok(Self { rows, file: Some(unfinished) }),
            Err(source) => Err(unfinished.failed("write to", source)),
        }
    }

    /// To a stream.
    ///
    /// # Errors
    ///
    /// It takes nothing.
    pub fn to_stream(to: impl Write + Send + 'static, format: Format) -> Result<Self, OutputError> {
        let rows = Rows::new(Box::new(to), format).map_err(OutputError::Stream)?;
        Ok(Self { rows, file: None })
    }

    /// Writes a row.
    ///
    /// # Errors
    ///
    /// The disk or the stream failed.
    pub fn push(&mut self, row: &[Cell<'_>]) -> Result<(), OutputError> {
        let written = match &mut self.rows {
            Rows::Parquet(file) => file.push(row).map_err(io_error),
            Rows::JsonLines(to) => jsonl::write(row, to),
        };
        written.map_err(|source| self.failed(source))
    }

    /// Writes what is left, and puts the file in its place.
    ///
    /// # Errors
    ///
    /// The disk or the stream failed.
    pub fn finish(self) -> Result<(), OutputError> {
        let Self { rows, file } = self;
        let written = match rows {
            Rows::Parquet(rows) => rows.finish().map_err(io_error).and_then(|mut to| to.flush()),
            Rows::JsonLines(mut to) => to.flush(),
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
        })
    }
}

/// What the system said, where it was that.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}

/// A file beside the one that it becomes. It is removed where that comes to nothing.
struct Unfinished {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    fn finish(self) -> Result<(), OutputError> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.partial, &self.path));
        done.map_err(|source| self.failed("write", source))
    }

    fn failed(&self, what: &'static str, source: io::Error) -> OutputError {
        OutputError::File { what, path: self.path.clone(), source }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename there is nothing of that name.
        let _ = std::fs::remove_file(&self.partial);
    }
}
