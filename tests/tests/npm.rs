//! Tests that the npm packages, installed without a compiler and a registry, run the program.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollout_tests::{esbuild, has_javascript, host_program, javascript_engine, project_root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn run(command: &mut Command) -> Output {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{command:?}:\n{stdout}\n{stderr}");
    ran
}

fn make(program: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut script = Command::new(project_root().join("scripts/npm"));
    run(script.arg(program).arg(dir).env("ROLLOUT_JS_ENGINE", javascript_engine()));
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Returns the directory of Node and npm, in which there may be no compiler.
fn node_only(dir: &Path) -> PathBuf {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    // npm starts scripts and programs by a shell, and its own start file is found by `env`.
    for name in ["node", "npm", "npx", "sh", "env"] {
        let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
        let found = found.unwrap_or_else(|| panic!("{name} is not in PATH"));
        std::os::unix::fs::symlink(found.canonicalize().unwrap(), bin.join(name)).unwrap();
    }
    bin
}

#[test]
fn packed_packages_install_offline_and_run_the_program() {
    if !has_javascript() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let packages = make(host_program(), &dir.path().join("packages"));
    let bin = node_only(dir.path());
    let project = dir.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let alone = |program: &str| {
        let mut command = Command::new(bin.join(program));
        command.env_clear().env("PATH", &bin).env("HOME", dir.path()).current_dir(&project);
        command.env("npm_config_offline", "true").env("npm_config_update_notifier", "false");
        command
    };

    run(alone("npm").args(["install", "--no-audit", "--no-fund"]).args(&packages));

    let ran = run(alone("npx").args(["rollout-host", "--version"]));
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), format!("rollout-host {VERSION}"));
    // The exit code is the program's own.
    let ran = alone("npx").args(["rollout-host", "validate", "none.wasm"]).output().unwrap();
    assert_ne!(ran.status.code(), Some(0));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(stderr.contains("none.wasm"), "{stderr}");
    // The JavaScript engine is beside the program, and the SDK can be imported.
    run(alone("npx").args(["rollout-host", "new", "my-agent", "--lang", "ts"]));
    run(alone("npx")
        .args(["rollout-host", "build", "my-agent", "-o", "made.wasm", "--esbuild"])
        .arg(esbuild()));
    run(alone("npx").args(["rollout-host", "validate", "made.wasm"]));
    let script = "const sdk = await import('rollout-sdk'); if (!sdk.defineWorkflow) process.exit(1);";
    run(alone("node").args(["--input-type=module", "-e", script]));

    // Without the optional package, the error names it.
    std::fs::remove_dir_all(project.join("node_modules/@rollout-host")).unwrap();
    let ran = alone("npx").args(["rollout-host", "--version"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(
        stderr.contains("the package @rollout-host/linux-") && stderr.contains("is not installed"),
        "{stderr}"
    );
}

#[test]
fn the_same_program_gives_the_same_packages_and_no_package_has_scripts() {
    if !has_javascript() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The packages do not depend on the content of the program.
    let program = dir.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();

    let first = make(&program, &dir.path().join("one"));
    let second = make(&program, &dir.path().join("two"));

    assert_eq!(first.len(), 3, "{first:?}");
    for (one, other) in first.iter().zip(&second) {
        assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap(), "{one:?} and {other:?} differ");
    }
    let mut names = BTreeSet::new();
    for package in &first {
        let listed = run(Command::new("tar").arg("-xzOf").arg(package).arg("package/package.json"));
        let manifest: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(manifest["version"], VERSION);
        assert!(manifest.get("scripts").is_none() && manifest.get("dependencies").is_none(), "{manifest:#}");
        names.insert(manifest["name"].as_str().unwrap().to_owned());
        if let Some(optional) = manifest["optionalDependencies"].as_object() {
            assert!(optional.values().all(|version| version == VERSION), "{manifest:#}");
        }
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("@rollout-host/linux-")).count(), 1, "{names:?}");
    assert!(names.contains("rollout-host") && names.contains("rollout-sdk"), "{names:?}");
}
