//! What the tests run: the host's binary and the guests, built once in a test process.
//!
//! `ROLLOUT_HOST_BIN` and `ROLLOUT_GUESTS_DIR` name what was built already.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The root of the project.
pub fn project_root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// The directory that cargo builds in.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => project_root().join(dir),
        None => project_root().join("target"),
    }
}

/// The host's binary.
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

/// The component of a guest in `guests/examples`, by the file's name.
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

/// The component of an example under `examples/`, by its folder's name.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let packages = ["-p", "example-calculator-loop", "-p", "example-search"];
        cargo_build(&[&["--release", "--target", "wasm32-wasip2"][..], &packages].concat());
    });
    let file = format!("example_{}.wasm", name.replace('-', "_"));
    let path = target_dir().join("wasm32-wasip2/release").join(file);
    assert!(path.is_file(), "there is no example '{name}' at {path:?}");
    path
}

/// Builds, and gives what cargo says of every artifact.
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
