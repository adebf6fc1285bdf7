//! Reads the bytes of a data set from a file or standard input, compressed or not.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// Maximum size in bytes of a data set that is read into memory: any text format, and any format that is
/// compressed or comes from standard input.
pub(crate) const DATA_BYTES_MAX: u64 = 4 << 30;

/// First bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The bytes of a data set before parsing.
pub(super) enum Source {
    /// An uncompressed file, at its beginning.
    File(File),
    /// Bytes that were read and uncompressed.
    Bytes(Vec<u8>),
}

impl Source {
    /// Opens a file; `-` is standard input. Data compressed by gzip is recognised by its first bytes and
    /// uncompressed, whatever the file's name.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if is_standard_input(path) {
            return unpacked(io::stdin().lock()).map(Self::Bytes);
        }
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            // A pipe, for example, cannot be rewound after a look at its first bytes.
            return unpacked(file).map(Self::Bytes);
        }
        let mut start = Vec::with_capacity(GZIP.len());
        (&mut file).take(GZIP.len() as u64).read_to_end(&mut start)?;
        file.rewind()?;
        if start == GZIP { unpacked(file).map(Self::Bytes) } else { Ok(Self::File(file)) }
    }

    /// Returns all bytes.
    pub(crate) fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => limited(file),
            Self::Bytes(bytes) => Ok(bytes),
        }
    }
}

/// Returns whether a path stands for standard input.
pub(super) fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn unpacked(mut input: impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(GZIP.len());
    (&mut input).take(GZIP.len() as u64).read_to_end(&mut start)?;
    let compressed = start == GZIP;
    let whole = io::Cursor::new(start).chain(input);
    if compressed { limited(MultiGzDecoder::new(whole)) } else { limited(whole) }
}

fn limited(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(DATA_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > DATA_BYTES_MAX {
        let what = format!("larger than {DATA_BYTES_MAX} bytes; split it and evaluate the parts");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
