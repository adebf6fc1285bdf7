//! The command `build`, which compiles a project to a component. One module per language.

mod component_cache;
mod esbuild;
pub(super) mod javascript;
mod javascript_builtins;
mod javascript_manifest;
pub(super) mod javascript_sdk;
pub(super) mod python;
mod python_files;
mod python_sdk;
pub(super) mod quick;
mod rust;
mod source_map;

use crate::print::{errln, outln};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::options::LoadOptions;
use super::watch::Watch;
use super::{Exit, PluginFault, plugin_file};
use rollout_guest::engine::Engine;
use rollout_wire::digest::hex;

/// Compiles a workflow, agent loop, grader or tool in Rust, Python, TypeScript or JavaScript to a component and
/// checks that it can be used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host build . -o my_agent.wasm\n  \
    rollout-host build graders/exact --componentize-py .venv/bin/componentize-py")]
#[command(mut_arg("config", |arg| arg.help("Configuration file in TOML, of which only [limits] and cache-dir are used")))]
#[command(mut_arg("no_cache", |arg| arg.help("Neither stores nor uses compiled code and finished Python components")))]
pub(super) struct Build {
    /// Project to build: a directory with a pyproject.toml, a package.json, a deno.json, or a Cargo.toml whose
    /// library is a cdylib; or the entry module of a Python project.
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
    javascript: javascript::Tools,
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

    /// Builds the project once, writes the component and checks it.
    fn once(&self) -> Result<Exit> {
        let config = self.load.raw_config()?.resolve()?;
        let loader = self.load.loader(&config)?;
        // Holds intermediate files until the component is written.
        let work = WorkDir::new()?;
        let built = match Language::of(&self.dir)? {
            Language::Rust => rust::compile(&self.dir)?,
            Language::Python => {
                python::compile(&self.dir, &self.python, &loader, !self.load.no_cache(), &work.0)?
            }
            Language::JavaScript => javascript::compile(&self.dir, &self.javascript, &work.0)?,
        };
        let output = self.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.wasm", built.name)));
        let bytes = plugin_file::read(&built.component, &config.load_limits)?;
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
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

/// The language of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Python,
    JavaScript,
}

impl Language {
    /// Returns the name in statements on how a component was built.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }

    /// Returns the language of a project by the manifest in its directory. The path of a Python project may be that of
    /// its entry module.
    ///
    /// A package.json counts only if the other manifests are absent, because a Rust or Python project may have one for
    /// its tools.
    pub(crate) fn of(project: &Path) -> Result<Self> {
        let is_there = |file: &str| project.join(file).is_file();
        let is_python = is_there("pyproject.toml") || (project.is_file() && quick::is_source(project));
        match (is_there("Cargo.toml"), is_python) {
            (true, false) => Ok(Self::Rust),
            (false, true) => Ok(Self::Python),
            (true, true) => bail!(
                "{} has both a Cargo.toml and a pyproject.toml; give the directory of one project",
                project.display()
            ),
            (false, false) if javascript::is_project(project) => Ok(Self::JavaScript),
            (false, false) => bail!(
                "{} has no Cargo.toml, pyproject.toml, package.json or deno.json; give the directory of a project",
                project.display()
            ),
        }
    }
}

/// Returns the tools for builds that this machine has, by language, or the reason why there are none.
pub(super) fn tools() -> [(&'static str, Result<String>); 3] {
    let here = Path::new(".");
    [
        ("Rust", rust::tools(here)),
        ("Python", python::tool(here)),
        ("TypeScript and JavaScript", esbuild::find(here, None).map(|program| program.display().to_string())),
    ]
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
