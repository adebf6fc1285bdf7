//! Cache of compiled code, in a directory that only this user can write to.
//!
//! The host runs code from the cache without further checks, so it loads an entry only if the host itself wrote it:
//! each entry has an authentication code, under a random key that is stored beside the entries and readable by this
//! user only. Any other entry is removed and compiled again. Files are opened relative to the directory that was
//! checked, even if its path refers to another directory later. This module uses neither components nor engines, only
//! their digests.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, linkat, openat, unlinkat};
use rustix::io::Errno;
use sha2::Sha256;

use rollout_wire::digest::{hex, sha256_parts};

/// Maximum size of the entries of one directory together, in bytes. The least recently used ones are removed first.
/// Fifty Python guests fit.
pub const CACHE_BYTES_MAX: u64 = 4 << 30;

/// The first bytes of an entry; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"rhcode\0\x01";
const MAC_BYTES: usize = 32;
/// Size of magic, digests of component and engine, and authentication code.
const HEADER_BYTES: usize = MAGIC.len() + 32 + 32 + MAC_BYTES;

const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 32;

/// Age of a temporary file that belongs to a host that crashed. No write takes this long.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A directory of compiled code. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CodeCache(Arc<Inner>);

struct Inner {
    path: PathBuf,
    dir: OwnedFd,
    mac: Hmac<Sha256>,
    bytes_max: u64,
}

/// Error of a directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The directory does not exist and cannot be created, or cannot be read.
    #[error("cannot use {} for compiled code; --cache-dir takes another directory, --no-cache none", .0.display())]
    Unusable(PathBuf, #[source] io::Error),
    /// Another user could put code there.
    #[error(
        "{} belongs to user {owner} and this process runs as user {user}, so compiled code in it cannot be \
         trusted; --cache-dir takes another directory, --no-cache none",
        .path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users may write to the directory.
    #[error(
        "others can write to {0} (mode {1:03o}), so compiled code in it cannot be trusted; run `chmod go-w {0}`, \
         or --cache-dir takes another directory, --no-cache none"
    )]
    Writable(String, u32),
}

impl CacheError {
    /// Returns whether another user may have put code there. Other errors only cost time.
    pub fn is_about_trust(&self) -> bool {
        match self {
            Self::Unusable(..) => false,
            Self::Foreign { .. } | Self::Writable(..) => true,
        }
    }
}

/// The component and the engine of an entry.
pub(super) struct Key {
    pub component: [u8; 32],
    pub engine: [u8; 32],
}

impl Key {
    fn file_name(&self) -> String {
        hex(&sha256_parts(&[&MAGIC, &self.component, &self.engine])) + ".code"
    }

    fn header(&self) -> Vec<u8> {
        [&MAGIC[..], &self.component, &self.engine].concat()
    }
}

/// A verified entry.
pub(super) struct CacheEntry(Vec<u8>);

impl CacheEntry {
    pub(super) fn code(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }

    pub(super) fn into_code(mut self) -> Vec<u8> {
        self.0.drain(..HEADER_BYTES);
        self.0
    }
}

impl CodeCache {
    /// Opens a directory for entries of at most `bytes_max` bytes together, and creates it if it is missing.
    pub fn open(path: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        let unusable = |error: io::Error| CacheError::Unusable(path.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|error| unusable(error.into()))?);
        check_ours(path, &dir.metadata().map_err(unusable)?)?;
        let dir = OwnedFd::from(dir);
        let key = key(&dir).map_err(unusable)?;
        let mac = Hmac::new_from_slice(&key).map_err(|error| unusable(io::Error::other(error)))?;
        Ok(Self(Arc::new(Inner { path: path.to_owned(), dir, mac, bytes_max })))
    }

    /// Returns the path of the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.0.path
    }

    /// Returns the entry of a key if this host wrote it. Removes any other entry.
    pub(super) fn get(&self, key: &Key) -> Option<CacheEntry> {
        match self.read(&key.file_name()) {
            Ok(Some((file, bytes))) => match self.verify(key, bytes) {
                Ok(entry) => {
                    // Marks the entry as used. If that fails, the entry is only removed earlier.
                    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                    let _ =
                        rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now });
                    Some(entry)
                }
                Err(reason) => {
                    self.discard(key, reason);
                    None
                }
            },
            Ok(None) => None,
            Err(error) => {
                self.discard(key, &error.to_string());
                None
            }
        }
    }

    /// Removes an entry that cannot be used.
    pub(super) fn discard(&self, key: &Key, reason: &str) {
        let file = self.0.path.join(key.file_name());
        tracing::warn!(file = %file.display(), reason, "compiled code in the cache cannot be used; compiling again");
        if let Err(error) = self.remove(&key.file_name()) {
            tracing::warn!(file = %file.display(), %error, "cannot remove compiled code from the cache");
        }
    }

    /// Stores code that was compiled for this key. It is not synced to the disk: an entry truncated by a crash is
    /// detected when it is read.
    pub(super) fn put(&self, key: &Key, code: &[u8]) -> io::Result<()> {
        let size = (HEADER_BYTES + code.len()) as u64;
        if size > self.0.bytes_max {
            return Err(io::Error::other(format!("{size} bytes exceed the maximum size of the cache")));
        }
        let mut header = key.header();
        let mac = self.0.mac.clone().chain_update(&header).chain_update(code).finalize().into_bytes();
        header.extend_from_slice(&mac);
        let name = key.file_name();
        write_new(&self.0.dir, &name, &[&header, code], |temporary| {
            Ok(rustix::fs::renameat(&self.0.dir, temporary, &self.0.dir, &name)?)
        })?;
        self.tidy(&name)
    }

    fn read(&self, name: &str) -> io::Result<Option<(File, Vec<u8>)>> {
        let mut file = match open_for_reading(&self.0.dir, name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        if size > self.0.bytes_max {
            return Err(io::Error::other(format!("it has {size} bytes")));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        (&mut file).take(self.0.bytes_max).read_to_end(&mut bytes)?;
        Ok(Some((file, bytes)))
    }

    /// Verifies the bytes that will be run.
    fn verify(&self, key: &Key, bytes: Vec<u8>) -> Result<CacheEntry, &'static str> {
        let Some((header, code)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err("it is truncated");
        };
        let (header, mac) = header.split_at(HEADER_BYTES - MAC_BYTES);
        if header != key.header() {
            return Err("it belongs to another component, engine or format than its name says");
        }
        match self.0.mac.clone().chain_update(header).chain_update(code).verify_slice(mac) {
            Ok(()) => Ok(CacheEntry(bytes)),
            Err(_) => Err("it was changed, or another host wrote it"),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.0.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes old entries to make room, but not the one that was just written.
    fn tidy(&self, just_written: &str) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.0.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Another host may have removed it.
            let Ok(stat) = rustix::fs::statat(&self.0.dir, &*name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if name != just_written && (name.ends_with(".code") || name.ends_with(".new")) {
                #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
                found.push(CachedFile { name, size: stat.st_size as u64, used_at: stat.st_mtime as u64 });
            }
        }
        let written = rustix::fs::statat(&self.0.dir, just_written, AtFlags::empty())?.st_size;
        #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
        let room = self.0.bytes_max.saturating_sub(written as u64);
        #[expect(clippy::disallowed_methods, reason = "files have the system's times")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for name in superfluous(found, room, now.saturating_sub(ABANDONED_AFTER).as_secs()) {
            self.remove(&name)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Inner {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodeCache").field("path", &self.path).finish_non_exhaustive()
    }
}

struct CachedFile {
    name: String,
    size: u64,
    used_at: u64,
}

/// Returns the files to remove so that the rest fits in `room`: the least recently used entries, and temporary files
/// older than `abandoned_before`.
fn superfluous(mut found: Vec<CachedFile>, room: u64, abandoned_before: u64) -> Vec<String> {
    let mut names = Vec::new();
    found.retain(|file| {
        if file.name.ends_with(".new") && file.used_at < abandoned_before {
            names.push(file.name.clone());
        }
        file.name.ends_with(".code")
    });
    found.sort_by(|a, b| a.used_at.cmp(&b.used_at).then_with(|| a.name.cmp(&b.name)));
    let mut total: u64 = found.iter().map(|file| file.size).sum();
    for file in found {
        if total <= room {
            break;
        }
        total -= file.size;
        names.push(file.name);
    }
    names
}

fn check_ours(path: &Path, about: &Metadata) -> Result<(), CacheError> {
    let (owner, user) = (about.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(CacheError::Foreign { path: path.to_owned(), owner, user });
    }
    if about.mode() & 0o022 != 0 {
        return Err(CacheError::Writable(path.display().to_string(), about.mode() & 0o777));
    }
    Ok(())
}

/// Returns the key of the directory, and creates it if it is missing.
fn key(dir: &OwnedFd) -> io::Result<[u8; KEY_BYTES]> {
    match read_key(dir) {
        Ok(Some(key)) => return Ok(key),
        Ok(None) => {
            tracing::warn!("the key of the compiled code cannot be trusted; creating a new one");
            unlinkat(dir, KEY_FILE, AtFlags::empty())?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    write_new(dir, KEY_FILE, &[&key], |temporary| {
        let linked = linkat(dir, temporary, dir, KEY_FILE, AtFlags::empty());
        unlinkat(dir, temporary, AtFlags::empty())?;
        match linked {
            // If two hosts start at once, the key of the first counts.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })?;
    read_key(dir)?.ok_or_else(|| io::Error::other("the key in the directory cannot be trusted"))
}

/// Returns the key if only this user can have written and read it.
fn read_key(dir: &OwnedFd) -> io::Result<Option<[u8; KEY_BYTES]>> {
    let mut file = open_for_reading(dir, KEY_FILE)?;
    let about = file.metadata()?;
    let is_own = about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o077 == 0;
    if !is_own || about.len() != KEY_BYTES as u64 {
        return Ok(None);
    }
    let mut key = [0; KEY_BYTES];
    file.read_exact(&mut key)?;
    Ok(Some(key))
}

/// Opens a regular file. Fails without blocking for any other kind of file.
fn open_for_reading(dir: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(dir, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Writes a temporary file and then moves it to its final name with `move_into_place`.
fn write_new(
    dir: &OwnedFd,
    name: &str,
    parts: &[&[u8]],
    move_into_place: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let temporary = format!("{name}.{}-{}.new", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    // Left by an earlier process with the same id.
    let _ = unlinkat(dir, &*temporary, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, &*temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written =
        parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| move_into_place(&temporary));
    if written.is_err() {
        let _ = unlinkat(dir, &*temporary, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: Key = Key { component: [1; 32], engine: [2; 32] };

    fn open(dir: &Path) -> CodeCache {
        CodeCache::open(dir, 1 << 20).unwrap()
    }

    fn entry(dir: &Path) -> PathBuf {
        dir.join(KEY.file_name())
    }

    #[test]
    fn code_is_found_by_its_key_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/on/demand");
        open(&path).put(&KEY, b"code").unwrap();

        let cache = open(&path);

        assert_eq!(cache.get(&KEY).unwrap().code(), b"code");
        assert!(cache.get(&Key { engine: [3; 32], ..KEY }).is_none());
        assert!(cache.get(&Key { component: [3; 32], ..KEY }).is_none());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&entry(&path)), mode(&path.join(KEY_FILE))), (0o700, 0o600, 0o600));
        let left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn an_entry_that_was_changed_is_removed_and_not_loaded() {
        fn check(change: impl FnOnce(&mut Vec<u8>)) {
            let dir = tempfile::tempdir().unwrap();
            let cache = open(dir.path());
            cache.put(&KEY, b"code").unwrap();
            let mut bytes = std::fs::read(entry(dir.path())).unwrap();
            change(&mut bytes);
            std::fs::write(entry(dir.path()), bytes).unwrap();
            assert!(cache.get(&KEY).is_none());
            assert!(!entry(dir.path()).exists());
        }
        check(|bytes| *bytes.last_mut().unwrap() ^= 1);
        check(|bytes| bytes[0] ^= 1);
        check(|bytes| bytes[HEADER_BYTES - 1] ^= 1);
        check(|bytes| bytes.truncate(10));
        check(|bytes| bytes.push(0));
        check(Vec::clear);
    }

    #[test]
    fn an_entry_of_another_host_or_another_component_is_not_loaded() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cache = open(ours.path());
        open(theirs.path()).put(&KEY, b"evil").unwrap();
        std::fs::copy(entry(theirs.path()), entry(ours.path())).unwrap();
        assert!(cache.get(&KEY).is_none());

        let other = Key { component: [9; 32], ..KEY };
        cache.put(&other, b"other").unwrap();
        std::fs::rename(ours.path().join(other.file_name()), entry(ours.path())).unwrap();
        assert!(cache.get(&KEY).is_none());
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path());
        cache.put(&KEY, b"code").unwrap();
        std::fs::rename(entry(dir.path()), dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", entry(dir.path())).unwrap();
        assert!(cache.get(&KEY).is_none());

        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, entry(dir.path()), fifo, Mode::RUSR, 0).unwrap();
        assert!(cache.get(&KEY).is_none());
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, refused) in [(0o770, true), (0o702, true), (0o755, false)] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let result = CodeCache::open(dir.path(), 1);
            assert_eq!(result.is_err(), refused, "{mode:o}");
            if let Err(error) = result {
                assert!(error.is_about_trust());
                assert!(error.to_string().contains("chmod go-w"), "{error}");
            }
        }
    }

    #[test]
    fn a_key_that_others_could_read_is_replaced_and_its_entries_are_void() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).put(&KEY, b"code").unwrap();
        let key = dir.path().join(KEY_FILE);
        let old = std::fs::read(&key).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();

        let cache = open(dir.path());

        assert!(cache.get(&KEY).is_none());
        assert_ne!(std::fs::read(&key).unwrap(), old);
    }

    #[test]
    fn the_least_recently_used_entries_are_removed_first() {
        fn check(files: &[(&str, u64, u64)], room: u64, expected: &[&str]) {
            let found = files
                .iter()
                .map(|&(name, size, used_at)| CachedFile { name: name.to_owned(), size, used_at })
                .collect();
            assert_eq!(superfluous(found, room, 100), expected, "{files:?} in {room}");
        }
        let files = [("a.code", 10, 3), ("b.code", 10, 1), ("c.code", 10, 2)];
        check(&files, 30, &[]);
        check(&files, 29, &["b.code"]);
        check(&files, 10, &["b.code", "c.code"]);
        check(&files, 0, &["b.code", "c.code", "a.code"]);
        check(&[("x.1-0.new", 99, 99), ("y.1-1.new", 99, 100)], 0, &["x.1-0.new"]);

        let dir = tempfile::tempdir().unwrap();
        let cache = CodeCache::open(dir.path(), 2 * HEADER_BYTES as u64).unwrap();
        let other = Key { component: [9; 32], ..KEY };
        cache.put(&other, b"code").unwrap();
        cache.put(&KEY, b"code").unwrap();
        assert!(cache.get(&other).is_none());
        assert_eq!(cache.get(&KEY).unwrap().code(), b"code");
        assert!(cache.put(&other, &[0; 1000]).is_err(), "larger than the cache");
    }
}
