//! Builds Python projects with componentize-py.
//!
//! This module finds the tool and runs the SDK's `_build.py`, which does the build.

use crate::print::errln;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::component_cache::{self, CachedComponent};
use super::{Built, PluginFault, WorkDir, python_files, python_sdk};
use crate::plugin_file;
use rollout_fuse::python::Places;
use rollout_guest::engine::{Engine, Loader};
use rollout_snapshot::{BuildStore, Instance, Instrumented};

pub(crate) const TOOL: &str = "componentize-py";

/// Release of the tool that this program is tested with.
pub(crate) const TOOL_VERSION: &str = "0.25.1";

/// Exit code of the SDK's builder if the project is at fault.
const AT_FAULT: i32 = 1;

/// Prefix of the SDK builder's progress lines.
const PROGRESS: &str = "» ";

/// Options for the tool that creates components.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tool {
    /// Path of componentize-py, which creates components of Python projects. [default: the first of
    /// $COMPONENTIZE_PY, the one installed with this program, those of the active and the project's virtual
    /// environment, and that in PATH]
    #[arg(long, value_name = "FILE", help_heading = "Python")]
    componentize_py: Option<PathBuf>,
    /// Directory of wheels with native code for the component's Python, as scripts/native-wheels creates
    /// them. [default: the first of $ROLLOUT_WHEELS, the wheels installed with this program, and `wheels` in
    /// the cache]
    #[arg(long, value_name = "DIR", help_heading = "Python")]
    wheels: Option<PathBuf>,
}

impl Tool {
    /// Returns the directory of wheels, if there is one.
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
    /// Keeps the core modules of a Python component separate, to measure the effect of joining them.
    #[arg(long, help_heading = "Python")]
    no_fuse: bool,
}

/// Report of the SDK's builder.
#[derive(Deserialize)]
struct BuildReport {
    name: String,
    /// Directory of the author's modules.
    source: String,
    /// File of the cached component, unless the cache may not be used.
    #[serde(rename = "kept")]
    cached: Option<PathBuf>,
    /// Whether that file is absent, so that the component is to be created.
    #[serde(rename = "made")]
    is_new: bool,
    /// File of the cached base, unless the cache may not be used. If it is absent, the builder has created a base.
    #[serde(rename = "base")]
    cached_base: Option<PathBuf>,
    /// Whether functions of the project import modules of dependencies, whose cost is to be measured.
    has_late: bool,
}

/// Report of a base that was given the author's modules.
#[derive(Default, Deserialize, Serialize)]
struct TakenIn {
    /// Whether the modules are imported. Otherwise they have other exports than the base, need more files, or have an error.
    #[serde(rename = "complete", default)]
    is_complete: bool,
    /// The component's exports.
    #[serde(default)]
    exports: Vec<String>,
    /// Files of the component that the modules opened, and that were not passed to the base.
    #[serde(default)]
    needed: Vec<String>,
    /// Text of the exception if the modules could not be imported.
    #[serde(default)]
    error: Option<String>,
    /// Output of the modules when they were imported.
    #[serde(rename = "said", default)]
    output: String,
}

/// Report of the SDK's builder about the author's modules.
#[derive(Deserialize)]
struct ImportReport {
    /// Output that the author's modules wrote when they were imported.
    #[serde(rename = "said")]
    output: String,
}

/// Placeholder of the directory of the author's modules in cached output.
const SOURCE: &str = "\0";

/// The function of a base that takes in the author's modules.
const TAKE_IN: &str = "take-in";

/// Maximum size of a part of the project that a base takes in at once, in bytes. What it had is memory that the base fills
/// with something else.
const PART_BYTES: usize = 64 << 10;

/// A build of one project.
struct Building<'a> {
    project: &'a Path,
    options: &'a Options,
    /// Compiles the base, and stores its code.
    loader: &'a Loader,
    use_cache: bool,
    component: PathBuf,
}

/// Builds the component of a project in the directory `work`, or uses a cached component of the same inputs.
pub(super) fn compile(
    project: &Path,
    options: &Options,
    loader: &Loader,
    use_cache: bool,
    work: &Path,
) -> Result<Built> {
    let component = work.join("component.wasm");
    let building = Building { project, options, loader, use_cache, component };
    let mut wanted = Wanted::default();
    let mut other_exports = 0;
    loop {
        let work = WorkDir::new()?;
        match building.once(&work.0, &wanted)? {
            Done::Built(built) => return Ok(built),
            // The text of the modules may suggest other exports than those that they have.
            Done::OtherExports(_) if other_exports == OTHER_EXPORTS_MAX => break,
            Done::OtherExports(exports) => {
                other_exports += 1;
                wanted.exports = exports;
            }
            Done::NeedsFiles(files) if files.iter().all(|file| wanted.files.contains(file)) => {
                bail!("{} of {} is passed and cannot be opened", files.join(", "), project.display());
            }
            Done::NeedsFiles(files) => wanted.files.extend(files),
        }
    }
    bail!("the exports of {} differ each time its modules are imported", project.display())
}

/// Maximum number of tries to read or create a base.
const TRIES: usize = 3;

/// Maximum number of times that the modules may have other exports than those that a base was made for.
const OTHER_EXPORTS_MAX: usize = 3;

/// Facts about the modules that are known only when they are imported.
#[derive(Default)]
struct Wanted {
    /// Names of the exports, separated by commas. Empty: those that the modules' text suggests.
    exports: String,
    /// Large files that the modules open.
    files: Vec<String>,
}

enum Done {
    Built(Built),
    /// The modules have these exports, and the base has others.
    OtherExports(String),
    /// The modules open these files, which were not passed to the base.
    NeedsFiles(Vec<String>),
}

impl Building<'_> {
    /// Runs the SDK's builder, which writes a base to `made` if it makes one.
    fn run<T: for<'de> Deserialize<'de>>(&self, work: &Path, made: &Path, more: &[&OsStr]) -> Result<T> {
        run_builder(self.project, &self.options.tool, work, made, more)
    }

    fn once(&self, work: &Path, wanted: &Wanted) -> Result<Done> {
        let files = work.join("files");
        let made = work.join("base.wasm");
        let mut arguments = vec![OsStr::new("--files"), files.as_os_str()];
        if !wanted.exports.is_empty() {
            arguments.extend([OsStr::new("--exports"), OsStr::new(&wanted.exports)]);
        }
        let also = work.join("also.json");
        if !wanted.files.is_empty() {
            std::fs::write(&also, serde_json::to_vec(&wanted.files)?)
                .context("cannot write a temporary file")?;
            arguments.extend([OsStr::new("--also"), also.as_os_str()]);
        }
        let program = if self.use_cache { running_program() } else { None };
        if let Some(program) = &program {
            let how = if self.options.no_fuse { "no-fuse" } else { "" };
            arguments.extend([OsStr::new("--program"), program.as_os_str()]);
            arguments.extend([OsStr::new("--program-options"), OsStr::new(how)]);
        }
        let mut report: BuildReport = self.run(work, &made, &arguments)?;
        // The listed files are in the directory of the last run.
        let again = WorkDir::new()?;
        if let (false, Some(cached)) = (report.is_new, &report.cached) {
            match component_cache::read(cached) {
                Ok(CachedComponent { output, component: bytes }) => {
                    if !output.is_empty() {
                        errln!("{}", output.replace(SOURCE, &report.source));
                    }
                    if report.has_late {
                        self.about_modules(&TakenIn::default())?;
                    }
                    errln!("using the cached component of an earlier build of the same files");
                    std::fs::write(&self.component, bytes).context("cannot write the component")?;
                    return Ok(Done::Built(Built { name: report.name, component: self.component.clone() }));
                }
                // The damaged file was removed.
                Err(reason) => errln!("{reason}; building again"),
            }
            report = self.run(&again.0, &made, &arguments)?;
        }
        let given = python_files::compressed(&files)?;
        let base = Base::of(&self.base(&report, &made, &arguments)?, self.options.no_fuse)?;
        let (taken, component) = self.take_in(&base, &given)?;
        let Some(component) = component else {
            if !taken.needed.is_empty() {
                return Ok(Done::NeedsFiles(taken.needed));
            }
            if taken.error.is_none() {
                return Ok(Done::OtherExports(taken.exports.join(",")));
            }
            self.about_modules(&taken)?;
            bail!("the SDK's builder reports no error, but the modules could not be imported");
        };
        let is_quiet = taken.output.is_empty() && !report.has_late;
        let output = if is_quiet { String::new() } else { self.about_modules(&taken)?.output };
        let bytes = base.finish(&component)?;
        std::fs::write(&self.component, &bytes).context("cannot write the component")?;
        if let Some(cached) = &report.cached {
            let output =
                if report.source.is_empty() { output } else { output.replace(&report.source, SOURCE) };
            if let Err(error) = component_cache::write(cached, &CachedComponent { output, component: bytes })
            {
                errln!("the component cannot be stored for later builds in {}: {error}", cached.display());
            }
        }
        Ok(Done::Built(Built { name: report.name, component: self.component.clone() }))
    }

    /// Returns the base: the cached one, or the one that the builder has created, which is stored now.
    fn base(&self, report: &BuildReport, made: &Path, arguments: &[&OsStr]) -> Result<Vec<u8>> {
        let fresh = || std::fs::read(made).context("the SDK's builder created no component");
        let Some(cached) = &report.cached_base else { return fresh() };
        let again = WorkDir::new()?;
        for _ in 0..TRIES {
            if made.is_file() {
                break;
            }
            match component_cache::read(cached) {
                Ok(base) => return Ok(base.component),
                // A damaged file was removed. Another build may have stored a new one meanwhile.
                Err(reason) => errln!("{reason}; building again"),
            }
            let _report: BuildReport = self.run(&again.0, made, arguments)?;
        }
        let entry = CachedComponent { output: String::new(), component: fresh()? };
        if let Err(error) = component_cache::write(cached, &entry) {
            errln!("the interpreter cannot be stored for later builds in {}: {error}", cached.display());
        }
        Ok(entry.component)
    }

    /// Runs the base and gives it the author's modules. Returns its report, and the component that has them.
    fn take_in(&self, base: &Base, given: &[u8]) -> Result<(TakenIn, Option<Vec<u8>>)> {
        let engine = Engine::for_build()?;
        let instrumented =
            Instrumented::new(&base.component).context("the interpreter cannot be prepared")?;
        let compiled = self.loader.compiled(&engine, instrumented.bytes());
        let compiled = compiled.context("the interpreter cannot be compiled")?;
        let work = async |store: &mut BuildStore, instance: Instance| {
            let call =
                instance.get_typed_func::<(&[u8],), (Result<String, String>,)>(&mut *store, TAKE_IN)?;
            let mut take_in = async |part: &[u8]| {
                let (answer,) = call.call_async(&mut *store, (part,)).await?;
                answer.map_err(anyhow::Error::msg)
            };
            for part in given.chunks(PART_BYTES) {
                take_in(part).await?;
            }
            // Imports the modules, whose code may end the instance.
            let report = take_in(&[]).await.map_err(|error| {
                PluginFault(format!(
                    "the modules of {} cannot be imported: {error:#}",
                    self.project.display()
                ))
            })?;
            let taken: TakenIn =
                serde_json::from_str(&report).context("the interpreter's report is invalid")?;
            if taken.is_complete {
                // The memory is arranged in a call of its own, which frees little after it.
                take_in(&[]).await?;
            }
            Ok(taken)
        };
        let is_kept = |taken: &TakenIn, output: &[u8]| {
            // A stream of this instance would be in the memory, and no other instance has it.
            if taken.is_complete && !output.is_empty() {
                bail!(PluginFault(format!(
                    "the modules of {} write to a stream of the system while they are imported, not by print() or logging; \
                     write in a function instead. They wrote: {}",
                    self.project.display(),
                    String::from_utf8_lossy(output).trim()
                )));
            }
            Ok(taken.is_complete)
        };
        instrumented.run(&compiled, work, is_kept)
    }

    /// Has the SDK's builder print what the author's modules wrote, or why they could not be imported.
    fn about_modules(&self, taken: &TakenIn) -> Result<ImportReport> {
        let work = WorkDir::new()?;
        let file = work.0.join("taken.json");
        std::fs::write(&file, serde_json::to_vec(taken)?).context("cannot write a temporary file")?;
        let exports = taken.exports.join(",");
        let mut arguments = vec![OsStr::new("--taken"), file.as_os_str()];
        if !exports.is_empty() {
            arguments.extend([OsStr::new("--exports"), OsStr::new(&exports)]);
        }
        self.run(&work.0, &work.0.join("nothing"), &arguments)
    }
}

/// Returns a path at which other processes can read the running program, even after its file is replaced.
fn running_program() -> Option<PathBuf> {
    let proc = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    std::iter::once(proc).chain(std::env::current_exe().ok()).find(|path| path.is_file())
}

/// Finishes a component file: finalizes its memory and joins its core modules.
pub(super) fn finish(component: &Path, no_fuse: bool) -> Result<()> {
    let bytes = std::fs::read(component).context("the SDK's builder created no component")?;
    let settled = rollout_fuse::python::settle(&bytes, &Places::of(&bytes)?)?;
    let finished = if no_fuse { settled } else { rollout_fuse::python::level(&fuse(settled), None)? };
    std::fs::write(component, finished).context("cannot write the component")
}

/// A base in the form in which it runs: as one core module, with the code that other bases of the same libraries have.
struct Base {
    component: Vec<u8>,
    places: Places,
    is_fused: bool,
}

impl Base {
    fn of(made: &[u8], no_fuse: bool) -> Result<Self> {
        let places = Places::of(made)?;
        let component =
            if no_fuse { made.to_vec() } else { rollout_fuse::python::level(&fuse(made.to_vec()), None)? };
        Ok(Self { component, places, is_fused: !no_fuse })
    }

    /// Finishes the component that was made of this base: finalizes its memory.
    fn finish(&self, component: &[u8]) -> Result<Vec<u8>> {
        let settled = rollout_fuse::python::settle(component, &self.places)?;
        if !self.is_fused {
            return Ok(settled);
        }
        Ok(rollout_fuse::python::level(&settled, Some(&self.component))?)
    }
}

/// Returns the cache directory of builds, if one is known.
fn cache_dir() -> Option<PathBuf> {
    plugin_file::default_dir().and_then(|compiled| Some(compiled.parent()?.to_owned()))
}

/// Runs the SDK's builder and returns its report.
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
        // Neither the environment nor the working directory can add modules.
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
    let messages = show_progress(builder.stderr.take().context("the builder has no output")?)?;
    let ran = builder.wait_with_output().with_context(|| format!("cannot run {}", python.display()))?;
    if !ran.status.success() {
        if ran.status.code() == Some(AT_FAULT) {
            return Err(PluginFault(messages).into());
        }
        bail!("{messages}");
    }
    if !messages.is_empty() {
        errln!("{messages}");
    }
    serde_json::from_slice(&ran.stdout).context("the report of the SDK's builder is invalid")
}

/// Prints the builder's progress lines as they come and returns its other output.
fn show_progress(output: impl Read) -> Result<String> {
    let mut rest = String::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read the builder's output")?;
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

/// Joins the core modules into one, so that an instance starts faster.
fn fuse(component: Vec<u8>) -> Vec<u8> {
    match rollout_fuse::fuse(&component) {
        Ok(fused) => {
            let (modules, imports) = (fused.modules, fused.imports.before - fused.imports.after);
            errln!("joined {modules} core modules into one, without {imports} imports between them");
            fused.bytes
        }
        // The unchanged component works, but starts more slowly.
        Err(reason) => {
            errln!("the core modules stay separate, so that instances start more slowly: {reason}");
            component
        }
    }
}

/// Returns the tool and the Python that it is installed in, or the reason why there is none.
pub(super) fn tool(dir: &Path) -> Result<String> {
    let tool = find_tool(dir, None)?;
    let python = interpreter_of(&tool)?;
    Ok(format!("{} with {}", tool.display(), python.display()))
}

/// Finds the tool: the configured one, or the first in its usual places.
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
        "{TOOL}, which creates components of Python projects, is not installed; run: python3 -m pip install {TOOL}=={TOOL_VERSION}"
    )
}

/// Returns the directory of this program, where pip also installs the matching release of the tool.
fn program_dir() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Returns whether the tool is installed next to this program.
pub(crate) fn is_installed_with_tool() -> bool {
    program_dir().is_some_and(|dir| dir.join(TOOL).is_file())
}

/// Returns the interpreter of the tool: that of its virtual environment, the one in its script's first line,
/// or one in its directory.
fn interpreter_of(tool: &Path) -> Result<PathBuf> {
    let neighbours = ["python3", "python"].map(|name| tool.with_file_name(name));
    let dir = tool.parent().unwrap_or(tool);
    let in_environment = dir.join("../pyvenv.cfg").is_file();
    // pip starts a script through a shell if the interpreter's path is too long for the first line.
    let named = first_line(tool)
        .and_then(|line| Some(PathBuf::from(line.strip_prefix("#!")?.trim())))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")));
    let (first, last) = if in_environment { (&neighbours[..], &[][..]) } else { (&[][..], &neighbours[..]) };
    let mut candidates = first.iter().chain(&named).chain(last);
    let found = candidates.find(|path| path.is_absolute() && path.is_file());
    let python = found.with_context(|| {
        format!("cannot find the Python that {} is installed in; install it with pip", tool.display())
    })?;
    let check = "import sys\nif sys.version_info < (3, 11): import tomli";
    let status = Command::new(python).args(["-I", "-c", check]).stderr(Stdio::null()).status();
    if status.with_context(|| format!("cannot run {}", python.display()))?.success() {
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
