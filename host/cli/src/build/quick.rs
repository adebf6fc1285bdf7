//! Runs a project without a separate build.
//!
//! A component that was prepared without the project receives it when an instance starts: a Python project as its
//! files, a JavaScript project as one program. The SDKs' `_quick.py` and `quick.js` are the guest's side.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::Deserialize;

use super::python::{self, Tool};
use super::{WorkDir, javascript};

/// Maximum number of cached prepared components, about 22 MiB each: one for each project and list of
/// packages.
const CACHED_MAX: usize = 8;

/// A component and its input, which run instead of the output of `build`.
pub(crate) struct Quick {
    pub component: PathBuf,
    /// Standard input of the instances: the project's files.
    pub input: Bytes,
    /// Temporary directory of the component, removed on drop.
    _work: Option<WorkDir>,
}

/// Report of the SDK's builder.
#[derive(Deserialize)]
struct Prepared {
    /// File of the cached component.
    #[serde(rename = "kept")]
    cached: PathBuf,
    /// Whether the component was created because that file is absent.
    #[serde(rename = "made")]
    is_new: bool,
}

/// Returns the error of a JavaScript project that cannot be built, which is more exact than that of the prepared component.
pub(crate) fn build_error(project: &Path, tools: &javascript::Tools) -> Option<anyhow::Error> {
    if !javascript::is_project(project) || project.join("pyproject.toml").is_file() {
        return None;
    }
    let work = WorkDir::new().ok()?;
    javascript::compile(project, tools, &work.0).err()
}

/// Returns whether a path is the source of a project, not a component.
pub(crate) fn is_source(path: &Path) -> bool {
    path.is_dir() || path.extension().is_some_and(|ending| ending == "py")
}

/// Reads a project and prepares a component for it unless one is cached.
pub(crate) fn prepare(project: &Path, tool: &Tool, javascript_tools: &javascript::Tools) -> Result<Quick> {
    if project.join("Cargo.toml").is_file() {
        bail!(
            "{} is a Rust project, which cannot run without a build; build it first: rollout-host build {}",
            project.display(),
            project.display()
        );
    }
    if javascript::is_project(project) && !project.join("pyproject.toml").is_file() {
        let work = WorkDir::new()?;
        let prepared = javascript::prepare(project, javascript_tools, &work.0)?;
        let component = match (prepared.cached, prepared.fresh) {
            (Some(cached), fresh) => {
                fresh.map(|fresh| store(&fresh, &cached)).transpose()?;
                mark_used(&cached);
                cached
            }
            (None, Some(fresh)) => fresh,
            (None, None) => bail!("there is neither a cached component nor a new one"),
        };
        return Ok(Quick { component, input: prepared.input.into(), _work: Some(work) });
    }
    let work = WorkDir::new()?;
    let (fresh, files) = (work.0.join("component.wasm"), work.0.join("files"));
    let prepared: Prepared =
        python::run_builder(project, tool, &work.0, &fresh, &["--quick".as_ref(), files.as_os_str()])?;
    if prepared.is_new {
        python::finish(&fresh, false)?;
        store(&fresh, &prepared.cached)?;
    }
    let input = fs::read(&files).context("the SDK's builder wrote no files")?;
    mark_used(&prepared.cached);
    Ok(Quick { component: prepared.cached, input: input.into(), _work: None })
}

/// Makes a cached component the most recently used one.
fn mark_used(cached: &Path) {
    let _ =
        fs::File::options().append(true).open(cached).and_then(|file| file.set_modified(SystemTime::now()));
}

/// Stores a component in the cache, completely or not at all, and removes the least recently used ones.
fn store(fresh: &Path, cached: &Path) -> Result<()> {
    let dir = cached.parent().context("the cache has no directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let temporary = cached.with_extension(format!("{}.new", std::process::id()));
    fs::copy(fresh, &temporary)
        .and_then(|_| fs::rename(&temporary, cached))
        .with_context(|| format!("cannot write {}", cached.display()))?;
    let is_prepared = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("quick-") && name.ends_with(".wasm")
    };
    let paths = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).filter(is_prepared);
    let used = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    let mut all: Vec<PathBuf> = paths.collect();
    all.sort_by_key(used);
    for old in all.iter().rev().skip(CACHED_MAX) {
        // A process that runs this component has its file open already, and another start creates the file again.
        let _ = fs::remove_file(old);
    }
    Ok(())
}
