//! Tests of the SDK itself.

use std::path::PathBuf;

use rollout_tests::project_root;
use serde_json::json;
use tokio::process::Command;

use super::*;

/// Generates bindings for type checks of the SDK.
async fn bindings(dir: &Path) -> PathBuf {
    let world = dir.join("world");
    std::fs::create_dir_all(world.join("deps/plugin")).unwrap();
    std::fs::copy(project_root().join("wit/plugin.wit"), world.join("deps/plugin/plugin.wit")).unwrap();
    let worlds = [
        "workflow-plugin",
        "agent-loop-plugin",
        "environment-plugin",
        "grader-plugin",
        "group-grader-plugin",
        "with-settings",
    ];
    let included: String =
        worlds.iter().map(|world| format!("include rollout:plugin/{world}@0.1.0;\n")).collect();
    write(
        &world,
        "component.wit",
        &format!("package rollout:component;\nworld component {{\n{included}}}\n"),
    );
    let stubs = dir.join("bindings");
    let made = Command::new(python_program("componentize-py"))
        .arg("-d")
        .arg(&world)
        .args(["-w", "component", "--world-module", "_rollout_wit", "bindings"])
        .arg(&stubs)
        .output()
        .await
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    stubs
}

#[tokio::test]
async fn the_sdk_and_its_examples_pass_a_strict_type_checker() {
    let dir = temporary();
    let path = format!(
        "{}:{}",
        bindings(dir.path()).await.display(),
        project_root().join("guest-sdk/python/src").display()
    );
    for (place, what) in [
        ("guest-sdk/python", vec!["src/rollout_sdk"]),
        ("examples/one-turn/python", vec!["one_turn.py"]),
        ("examples/calculator/python", vec!["calculator.py", "expression.py"]),
        ("examples/parallel/python", vec!["parallel.py"]),
        ("examples/strands-agent/python", vec!["strands_agent.py"]),
        ("examples/openai-agents/python", vec!["arithmetic.py"]),
        ("examples/agent-loop/python", vec!["agent_loop.py"]),
        ("examples/number-hunt/python", vec!["number_hunt.py"]),
        ("examples/word-walk/python", vec!["word_walk.py"]),
        (PARITY, vec!["parity.py", "only_python.py"]),
    ] {
        let checked = Command::new(python_program("mypy"))
            .args(["--strict", "--cache-dir"])
            .arg(dir.path().join("cache"))
            .args(&what)
            .env("MYPYPATH", &path)
            .current_dir(project_root().join(place))
            .output()
            .await
            .unwrap();

        assert!(checked.status.success(), "{place}:\n{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[tokio::test]
async fn the_sdk_passes_the_other_strict_type_checker_too() {
    let dir = temporary();
    let place = dir.path().join("checked");
    std::fs::create_dir(&place).unwrap();
    // The checker accepts only paths within its directory.
    std::os::unix::fs::symlink(project_root().join("guest-sdk/python/src"), place.join("src")).unwrap();
    let config = json!({
        "include": ["src/rollout_sdk"],
        // The generated code is not checked.
        "extraPaths": [bindings(dir.path()).await, "src"],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.14",
    });
    write(&place, "pyrightconfig.json", &config.to_string());

    let checked = Command::new(python_program("pyright")).arg("-p").arg(&place).arg("--outputjson").output();
    let checked = checked.await.unwrap();

    let report: Value = serde_json::from_slice(&checked.stdout).expect("it writes JSON");
    let found = report["generalDiagnostics"].as_array().expect("a list");
    assert!(found.is_empty(), "{found:#?}");
    assert!(report["summary"]["filesAnalyzed"].as_u64() > Some(30), "{report:#}");
}

#[tokio::test]
async fn the_sdk_passes_its_own_tests() {
    let ran = Command::new(python_program("python"))
        .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests"])
        .env("PYTHONPATH", "src")
        .current_dir(project_root().join("guest-sdk/python"))
        .output()
        .await
        .unwrap();

    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{stderr}");
    assert!(!stderr.contains("Ran 0 tests"), "{stderr}");
}
