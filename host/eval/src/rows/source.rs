//! The bytes of a data set: of a file or of standard input, compressed or not.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// The longest data set of text, in bytes, and the longest of any format that is
/// compressed or comes from standard input, because it is read into memory. A file that
/// unpacks to more than this, or an input that never ends, is a mistake.
pub(crate) const DATA_BYTES_MAX: u64 = 4 << 30;

/// How a compressed file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A data set before it is taken apart.
pub(super) enum Source {
    /// A file as it is, from its beginning.
    File(File),
    /// What was read and unpacked.
    Bytes(Vec<u8>),
}

impl Source {
    /// Opens a file; `-` is standard input. What is compressed by gzip is unpacked,
    /// whatever it is called.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if is_standard_input(path) {
            return unpacked(io::stdin().lock()).map(Self::Bytes);
        }
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            // A pipe, for one, which cannot be rewound.
            return unpacked(file).map(Self::Bytes);
        }
        let mut start = Vec::with_capacity(GZIP.len());
        (&mut file).take(GZIP.len() as u64).read_to_end(&mut start)?;
        file.rewind()?;
        if start == GZIP { unpacked(file).map(Self::Bytes) } else { Ok(Self::File(file)) }
    }

    /// The whole of it.
    pub(crate) fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => limited(file),
            Self::Bytes(bytes) => Ok(bytes),
        }
    }
}

/// Whether this means standard input.
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
        let what = format!("more than {DATA_BYTES_MAX} bytes; evaluate it in parts");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
