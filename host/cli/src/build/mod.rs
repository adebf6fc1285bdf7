//! `build`: from a project to a component. One file a language.

mod kept;
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

/// Compiles a Rust or Python workflow, agent loop, grader or tool to a component and checks that
/// it can be served or provided.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host build . -o my_agent.wasm\n  \
    rollout-host build graders/exact --componentize-py .venv/bin/componentize-py")]
#[command(mut_arg("config", |arg| arg.help("Settings in TOML, of which [limits] and cache-dir are heeded")))]
#[command(mut_arg("no_cache", |arg| arg.help("Stores and uses no compiled code and no finished Python component")))]
pub(super) struct Build {
    /// The project: a directory with a Cargo.toml whose library is a cdylib, or with a
    /// pyproject.toml; or the entry module of one in Python.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Where the component goes. [default: NAME.wasm in this directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Builds it again whenever one of its files was saved, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    python: python::Options,
    #[command(flatten)]
    load: LoadOptions,
}

/// What a language's tools made.
struct Built {
    /// What the project calls itself, in letters that a file's name may have.
    name: String,
    component: PathBuf,
}

impl Build {
    pub(crate) fn run(self) -> Result<Exit> {
        if self.watch {
            Watch::of(&self.dir, self.output.as_deref())?.repeat(|| self.once())
        } else {
            self.once()
        }
    }

    fn once(&self) -> Result<Exit> {
        let config = self.load.raw_config()?.resolve()?;
        // Holds what is made on the way until the component is where it belongs.
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
        errln!("compiling {} KiB of it for this machine …", bytes.len().div_ceil(1024));
        let plugin = loader
            .load(&engine, &bytes)
            .map_err(|error| plugin_file::at_fault(&format!("{} was built", built.name), error))?;
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

/// A directory of this build's own, gone with it.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new() -> Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let name = format!("rollout-host-build-{}", hex(&random));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What is left of it is temporary by its place.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
