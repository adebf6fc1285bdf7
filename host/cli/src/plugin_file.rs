//! A component on disk, and how commands bring it in.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::PluginFault;
use rollout_core::error::Fault;
use rollout_core::limits::LoadLimits;
use rollout_guest::engine::{CACHE_BYTES_MAX, CodeCache, Compiler, Engine, Loader, LoaderError};
use rollout_guest::plugin::Plugin;

/// Where compiled code is kept.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Compiled code")]
pub(super) struct CacheOptions {
    /// Where compiled code is kept, so that the next start takes no time. Nobody else may
    /// be able to write there. [default: rollout-host/compiled in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Keeps no compiled code and uses none.
    #[arg(long, conflicts_with = "cache_dir")]
    pub no_cache: bool,
}

impl CacheOptions {
    /// The loader that these options and the configuration ask for.
    pub(crate) fn loader(&self, configured: Option<&Path>, limits: &LoadLimits) -> Result<Loader> {
        let compiler = Compiler::new(this_program()?, limits.clone());
        let cache = if self.no_cache { None } else { self.cache(configured)? };
        Ok(Loader::new(compiler, cache))
    }

    /// The directory that they and the configuration ask for.
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
                "neither XDG_CACHE_HOME nor HOME is set, so compiled code is not kept; --cache-dir says where"
            );
            return Ok(None);
        };
        match CodeCache::open(&dir, CACHE_BYTES_MAX) {
            Ok(cache) => Ok(Some(cache)),
            Err(error) if error.is_about_trust() => Err(error.into()),
            // Nobody asked for this directory; a read-only home is no reason not to serve.
            Err(error) => {
                tracing::warn!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "compiled code is not kept"
                );
                Ok(None)
            }
        }
    }
}

pub(super) fn default_dir() -> Option<PathBuf> {
    let set = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("rollout-host").join("compiled"))
}

/// This very program, also where its file was replaced since it was started.
pub(super) fn this_program() -> Result<PathBuf> {
    let proc = PathBuf::from("/proc/self/exe");
    if cfg!(target_os = "linux") && proc.exists() {
        return Ok(proc);
    }
    std::env::current_exe().context("cannot tell which program this is, which is needed to compile")
}

/// Reads a component's bytes, and no more than it may have.
pub(super) fn read(path: &Path, limits: &LoadLimits) -> Result<Vec<u8>> {
    let about = || format!("cannot read {}", path.display());
    if path.is_dir() || path.extension().is_some_and(|ending| ending == "py") {
        let reason = format!(
            "{} is a project's source, and this takes a component; make one of it: rollout-host build {}",
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
    loader.load(engine, &bytes).map_err(|error| at_fault(&path.display().to_string(), error))
}

/// The error, with whose move it is.
pub(super) fn at_fault(about: &str, error: LoaderError) -> anyhow::Error {
    let fault = error.fault();
    let reason = format!("{about}: {:#}", anyhow::Error::new(error));
    match fault {
        Fault::Plugin => PluginFault(reason).into(),
        _ => anyhow::Error::msg(reason),
    }
}
