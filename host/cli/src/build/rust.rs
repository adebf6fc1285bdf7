//! Builds Rust projects with cargo.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Built, PluginFault};

const TARGET: &str = "wasm32-wasip2";

/// A line of cargo's JSON output, with the fields that are used here.
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

/// Checks that the compilation target is installed, to fail with advice instead of cargo's many lines.
fn check_target(dir: &Path) -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(dir)
        .output()
        .context("cannot run rustc; install Rust with rustup first")?;
    let libdir = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && libdir.is_dir() {
        return Ok(());
    }
    bail!("the compilation target {TARGET} is not installed; run: rustup target add {TARGET}")
}

/// Returns the compiler and its target, or the reason why there is none.
pub(super) fn tools(dir: &Path) -> Result<String> {
    check_target(dir)?;
    Ok(format!("rustc with the target {TARGET}"))
}

/// The part of an author's `Cargo.toml` that this program reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Manifest {
    package: Package,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Package {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    rollout: BuildSettings,
}

/// `[package.metadata.rollout]`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BuildSettings {
    /// The profile to build with.
    profile: String,
}

impl Default for BuildSettings {
    fn default() -> Self {
        Self { profile: "release".to_owned() }
    }
}

/// Reads the build settings of a project. Cargo reports mistakes in the rest of the file.
fn build_settings(manifest: &Path) -> Result<BuildSettings> {
    let text =
        std::fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    match toml::from_str::<Manifest>(&text) {
        Ok(manifest) => Ok(manifest.package.metadata.rollout),
        Err(error) => Err(PluginFault(format!("{} is invalid: {error}", manifest.display())).into()),
    }
}

/// Builds a project with cargo and returns the component.
pub(super) fn compile(dir: &Path) -> Result<Built> {
    let manifest = dir.join("Cargo.toml");
    let manifest = manifest.canonicalize().with_context(|| format!("cannot read {}", manifest.display()))?;
    check_target(dir)?;
    let BuildSettings { profile } = build_settings(&manifest)?;
    let mut cargo = Command::new("cargo")
        .args(["build", "--profile", &profile, "--lib", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo; install Rust with rustup first")?;
    let mut built = None;
    let mut no_cdylib = None;
    for line in BufReader::new(cargo.stdout.take().context("cargo has no output")?).lines() {
        let Ok(message) = serde_json::from_str::<CargoMessage>(&line?) else { continue };
        let Some(target) = message.target else { continue };
        if message.reason != "compiler-artifact" || message.manifest_path.as_deref() != Some(&manifest) {
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
        (Some((name, component)), _) => Ok(Built { name, component }),
        (None, kind) => Err(PluginFault(format!(
            "{} builds a library of kind '{}', not a component; add to it:\n[lib]\ncrate-type = [\"cdylib\"]",
            manifest.display(),
            kind.unwrap_or_default()
        ))
        .into()),
    }
}
