//! The programs of the tests: the host's binary and the guests, built once in a test process.
//!
//! `ROLLOUT_HOST_BIN` and `ROLLOUT_GUESTS_DIR` name existing builds.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

/// Returns the root of the project.
pub fn project_root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Returns cargo's target directory.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => project_root().join(dir),
        None => project_root().join("target"),
    }
}

/// Returns the Python of an environment that `clients/setup` creates. It is created if necessary. `ROLLOUT_VENVS` names the
/// directory of the environments.
pub async fn client_python(name: &str) -> PathBuf {
    static VENVS: tokio::sync::OnceCell<PathBuf> = tokio::sync::OnceCell::const_new();
    let made = async || {
        set_up(&[]).await;
        venvs()
    };
    VENVS.get_or_init(made).await.join(name).join("bin/python")
}

/// Returns the Python of the environment of a trainer's package, which `clients/setup` creates alone.
pub async fn trainer_python(name: &str) -> PathBuf {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    set_up(&[name]).await;
    venvs().join(name).join("bin/python")
}

fn venvs() -> PathBuf {
    env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from)
}

/// Runs `clients/setup`.
async fn set_up(names: &[&str]) {
    let mut setup = tokio::process::Command::new(project_root().join("tests/clients/setup"));
    // Installing may take longer than other waits.
    let made = setup.arg(venvs()).args(names).stdin(Stdio::null()).output().await.expect("it can be run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Returns the host's binary.
pub fn host_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match env::var_os("ROLLOUT_HOST_BIN") {
        Some(path) => path.into(),
        None => {
            let built = cargo_build(&["-p", "rollout-host", "--bin", "rollout-host"]);
            let binary =
                built.into_iter().find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
            binary.expect("cargo names the binary that it built")
        }
    })
}

/// Returns the component of a guest in `guests/examples`, by the file's name.
pub fn guest(name: &str) -> PathBuf {
    static GUESTS: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    let built = || {
        let arguments = ["--release", "--target", "wasm32-wasip2", "-p", "rollout-test-guests", "--examples"];
        let path_of = |artifact: Value| {
            let path = artifact["filenames"].as_array()?.iter().filter_map(Value::as_str);
            let path =
                path.map(PathBuf::from).find(|path| path.extension().is_some_and(|ext| ext == "wasm"))?;
            Some((artifact["target"]["name"].as_str()?.to_owned(), path))
        };
        cargo_build(&arguments).into_iter().filter_map(path_of).collect()
    };
    let path = match env::var_os("ROLLOUT_GUESTS_DIR") {
        Some(dir) => PathBuf::from(dir).join(format!("{name}.wasm")),
        None => GUESTS.get_or_init(built).get(name).cloned().unwrap_or_default(),
    };
    assert!(path.is_file(), "there is no guest '{name}' at {path:?}");
    path
}

/// Returns the component of one of the project's examples, by its package's name.
pub fn example(package: &str) -> PathBuf {
    let file = format!("{}.wasm", package.replace('-', "_"));
    let path = match env::var_os("ROLLOUT_GUESTS_DIR") {
        // Cargo puts the examples, which have a profile of their own, beside the profile of the guests.
        Some(dir) => PathBuf::from(dir).join("../../guest").join(file),
        None => {
            let built =
                cargo_build(&["--profile", "guest", "--target", "wasm32-wasip2", "-p", package, "--lib"]);
            let files = built.iter().filter_map(|artifact| artifact["filenames"].as_array()).flatten();
            let mut files = files.filter_map(Value::as_str).map(PathBuf::from);
            files.find(|path| path.ends_with(&file)).unwrap_or_default()
        }
    };
    assert!(path.is_file(), "there is no example '{package}' at {path:?}");
    path
}

/// Returns a program of the environment in which Python guests are built and checked.
pub fn python_program(name: &str) -> PathBuf {
    let venvs = env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let program = venvs.join("guest-sdk/bin").join(name);
    assert!(program.is_file(), "there is no {program:?}; run: tests/clients/setup {}", venvs.display());
    program
}

/// Returns the directory that `tests/clients/setup` creates.
pub fn environments() -> PathBuf {
    env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from)
}

/// Returns whether the tests of JavaScript guests can run. They are skipped only if `tests/clients/setup` recorded that
/// their tools are not available on this machine.
pub fn has_javascript() -> bool {
    let reason = environments().join("javascript-is-not-set-up");
    let is_skipped = reason.is_file();
    if is_skipped {
        eprintln!(
            "SKIPPED: JavaScript guests are not set up, see the output of tests/clients/setup; {reason:?}"
        );
    }
    !is_skipped
}

/// Returns the directory of the npm packages for the tests of JavaScript guests.
pub fn npm_packages() -> PathBuf {
    let modules = environments().join("npm/node_modules");
    assert!(
        modules.is_dir(),
        "there is no {modules:?}; run: tests/clients/setup {}",
        environments().display()
    );
    modules
}

/// Returns the directory of the frameworks that examples in TypeScript use.
pub fn framework_packages() -> PathBuf {
    let modules = environments().join("npm-frameworks/node_modules");
    assert!(
        modules.is_dir(),
        "there is no {modules:?}; run: tests/clients/setup {}",
        environments().display()
    );
    modules
}

/// Creates a copy of a JavaScript project with the frameworks installed.
pub fn with_frameworks(project: &Path, target: &Path) {
    copy_dir(project, target);
    #[cfg(unix)]
    std::os::unix::fs::symlink(framework_packages(), target.join("node_modules"))
        .expect("the packages can be linked");
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|error| panic!("{to:?}: {error}"));
    for entry in std::fs::read_dir(from).unwrap_or_else(|error| panic!("{from:?}: {error}")) {
        let path = entry.expect("a directory can be read").path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy_dir(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap_or_else(|error| panic!("{path:?}: {error}"))),
        }
    }
}

/// Returns the program in esbuild's package for this machine, which runs without Node.
pub fn esbuild() -> PathBuf {
    let packages = npm_packages().join("@esbuild");
    let installed = std::fs::read_dir(&packages).ok().and_then(|mut entries| entries.next()?.ok());
    let package = installed.unwrap_or_else(|| panic!("there is no package in {packages:?}"));
    package.path().join("bin/esbuild")
}

/// Returns the JavaScript engine of the tests.
pub fn javascript_engine() -> PathBuf {
    let engine = environments().join("quickjs.wasm");
    assert!(engine.is_file(), "there is no {engine:?}; run: scripts/js-engine {}", engine.display());
    engine
}

/// Returns a command that runs the host on JavaScript projects, with the engine and esbuild of the tests.
pub fn javascript_host(command: &str) -> Command {
    let mut host = Command::new(host_program());
    host.arg(command)
        .arg("--esbuild")
        .arg(esbuild())
        .arg("--js-engine")
        .arg(javascript_engine())
        .env("XDG_CACHE_HOME", target_dir().join("test-cache"))
        .stdin(Stdio::null());
    host
}

/// Returns the component of a JavaScript project, by its path in this project, built once in a test process.
pub fn javascript_guest(project: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(component) = built.get(project) {
        return component.clone();
    }
    let kept = target_dir().join("javascript-guests");
    std::fs::create_dir_all(&kept).expect("the target directory can be written");
    let component = kept.join(format!("{}-{}.wasm", project.replace('/', "-"), std::process::id()));
    let mut source = project_root().join(project);
    let manifest = std::fs::read(source.join("package.json")).expect("the project has a package.json");
    let manifest: Value = serde_json::from_slice(&manifest).expect("the package.json is JSON");
    let dependencies = manifest["dependencies"].as_object();
    let copy = tempfile::tempdir().expect("a temporary directory can be made");
    if dependencies.is_some_and(|packages| packages.keys().any(|name| name != "rollout-sdk")) {
        let target = copy.path().join("project");
        with_frameworks(&source, &target);
        source = target;
    }
    let ran = javascript_host("build")
        .arg(&source)
        .arg("-o")
        .arg(&component)
        .output()
        .expect("the host can be run");
    assert!(ran.status.success(), "{project}: {}", String::from_utf8_lossy(&ran.stderr));
    built.insert(project.to_owned(), component.clone());
    component
}

/// Returns the directory of native wheels for components.
pub fn native_wheels() -> PathBuf {
    let venvs = env::var_os("ROLLOUT_VENVS").map_or_else(|| target_dir().join("venvs"), PathBuf::from);
    let wheels = venvs.join("native-wheels");
    assert!(wheels.is_dir(), "there is no {wheels:?}; run: scripts/native-wheels {}", wheels.display());
    wheels
}

/// Returns the component of a Python project, by its path in this project. Building one takes some ten seconds, so it
/// is stored until one of its inputs changes.
pub fn python_guest(project: &str) -> PathBuf {
    let project = project_root().join(project);
    let mut made_of = DefaultHasher::new();
    let builder = ["guest-sdk/python/src", "host/cli/src/build", "host/fuse/src", "host/snapshot/src", "wit"]
        .map(|dir| project_root().join(dir));
    let files = builder.iter().chain([&project]);
    let mut files: Vec<PathBuf> = files.flat_map(|dir| files_in(dir)).collect();
    files.push(project_root().join("guest-sdk/python/requirements-dev.txt"));
    files.sort();
    for file in files {
        file.hash(&mut made_of);
        std::fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}")).hash(&mut made_of);
    }
    let kept = target_dir().join("python-guests");
    std::fs::create_dir_all(&kept).expect("the target directory can be written");
    let component = kept.join(format!("{:016x}.wasm", made_of.finish()));
    // Tests of one process may request the same guest concurrently.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _turn = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if !component.is_file() {
        let fresh = component.with_extension(format!("{}.wasm", std::process::id()));
        let built = Command::new(host_program())
            .arg("build")
            .arg(&project)
            .arg("-o")
            .arg(&fresh)
            .arg("--componentize-py")
            .arg(python_program("componentize-py"))
            .env("XDG_CACHE_HOME", target_dir().join("test-cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .status()
            .expect("the host can be run");
        assert!(built.success(), "rollout-host build {} failed", project.display());
        std::fs::rename(&fresh, &component).expect("the component can be stored");
    }
    component
}

/// Returns the source files of a Python component, without files that tools leave there.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir:?}: {error}")) {
        let path = entry.expect("a directory can be read").path();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("py" | "rs" | "toml" | "wit" | "jsonl") => found.push(path),
            None if path.is_dir() => found.extend(files_in(&path)),
            _ => {}
        }
    }
    found
}

/// Runs `cargo build` and returns its message for every artifact.
fn cargo_build(arguments: &[&str]) -> Vec<Value> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(project_root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(built.status.success(), "cargo build {} failed", arguments.join(" "));
    let messages = String::from_utf8(built.stdout).expect("cargo writes text");
    messages
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("cargo writes a JSON object a line"))
        .filter(|message| message["reason"] == "compiler-artifact")
        .collect()
}
