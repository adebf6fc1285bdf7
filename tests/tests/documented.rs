//! What the documents tell a reader to type does what they say.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rollout_tests::{Start, guest, host_program, project_root, rollout_host};
use serde_json::Value;

/// How long the commands of a document may take.
const COMMANDS: Duration = Duration::from_secs(120);

/// The blocks of shell commands below a heading of a document.
fn commands(document: &str, heading: &str) -> Vec<String> {
    let path = project_root().join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let section = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no '{heading}'")).1;
    let section = section.split("\n## ").next().unwrap_or(section);
    section
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap_or(rest).to_owned())
        .collect()
}

/// Runs a script as a reader would, with the host's program on the path.
async fn shell(dir: &Path, script: &str) -> std::process::Output {
    let programs = host_program().parent().expect("a program is in a folder").to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = tokio::process::Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(dir).env("PATH", path);
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    tokio::time::timeout(COMMANDS, running).await.expect("the commands end").expect("bash runs")
}

#[tokio::test]
async fn the_first_request_of_the_guide_is_answered_with_a_reward() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = commands("docs/serve/serving.md", "## A first request");
    let [start, post, poll, trajectory] = blocks.as_slice() else { panic!("{} blocks", blocks.len()) };
    for line in ["rollout-host mock-model --listen 127.0.0.1:9100", "rollout-host serve my_agent.wasm"] {
        assert!(start.contains(line), "{start}");
    }
    let model = rollout_host(["mock-model", "--listen", "127.0.0.1:0"]).start();
    let mut serve = rollout_host(["serve"]);
    // On port 0 there is no journal unless it is said where.
    serve.arg(guest("conform")).args(["--listen", "127.0.0.1:0", "--journal", "j"]).current_dir(dir.path());
    let server = serve.start();
    let (model, server_url) = (model.line("listening on ").await, server.line("listening on ").await);

    let script = format!("{post}\n{poll}\n{trajectory}\n")
        .replace("http://127.0.0.1:9100/v1", &model)
        .replace("http://127.0.0.1:9000", &server_url);
    let ran = shell(dir.path(), &script).await;

    let (said, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}{stderr}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("result.json")).unwrap()).unwrap();
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let trajectory: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("trajectory.json")).unwrap()).unwrap();
    assert_eq!(trajectory["session_id"], "first", "{trajectory:#}");
    assert!(!dir.path().join("rollouts/first").exists(), "there is no file for a rollout");
}

#[tokio::test]
async fn the_script_of_the_guide_is_one() {
    let text = std::fs::read_to_string(project_root().join("docs/write/mock-model.md")).unwrap();
    let script =
        text.split("```jsonl\n").nth(1).and_then(|rest| rest.split("```").next()).expect("there is one");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("replies.jsonl");
    std::fs::write(&path, script).unwrap();

    let model = rollout_host(["mock-model", "--listen", "127.0.0.1:0", "--script"]).arg(&path).start();
    let url = model.line("listening on ").await;
    let request = r#"{"model": "mock", "messages": [{"role": "user", "content": "Who?"}]}"#;
    let script =
        format!("curl -sS {url}/chat/completions -H 'Content-Type: application/json' -d '{request}'");
    let ran = shell(dir.path(), &script).await;

    let reply: Value = serde_json::from_slice(&ran.stdout).expect("a completion");
    assert_eq!(reply["choices"][0]["message"]["content"], "Alan Turing.\n#### 1912", "{reply:#}");
}

/// Every document, from the root down.
fn documents(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "build", "venvs"].contains(&&*name) {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut all = Vec::new();
    documents(project_root(), &mut all);
    let (mut links, mut wrong) = (0, Vec::new());
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") || target.contains(char::is_whitespace) {
                continue;
            }
            links += 1;
            if !path.parent().expect("a file is in a folder").join(file).exists() {
                wrong.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(links > 10, "only {links} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All blocks of shell commands of a document, one after the other.
fn all_commands(document: &str) -> String {
    let path = project_root().join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks =
        text.split("```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or(rest).to_owned());
    blocks.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_guide_for_operators_leads_to_two_tenants_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(guest("conform"), dir.path().join("my_agent.wasm")).unwrap();
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let script =
        all_commands("docs/operate/two-tenants.md").replace("127.0.0.1:9000", &format!("127.0.0.1:{}", free()));
    let script = script.replace("127.0.0.1:9100", &format!("127.0.0.1:{}", free()));

    // Job control, as a reader's shell has it.
    let ran =
        shell(dir.path(), &format!("set -m; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"))
            .await;

    let (said, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let log = std::fs::read_to_string(dir.path().join("server.log")).unwrap_or_default();
    assert!(ran.status.success(), "{said}\n{stderr}\n{log}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("result.json")).unwrap()).unwrap();
    assert_eq!(
        (&result["status"], &result["sample"]["reward"]),
        (&"success".into(), &1.0.into()),
        "{result:#}"
    );
    let counted = "rollout_host_rollouts_accepted_total{plugin=\"calc\",tenant=\"red\"} 1";
    assert!(said.lines().any(|line| line == counted), "{said}");
    let left = std::fs::read_dir(dir.path().join("catalog/tenants")).unwrap().count();
    assert_eq!(left, 1, "the tenant that was deleted leaves no files");
}
