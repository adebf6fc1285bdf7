//! Waiting for somebody to save a file of a project.
//!
//! The files are looked at now and then: that sees every way in which editors save, on every file
//! system, and a project has few files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::print::errln;
use super::setup::StopSignal;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Directories that tools write to.
const NOT_OF_PROJECT: [&str; 4] = ["__pycache__", "node_modules", "target", "vendor"];

/// When files changed last, and their sizes.
type Seen = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// A project that is watched.
pub(super) struct Watch {
    root: PathBuf,
    /// Where the work writes to, which nobody saved.
    made: Option<PathBuf>,
    seen: Seen,
    runtime: tokio::runtime::Runtime,
    signals: StopSignal,
}

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Changed,
    Stopped,
}

impl Watch {
    /// Watches a project's directory, or that of its entry module, but for what is made there.
    pub(crate) fn of(project: &Path, made: Option<&Path>) -> Result<Self> {
        let parent = project.parent().filter(|parent| !parent.as_os_str().is_empty());
        let root = if project.is_dir() { project } else { parent.unwrap_or(Path::new(".")) };
        // Names of directories are compared, so both begin at the root.
        let root = std::path::absolute(root).context("cannot tell where the project is")?;
        let made = made.map(std::path::absolute).transpose().context("cannot tell where the output is")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot wait for changes")?;
        let signals = {
            let _runtime = runtime.enter();
            StopSignal::new()?
        };
        Ok(Self { seen: look_at(&root, made.as_deref()), root, made, runtime, signals })
    }

    /// Does the work, and again whenever a file was saved, until somebody stops it. What goes
    /// wrong is said.
    pub(crate) fn repeat(mut self, mut work: impl FnMut() -> Result<super::Exit>) -> Result<super::Exit> {
        loop {
            if let Err(error) = work() {
                errln!("error: {error:#}");
            }
            errln!("waiting for a change in {}; Ctrl-C ends", self.root.display());
            if self.next() == Next::Stopped {
                return Ok(super::Exit::Done);
            }
        }
    }

    /// Waits for a change since the last one.
    fn next(&mut self) -> Next {
        let (root, made) = (&self.root, self.made.as_deref());
        let (seen, signals) = (&mut self.seen, &mut self.signals);
        self.runtime.block_on(async {
            let mut looks = tokio::time::interval(LOOK);
            loop {
                tokio::select! {
                    () = signals.next() => return Next::Stopped,
                    _ = looks.tick() => {}
                }
                let now = look_at(root, made);
                if now != *seen {
                    *seen = now;
                    return Next::Changed;
                }
            }
        })
    }
}

/// The files of a project, but for what its tools make.
fn look_at(root: &Path, made: Option<&Path>) -> Seen {
    let mut seen = Seen::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        // What is gone or cannot be read is seen when it is back.
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        let entries: Vec<_> = entries.flatten().collect();
        if entries.iter().any(|entry| entry.file_name() == "pyvenv.cfg") {
            continue;
        }
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.')
                || NOT_OF_PROJECT.contains(&&*name)
                || name.ends_with(".wasm")
                || made == Some(path.as_path())
            {
                continue;
            }
            match entry.metadata() {
                Ok(about) if about.is_dir() => todo.push(path),
                Ok(about) => drop(seen.insert(path, (about.modified().ok(), about.len()))),
                Err(_) => {}
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_saves_is_seen_and_what_tools_write_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("inner")).unwrap();
        std::fs::create_dir_all(path(".venv/lib")).unwrap();
        std::fs::create_dir_all(path("environment")).unwrap();
        std::fs::create_dir_all(path("__pycache__")).unwrap();
        std::fs::create_dir_all(path("out")).unwrap();
        std::fs::write(path("environment/pyvenv.cfg"), "").unwrap();
        let mut before = look_at(dir.path(), Some(&path("out")));
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

            let after = look_at(dir.path(), Some(&path("out")));

            assert_eq!(after != before, is_seen, "{name}");
            before = after;
        }
        std::fs::write(path("agent.py"), "longer than before").unwrap();
        assert_ne!(look_at(dir.path(), Some(&path("out"))), before);
        std::fs::remove_file(path("agent.py")).unwrap();
        assert!(!look_at(dir.path(), Some(&path("out"))).contains_key(&path("agent.py")));
    }
}
