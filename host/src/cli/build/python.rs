//! Python: componentize-py makes the component.
//!
//! This finds the tool and hands the project to the SDK's own `_build.py`, which knows
//! Python projects; see there for what is done with one.

use crate::cli::print::errln;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::{Built, PluginFault, python_image, python_sdk};
use crate::cli::plugin_file;

pub(in crate::cli) const TOOL: &str = "componentize-py";

/// The release that components are tested with.
pub(in crate::cli) const TOOL_VERSION: &str = "0.25.1";

/// The exit code by which the SDK's builder says that the project is at fault.
const AT_FAULT: i32 = 1;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The componentize-py that makes components of Python projects. [default: of
    /// $COMPONENTIZE_PY, the one that was installed with this program, that of the active or the
    /// project's virtual environment, or of the PATH]
    #[arg(long, value_name = "FILE", help_heading = "Python")]
    componentize_py: Option<PathBuf>,
    /// Leave the core modules of a Python component apart, to measure what joining them gains
    #[arg(long, help_heading = "Python")]
    no_fuse: bool,
}

/// What the SDK's builder says of its work.
#[derive(Deserialize)]
struct Made {
    name: String,
}

/// Makes a component of a project, by way of the directory `work`.
pub(super) fn compile(dir: &Path, options: &Options, work: &Path) -> Result<Built> {
    let tool = find_tool(dir, options.componentize_py.as_deref())?;
    let python = interpreter_of(&tool)?;
    python_sdk::unpack(work).context("cannot unpack the SDK")?;
    let component = work.join("component.wasm");
    let kept = plugin_file::default_dir().and_then(|compiled| Some(compiled.parent()?.to_owned()));
    let cache = kept.unwrap_or_else(|| work.join("cache"));
    let ran = Command::new(&python)
        // Nothing of the environment and of the current directory is imported.
        .args(["-I", "-B"])
        .arg(work.join("sdk/rollout_sdk/_build.py"))
        .arg(dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?)
        .arg("--componentize-py")
        .arg(&tool)
        .arg("--wit")
        .arg(work.join("wit"))
        .arg("--work")
        .arg(work)
        .arg("--cache")
        .arg(cache)
        .arg("--output")
        .arg(&component)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    let said = said.trim();
    if !ran.status.success() {
        if ran.status.code() == Some(AT_FAULT) {
            return Err(PluginFault(said.to_owned()).into());
        }
        bail!("{said}");
    }
    if !said.is_empty() {
        errln!("{said}");
    }
    let made: Made =
        serde_json::from_slice(&ran.stdout).context("the SDK's builder does not say what it made")?;
    let bytes = std::fs::read(&component).context("the SDK's builder made no component")?;
    let settled = python_image::settle(&bytes)?;
    let finished = if options.no_fuse { settled } else { fuse(settled) };
    std::fs::write(&component, finished).context("cannot write the component")?;
    Ok(Built { name: made.name, component })
}

/// Makes one core module of the libraries, so that an instance starts faster.
fn fuse(component: Vec<u8>) -> Vec<u8> {
    match rollout_fuse::fuse(&component) {
        Ok(fused) => {
            let (modules, imports) = (fused.modules, fused.imports.before - fused.imports.after);
            errln!("fused {modules} core modules into one: {imports} imports between them are gone");
            fused.bytes
        }
        // It runs as it is, and starts more slowly.
        Err(reason) => {
            errln!("the core modules stay apart, instances start more slowly: {reason}");
            component
        }
    }
}

/// The tool, by what was said or where it usually is.
fn find_tool(dir: &Path, named: Option<&Path>) -> Result<PathBuf> {
    let from_environment = std::env::var_os("COMPONENTIZE_PY").map(PathBuf::from);
    if let Some(named) = named.map(Path::to_owned).or(from_environment) {
        if named.is_file() {
            return Ok(std::path::absolute(named)?);
        }
        bail!("there is no {TOOL} at {}", named.display());
    }
    let here = program_dir();
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let environments = active.into_iter().chain([dir.join(".venv"), dir.join("venv")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = here.into_iter().chain(environments.map(|environment| environment.join("bin")));
    for dir in dirs.chain(std::env::split_paths(&path)) {
        let candidate = dir.join(TOOL);
        if candidate.is_file() {
            return Ok(std::path::absolute(candidate)?);
        }
    }
    bail!(
        "{TOOL} is not installed, which makes components of Python; run: python3 -m pip install {TOOL}=={TOOL_VERSION}"
    )
}

/// Where this program is. pip installs the tool there, in the release that goes with it.
fn program_dir() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Whether this program was installed with the tool.
pub(in crate::cli) fn came_with_tool() -> bool {
    program_dir().is_some_and(|dir| dir.join(TOOL).is_file())
}

/// The interpreter that the tool is installed in: that of the virtual environment, or the one
/// that its script names, or one beside it.
fn interpreter_of(tool: &Path) -> Result<PathBuf> {
    let beside = ["python3", "python"].map(|name| tool.with_file_name(name));
    let dir = tool.parent().unwrap_or(tool);
    let in_environment = dir.join("../pyvenv.cfg").is_file();
    // A script with a long path begins with a shell, which finds the interpreter.
    let named = first_line(tool)
        .and_then(|line| Some(PathBuf::from(line.strip_prefix("#!")?.trim())))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    let (first, last) = if in_environment { (&beside[..], &[][..]) } else { (&[][..], &beside[..]) };
    let mut candidates = first.iter().chain(&named).chain(last);
    let found = candidates.find(|path| path.is_absolute() && path.is_file());
    let python = found.with_context(|| {
        format!("cannot tell which Python {} is installed in; install it with pip", tool.display())
    })?;
    let check = "import sys\nif sys.version_info < (3, 11): import tomli";
    let asked = Command::new(python).args(["-I", "-c", check]).stderr(Stdio::null()).status();
    if asked.with_context(|| format!("cannot run {}", python.display()))?.success() {
        return Ok(python.clone());
    }
    bail!(
        "{} is older than Python 3.11 and has no tomli; install {TOOL} in a newer one: python3.12 -m pip install \
         {TOOL}=={TOOL_VERSION}",
        python.display()
    )
}

fn first_line(path: &Path) -> Option<String> {
    const LINE_BYTES_MAX: u64 = 512;
    let file = std::fs::File::open(path).ok()?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(file, LINE_BYTES_MAX)).read_line(&mut line).ok()?;
    Some(line)
}
