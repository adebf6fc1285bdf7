//! The folder that rollouts' files are in, a folder a rollout, and its bounds in bytes and age.
//!
//! What is there already is walked through once, at the start and behind everything else; from then on
//! it is counted. Where there is more than there may be, the oldest folders go, and of those whose
//! rollout is alive none. Only what has the form of a rollout's folder is ever removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use rollout_wire::id::RolloutId;

/// How often it is looked for what has become too old.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Folders whose age is known, the oldest. There may be a million, and names take memory; once these
/// are gone, the rest is walked through again.
const KNOWN_MAX: usize = 1 << 16;

/// Where folders are put that are about to be removed: a reader sees all of one, or nothing.
const REMOVING: &str = ".removing";

/// How much of rollouts' files is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArtifactBounds {
    /// Bytes on the disk. What is being written may go past it for as long as that takes.
    pub bytes_max: Option<u64>,
    /// The time since a folder was written.
    pub age_max: Option<Duration>,
}

/// Folder of the files of rollouts. All writers to the folder share it.
#[derive(Debug)]
pub struct ArtifactRoot {
    path: PathBuf,
    state: Mutex<State>,
    /// There is more than before.
    grown: Notify,
    sweeping: Once,
}

#[derive(Debug, Default)]
struct State {
    bounds: ArtifactBounds,
    bytes: u64,
    /// Bytes that were written less those that were removed, since this process began.
    change: i64,
    /// The oldest folders, by when they were written.
    known: BTreeSet<(SystemTime, Box<str>)>,
    /// Whether there are others besides, which are all younger.
    are_others: bool,
    /// Folders of rollouts that are alive, by name.
    alive: HashMap<Box<str>, Alive>,
    /// What was written since a walk began, and so is counted already.
    written: Option<HashSet<Box<str>>>,
    removed: u64,
}

/// Rollouts of one name that are alive.
#[derive(Debug, Default)]
struct Alive {
    count: u32,
    /// Size of the folder in bytes, if one of them has written it.
    written_bytes: Option<u64>,
}

/// A rollout that is alive: its folder stays until this is dropped.
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
    /// Where its files go.
    pub(super) fn path(&self) -> PathBuf {
        self.root.path.join(&*self.name)
    }

    /// Has its files written by this, and counts what that changes. What fails leaves nothing. Blocks.
    pub(super) fn written_by<T>(&self, write: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let path = self.path();
        let before = bytes_of(&path);
        let written = write(&path);
        if written.is_err() && self.root.is_bounded() {
            // Half a rollout's files take room and are of no use.
            let _ = fs::remove_dir_all(&path);
        }
        self.root.has_written(&self.name, before, bytes_of(&path));
        written
    }
}

impl ArtifactRoot {
    /// The folder at this path, which may not be there yet.
    pub fn new(path: PathBuf, bounds: ArtifactBounds) -> Arc<Self> {
        let state = Mutex::new(State { bounds, ..State::default() });
        Arc::new(Self { path, state, grown: Notify::new(), sweeping: Once::new() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_bounded(&self) -> bool {
        self.lock().bounds != ArtifactBounds::default()
    }

    /// Changes the maximum size. The oldest folders beyond a smaller size are removed in the background. Within the
    /// runtime.
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

    /// Begins to keep it within its bounds, behind everything else. Within the runtime; the first time
    /// counts.
    pub fn keep_bounded(self: &Arc<Self>) {
        if self.is_bounded() && tokio::runtime::Handle::try_current().is_ok() {
            self.sweeping.call_once(|| drop(tokio::spawn(sweep(Arc::downgrade(self)))));
        }
    }

    /// A rollout is alive that will write there.
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
        // A root without bounds needs no names. It is walked through when it gets bounds.
        let is_bounded = state.bounds != ArtifactBounds::default();
        if !is_bounded || state.are_others || state.known.len() >= KNOWN_MAX {
            state.are_others = true;
        } else if after > 0 {
            state.known.insert((now(), name.into()));
        }
        drop(state);
        self.grown.notify_one();
    }

    /// Counts all that is there. Takes as long as the disk does.
    fn walk(&self) {
        {
            let mut state = self.lock();
            state.known.clear();
            (state.bytes, state.are_others) = (0, false);
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
            // What is written while this goes on is counted by who writes it.
            let is_written = state.written.as_ref().is_some_and(|written| written.contains(&*name));
            if is_written || state.alive.contains_key(&*name) {
                continue;
            }
            state.bytes += bytes;
            state.known.insert((written_at, name));
            if state.known.len() > KNOWN_MAX {
                state.known.pop_last();
                state.are_others = true;
            }
        }
        self.lock().written = None;
    }

    /// Removes what is past the bounds, the oldest first. Blocks. Gives how many folders that were.
    fn bring_within(&self) -> u64 {
        let mut removed = 0;
        let mut spared = Vec::new();
        while let Some(oldest) = self.next_past_bounds() {
            match self.remove(&oldest) {
                Ok(Some(bytes)) => {
                    let mut state = self.lock();
                    state.bytes = state.bytes.saturating_sub(bytes);
                    state.change = state.change.saturating_sub_unsigned(bytes);
                    removed += 1;
                }
                // It is not what it was, or its rollout is alive.
                Ok(None) => spared.push(oldest),
                Err(error) => {
                    tracing::error!(folder = &*oldest.1, %error, "the files of a rollout that is over cannot be removed");
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

    /// Takes the oldest folder, where it is to go.
    fn next_past_bounds(&self) -> Option<(SystemTime, Box<str>)> {
        let mut state = self.lock();
        let bounds = state.bounds;
        let is_full = bounds.bytes_max.is_some_and(|max| state.bytes > max);
        let (written_at, _) = state.known.first()?;
        let is_old = |max| now().duration_since(*written_at).is_ok_and(|age| age > max);
        if is_full || bounds.age_max.is_some_and(is_old) { state.known.pop_first() } else { None }
    }

    /// Removes a folder that was written then, and not since; gives what it took.
    fn remove(&self, (known_at, name): &(SystemTime, Box<str>)) -> io::Result<Option<u64>> {
        let path = self.path.join(&**name);
        let Ok(of) = fs::symlink_metadata(&path) else { return Ok(Some(0)) };
        // It was noted a moment after it was written.
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

    /// Whether there is more than there may be, and nothing known that could go.
    fn needs_walk(&self) -> bool {
        let state = self.lock();
        state.bounds != ArtifactBounds::default() && state.are_others && state.known.is_empty()
    }
}

/// Keeps a root within its bounds for as long as somebody has it.
async fn sweep(root: Weak<ArtifactRoot>) {
    let mut is_walked = false;
    loop {
        let Some(of) = root.upgrade() else { return };
        let walks = !is_walked || of.needs_walk();
        let swept = tokio::task::spawn_blocking(move || {
            if walks {
                of.walk();
            }
            (of.bring_within(), of.lock().bytes, of.path.clone())
        });
        if let Ok((removed @ 1.., bytes, path)) = swept.await {
            tracing::info!(root = %path.display(), removed, bytes, "the files of the oldest rollouts were removed");
        }
        is_walked = true;
        let Some(of) = root.upgrade() else { return };
        let _ = tokio::time::timeout(SWEEP_INTERVAL, of.grown.notified()).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "files have times of the calendar")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The name of a folder, and when it was written.
fn folder(entry: &DirEntry) -> Option<(Box<str>, SystemTime)> {
    let of = entry.metadata().ok().filter(Metadata::is_dir)?;
    Some((entry.file_name().to_str()?.into(), of.modified().ok()?))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a folder has what a rollout's has, and nothing else: whatever else an operator has there is
/// left alone.
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

/// The bytes on the disk that a folder takes with all in it; none where it is not there. Links are not
/// followed.
fn bytes_of(folder: &Path) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let Ok(of) = fs::symlink_metadata(folder) else { return 0 };
    let within = if of.is_dir() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| bytes_of(&entry.path())).sum()
    } else {
        0
    };
    // On some file systems what was just written has no blocks yet.
    within + (of.blocks() * BLOCK_BYTES).max(if of.is_file() { of.len() } else { 0 })
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
