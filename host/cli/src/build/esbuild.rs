//! Runs esbuild, which bundles JavaScript.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::PluginFault;
use crate::print::errln;

/// Options of every run. Async functions are lowered to generators, because the SDK runs the jobs of promises.
/// Identifiers keep their names, for traces.
const OPTIONS: [&str; 16] = [
    "--bundle",
    "--platform=neutral",
    "--main-fields=browser,module,main",
    "--conditions=rollout-host,workerd,worker,browser",
    "--target=es2023",
    "--supported:async-await=false",
    "--supported:async-generator=false",
    "--supported:for-await=false",
    "--external:rollout:plugin/*",
    "--external:wasi:*",
    "--define:process.env.NODE_ENV=\"production\"",
    "--loader:.jsonl=text",
    "--legal-comments=none",
    "--minify-whitespace",
    "--minify-syntax",
    "--log-level=warning",
];

/// Form of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A module of ECMAScript.
    Module,
    /// The body of a function of `module`, `exports` and `require`.
    Function,
}

impl Format {
    fn option(self) -> &'static str {
        match self {
            Self::Module => "--format=esm",
            Self::Function => "--format=cjs",
        }
    }
}

/// A configured esbuild for one project.
pub(super) struct Esbuild<'a> {
    pub program: PathBuf,
    /// Directory of the project, from which modules are resolved.
    pub project: &'a Path,
    /// Targets of module names that the project does not resolve itself.
    pub aliases: BTreeMap<String, PathBuf>,
    /// Directory for intermediate files.
    pub work: &'a Path,
}

/// The author's entry module, bundled with all modules that it imports.
pub(super) struct Entry {
    /// Names that the module exports.
    pub exports: BTreeSet<String>,
    pub code: String,
    /// Imports in each source file, as they are written, by the file's path from the project.
    pub imports: BTreeMap<String, Vec<String>>,
}

/// A module bundled with all modules that it imports.
pub(super) struct Bundle {
    pub code: String,
    pub source_map: String,
    /// Modules that the bundle imports.
    pub imports: BTreeSet<String>,
}

/// Report of esbuild.
#[derive(Deserialize)]
struct Metafile {
    inputs: BTreeMap<String, Input>,
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
struct Input {
    #[serde(default)]
    imports: Vec<Import>,
}

#[derive(Deserialize)]
struct Import {
    path: String,
    /// Name as it is written, if the path differs.
    original: Option<String>,
}

impl Esbuild<'_> {
    /// Bundles the entry module to find its exports and imports.
    pub(super) fn entry(&self, path: &str) -> Result<Entry> {
        let arguments = [format!("./{path}").into(), "--sourcemap=external".into()];
        let metafile = self.run(&arguments, Format::Module, "entry")?;
        let imports = metafile.inputs.into_iter().map(|(file, input)| {
            (file, input.imports.into_iter().filter_map(|import| import.original).collect())
        });
        let imports = imports.collect();
        let code = self.read("entry.js")?;
        Ok(Entry { exports: main_output(metafile.outputs)?.exports, code, imports })
    }

    /// Bundles a module with this text, which refers to other modules by absolute paths.
    pub(super) fn bundle(&self, text: &str, format: Format) -> Result<Bundle> {
        let wrapper = self.work.join("wrapper.js");
        std::fs::write(&wrapper, text).context("cannot write the component's module")?;
        let arguments = [wrapper.into(), "--sourcemap=external".into(), "--sources-content=false".into()];
        let output = main_output(self.run(&arguments, format, "bundle")?.outputs)?;
        let imports = output.imports.into_iter().map(|import| import.path).collect();
        Ok(Bundle { code: self.read("bundle.js")?, source_map: self.read("bundle.js.map")?, imports })
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.work.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Returns the directories in which adapters of the SDK find the packages that they adapt: those of the project.
    fn module_dirs(&self) -> Result<OsString> {
        let dirs = self.project.ancestors().map(|dir| dir.join("node_modules"));
        std::env::join_paths(dirs).context("the project's path has a character that separates paths")
    }

    fn run(&self, arguments: &[OsString], format: Format, name: &str) -> Result<Metafile> {
        let metafile = self.work.join(format!("{name}.json"));
        let with = |option: &str, path: &Path| {
            let mut argument = OsString::from(option);
            argument.push(path);
            argument
        };
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.project)
            .env("NODE_PATH", self.module_dirs()?)
            .args(OPTIONS)
            .arg(format.option())
            .args(arguments)
            .arg(with("--outfile=", &self.work.join(format!("{name}.js"))))
            .arg(with("--metafile=", &metafile))
            .args(self.aliases.iter().map(|(name, target)| with(&format!("--alias:{name}="), target)))
            .arg("--color=false");
        print(&run(&mut command, &self.program).map_err(explain)?);
        let text = std::fs::read_to_string(&metafile).context("esbuild wrote no report")?;
        serde_json::from_str(&text).context("esbuild's report cannot be read")
    }
}

/// Returns the output of the entry point.
fn main_output(outputs: BTreeMap<String, Output>) -> Result<Output> {
    let mut outputs = outputs.into_values();
    outputs.find(|output| output.entry_point.is_some()).context("esbuild's report has no output")
}

/// Runs a program and returns its standard error, or fails with it.
fn run(command: &mut Command, program: &Path) -> Result<String> {
    let ran = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let output = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    if ran.status.success() {
        return Ok(output);
    }
    Err(PluginFault(output).into())
}

/// Prints warnings.
fn print(output: &str) {
    if !output.is_empty() {
        errln!("{output}");
    }
}

/// Adds advice to an error of esbuild about a module that cannot be resolved.
fn explain(error: anyhow::Error) -> anyhow::Error {
    let Some(PluginFault(output)) = error.downcast_ref::<PluginFault>() else { return error };
    let advice = match output.split_once("Could not resolve \"") {
        Some((_, rest)) if rest.starts_with("node:") || output.contains("is built into node") => {
            "a component does not have this module of Node, and neither does the SDK replace it"
        }
        Some((_, rest)) if !rest.starts_with(['.', '/']) => {
            "if it is a dependency of the project, run: npm ci"
        }
        _ => return error,
    };
    PluginFault(format!("{output}\n\n{advice}")).into()
}

/// Finds esbuild: the path of the option, else the one of the project, the one installed with this program, or the one
/// in PATH.
pub(super) fn find(project: &Path, named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if named.is_file() {
            return Ok(std::path::absolute(named)?);
        }
        bail!("there is no esbuild at {}", named.display());
    }
    let installed = project.ancestors().flat_map(|dir| {
        // The native program precedes the script, because it needs no Node.
        let native = native_package()
            .map(|package| dir.join("node_modules/@esbuild").join(package).join("bin/esbuild"));
        native.into_iter().chain([dir.join("node_modules/.bin/esbuild")])
    });
    let beside_program =
        std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("esbuild")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("esbuild")).collect::<Vec<_>>();
    let found = installed.chain(beside_program).chain(on_path).find(|candidate| candidate.is_file());
    found.context(
        "esbuild, which bundles JavaScript, is not installed; add \"esbuild\" to the project's devDependencies and run: npm \
         install",
    )
}

/// Returns the name of esbuild's native package for this machine.
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
