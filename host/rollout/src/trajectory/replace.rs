//! Replaces files atomically.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Size of the write buffer in bytes. A usual trajectory is smaller.
const BUFFER_BYTES: usize = 32 << 10;

/// Returns the path of another file in the same folder.
pub(super) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Writes a file atomically: a reader sees the old content or all of the new.
pub(super) fn replace<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>,
) -> io::Result<T> {
    let temporary = sibling(path, ".partial");
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, File::create(&temporary)?);
    let written = write(&mut to).and_then(|value| to.flush().map(|()| value));
    drop(to);
    match written.and_then(|value| std::fs::rename(&temporary, path).map(|()| value)) {
        Ok(value) => Ok(value),
        Err(error) => {
            // The partial file is of no use; the first error is the one to report.
            let _ = std::fs::remove_file(&temporary);
            Err(error)
        }
    }
}
