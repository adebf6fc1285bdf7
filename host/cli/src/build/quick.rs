//! The quick way to try a project.
//!
//! Of a Python project: a component that was prepared without it, and the project's files for its instances to take
//! in. The SDK's `_quick.py` is the other half. A JavaScript project is built, which takes seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::Deserialize;

use super::python::{self, Tool};
use super::{WorkDir, javascript};

/// Prepared components that are kept: one for each project that is worked on, and those of its
/// last few lists of packages. Each has some 22 MiB.
const KEPT_MAX: usize = 8;

/// What is run in place of a component that was built.
pub(crate) struct Quick {
    pub component: PathBuf,
    /// What instances are given on standard input.
    pub input: Bytes,
    /// Whether the component is not the one that `build` makes of the project.
    pub is_prepared: bool,
    /// The directory of a component that is gone afterwards.
    _work: Option<WorkDir>,
}

/// What the SDK's builder says of its work.
#[derive(Deserialize)]
struct Prepared {
    /// Where the component belongs.
    kept: PathBuf,
    /// Whether it was made just now.
    made: bool,
}

/// Whether this is a project's source and no component.
pub(crate) fn is_source(path: &Path) -> bool {
    path.is_dir() || path.extension().is_some_and(|ending| ending == "py")
}

/// Reads a project, and prepares a component for it unless there is one.
pub(crate) fn prepare(project: &Path, tool: &Tool, tools: &javascript::Tools) -> Result<Quick> {
    if project.join("Cargo.toml").is_file() {
        bail!(
            "{} is a Rust project, of which only a component can be run; build it first: rollout-host build {}",
            project.display(),
            project.display()
        );
    }
    if javascript::is_project(project) && !project.join("pyproject.toml").is_file() {
        let work = WorkDir::new()?;
        let component = javascript::compile(project, tools, &work.0)?.component;
        return Ok(Quick { component, input: Bytes::new(), is_prepared: false, _work: Some(work) });
    }
    let work = WorkDir::new()?;
    let (fresh, files) = (work.0.join("component.wasm"), work.0.join("files"));
    let prepared: Prepared =
        python::run_builder(project, tool, &work.0, &fresh, &["--quick".as_ref(), files.as_os_str()])?;
    if prepared.made {
        python::finish(&fresh, false)?;
        keep(&fresh, &prepared.kept)?;
    }
    let input = fs::read(&files).context("the SDK's builder wrote no files")?;
    // What is used is not what was made longest ago.
    let _ = fs::File::options()
        .append(true)
        .open(&prepared.kept)
        .and_then(|file| file.set_modified(SystemTime::now()));
    Ok(Quick { component: prepared.kept, input: input.into(), is_prepared: true, _work: None })
}

/// Puts a component where the next start finds it, whole or not at all, and lets go of those
/// that were not used for longest.
fn keep(fresh: &Path, kept: &Path) -> Result<()> {
    let dir = kept.parent().context("the cache has no directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let background = kept.with_extension(format!("{}.new", std::process::id()));
    fs::copy(fresh, &background)
        .and_then(|_| fs::rename(&background, kept))
        .with_context(|| format!("cannot write {}", kept.display()))?;
    let is_prepared = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("quick-") && name.ends_with(".wasm")
    };
    let paths = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).filter(is_prepared);
    let used = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    let mut all: Vec<PathBuf> = paths.collect();
    all.sort_by_key(used);
    for old in all.iter().rev().skip(KEPT_MAX) {
        // Whoever runs it has it open already, and another start makes it anew.
        let _ = fs::remove_file(old);
    }
    Ok(())
}
