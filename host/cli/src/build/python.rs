//! Python: componentize-py makes the component.
//!
//! This finds the tool and hands the project to the SDK's own `_build.py`, which knows
//! Python projects; see there for what is done with one.

use crate::print::errln;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::kept::{self, Kept};
use super::{Built, PluginFault, WorkDir, python_sdk};
use crate::plugin_file;

pub(crate) const TOOL: &str = "componentize-py";

/// The release that components are tested with.
pub(crate) const TOOL_VERSION: &str = "0.25.1";

/// The exit code by which the SDK's builder says that the project is at fault.
const AT_FAULT: i32 = 1;

/// What a line of the SDK's builder begins with that says what it does now.
const PROGRESS: &str = "» ";

/// The tool that makes components.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tool {
    /// The componentize-py that makes components of Python projects. [default: of
    /// $COMPONENTIZE_PY, the one that was installed with this program, that of the active or the
    /// project's virtual environment, or of the PATH]
    #[arg(long, value_name = "FILE", help_heading = "Python")]
    componentize_py: Option<PathBuf>,
    /// Wheels of packages with native code for the component's Python, as scripts/native-wheels makes
    /// them. [default: $ROLLOUT_WHEELS, or what came with this program, or `wheels` in the cache]
    #[arg(long, value_name = "DIR", help_heading = "Python")]
    wheels: Option<PathBuf>,
}

impl Tool {
    /// The directory of wheels, where there is one.
    fn wheels(&self) -> Result<Option<PathBuf>> {
        let named = self.wheels.clone().or_else(|| std::env::var_os("ROLLOUT_WHEELS").map(PathBuf::from));
        if let Some(named) = named {
            return named
                .canonicalize()
                .map(Some)
                .with_context(|| format!("cannot find {}", named.display()));
        }
        let installed = program_dir().map(|dir| dir.join("../share/rollout-host/wheels"));
        let usual = [installed, cache_dir().map(|dir| dir.join("wheels"))];
        Ok(usual.into_iter().flatten().find(|dir| dir.is_dir()))
    }
}

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    tool: Tool,
    /// Leave the core modules of a Python component apart, to measure what joining them gains
    #[arg(long, help_heading = "Python")]
    no_fuse: bool,
}

/// What the SDK's builder says of its work.
#[derive(Deserialize)]
struct Made {
    name: String,
    /// The directory of the author's modules.
    source: String,
    /// The file that stores the finished component, unless no stored component may be used.
    kept: Option<PathBuf>,
    /// Whether the component was made, because that file is absent.
    made: bool,
    /// The output of the author's modules when they were imported.
    said: String,
}

/// Stands for the directory of the author's modules in stored output.
const SOURCE: &str = "\0";

/// Makes a component of a project, by way of the directory `work`, or takes one that was made of the same inputs.
pub(super) fn compile(project: &Path, options: &Options, use_kept: bool, work: &Path) -> Result<Built> {
    let component = work.join("component.wasm");
    let build = |work: &Path, more: &[&OsStr]| run_builder(project, &options.tool, work, &component, more);
    let program = if use_kept { running_program() } else { None };
    let made_by = program.as_ref().map(|program| {
        let how = if options.no_fuse { "no-fuse" } else { "" };
        [OsStr::new("--program"), program.as_os_str(), OsStr::new("--program-options"), OsStr::new(how)]
    });
    let mut made: Made = build(work, made_by.as_ref().map_or(&[], |each| &each[..]))?;
    let kept = made.kept.take();
    if let (false, Some(kept)) = (made.made, &kept) {
        match kept::read(kept) {
            Ok(Kept { said, component: bytes }) => {
                if !said.is_empty() {
                    errln!("{}", said.replace(SOURCE, &made.source));
                }
                errln!("taking the component that was built of the same files before");
                std::fs::write(&component, bytes).context("cannot write the component")?;
                return Ok(Built { name: made.name, component });
            }
            Err(reason) => errln!("{reason}; building again"),
        }
        made = build(&WorkDir::new()?.0, &[])?;
    }
    finish(&component, options.no_fuse)?;
    if let Some(kept) = kept {
        let bytes = std::fs::read(&component).context("cannot read the component")?;
        let said = if made.source.is_empty() { made.said } else { made.said.replace(&made.source, SOURCE) };
        if let Err(error) = kept::write(&kept, &Kept { said, component: bytes }) {
            errln!("the component cannot be stored for later builds in {}: {error}", kept.display());
        }
    }
    Ok(Built { name: made.name, component })
}

/// A path at which other processes read this very program, also after its file was replaced.
fn running_program() -> Option<PathBuf> {
    let proc = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    std::iter::once(proc).chain(std::env::current_exe().ok()).find(|path| path.is_file())
}

/// What is done to a component that the tool has made, in this order.
pub(super) fn finish(component: &Path, no_fuse: bool) -> Result<()> {
    let bytes = std::fs::read(component).context("the SDK's builder made no component")?;
    let settled = rollout_fuse::python::settle(&bytes)?;
    let finished = if no_fuse { settled } else { fuse(settled) };
    std::fs::write(component, finished).context("cannot write the component")
}

/// Where things are kept for later builds, where that is known.
fn cache_dir() -> Option<PathBuf> {
    plugin_file::default_dir().and_then(|compiled| Some(compiled.parent()?.to_owned()))
}

/// Has the SDK's builder do its work, and gives what it says of it.
pub(super) fn run_builder<T: for<'de> Deserialize<'de>>(
    project: &Path,
    tool: &Tool,
    work: &Path,
    component: &Path,
    more: &[&OsStr],
) -> Result<T> {
    let dir = if project.is_dir() { project } else { project.parent().unwrap_or(project) };
    let wheels = tool.wheels()?;
    let tool = find_tool(dir, tool.componentize_py.as_deref())?;
    let python = interpreter_of(&tool)?;
    python_sdk::unpack(work).context("cannot unpack the SDK")?;
    let wheels = wheels.iter().flat_map(|dir| [OsStr::new("--wheels"), dir.as_os_str()]);
    let mut builder = Command::new(&python)
        // Nothing of the environment and of the current directory is imported.
        .args(["-I", "-B"])
        .arg(work.join("sdk/rollout_sdk/_build.py"))
        .arg(project.canonicalize().with_context(|| format!("cannot find {}", project.display()))?)
        .arg("--componentize-py")
        .arg(&tool)
        .arg("--wit")
        .arg(work.join("wit"))
        .arg("--work")
        .arg(work)
        .arg("--cache")
        .arg(cache_dir().unwrap_or_else(|| work.join("cache")))
        .arg("--output")
        .arg(component)
        .args(wheels)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", python.display()))?;
    let said = show_progress(builder.stderr.take().context("the builder has no output")?)?;
    let ran = builder.wait_with_output().with_context(|| format!("cannot run {}", python.display()))?;
    if !ran.status.success() {
        if ran.status.code() == Some(AT_FAULT) {
            return Err(PluginFault(said).into());
        }
        bail!("{said}");
    }
    if !said.is_empty() {
        errln!("{said}");
    }
    serde_json::from_slice(&ran.stdout).context("the SDK's builder does not say what it made")
}

/// Shows what the builder says that it does, when it says so; gives the rest.
fn show_progress(said: impl Read) -> Result<String> {
    let mut rest = String::new();
    for line in BufReader::new(said).split(b'\n') {
        let line = line.context("cannot read what the builder says")?;
        let line = String::from_utf8_lossy(&line);
        match line.strip_prefix(PROGRESS) {
            Some(step) => errln!("{step} …"),
            None => {
                rest.push_str(&line);
                rest.push('\n');
            }
        }
    }
    Ok(rest.trim().to_owned())
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
pub(crate) fn came_with_tool() -> bool {
    program_dir().is_some_and(|dir| dir.join(TOOL).is_file())
}

/// The interpreter that the tool is installed in: that of the virtual environment, or the one
/// that its script names, or one beside it.
fn interpreter_of(tool: &Path) -> Result<PathBuf> {
    let background = ["python3", "python"].map(|name| tool.with_file_name(name));
    let dir = tool.parent().unwrap_or(tool);
    let in_environment = dir.join("../pyvenv.cfg").is_file();
    // A script with a long path begins with a shell, which finds the interpreter.
    let named = first_line(tool)
        .and_then(|line| Some(PathBuf::from(line.strip_prefix("#!")?.trim())))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    let (first, last) = if in_environment { (&background[..], &[][..]) } else { (&[][..], &background[..]) };
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
