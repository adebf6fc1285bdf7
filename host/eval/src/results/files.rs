//! Operations on the files of a results directory: locking, moving aside, atomic writes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{LOCK_FILE, MANIFEST_FILE, RESULTS_FILE, REWARDS_FILE, ResultsError, SUMMARY_FILE, failed};

/// Suffix of a file that is being written. A file left by a crash is overwritten.
const UNFINISHED: &str = ".tmp";

/// Exclusive right to write to a directory, until dropped. The operating system releases it when the
/// process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(dir: &Path) -> Result<Self, ResultsError> {
        let path = dir.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| failed("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ResultsError::Locked { dir: dir.to_owned(), holder: holder(&path) });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &path, source)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| failed("write to", &path, e))?;
        Ok(Self { _file: file })
    }
}

fn holder(lock: &Path) -> String {
    let text = fs::read_to_string(lock).unwrap_or_default();
    let pid: Option<u32> = text.trim().parse().ok();
    pid.map_or("unknown".to_owned(), |pid| pid.to_string())
}

/// Returns whether `dir` has the results of an evaluation; false if it is empty except for the lock and the
/// unfinished manifest of a crashed process. Fails if it has other files.
pub(super) fn has_results(dir: &Path) -> Result<bool, ResultsError> {
    if dir.join(MANIFEST_FILE).exists() {
        return Ok(true);
    }
    let unfinished = format!("{MANIFEST_FILE}{UNFINISHED}");
    let entries = fs::read_dir(dir).map_err(|e| failed("list", dir, e))?;
    for entry in entries {
        let name = entry.map_err(|e| failed("list", dir, e))?.file_name();
        if name != LOCK_FILE && name != unfinished.as_str() {
            return Err(ResultsError::NotARun { dir: dir.to_owned() });
        }
    }
    Ok(false)
}

/// Renames `dir` to the first free `<dir>.old-<n>` and creates an empty one.
pub(super) fn move_away(dir: &Path) -> Result<PathBuf, ResultsError> {
    let mut n = 1_u32;
    let target = loop {
        let mut name = dir.as_os_str().to_owned();
        name.push(format!(".old-{n}"));
        let target = PathBuf::from(name);
        if !target.exists() {
            break target;
        }
        n += 1;
    };
    fs::rename(dir, &target).map_err(|e| failed("rename", dir, e))?;
    fs::create_dir_all(dir).map_err(|e| failed("create directory", dir, e))?;
    Ok(target)
}

/// Writes a file as indented JSON, atomically.
pub(super) fn write_json<T: Serialize>(dir: &Path, name: &str, value: &T) -> Result<(), ResultsError> {
    debug_assert!([MANIFEST_FILE, SUMMARY_FILE, REWARDS_FILE].contains(&name));
    let mut bytes =
        serde_json::to_vec_pretty(value).map_err(|e| failed("write", &dir.join(name), io::Error::from(e)))?;
    bytes.push(b'\n');
    write_atomically(dir, name, &bytes)
}

/// Writes a file atomically: replaces an earlier one only once the new one is on disk.
pub(super) fn write_atomically(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), ResultsError> {
    debug_assert!([MANIFEST_FILE, SUMMARY_FILE, RESULTS_FILE, REWARDS_FILE].contains(&name));
    let path = dir.join(name);
    let unfinished = dir.join(format!("{name}{UNFINISHED}"));
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        sync_dir(dir)
    };
    write().map_err(|e| failed("write", &path, e))
}

/// Syncs a directory, on systems where a directory can be opened as a file.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
