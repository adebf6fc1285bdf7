//! Waiting for changes to the files of a project.
//!
//! The files are polled, which detects every way in which editors save, on every file system; a project has
//! few files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::print::errln;
use super::setup::StopSignal;
use rollout_wire::digest::{Digest, sha256_parts};

/// Time between two scans of the files.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);

/// Names of directories that tools write to.
const IGNORED_DIRS: [&str; 4] = ["__pycache__", "node_modules", "target", "vendor"];

/// Modification times and sizes of files.
type Snapshot = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// A watched project.
pub(super) struct Watch {
    root: PathBuf,
    /// Output of the work, whose changes are ignored.
    output: Option<PathBuf>,
    snapshot: Snapshot,
    runtime: tokio::runtime::Runtime,
    signals: StopSignal,
}

/// Reason why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Changed,
    Stopped,
}

impl Watch {
    /// Watches the directory of a project or of its entry module, without `output`.
    pub(crate) fn new(project: &Path, output: Option<&Path>) -> Result<Self> {
        let parent = project.parent().filter(|parent| !parent.as_os_str().is_empty());
        let root = if project.is_dir() { project } else { parent.unwrap_or(Path::new(".")) };
        // Paths are compared, so both are absolute.
        let root = std::path::absolute(root).context("cannot determine the directory of the project")?;
        let output =
            output.map(std::path::absolute).transpose().context("cannot determine the path of the output")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot wait for changes")?;
        let signals = {
            let _runtime = runtime.enter();
            StopSignal::new()?
        };
        Ok(Self { snapshot: scan(&root, output.as_deref()), root, output, runtime, signals })
    }

    /// Does the work once and after every change, until a stop signal. Errors of the work are printed.
    pub(crate) fn repeat(mut self, mut work: impl FnMut() -> Result<super::Exit>) -> Result<super::Exit> {
        loop {
            if let Err(error) = work() {
                errln!("error: {error:#}");
            }
            errln!("waiting for a change in {}; Ctrl-C stops", self.root.display());
            if self.next() == Next::Stopped {
                return Ok(super::Exit::Done);
            }
        }
    }

    /// Waits for the next change or a stop signal.
    fn next(&mut self) -> Next {
        let (root, output) = (&self.root, self.output.as_deref());
        let (snapshot, signals) = (&mut self.snapshot, &mut self.signals);
        self.runtime.block_on(async {
            let mut scans = tokio::time::interval(SCAN_INTERVAL);
            loop {
                tokio::select! {
                    () = signals.next() => return Next::Stopped,
                    _ = scans.tick() => {}
                }
                let now = scan(root, output);
                if now != *snapshot {
                    *snapshot = now;
                    return Next::Changed;
                }
            }
        })
    }
}

/// Returns the digest of a project's files, without those that tools write. Paths are relative to the project.
pub(super) fn source_digest(project: &Path) -> Result<Digest> {
    let parent = project.parent().filter(|parent| !parent.as_os_str().is_empty());
    let root = if project.is_dir() { project } else { parent.unwrap_or(Path::new(".")) };
    let mut parts = Vec::new();
    for path in scan(root, None).into_keys() {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        parts.extend([name.into_bytes(), Digest::of(&bytes).to_string().into_bytes()]);
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(Digest::from_bytes(sha256_parts(&parts)))
}

/// Lists the files of a project, without those that tools write.
fn scan(root: &Path, output: Option<&Path>) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        // A directory that is gone or unreadable is found again by a later scan.
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let entries: Vec<_> = entries.flatten().collect();
        if entries.iter().any(|entry| entry.file_name() == "pyvenv.cfg") {
            continue;
        }
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.')
                || IGNORED_DIRS.contains(&&*name)
                || name.ends_with(".wasm")
                || output == Some(path.as_path())
            {
                continue;
            }
            match entry.metadata() {
                Ok(about) if about.is_dir() => todo.push(path),
                Ok(about) => drop(snapshot.insert(path, (about.modified().ok(), about.len()))),
                Err(_) => {}
            }
        }
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_files_are_seen_and_files_that_tools_write_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("inner")).unwrap();
        std::fs::create_dir_all(path(".venv/lib")).unwrap();
        std::fs::create_dir_all(path("environment")).unwrap();
        std::fs::create_dir_all(path("__pycache__")).unwrap();
        std::fs::create_dir_all(path("out")).unwrap();
        std::fs::write(path("environment/pyvenv.cfg"), "").unwrap();
        let mut before = scan(dir.path(), Some(&path("out")));
        for (name, is_seen) in [
            ("agent.py", true),
            ("inner/prompt.txt", true),
            (".agent.py.swp", false),
            (".venv/lib/x.py", false),
            ("environment/x.py", false),
            ("__pycache__/agent.pyc", false),
            ("made.wasm", false),
            ("out/log.jsonl", false),
        ] {
            std::fs::write(path(name), name).unwrap();

            let after = scan(dir.path(), Some(&path("out")));

            assert_eq!(after != before, is_seen, "{name}");
            before = after;
        }
        std::fs::write(path("agent.py"), "longer than before").unwrap();
        assert_ne!(scan(dir.path(), Some(&path("out"))), before);
        std::fs::remove_file(path("agent.py")).unwrap();
        assert!(!scan(dir.path(), Some(&path("out"))).contains_key(&path("agent.py")));
    }
}
