//! Root of the folders with rollouts' files, one for each rollout, and its limits of size and age.
//!
//! Existing folders are counted once, at the start and in the background; later changes are counted as they happen.
//! Above the limits, the oldest folders are removed, except those of live rollouts. Only folders with the form of a
//! rollout's folder are removed.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use rollout_wire::id::RolloutId;

/// Interval of the search for folders that are too old.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of folders whose age is known: the oldest ones. There may be a million, and names take memory; after
/// these are removed, the others are listed again.
const KNOWN_MAX: usize = 1 << 16;

/// Folder to which folders are moved before removal, so that a reader sees either the whole folder or nothing.
const REMOVING: &str = ".removing";

/// Limits of rollouts' files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArtifactBounds {
    /// Maximum size on disk in bytes. Files may exceed it while they are being written.
    pub bytes_max: Option<u64>,
    /// Maximum time since a folder was written.
    pub age_max: Option<Duration>,
}

/// Folder of the files of rollouts. All writers to the folder share it.
#[derive(Debug)]
pub struct ArtifactRoot {
    path: PathBuf,
    state: Mutex<State>,
    /// Signals that the limits are exceeded.
    grown: Notify,
    sweeping: Once,
}

#[derive(Debug, Default)]
struct State {
    bounds: ArtifactBounds,
    bytes: u64,
    /// Bytes written less bytes removed since this process started.
    change: i64,
    /// The oldest folders, by time of writing.
    known: BTreeSet<(SystemTime, Box<str>)>,
    /// Whether there are more folders, which are all younger.
    has_others: bool,
    /// Folders of live rollouts, by name.
    alive: HashMap<Box<str>, Alive>,
    /// Folders written since a listing began, which are counted already.
    written: Option<HashSet<Box<str>>>,
    removed: u64,
}

impl State {
    /// Returns whether the size exceeds the limit.
    fn is_full(&self) -> bool {
        self.bounds.bytes_max.is_some_and(|max| self.bytes > max)
    }

    /// Returns whether there are limits and folders, of which none is known.
    fn needs_walk(&self) -> bool {
        self.bounds != ArtifactBounds::default() && self.has_others && self.known.is_empty()
    }
}

/// Live rollouts with one name.
#[derive(Debug, Default)]
struct Alive {
    count: u32,
    /// Size of the folder in bytes, if one of them has written it.
    written_bytes: Option<u64>,
}

/// Guard of a live rollout: its folder stays until the guard is dropped.
#[derive(Debug)]
pub(crate) struct AliveFolder {
    root: Arc<ArtifactRoot>,
    name: Box<str>,
}

impl Drop for AliveFolder {
    fn drop(&mut self) {
        let mut state = self.root.lock();
        if let Some(alive) = state.alive.get_mut(&self.name) {
            alive.count -= 1;
            if alive.count == 0 {
                state.alive.remove(&self.name);
            }
        }
    }
}

impl AliveFolder {
    /// Returns the folder of the rollout's files.
    pub(super) fn path(&self) -> PathBuf {
        self.root.path.join(&*self.name)
    }

    /// Creates the folder, writes the files with `write` and counts the change. A failure leaves no files. Blocks.
    pub(super) fn write<T>(&self, write: impl FnOnce(&WrittenFolder) -> io::Result<T>) -> io::Result<T> {
        let folder = WrittenFolder::open(self.path())?;
        let before = if folder.is_new { 0 } else { bytes_of(&folder.path) };
        let written = write(&folder);
        if written.is_err() && self.root.is_bounded() {
            // An incomplete set of files takes space and is of no use.
            let _ = fs::remove_dir_all(&folder.path);
        }
        let known = if folder.is_new && written.is_ok() { folder.file_bytes.get() } else { None };
        let after = match (known, fs::symlink_metadata(&folder.path)) {
            // Listing the folder takes longer than writing a usual trajectory.
            (Some(files), Ok(of)) => files + on_disk(&of),
            _ => bytes_of(&folder.path),
        };
        self.root.has_written(&self.name, before, after);
        written
    }
}

/// Folder to which the files of a rollout are written.
pub(super) struct WrittenFolder {
    pub path: PathBuf,
    /// Whether the folder is empty. Otherwise it has the files of an earlier rollout with the same id.
    pub is_new: bool,
    /// Size on disk of the files that were written, in bytes, unless one was not measured.
    file_bytes: Cell<Option<u64>>,
}

impl WrittenFolder {
    /// Creates the folder unless it exists.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let is_new = match fs::create_dir(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&path)?;
                true
            }
            Err(error) => return Err(error),
        };
        Ok(Self { path, is_new, file_bytes: Cell::new(Some(0)) })
    }

    /// Counts a file that was written and closed: some file systems reserve more for an open one.
    pub(super) fn count(&self, file: &Path) -> io::Result<()> {
        if let Some(bytes) = self.file_bytes.get() {
            self.file_bytes.set(Some(bytes + on_disk(&fs::symlink_metadata(file)?)));
        }
        Ok(())
    }

    /// Notes that files were written without being counted.
    pub(super) fn has_uncounted(&self) {
        self.file_bytes.set(None);
    }
}

impl ArtifactRoot {
    /// Returns the root at this path, which need not exist yet.
    pub fn new(path: PathBuf, bounds: ArtifactBounds) -> Arc<Self> {
        let state = Mutex::new(State { bounds, ..State::default() });
        Arc::new(Self { path, state, grown: Notify::new(), sweeping: Once::new() })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_bounded(&self) -> bool {
        self.lock().bounds != ArtifactBounds::default()
    }

    /// Changes the maximum size. The oldest folders beyond a smaller size are removed in the background. Must be called
    /// within the runtime.
    pub fn set_bytes_max(self: &Arc<Self>, bytes_max: Option<u64>) {
        self.lock().bounds.bytes_max = bytes_max;
        self.keep_bounded();
        self.grown.notify_one();
    }

    /// Returns by how many bytes the files have grown since this process began. The number is negative if more was
    /// removed than written.
    pub fn change_bytes(&self) -> i64 {
        self.lock().change
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to enforce the limits in the background. Must be called within the runtime; only the first call has an
    /// effect.
    pub fn keep_bounded(self: &Arc<Self>) {
        if self.is_bounded() && tokio::runtime::Handle::try_current().is_ok() {
            self.sweeping.call_once(|| drop(tokio::spawn(sweep(Arc::downgrade(self)))));
        }
    }

    /// Registers a live rollout that will write to the root.
    pub(crate) fn alive(self: &Arc<Self>, id: &RolloutId) -> AliveFolder {
        self.keep_bounded();
        let name: Box<str> = id.dir_name().into();
        self.lock().alive.entry(name.clone()).or_default().count += 1;
        AliveFolder { root: self.clone(), name }
    }

    fn has_written(&self, name: &str, before: u64, after: u64) {
        let mut state = self.lock();
        state.bytes = state.bytes.saturating_sub(before) + after;
        state.change = state.change.saturating_add_unsigned(after).saturating_sub_unsigned(before);
        if let Some(written) = &mut state.written {
            written.insert(name.into());
        }
        if let Some(alive) = state.alive.get_mut(name) {
            alive.written_bytes = Some(after);
        }
        // A root without limits needs no names. Its folders are listed when it gets limits.
        let is_bounded = state.bounds != ArtifactBounds::default();
        if !is_bounded || state.has_others || state.known.len() >= KNOWN_MAX {
            state.has_others = true;
        } else if after > 0 {
            state.known.insert((now(), name.into()));
        }
        // Folders that are too old are found without a signal.
        let is_beyond = state.is_full() || state.needs_walk();
        drop(state);
        if is_beyond {
            self.grown.notify_one();
        }
    }

    /// Counts all folders. The time depends on the disk.
    fn walk(&self) {
        {
            let mut state = self.lock();
            state.known.clear();
            (state.bytes, state.has_others) = (0, false);
            let written =
                state.alive.iter().filter_map(|(name, alive)| Some((name.clone(), alive.written_bytes?)));
            let written: Vec<(Box<str>, u64)> = written.collect();
            state.written = Some(written.iter().map(|(name, _)| name.clone()).collect());
            for (name, bytes) in written {
                state.bytes += bytes;
                state.known.insert((now(), name));
            }
        }
        let removing = fs::read_dir(self.path.join(REMOVING)).into_iter().flatten().flatten();
        for left in removing.filter(|left| left.file_name().to_str().is_some_and(is_number)) {
            let _ = fs::remove_dir_all(left.path());
        }
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let Some((name, written_at)) = folder(&entry) else { continue };
            let bytes = bytes_of(&entry.path());
            if bytes == 0 || !is_rollouts(&entry.path()) {
                continue;
            }
            let mut state = self.lock();
            // Files written meanwhile are counted by their writer.
            let is_written = state.written.as_ref().is_some_and(|written| written.contains(&*name));
            if is_written || state.alive.contains_key(&*name) {
                continue;
            }
            state.bytes += bytes;
            state.known.insert((written_at, name));
            if state.known.len() > KNOWN_MAX {
                state.known.pop_last();
                state.has_others = true;
            }
        }
        self.lock().written = None;
    }

    /// Removes folders above the limits, the oldest first. Returns their number. Blocks.
    fn enforce_limits(&self) -> u64 {
        let mut removed = 0;
        let mut spared = Vec::new();
        while let Some(oldest) = self.next_beyond_limits() {
            match self.remove(&oldest) {
                Ok(Some(bytes)) => {
                    let mut state = self.lock();
                    state.bytes = state.bytes.saturating_sub(bytes);
                    state.change = state.change.saturating_sub_unsigned(bytes);
                    removed += 1;
                }
                // The folder has changed, or its rollout is live.
                Ok(None) => spared.push(oldest),
                Err(error) => {
                    tracing::error!(folder = &*oldest.1, %error, "cannot remove the files of a finished rollout");
                }
            }
        }
        for (_, name) in spared {
            if let Ok(written_at) = fs::symlink_metadata(self.path.join(&*name)).and_then(|of| of.modified())
            {
                self.lock().known.insert((written_at, name));
            }
        }
        removed
    }

    /// Takes the oldest folder if it must be removed.
    fn next_beyond_limits(&self) -> Option<(SystemTime, Box<str>)> {
        let mut state = self.lock();
        let (written_at, _) = state.known.first()?;
        let is_old = |max| now().duration_since(*written_at).is_ok_and(|age| age > max);
        if state.is_full() || state.bounds.age_max.is_some_and(is_old) {
            state.known.pop_first()
        } else {
            None
        }
    }

    /// Removes a folder that was written at this time and not since. Returns its size.
    fn remove(&self, (known_at, name): &(SystemTime, Box<str>)) -> io::Result<Option<u64>> {
        let path = self.path.join(&**name);
        let Ok(of) = fs::symlink_metadata(&path) else { return Ok(Some(0)) };
        // The time was recorded a moment after the writing.
        if !of.is_dir() || of.modified()? > *known_at + Duration::from_secs(1) || !is_rollouts(&path) {
            return Ok(None);
        }
        let aside = {
            let mut state = self.lock();
            if state.alive.contains_key(name) {
                return Ok(None);
            }
            state.removed += 1;
            let aside = self.path.join(REMOVING).join(state.removed.to_string());
            match fs::rename(&path, &aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(self.path.join(REMOVING))?;
                    fs::rename(&path, &aside)?;
                }
                renamed => renamed?,
            }
            aside
        };
        let bytes = bytes_of(&aside);
        fs::remove_dir_all(&aside)?;
        Ok(Some(bytes))
    }
}

/// Enforces the limits of a root while references to it exist.
async fn sweep(root: Weak<ArtifactRoot>) {
    let mut is_walked = false;
    loop {
        let Some(of) = root.upgrade() else { return };
        let walks = !is_walked || of.lock().needs_walk();
        let swept = tokio::task::spawn_blocking(move || {
            if walks {
                of.walk();
            }
            (of.enforce_limits(), of.lock().bytes, of.path.clone())
        });
        if let Ok((removed @ 1.., bytes, path)) = swept.await {
            tracing::info!(root = %path.display(), removed, bytes, "the files of the oldest rollouts were removed");
        }
        is_walked = true;
        let Some(of) = root.upgrade() else { return };
        let _ = tokio::time::timeout(SWEEP_INTERVAL, of.grown.notified()).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "the times of files are wall-clock times")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Name of a folder, and the time of its writing.
fn folder(entry: &DirEntry) -> Option<(Box<str>, SystemTime)> {
    let of = entry.metadata().ok().filter(Metadata::is_dir)?;
    Some((entry.file_name().to_str()?.into(), of.modified().ok()?))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a folder has the files of a rollout and nothing else. Other files of an operator stay.
fn is_rollouts(folder: &Path) -> bool {
    let mut has_any = false;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let are_its = entries.into_iter().all(|entry| {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { return false };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => name == "artifacts",
            Ok(kind) if kind.is_file() => {
                let is_its = name.starts_with("trajectory") || name.starts_with("log.jsonl");
                has_any |= is_its;
                is_its
            }
            _ => false,
        }
    });
    are_its && has_any
}

/// Returns the size on disk of a folder with its content, or 0 if it does not exist. Links are not followed.
fn bytes_of(folder: &Path) -> u64 {
    let Ok(of) = fs::symlink_metadata(folder) else { return 0 };
    let within = if of.is_dir() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| bytes_of(&entry.path())).sum()
    } else {
        0
    };
    within + on_disk(&of)
}

/// Returns the size on disk of a file or folder.
fn on_disk(of: &Metadata) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    // On some file systems, files that were just written have no blocks yet.
    (of.blocks() * BLOCK_BYTES).max(if of.is_file() { of.len() } else { 0 })
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
