//! Builds JavaScript and TypeScript projects: esbuild bundles the project into one module, and `rollout-quickjs` builds
//! a component from the module.
//!
//! The build installs nothing: dependencies are those in `node_modules`, and esbuild is a program that needs no Node.
//! The SDK is the one in this program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rollout_quickjs::{ENGINE_VERSION, EngineLibrary, Error, World};

use super::esbuild::{self, Esbuild, Format};
use super::javascript_manifest::Manifest;
use super::source_map::SourceMap;
use super::{Built, PluginFault};
use super::{javascript_builtins, javascript_sdk};
use crate::plugin_file;
use rollout_wire::digest::{Digest, sha256_parts};

/// Tools of JavaScript projects.
#[derive(Clone, Debug, Args)]
pub(crate) struct Tools {
    /// Path of esbuild, which bundles JavaScript projects. [default: the first of the one in the project's
    /// node_modules, the one installed with this program, and that in PATH]
    #[arg(long, value_name = "FILE", help_heading = "JavaScript")]
    esbuild: Option<PathBuf>,
    /// Path of the JavaScript engine's library, as scripts/js-engine creates it. [default: the first of
    /// $ROLLOUT_JS_ENGINE, the library installed with this program, and the one in the cache]
    #[arg(long, value_name = "FILE", help_heading = "JavaScript")]
    js_engine: Option<PathBuf>,
}

/// Exports of the author's module: name in the module, name in the bundle, and interface of the contract.
const PARTS: &[(&str, &str, &str)] = &[
    ("workflow", "workflow", "workflow"),
    ("agentLoop", "agentLoop", "agent-loop"),
    ("groupGrader", "groupGrader", "group-grader"),
    ("grader", "grader", "grader"),
    ("environment", "environment", "environment"),
    ("settings", "settings", "settings"),
    ("tools", "tool", "tool"),
];

/// Prefix of the paths of the contract's modules.
const CONTRACT_MODULE: &str = "rollout:plugin/";

/// Modules of WASI that the SDK imports.
const WASI_MODULES: [&str; 2] = [rollout_quickjs::RANDOM, rollout_quickjs::STDIN];

/// Prefix of the SDK's files in traces.
const SDK_SHOWN: &str = "rollout-sdk/";

/// Returns whether a directory is a JavaScript project.
pub(super) fn is_project(dir: &Path) -> bool {
    Manifest::path(dir).is_some()
}

/// A project as one program.
struct Program {
    /// Name of the component's file.
    file_name: String,
    bundle: esbuild::Bundle,
    map: SourceMap,
    /// Parts that the project exports, as rows of [`PARTS`].
    parts: Vec<&'static (&'static str, &'static str, &'static str)>,
}

/// Builds the component of a project in the directory `work`.
pub(super) fn compile(project: &Path, tools: &Tools, work: &Path) -> Result<Built> {
    let engine = engine_library(tools)?;
    let program = bundle(project, tools, work, Format::Module)?;
    let (map, code) = (&program.map, &program.bundle.code);
    let world =
        World { imports: interfaces(&program.bundle.imports)?, exports: interfaces_of(&program.parts) };
    // Follows the program's own lines, so that their numbers stay the same.
    let text = format!("{code}\nglobalThis.__rolloutSourceMap = {};\n", map.to_json());
    let component = rollout_quickjs::componentize(&engine, javascript_sdk::CONTRACT, &world, &text);
    let component = component.map_err(|error| match error {
        Error::Program(text) => PluginFault(with_authors_positions(&text, map)).into(),
        other => anyhow::Error::new(other),
    })?;
    let path = work.join("component.wasm");
    std::fs::write(&path, component).context("cannot write the component")?;
    Ok(Built { name: program.file_name, component: path })
}

/// A project that runs in a component which was prepared without it.
pub(super) struct Prepared {
    /// File of the cached component, if there is a directory for it.
    pub cached: Option<PathBuf>,
    /// The component, if it is not cached yet.
    pub fresh: Option<PathBuf>,
    /// The project, which the instances read.
    pub input: Vec<u8>,
}

/// Bundles a project and prepares a component that reads it when an instance starts, unless one is cached.
pub(super) fn prepare(project: &Path, tools: &Tools, work: &Path) -> Result<Prepared> {
    let program = bundle(project, tools, work, Format::Function)?;
    interfaces(&program.bundle.imports)?;
    let map = program.map.to_json();
    let mut input = String::with_capacity(map.len() + program.bundle.code.len() + 1);
    // The instances decode no UTF-8. Only strings of the map can have other characters.
    for c in map.chars() {
        match c.is_ascii() {
            true => input.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| input += &format!("\\u{unit:04x}")),
        }
    }
    input.push('\n');
    input += &program.bundle.code;
    ensure!(input.is_ascii(), "esbuild wrote characters beyond ASCII");

    let exports = interfaces_of(&program.parts);
    let mut key = vec![ENGINE_VERSION.as_bytes(), env!("CARGO_PKG_VERSION").as_bytes()];
    key.push(javascript_sdk::CONTRACT.as_bytes());
    key.extend(javascript_sdk::files().flat_map(|(path, text)| [path.as_bytes(), text.as_bytes()]));
    key.extend(exports.iter().map(|export| export.as_bytes()));
    let name = format!("quick-{}.wasm", Digest::from_bytes(sha256_parts(&key)));
    let cached = plugin_file::default_dir().and_then(|dir| Some(dir.parent()?.join("javascript").join(name)));
    if cached.as_ref().is_some_and(|path| path.is_file()) {
        return Ok(Prepared { cached, fresh: None, input: input.into_bytes() });
    }
    let engine = engine_library(tools)?;
    let reader = work.join("sdk/src/quick.js");
    let mut text = format!("import {{ part }} from {};\n", json(&reader));
    for (name, export, _) in &program.parts {
        text += &format!("export const {export} = part({});\n", serde_json::Value::from(*name));
    }
    let project = project.canonicalize().with_context(|| format!("cannot find {}", project.display()))?;
    let reader = esbuild(&project, tools, work, BTreeMap::new())?.bundle(&text, Format::Module)?;
    let world = World { imports: interfaces(&reader.imports)?, exports };
    let component = rollout_quickjs::componentize(&engine, javascript_sdk::CONTRACT, &world, &reader.code);
    let path = work.join("component.wasm");
    std::fs::write(&path, component?).context("cannot write the component")?;
    Ok(Prepared { cached, fresh: Some(path), input: input.into_bytes() })
}

/// Returns esbuild for a project, after unpacking the SDK.
fn esbuild<'a>(
    project: &'a Path,
    tools: &Tools,
    work: &'a Path,
    more: BTreeMap<String, String>,
) -> Result<Esbuild<'a>> {
    let sdk = work.join("sdk");
    javascript_sdk::unpack(&sdk).context("cannot unpack the SDK")?;
    let mut aliases =
        javascript_builtins::aliases(work, &sdk).context("cannot write the built-in modules")?;
    aliases.extend(more.into_iter().map(|(name, target)| (name, target.into())));
    Ok(Esbuild { program: esbuild::find(project, tools.esbuild.as_deref())?, project, aliases, work })
}

/// Bundles a project and the SDK to one program.
fn bundle(project: &Path, tools: &Tools, work: &Path, format: Format) -> Result<Program> {
    let project = project.canonicalize().with_context(|| format!("cannot find {}", project.display()))?;
    let work = work.canonicalize().context("cannot find the directory for the build")?;
    let manifest = Manifest::read(&project)?;
    let entry = manifest.entry(&project)?;
    manifest.check_installed(&project)?;
    let sdk = work.join("sdk");
    let esbuild = esbuild(&project, tools, &work, manifest.aliases())?;

    let analyzed = esbuild.entry(&entry)?;
    check_imports(&project, &work, &analyzed.imports)?;
    let exports = &analyzed.exports;
    let parts: Vec<_> = PARTS.iter().filter(|(name, ..)| exports.contains(*name)).collect();
    if !parts.iter().any(|(name, ..)| *name != "settings") {
        return Err(PluginFault(nothing_exported(&entry, exports)).into());
    }
    let globals = javascript_builtins::globals(&analyzed.code, &sdk);
    let globals = globals.map(|text| -> Result<PathBuf> {
        let path = work.join("globals.js");
        std::fs::write(&path, text).context("cannot write the globals")?;
        Ok(path)
    });
    let globals = globals.transpose()?;
    let wrapper = wrapper(&project.join(&entry), &sdk, globals.as_deref(), &parts);
    let bundle = esbuild.bundle(&wrapper, format)?;
    let map = SourceMap::parse(&bundle.source_map)
        .context("esbuild wrote an invalid source map")?
        .with_sources(|path| shown_path(&work.join(path), &project, &work))
        .reduced(|source| source.starts_with(SDK_SHOWN));
    Ok(Program { file_name: manifest.file_name(), bundle, map, parts })
}

/// Returns the contract's interfaces of these parts.
fn interfaces_of(parts: &[&(&str, &str, &str)]) -> Vec<String> {
    parts.iter().map(|(.., interface)| (*interface).to_owned()).collect()
}

fn json(path: &Path) -> serde_json::Value {
    path.to_string_lossy().into()
}

/// Reads the engine's library.
fn engine_library(tools: &Tools) -> Result<EngineLibrary> {
    let named = tools.js_engine.clone().or_else(|| std::env::var_os("ROLLOUT_JS_ENGINE").map(PathBuf::from));
    let file = format!("quickjs-{ENGINE_VERSION}.wasm");
    let installed = || {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.join("../share/rollout-host").join(&file))
    };
    let cached = || Some(plugin_file::default_dir()?.parent()?.join(&file));
    let usual = || [installed(), cached()].into_iter().flatten().find(|path| path.is_file());
    let Some(path) = named.or_else(usual) else {
        bail!("the JavaScript engine is not installed; run scripts/js-engine in a clone, or set --js-engine");
    };
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    EngineLibrary::new(bytes).with_context(|| format!("{} cannot be used", path.display()))
}

/// Checks that none of the author's own files imports a module of Node that a component cannot have. Packages may
/// import one, because many packages import modules that they never use.
fn check_imports(project: &Path, work: &Path, imports: &BTreeMap<String, Vec<String>>) -> Result<()> {
    for (file, names) in imports {
        let path = normalized(&project.join(file));
        if file.contains("node_modules/") || path.starts_with(work) {
            continue;
        }
        let Some(name) = names.iter().find(|name| javascript_builtins::is_absent(name)) else { continue };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let quoted = [format!("'{name}'"), format!("\"{name}\"")];
        let line = text.lines().position(|line| quoted.iter().any(|quoted| line.contains(quoted)));
        let at = line.map_or_else(String::new, |line| format!(":{}", line + 1));
        return Err(PluginFault(format!(
            "{}{at} imports {name}: a component has no files, processes or network, and no streams or threads of Node; \
             the SDK has artifacts, models and tools",
            shown_path(&path, project, work)
        ))
        .into());
    }
    Ok(())
}

/// Returns the component's entry module, which imports the SDK's globals and then the author's module, and checks each
/// part.
fn wrapper(entry: &Path, sdk: &Path, globals: Option<&Path>, parts: &[&(&str, &str, &str)]) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let in_sdk = |file: &str| quoted(&sdk.join("src").join(file).to_string_lossy());
    let globals = globals.map(|path| format!("import {};\n", quoted(&path.to_string_lossy())));
    let mut text = format!(
        "import {};\n{}import {{ exported }} from {};\nimport * as plugin from {};\n",
        in_sdk("runtime/index.js"),
        globals.unwrap_or_default(),
        in_sdk("part.js"),
        quoted(&entry.to_string_lossy()),
    );
    for (name, export, _) in parts {
        text += &format!("export const {export} = exported({}, plugin.{name});\n", quoted(name));
    }
    text
}

fn nothing_exported(entry: &str, exports: &BTreeSet<String>) -> String {
    let found = match exports.is_empty() {
        true => "it exports nothing".to_owned(),
        false => format!("it exports {}", exports.iter().cloned().collect::<Vec<_>>().join(", ")),
    };
    format!(
        "{entry} exports no workflow, agentLoop, environment, grader or tools; {found}. Export a part, such as a workflow:\n\
         export const workflow = defineWorkflow(async (ctx) => {{ await ctx.agent().run(); }});"
    )
}

/// Returns the contract's interfaces among the modules that a bundle imports.
fn interfaces(imports: &BTreeSet<String>) -> Result<Vec<String>> {
    imports
        .iter()
        .map(|path| {
            if WASI_MODULES.contains(&path.as_str()) {
                return Ok(path.clone());
            }
            let name = path.strip_prefix(CONTRACT_MODULE).and_then(|rest| rest.split('@').next());
            name.map(str::to_owned).ok_or_else(|| {
                PluginFault(format!(
                    "the project imports '{path}', which is neither in it nor in node_modules"
                ))
                .into()
            })
        })
        .collect()
}

/// Returns the name of a source in traces: relative to the project or to the SDK. It never contains the directory of
/// the build, whose name is different each time.
fn shown_path(path: &Path, project: &Path, work: &Path) -> String {
    let path = normalized(path);
    for dir in [work.join("sdk/src"), work.to_owned()] {
        if let Ok(inner) = path.strip_prefix(dir) {
            return format!("{SDK_SHOWN}{}", inner.display());
        }
    }
    match path.strip_prefix(project) {
        Ok(inner) => inner.display().to_string(),
        // Other packages of a workspace are outside of the project's directory.
        Err(_) => {
            let mut up = String::new();
            for dir in project.ancestors().skip(1) {
                up.push_str("../");
                if let Ok(inner) = path.strip_prefix(dir) {
                    return format!("{up}{}", inner.display());
                }
            }
            path.display().to_string()
        }
    }
}

/// Resolves `.` and `..` in a path without access to the disk.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(normal.pop()),
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Replaces positions in the bundle by the author's files and lines, and removes the engine's own prefixes and lines.
fn with_authors_positions(text: &str, map: &SourceMap) -> String {
    const MODULE: &str = "componentize-qjs:user.js:";
    const PREFIXES: [&str; 3] = [
        "Failed to evaluate user JavaScript module: ",
        "Failed to finish JavaScript module evaluation: ",
        "Failed to evaluate JavaScript module: ",
    ];
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        for prefix in PREFIXES {
            line = line.replace(prefix, "");
        }
        if let Some((before, position)) = line.split_once(MODULE) {
            let mut numbers = position.split(|c: char| !c.is_ascii_digit());
            let line_number = numbers.next().and_then(|number| number.parse().ok()).unwrap_or(1);
            let column = numbers.next().and_then(|number| number.parse().ok()).unwrap_or(1);
            match map.place(line_number, column) {
                Some((file, _)) if file.starts_with(SDK_SHOWN) => continue,
                Some((file, at)) => {
                    let end = if before.ends_with('(') { ")" } else { "" };
                    line = format!("{before}{file}:{at}{end}");
                }
                None => continue,
            }
        }
        lines.push(line);
    }
    format!("the modules cannot be evaluated: {}", lines.join("\n").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_named_by_its_path_from_the_project() {
        let check = |path: &str, expected: &str| {
            let shown = shown_path(Path::new(path), Path::new("/a/b/project"), Path::new("/tmp/x"));
            assert_eq!(shown, expected);
        };
        check("/tmp/x/../../a/b/project/src/agent.ts", "src/agent.ts");
        check("/tmp/x/sdk/src/host.js", "rollout-sdk/host.js");
        check("/tmp/x/wrapper.js", "rollout-sdk/wrapper.js");
        check("/a/b/project/node_modules/zod/index.js", "node_modules/zod/index.js");
        check("/a/b/lib/x.ts", "../lib/x.ts");
        check("/a/node_modules/y.js", "../../node_modules/y.js");
    }

    #[test]
    fn modules_of_the_contract_are_interfaces_and_others_are_rejected() {
        let imports = |paths: &[&str]| interfaces(&paths.iter().map(|&path| path.to_owned()).collect());

        let found = imports(&["rollout:plugin/models@0.1.0", "rollout:plugin/log@0.1.0"]).unwrap();

        assert_eq!(found, ["log", "models"]);
        assert!(imports(&["left-pad"]).unwrap_err().to_string().contains("'left-pad'"));
    }
}
