//! Tests of the output and exit codes of the other commands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Ran, Start, guest, project_root, rollout_host};
use serde_json::Value;
use tempfile::TempDir;

/// The timeout of a command. One of the commands compiles, perhaps with all dependencies.
const COMMAND: Duration = Duration::from_secs(300);

async fn run(command: &str, path: &Path, more: &[&str]) -> Ran {
    rollout_host([command]).arg(path).args(more).start().ended_within(COMMAND).await
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Writes a component from its text form to a file.
fn component(dir: &TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("made.wasm");
    std::fs::write(&path, wat::parse_str(text).expect("the text is a component")).expect("it can be written");
    path
}

#[tokio::test]
async fn inspect_shows_the_kind_of_a_component() {
    for (name, workflow, grader) in
        [("conform", true, true), ("only_workflow", true, false), ("only_grader", false, true)]
    {
        let ran = run("inspect", &guest(name), &["--json"]).await;

        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let about: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(about["servable"], true, "{about:#}");
        assert_eq!((&about["workflow"], &about["grader"]), (&workflow.into(), &grader.into()), "{about:#}");
        assert_eq!(about["contract_version"], "0.1.0", "{about:#}");
        let size = std::fs::metadata(guest(name)).unwrap().len();
        assert_eq!(about["size_bytes"], size);
        assert_eq!(about["digest"].as_str().map(str::len), Some(64), "{about:#}");
        let text = run("inspect", &guest(name), &[]).await;
        assert_eq!(text.code, Some(0));
        assert!(text.stdout.contains(about["digest"].as_str().unwrap()), "{}", text.stdout);
    }
}

#[tokio::test]
async fn inspect_shows_the_provider_of_each_import() {
    let dir = temporary();
    let unknown = component(&dir, r#"(component (import "vendor:gpu/kernels" (instance)))"#);
    for (path, interface, grant) in [
        (guest("conform"), "rollout:plugin/models@", "granted"),
        (guest("conform"), "wasi:cli/stderr@", "granted"),
        (guest("look_around"), "wasi:cli/environment@", "empty"),
        (guest("look_around"), "wasi:filesystem/preopens@", "empty"),
        (guest("look_around"), "wasi:sockets/tcp@", "refused"),
        (unknown, "vendor:gpu/kernels", "missing"),
    ] {
        let about: Value =
            serde_json::from_str(&run("inspect", &path, &["--json"]).await.stdout).expect("it is JSON");
        let text = run("inspect", &path, &[]).await.stdout;

        let imports = about["imports"].as_array().expect("there are imports");
        let found = imports.iter().find(|import| import["name"].as_str().unwrap().starts_with(interface));
        let found = found.unwrap_or_else(|| panic!("{interface} is not in {about:#}"));
        assert_eq!(found["grant"], grant, "{interface}");
        let is_line = |line: &str| line.trim().starts_with(grant) && line.contains(interface);
        assert!(text.lines().any(is_line), "{interface}: {text}");
    }
}

#[tokio::test]
async fn inspect_names_the_reasons_why_a_component_cannot_be_served() {
    let dir = temporary();
    for (text, named) in [
        (
            r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance)))"#,
            "wasi:http/outgoing-handler@0.2.0",
        ),
        (r#"(component (import "rollout:plugin/models@0.2.0" (instance)))"#, "rollout:plugin/models@0.2.0"),
        (r#"(component (import "vendor:gpu/kernels" (instance)))"#, "vendor:gpu/kernels"),
        ("(component)", "rollout:plugin/workflow@0.1.0"),
    ] {
        let path = component(&dir, text);

        let ran = run("inspect", &path, &["--json"]).await;

        assert_eq!(ran.code, Some(1), "{text}: {}", ran.stderr);
        let about: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(about["servable"], false, "{about:#}");
        let plain = run("inspect", &path, &[]).await;
        assert!(plain.stdout.contains(named), "{text}: {}", plain.stdout);
        let served = run("serve", &path, &["--listen", "127.0.0.1:0"]).await;
        assert_eq!(served.code, Some(1), "{text}: {}", served.stderr);
        assert!(served.stderr.contains(named), "{text}: {}", served.stderr);
        if named.starts_with("wasi:http") {
            let hint = "a plugin has no network, and reaches its model through rollout:plugin/models";
            assert!(served.stderr.contains(hint), "{}", served.stderr);
        }
    }
}

#[tokio::test]
async fn inspect_shows_the_kind_of_a_file_that_is_not_a_component() {
    let dir = temporary();
    let path = dir.path().join("file.wasm");
    for (bytes, named) in [
        (&b"\0asm\x01\0\0\0"[..], "core WebAssembly module"),
        (b"#!/bin/sh\n", "not a WebAssembly file"),
        (b"", "not a WebAssembly file"),
        (b"\0asm\x0d\0\x01\0garbage", "not a valid component"),
    ] {
        std::fs::write(&path, bytes).unwrap();

        let ran = run("inspect", &path, &[]).await;

        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
    }
    let missing = run("inspect", &dir.path().join("nowhere.wasm"), &[]).await;
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(missing.stderr.contains("nowhere.wasm"), "{}", missing.stderr);
}

#[tokio::test]
async fn build_makes_a_component_of_an_example_that_can_be_served() {
    let dir = temporary();
    let output = dir.path().join("one-turn.wasm");
    let project = project_root().join("examples/one-turn/rust");

    let ran = run("build", &project, &["-o", &output.display().to_string()]).await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("workflow and grader"), "{}", ran.stdout);
    assert_eq!(run("inspect", &output, &[]).await.code, Some(0));
}

/// Creates a project without dependencies.
fn project(manifest: &str, code: &str) -> TempDir {
    let dir = temporary();
    std::fs::create_dir(dir.path().join("src")).expect("it can be made");
    let package = "[package]\nname = \"made\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(dir.path().join("Cargo.toml"), format!("{package}{manifest}")).expect("it can be written");
    std::fs::write(dir.path().join("src/lib.rs"), code).expect("it can be written");
    dir
}

#[tokio::test]
async fn build_without_a_plugin_has_a_reason_and_the_exit_code_of_its_cause() {
    const CDYLIB: &str = "[lib]\ncrate-type = [\"cdylib\"]\n";
    for (project, code, named) in [
        (temporary(), 2, "no Cargo.toml"),
        (project("", "pub fn f() {}"), 1, "crate-type"),
        (project(CDYLIB, "pub fn f() {"), 1, "cargo could not build"),
        (project(CDYLIB, "pub fn f() {}"), 1, "rollout:plugin/workflow@0.1.0"),
    ] {
        let output = project.path().join("made.wasm");
        let mut command = rollout_host(["build"]);
        command.arg(project.path()).arg("-o").arg(&output);

        // A separate target directory, because it shares nothing with this project.
        let ran = command
            .env("CARGO_TARGET_DIR", project.path().join("target"))
            .start()
            .ended_within(COMMAND)
            .await;

        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
        assert!(!output.exists(), "nothing is written");
    }
}

#[tokio::test]
async fn serve_names_the_reason_why_it_cannot_start() {
    let dir = temporary();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "max-concurrent = 0\nlisten = 'here'\n").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let kept = dir.path().join("kept").display().to_string();
    let kept = ["--artifact-root", &*kept];
    let conform = guest("conform");
    let config = config.display().to_string();
    for (plugin, more, code, named) in [
        (&guest("only_grader"), &["--listen", "127.0.0.1:0"][..], 1, &["exports no workflow"][..]),
        (&conform, &["--config", &config], 2, &["max-concurrent: 0", "listen: 'here'"]),
        (&conform, &["--listen", &address], 2, &["cannot listen on"]),
        (&conform, &["--listen", "127.0.0.1:0", "--server-key-env", "NOT_SET"], 2, &["NOT_SET"]),
        (&dir.path().join("nowhere.wasm"), &[], 2, &["nowhere.wasm"]),
    ] {
        let ran = run("serve", plugin, &[more, &kept].concat()).await;

        assert_eq!(ran.code, Some(code), "{more:?}: {}", ran.stderr);
        for named in named {
            assert!(ran.stderr.contains(named), "{}", ran.stderr);
        }
        assert_eq!(ran.stdout, "", "nothing listens");
    }
}

#[tokio::test]
async fn the_mock_model_prints_its_address_and_ends_on_a_signal() {
    let process = rollout_host(["mock-model", "--listen", "127.0.0.1:0"]).start();
    let url = process.line("listening on ").await;

    let ran = process.terminate().await;

    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/v1"), "{url}");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("not a model"), "{}", ran.stderr);
}

#[tokio::test]
async fn help_and_version_exit_with_0_and_a_typing_error_does_not() {
    for (arguments, code) in
        [(&["--help"][..], 0), (&["--version"], 0), (&["eval", "--help"], 0), (&["evl"], 2)]
    {
        let ran = rollout_host(arguments).start().ended().await;

        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn a_closed_pipe_does_not_cause_a_panic() {
    let dir = temporary();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "").unwrap();
    let (conform, tunable) = (guest("conform").display().to_string(), guest("tunable").display().to_string());
    let rows = dir.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"user_prompt\": \"1 + 1\", \"ground_truth\": \"2\"}\n").unwrap();
    let rows = rows.display().to_string();
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["--version"],
        &["inspect", &conform],
        &["inspect", &conform, "--json"],
        &["config", &tunable],
        &["validate", &conform],
        &["test", &conform, "--data", &rows, "--model", "mock"],
        &["completions", "bash"],
        &["new", "made"],
    ] {
        let (reader, writer) = std::io::pipe().expect("there is a pipe");
        drop(reader);
        let mut command = rollout_host(arguments);
        command.current_dir(dir.path()).stdin(std::process::Stdio::null());
        let child = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().expect("it starts");

        let ran = tokio::time::timeout(COMMAND, child.wait_with_output()).await.expect("it ends").unwrap();

        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert!(!stderr.contains("panicked") && ran.status.code() != Some(101), "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn no_tip_names_an_internal_command() {
    for typed in ["compile-componen", "compile", "compile-components"] {
        let ran = rollout_host([typed]).start().ended().await;

        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        // The message repeats the input; only the tip must be absent.
        assert!(!ran.stderr.contains("'compile-component'"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_shell_completes_the_commands_and_the_manual_has_a_page_for_each() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = rollout_host(["completions", shell]).start().ended().await;

        assert_eq!(ran.code, Some(0), "{shell}: {}", ran.stderr);
        for word in ["mock-model", "limit-memory-bytes-max"] {
            assert!(ran.stdout.contains(word), "{shell} completes no {word}");
        }
        assert!(!ran.stdout.contains("compile-component"), "{shell}");
    }
    let dir = temporary();
    let pages = dir.path().join("man1");

    let ran = rollout_host(["man"]).arg(&pages).start().ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let page = std::fs::read_to_string(pages.join("rollout-host-serve.1")).expect("serve has a page");
    assert!(page.contains("max\\-concurrent"), "{page}");
    assert!(pages.join("rollout-host.1").exists());
}

#[tokio::test]
async fn mistakes_in_every_table_of_a_configuration_are_reported_together() {
    let dir = temporary();
    let config = dir.path().join("host.toml");
    let text = "queue-maxx = 3\n[limits]\nsamples-max = 0\nhost-calls-max = 'many'\n[model]\nattempts = 3\n\
                [osmosis]\ngeneration = 'e'\n";
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let kept = dir.path().join("kept").display().to_string();
    for (command, more) in
        [("inspect", &[][..]), ("serve", &["--listen", "127.0.0.1:0", "--artifact-root", &*kept])]
    {
        let ran = run(command, &guest("conform"), &[&["--config", &*config], more].concat()).await;

        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stderr);
        for named in [
            "host.toml:1:1: queue-maxx: there is no such setting; did you mean queue-max?",
            "host.toml:4:18: limits.host-calls-max: ",
            "host.toml:6:1: model.attempts: there is no such setting; there are: params, attempts-max, ",
            "host.toml:8:14: osmosis.generation: ",
            "limits.samples-max: must be at least",
        ] {
            assert!(ran.stderr.contains(named), "{command}: {named} is not in {}", ran.stderr);
        }
    }
}
