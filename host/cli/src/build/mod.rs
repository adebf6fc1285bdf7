//! The command `build`, which compiles a project to a component. One module per language.

mod component_cache;
pub(super) mod python;
mod python_sdk;
pub(super) mod quick;
mod rust;

use crate::print::{errln, outln};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::options::LoadOptions;
use super::watch::Watch;
use super::{Exit, PluginFault, plugin_file};
use rollout_guest::engine::Engine;
use rollout_wire::digest::hex;

/// Compiles a Rust or Python workflow, agent loop, grader or tool to a component and checks that it can be
/// used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host build . -o my_agent.wasm\n  \
    rollout-host build graders/exact --componentize-py .venv/bin/componentize-py")]
#[command(mut_arg("config", |arg| arg.help("Configuration file in TOML, of which only [limits] and cache-dir are used")))]
#[command(mut_arg("no_cache", |arg| arg.help("Neither stores nor uses compiled code and finished Python components")))]
pub(super) struct Build {
    /// Project to build: a directory with a pyproject.toml, or with a Cargo.toml whose library is a cdylib;
    /// or the entry module of a Python project.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// File to write the component to. [default: NAME.wasm in the working directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Builds again after every change to a file of the project, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    python: python::Options,
    #[command(flatten)]
    load: LoadOptions,
}

/// Result of a build.
struct Built {
    /// Name of the project, as part of a file name.
    name: String,
    component: PathBuf,
}

impl Build {
    pub(crate) fn run(self) -> Result<Exit> {
        if self.watch {
            Watch::new(&self.dir, self.output.as_deref())?.repeat(|| self.once())
        } else {
            self.once()
        }
    }

    fn once(&self) -> Result<Exit> {
        let config = self.load.raw_config()?.resolve()?;
        // Holds intermediate files until the component is written.
        let work = WorkDir::new()?;
        let is_there = |file: &str| self.dir.join(file).is_file();
        let is_python = is_there("pyproject.toml") || (self.dir.is_file() && quick::is_source(&self.dir));
        let built = match (is_there("Cargo.toml"), is_python) {
            (true, false) => rust::compile(&self.dir)?,
            (false, true) => python::compile(&self.dir, &self.python, !self.load.no_cache(), &work.0)?,
            (true, true) => bail!(
                "{} has both a Cargo.toml and a pyproject.toml; give the directory of one project",
                self.dir.display()
            ),
            (false, false) => bail!(
                "{} has no Cargo.toml and no pyproject.toml; give the directory of a Rust or Python project",
                self.dir.display()
            ),
        };
        let output = self.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.wasm", built.name)));
        let bytes = plugin_file::read(&built.component, &config.load_limits)?;
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
        let loader = self.load.loader(&config)?;
        errln!("compiling the component of {} KiB for this machine …", bytes.len().div_ceil(1024));
        let plugin = loader.load(&engine, &bytes).map_err(|error| {
            plugin_file::at_fault(&format!("{} was built but cannot be used", built.name), error)
        })?;
        std::fs::write(&output, &bytes).with_context(|| format!("cannot write {}", output.display()))?;
        let about = plugin.about();
        let bare = |part: &&'static str| part.trim_start_matches("a ").trim_start_matches("an ");
        let parts: Vec<&str> = about.parts().iter().map(bare).collect();
        outln!(
            "{}: {}, {} KiB, sha256:{}",
            output.display(),
            parts.join(" and "),
            bytes.len().div_ceil(1024),
            about.digest
        );
        Ok(Exit::Done)
    }
}

/// A temporary directory for a build, removed on drop.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new() -> Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let name = format!("rollout-host-build-{}", hex(&random));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot create the directory {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // A directory that cannot be removed stays among the system's temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
