//! `build`: from a Rust project to a component.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::plugin_file::{self, CacheOptions};
use super::{Exit, PluginFault};
use crate::engine::Engine;
use crate::limits::{Limits, LoadLimits};

const TARGET: &str = "wasm32-wasip2";

/// Compiles a Rust workflow, agent loop or grader to a component and checks that it can be served.
#[derive(Debug, Args)]
pub(super) struct Build {
    /// The project: a directory with a Cargo.toml whose library is a cdylib.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Where the component goes. [default: NAME.wasm in this directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
}

/// A line of cargo's account of its work, as far as it matters here.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    #[serde(default)]
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    target: Option<CargoTarget>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct CargoTarget {
    name: String,
    kind: Vec<String>,
}

impl Build {
    pub fn run(self) -> Result<Exit> {
        let manifest = self.dir.join("Cargo.toml");
        let manifest = manifest.canonicalize().with_context(|| {
            format!("{} has no Cargo.toml; give the directory of a Rust project", self.dir.display())
        })?;
        check_target(&self.dir)?;
        let (name, component) = compile(&self.dir, &manifest)?;
        let output = self.output.unwrap_or_else(|| PathBuf::from(format!("{name}.wasm")));
        let limits = LoadLimits::default();
        let bytes = plugin_file::read(&component, &limits)?;
        let engine = Engine::new(1, Limits::default().memory_bytes_max)?;
        let loader = self.cache.loader(None, &limits)?;
        let plugin = loader
            .load(&engine, &bytes)
            .map_err(|error| plugin_file::at_fault(&format!("{} was built", component.display()), error))?;
        std::fs::write(&output, &bytes).with_context(|| format!("cannot write {}", output.display()))?;
        let about = plugin.about();
        println!(
            "{}: {}, {} KiB, sha256:{}",
            output.display(),
            about.halves(),
            bytes.len().div_ceil(1024),
            about.digest
        );
        Ok(Exit::Done)
    }
}

/// Says the one command to run where the target is missing, before cargo says a
/// hundred lines.
fn check_target(dir: &Path) -> Result<()> {
    let asked = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(dir)
        .output()
        .context("cannot run rustc; install Rust with rustup first")?;
    let libdir = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if asked.status.success() && libdir.is_dir() {
        return Ok(());
    }
    bail!("the compilation target {TARGET} is not installed; run: rustup target add {TARGET}")
}

/// Runs cargo and gives the library's name and its component.
fn compile(dir: &Path, manifest: &Path) -> Result<(String, PathBuf)> {
    let mut cargo = Command::new("cargo")
        .args(["build", "--release", "--lib", "--target", TARGET, "--message-format=json-render-diagnostics"])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo; install Rust with rustup first")?;
    let mut built = None;
    let mut no_cdylib = None;
    for line in BufReader::new(cargo.stdout.take().context("cargo has no output")?).lines() {
        let Ok(message) = serde_json::from_str::<CargoMessage>(&line?) else { continue };
        let Some(target) = message.target else { continue };
        if message.reason != "compiler-artifact" || message.manifest_path.as_deref() != Some(manifest) {
            continue;
        }
        match message
            .filenames
            .into_iter()
            .find(|file| file.extension().is_some_and(|ending| ending == "wasm"))
        {
            Some(file) => built = Some((target.name, file)),
            None => no_cdylib = Some(target.kind.join(", ")),
        }
    }
    if !cargo.wait()?.success() {
        return Err(PluginFault(format!("cargo could not build {}", dir.display())).into());
    }
    match (built, no_cdylib) {
        (Some(built), _) => Ok(built),
        (None, kind) => Err(PluginFault(format!(
            "{} builds a library of kind '{}', which is no component; add to it:\n[lib]\ncrate-type = [\"cdylib\"]",
            manifest.display(),
            kind.unwrap_or_default()
        ))
        .into()),
    }
}
