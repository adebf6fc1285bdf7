//! Tests that projects of `new` build and are valid immediately.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Ran, Start, project_root, python_program, rollout_host};
use serde_json::Value;

/// The timeout of a build. The first one compiles the SDK.
const BUILD: Duration = Duration::from_secs(600);

/// Returns every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Runs the project's first row with the mock model, and checks that it calls the tool.
async fn calls_its_tool(project: &Path, wasm: &Path) {
    let mut test = rollout_host(["test"]);
    test.arg(wasm).args(["--data", "rows.jsonl", "--model", "mock"]).current_dir(project);

    let ran = test.start().ended_within(BUILD).await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("→ calculator({\"expression\":\"17 + 25\"})"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("error"), "{}", ran.stdout);
}

async fn new(dir: &Path, arguments: &[&str]) -> Ran {
    rollout_host(["new"]).args(arguments).current_dir(dir).start().ended().await
}

#[tokio::test]
async fn each_template_builds_and_is_valid_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    for (template, name, reward) in [
        ("one-turn", "new-one-turn", "1"),
        ("tools", "new-tools", "1"),
        ("agent-loop", "new-agent-loop", "1"),
        ("grader", "new-grader", "1"),
        ("environment", "new-environment", ""),
    ] {
        let made = new(dir.path(), &[name, "--template", template]).await;
        assert_eq!(made.code, Some(0), "{template}: {}", made.stderr);
        assert!(made.stdout.contains("rollout-host build . -o"), "{}", made.stdout);
        // The project is built in another place than it was created: it contains no path of this machine.
        let project = dir.path().join("elsewhere").join(name);
        std::fs::create_dir_all(project.parent().unwrap()).unwrap();
        std::fs::rename(dir.path().join(name), &project).unwrap();
        let root = project_root().canonicalize().unwrap().display().to_string();
        for file in files(&project) {
            let text = std::fs::read_to_string(&file).unwrap();
            for place in [&*root, &dir.path().display().to_string()] {
                assert!(!text.contains(place), "{} names {place}", file.display());
            }
        }
        // The versions that are available already, so that nothing is downloaded.
        std::fs::copy(project_root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
        let wasm = project.join("made.wasm");

        let built = rollout_host(["build", "."])
            .arg("-o")
            .arg(&wasm)
            .current_dir(&project)
            .env("CARGO_TARGET_DIR", &target)
            .start()
            .ended_within(BUILD)
            .await;
        assert_eq!(built.code, Some(0), "{template}: {}", built.stderr);
        assert!(!built.stderr.contains("warning"), "{template}: {}", built.stderr);
        if ["tools", "agent-loop"].contains(&template) {
            calls_its_tool(&project, &wasm).await;
        }

        let ran = rollout_host(["validate", "--json"]).arg(&wasm).start().ended().await;
        assert_eq!(ran.code, Some(0), "{template}: {}{}", ran.stdout, ran.stderr);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        assert!(checks.iter().all(|check| check["outcome"] != "warned"), "{template}: {report:#}");
        if template == "environment" {
            is_played(&project, &wasm).await;
            passes_its_tests(&project, &target).await;
            continue;
        }
        let rated = checks.iter().find(|check| check["name"] == "reward").unwrap();
        assert_eq!(rated["detail"], reward, "{template}: {report:#}");
    }
}

/// Plays the first task of a new environment by lines on standard input.
async fn is_played(project: &Path, wasm: &Path) {
    let lines = project.join("lines.txt");
    std::fs::write(&lines, "add number=90\nadd 4\n/state\nmultiply {\"number\": 2}\n").unwrap();
    let mut test = rollout_host(["test"]);
    test.arg(wasm).args(["--split", "train", "--interactive"]).current_dir(project);
    let input = std::fs::File::open(&lines).unwrap();

    let ran = test.start_with(input.into()).ended_within(BUILD).await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for line in [
        "90 is not from -9 to 9",
        "The number is 5. Make it 10.",
        "\"number\":5",
        "after 2 steps, with the reward 0.5",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
}

/// Runs the tests in the code of a Rust project.
async fn passes_its_tests(project: &Path, target: &Path) {
    let mut cargo = tokio::process::Command::new("cargo");
    cargo.args(["test", "--offline", "--quiet"]).current_dir(project).env("CARGO_TARGET_DIR", target);
    let ran = tokio::time::timeout(BUILD, cargo.kill_on_drop(true).output()).await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{stdout}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(stdout.contains("2 passed"), "{stdout}");
}

#[tokio::test]
async fn each_template_in_python_builds_and_is_valid_immediately() {
    let dir = tempfile::tempdir().unwrap();
    for template in ["one-turn", "tools", "agent-loop", "grader", "environment"] {
        let name = format!("py-{template}");
        let made = new(dir.path(), &[&name, "--lang", "python", "--template", template]).await;
        assert_eq!(made.code, Some(0), "{template}: {}", made.stderr);
        let project = dir.path().join(&name);
        let wasm = project.join("made.wasm");

        let built = rollout_host(["build", "."])
            .arg("-o")
            .arg(&wasm)
            .arg("--componentize-py")
            .arg(python_program("componentize-py"))
            .current_dir(&project)
            .start()
            .ended_within(BUILD)
            .await;
        assert_eq!(built.code, Some(0), "{template}: {}", built.stderr);
        if ["tools", "agent-loop"].contains(&template) {
            calls_its_tool(&project, &wasm).await;
        }

        let ran = rollout_host(["validate", "--json"]).arg(&wasm).start().ended_within(BUILD).await;
        assert_eq!(ran.code, Some(0), "{template}: {}{}", ran.stdout, ran.stderr);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        if template == "environment" {
            assert!(checks.iter().all(|check| check["outcome"] != "warned"), "{report:#}");
            is_played(&project, &wasm).await;
            continue;
        }
        let rated = checks.iter().find(|check| check["name"] == "reward").unwrap();
        assert_eq!(rated["detail"], "1", "{template}: {report:#}");
    }
}

#[tokio::test]
async fn nothing_is_overwritten_and_an_invalid_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("full")).unwrap();
    std::fs::write(dir.path().join("full/file"), "mine").unwrap();
    for (arguments, named) in [
        (&["full"][..], "not empty"),
        (&["Bad Name"], "invalid project name"),
        (&["test"], "is reserved in Rust"),
        (&["x", "--sdk", "/nowhere"], "guest-sdk/rust"),
        (&["x", "--template", "other"], "possible values"),
    ] {
        let ran = new(dir.path(), arguments).await;

        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{arguments:?}: {}", ran.stderr);
    }
    let entries = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 1, "nothing was created");
}

#[tokio::test]
async fn the_sdk_may_come_from_a_repository_or_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let sdk = project_root().join("guest-sdk/rust");
    let git = new(dir.path(), &["a", "--sdk-git", "https://example.com/host.git"]).await;
    let path = new(dir.path(), &["b", "--dir", "there", "--sdk", &sdk.display().to_string()]).await;

    assert_eq!((git.code, path.code), (Some(0), Some(0)), "{}{}", git.stderr, path.stderr);
    let manifest = |name: &str| std::fs::read_to_string(dir.path().join(name).join("Cargo.toml")).unwrap();
    assert!(manifest("a").contains("rollout-sdk = { git = \"https://example.com/host.git\" }"));
    assert!(manifest("there").contains(&format!("rollout-sdk = {{ path = \"{}\" }}", sdk.display())));
}

#[tokio::test]
async fn the_sdk_within_a_project_is_updated_to_that_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(new(dir.path(), &["made"]).await.code, Some(0));
    let project = dir.path().join("made");
    let sdk = project.join("vendor/rollout-sdk");
    let lib = std::fs::read_to_string(sdk.join("src/lib.rs")).unwrap();
    std::fs::write(sdk.join("src/lib.rs"), "// of another version").unwrap();
    std::fs::write(sdk.join("src/gone.rs"), "// no longer there").unwrap();
    std::fs::write(project.join("src/mine.rs"), "// mine").unwrap();

    let ran = rollout_host(["update-sdk"]).arg(&project).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(sdk.join("src/lib.rs")).unwrap(), lib);
    assert!(!sdk.join("src/gone.rs").exists() && project.join("src/mine.rs").exists());

    let other = rollout_host(["update-sdk"]).arg(dir.path()).start().ended().await;
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    assert!(other.stderr.contains("Cargo.toml"), "{}", other.stderr);
}
