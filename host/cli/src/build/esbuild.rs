//! Runs esbuild.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::PluginFault;
use crate::print::errln;

/// Options of every run. Async functions are lowered to generators, because the SDK runs the jobs of promises. The
/// bundle keeps the names of functions, for traces.
const OPTIONS: [&str; 15] = [
    "--bundle",
    "--format=esm",
    "--platform=neutral",
    "--main-fields=module,main",
    "--conditions=rollout-host,worker,browser",
    "--target=es2023",
    "--supported:async-await=false",
    "--supported:async-generator=false",
    "--supported:for-await=false",
    "--external:rollout:plugin/*",
    "--define:process.env.NODE_ENV=\"production\"",
    "--legal-comments=none",
    "--minify-whitespace",
    "--minify-syntax",
    "--log-level=warning",
];

/// esbuild for one project.
pub(super) struct Esbuild<'a> {
    pub program: PathBuf,
    /// The project's directory, from which modules are found.
    pub project: &'a Path,
    /// The SDK's package.
    pub sdk: &'a Path,
    /// Further names of modules, by what they stand for.
    pub aliases: BTreeMap<String, String>,
    /// A directory for its files.
    pub work: &'a Path,
}

/// A module with everything that it imports.
pub(super) struct Bundle {
    pub code: String,
    pub source_map: String,
    /// Modules that the bundle imports.
    pub imports: BTreeSet<String>,
}

/// esbuild's account of its work.
#[derive(Deserialize)]
struct Metafile {
    outputs: BTreeMap<String, Output>,
}

#[derive(Default, Deserialize)]
struct Output {
    #[serde(default)]
    exports: BTreeSet<String>,
    #[serde(default)]
    imports: Vec<Import>,
    #[serde(rename = "entryPoint")]
    entry_point: Option<String>,
}

#[derive(Deserialize)]
struct Import {
    path: String,
}

impl Esbuild<'_> {
    /// Returns the names that a module of the project exports.
    pub(super) fn exports_of(&self, entry: &str) -> Result<BTreeSet<String>> {
        let output = self.run(&[format!("./{entry}").into(), "--sourcemap=external".into()], "entry")?;
        Ok(output.exports)
    }

    /// Bundles a module with this text, which names other modules by absolute paths.
    pub(super) fn bundle(&self, text: &str) -> Result<Bundle> {
        let wrapper = self.work.join("wrapper.js");
        std::fs::write(&wrapper, text).context("cannot write the component's module")?;
        let output = self.run(
            &[wrapper.into(), "--sourcemap=external".into(), "--sources-content=false".into()],
            "bundle",
        )?;
        let read = |ending: &str| {
            let path = self.work.join(format!("bundle.{ending}"));
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let imports = output.imports.into_iter().map(|import| import.path).collect();
        Ok(Bundle { code: read("js")?, source_map: read("js.map")?, imports })
    }

    fn run(&self, arguments: &[OsString], name: &str) -> Result<Output> {
        let metafile = self.work.join(format!("{name}.json"));
        let with = |option: &str, path: &Path| {
            let mut argument = OsString::from(option);
            argument.push(path);
            argument
        };
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.project)
            .args(OPTIONS)
            .args(arguments)
            .arg(with("--outfile=", &self.work.join(format!("{name}.js"))))
            .arg(with("--metafile=", &metafile))
            .arg(with("--alias:rollout-sdk=", self.sdk))
            .args(self.aliases.iter().map(|(name, stands_for)| format!("--alias:{name}={stands_for}")))
            .arg("--color=false");
        show(&run(&mut command, &self.program).map_err(explain)?);
        let text = std::fs::read_to_string(&metafile).context("esbuild wrote no metafile")?;
        let metafile: Metafile = serde_json::from_str(&text).context("esbuild's metafile cannot be read")?;
        metafile
            .outputs
            .into_values()
            .find(|output| output.entry_point.is_some())
            .context("esbuild's metafile has no output")
    }
}

/// Runs a program and returns what it wrote to standard error, or fails with it.
fn run(command: &mut Command, program: &Path) -> Result<String> {
    let ran = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    if ran.status.success() {
        return Ok(said);
    }
    Err(PluginFault(said).into())
}

/// Shows warnings.
fn show(said: &str) {
    if !said.is_empty() {
        errln!("{said}");
    }
}

/// Adds to an error of esbuild what to do about a module that is not there.
fn explain(error: anyhow::Error) -> anyhow::Error {
    let Some(PluginFault(said)) = error.downcast_ref::<PluginFault>() else { return error };
    let advice = match said.split_once("Could not resolve \"") {
        Some((_, rest)) if rest.starts_with("node:") || said.contains("is built into node") => {
            "a component has none of Node's built-in modules: it has no files, processes or network, and the SDK has \
             artifacts, models and tools"
        }
        Some((_, rest)) if !rest.starts_with(['.', '/']) => {
            "if it is a dependency of the project, run: npm ci"
        }
        _ => return error,
    };
    PluginFault(format!("{said}\n\n{advice}")).into()
}

/// Finds esbuild: as it was named, or that of the project, of this program, or of the PATH.
pub(super) fn find(project: &Path, named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if named.is_file() {
            return Ok(std::path::absolute(named)?);
        }
        bail!("there is no esbuild at {}", named.display());
    }
    let installed = project.ancestors().flat_map(|dir| {
        // The native program first, which needs no Node.
        let native = native_package()
            .map(|package| dir.join("node_modules/@esbuild").join(package).join("bin/esbuild"));
        native.into_iter().chain([dir.join("node_modules/.bin/esbuild")])
    });
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("esbuild")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("esbuild")).collect::<Vec<_>>();
    let found = installed.chain(beside).chain(on_path).find(|candidate| candidate.is_file());
    found.context(
        "esbuild is not installed, which bundles JavaScript; with \"esbuild\" in the project's devDependencies run: npm ci",
    )
}

/// Returns esbuild's name for this machine.
fn native_package() -> Option<String> {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        "linux" => "linux",
        _ => return None,
    };
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        _ => return None,
    };
    Some(format!("{system}-{machine}"))
}
