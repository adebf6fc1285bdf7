//! Cache of finished components for later builds of the same inputs.
//!
//! The SDK's builder names a file by a digest of all inputs (`_build_key.py`). The file has the component
//! with the output of the author's modules, and a digest of both: a damaged file is detected and never used.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rollout_wire::digest::sha256_hex;

/// Maximum size of all files together. The least recently used files are removed first.
const BYTES_MAX: u64 = 1 << 30;

/// Name and version of the format.
const MAGIC: &[u8] = b"rhbuilt1";

const DIGEST_BYTES: usize = 64;
const LENGTH_BYTES: usize = 8;

/// Age at which an incomplete file is considered abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A cached component.
#[derive(Debug, PartialEq)]
pub(super) struct CachedComponent {
    /// Output that the author's modules wrote when they were imported.
    pub output: String,
    pub component: Vec<u8>,
}

/// Reads a stored component. Removes a damaged file.
///
/// # Errors
///
/// The file is damaged, or absent because another build removed it.
pub(super) fn read(path: &Path) -> Result<CachedComponent, String> {
    let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let cached = parse(bytes).ok_or_else(|| {
        // If it cannot be removed, the next build finds it damaged again.
        let _ = fs::remove_file(path);
        format!("{} is damaged", path.display())
    })?;
    // If the time cannot be set, the file is removed earlier.
    let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
    Ok(cached)
}

fn parse(mut bytes: Vec<u8>) -> Option<CachedComponent> {
    let content = bytes.strip_prefix(MAGIC)?;
    let (digest, content) = content.split_at_checked(DIGEST_BYTES)?;
    if digest != sha256_hex(content).as_bytes() {
        return None;
    }
    let (length, content) = content.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let output = String::from_utf8(content.get(..length)?.to_vec()).ok()?;
    bytes.drain(..MAGIC.len() + DIGEST_BYTES + LENGTH_BYTES + length);
    Some(CachedComponent { output, component: bytes })
}

/// Stores a component, completely or not at all, and removes the least recently used ones.
pub(super) fn write(path: &Path, cached: &CachedComponent) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    let length = (cached.output.len() as u64).to_le_bytes();
    let content = [&length[..], cached.output.as_bytes(), &cached.component].concat();
    let fresh = path.with_extension(format!("{}.kept-new", std::process::id()));
    let written = fs::write(&fresh, [MAGIC, sha256_hex(&content).as_bytes(), &content].concat())
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written?;
    tidy(dir, path, BYTES_MAX)
}

/// Removes abandoned files, and the least recently used ones until at most `bytes_max` bytes are left.
fn tidy(dir: &Path, just_written: &Path, bytes_max: u64) -> io::Result<()> {
    let mut found: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for path in fs::read_dir(dir)?.flatten().map(|entry| entry.path()) {
        let ends_with = |ending: &str| path.extension().is_some_and(|each| each == ending);
        if !ends_with("kept") && !ends_with("kept-new") {
            continue;
        }
        // Another build may have removed it.
        let Ok(about) = fs::metadata(&path) else { continue };
        let used = about.modified()?;
        if ends_with("kept") {
            found.push((used, about.len(), path));
        } else if used.elapsed().is_ok_and(|age| age > ABANDONED_AFTER) {
            let _ = fs::remove_file(&path);
        }
    }
    found.sort();
    let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in &found {
        if total <= bytes_max {
            break;
        }
        if path != just_written {
            let _ = fs::remove_file(path);
            total -= bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached() -> CachedComponent {
        CachedComponent { output: "a warning".to_owned(), component: b"\0asm component".to_vec() }
    }

    #[test]
    fn a_component_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/built-1.kept");

        write(&path, &cached()).unwrap();

        assert_eq!(read(&path), Ok(cached()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a temporary file was left");
    }

    #[test]
    fn a_damaged_file_is_removed_and_not_used() {
        fn check(damage: impl FnOnce(&mut Vec<u8>)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("built-1.kept");
            write(&path, &cached()).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();

            let error = read(&path).unwrap_err();

            assert!(error.ends_with("is damaged"), "{error}");
            assert!(!path.exists());
        }
        check(|bytes| *bytes.last_mut().unwrap() ^= 1);
        check(|bytes| bytes[0] ^= 1);
        check(|bytes| bytes[MAGIC.len()] ^= 1);
        check(|bytes| bytes[MAGIC.len() + DIGEST_BYTES] ^= 1);
        check(|bytes| bytes.truncate(MAGIC.len() + 1));
        check(|bytes| bytes.truncate(bytes.len() - 1));
        check(|bytes| bytes.push(0));
        check(Vec::clear);
    }

    #[test]
    fn the_least_recently_used_components_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let age = |name: &str, secs: u64| {
            let file = File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(secs)).unwrap();
        };
        for (name, secs) in [("built-1.kept", 30), ("built-2.kept", 20), ("built-3.kept", 10)] {
            write(&path(name), &cached()).unwrap();
            age(name, secs);
        }
        for (name, secs) in [("built-4.1.kept-new", 4000), ("built-5.1.kept-new", 40), ("late-1.json", 4000)]
        {
            fs::write(path(name), "").unwrap();
            age(name, secs);
        }
        // Reading counts as a use.
        read(&path("built-1.kept")).unwrap();
        let bytes = fs::metadata(path("built-3.kept")).unwrap().len();

        tidy(dir.path(), &path("built-3.kept"), 2 * bytes).unwrap();

        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|each| each.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["built-1.kept", "built-3.kept", "built-5.1.kept-new", "late-1.json"]);
    }
}
