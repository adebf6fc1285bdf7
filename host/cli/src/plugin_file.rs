//! Loading of components from disk.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::PluginFault;
use super::progress::Working;
use rollout_core::error::Fault;
use rollout_core::limits::LoadLimits;
use rollout_guest::engine::{CACHE_BYTES_MAX, CodeCache, Compiler, Engine, Loader, LoaderError};
use rollout_guest::plugin::Plugin;

/// Options for the cache of compiled code.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Compiled code")]
pub(super) struct CacheOptions {
    /// Directory of compiled code, which makes the next start fast. Other users must not be able to write to
    /// it. [default: rollout-host/compiled in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Neither stores nor uses compiled code.
    #[arg(long, conflicts_with = "cache_dir")]
    pub no_cache: bool,
}

impl CacheOptions {
    /// Creates the loader that these options and the configuration describe.
    pub(crate) fn loader(&self, configured: Option<&Path>, limits: &LoadLimits) -> Result<Loader> {
        let compiler = Compiler::new(this_program()?, limits.clone());
        let cache = if self.no_cache { None } else { self.cache(configured)? };
        Ok(Loader::new(compiler, cache))
    }

    /// Returns the directory that these options and the configuration select, or `None` if compiled code is
    /// not stored.
    pub(crate) fn dir(&self, configured: Option<&Path>) -> Option<PathBuf> {
        if self.no_cache {
            return None;
        }
        self.cache_dir.as_deref().or(configured).map(Path::to_owned).or_else(default_dir)
    }

    fn cache(&self, configured: Option<&Path>) -> Result<Option<CodeCache>> {
        if let Some(dir) = self.cache_dir.as_deref().or(configured) {
            return Ok(Some(CodeCache::open(dir, CACHE_BYTES_MAX)?));
        }
        let Some(dir) = default_dir() else {
            tracing::warn!(
                "neither XDG_CACHE_HOME nor HOME is set, so compiled code is not stored; choose a directory with --cache-dir"
            );
            return Ok(None);
        };
        match CodeCache::open(&dir, CACHE_BYTES_MAX) {
            Ok(cache) => Ok(Some(cache)),
            Err(error) if error.is_about_trust() => Err(error.into()),
            // This directory is only a default; a read-only home does not prevent serving.
            Err(error) => {
                tracing::warn!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "compiled code is not stored"
                );
                Ok(None)
            }
        }
    }
}

/// Returns the default directory of compiled code, if the environment names a cache directory.
pub(super) fn default_dir() -> Option<PathBuf> {
    let set = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("rollout-host").join("compiled"))
}

/// Returns a path of the running program, which on Linux stays valid after its file is replaced.
pub(super) fn this_program() -> Result<PathBuf> {
    let proc = PathBuf::from("/proc/self/exe");
    if cfg!(target_os = "linux") && proc.exists() {
        return Ok(proc);
    }
    std::env::current_exe()
        .context("cannot determine the path of this program, which compiles in a process of its own")
}

/// Reads the bytes of a component, within the size limit.
pub(super) fn read(path: &Path, limits: &LoadLimits) -> Result<Vec<u8>> {
    let about = || format!("cannot read {}", path.display());
    if path.is_dir() || path.extension().is_some_and(|ending| ending == "py") {
        let reason = format!(
            "{} is the source of a project, not a component; build a component first: rollout-host build {}",
            path.display(),
            path.display()
        );
        return Err(PluginFault(reason).into());
    }
    let max = limits.component_bytes_max;
    let file = std::fs::File::open(path).with_context(about)?;
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes).with_context(about)?;
    if bytes.len() > max {
        let reason = format!(
            "{} is larger than [limits] component-bytes-max of {max} bytes, which the configuration can raise",
            path.display()
        );
        return Err(PluginFault(reason).into());
    }
    Ok(bytes)
}

/// Reads, checks and compiles a component.
pub(super) fn load(loader: &Loader, engine: &Engine, path: &Path, limits: &LoadLimits) -> Result<Plugin> {
    let bytes = read(path, limits)?;
    let _working = Working::on(format!("compiling {}", path.display()));
    loader.load(engine, &bytes).map_err(|error| at_fault(&path.display().to_string(), error))
}

/// Converts an error of the loader; errors of the plugin become a [`PluginFault`].
pub(super) fn at_fault(about: &str, error: LoaderError) -> anyhow::Error {
    let fault = error.fault();
    let reason = format!("{about}: {:#}", anyhow::Error::new(error));
    match fault {
        Fault::Plugin => PluginFault(reason).into(),
        _ => anyhow::Error::msg(reason),
    }
}
