//! Tests that the commands in the documents work.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rollout_tests::{Start, guest, host_program, project_root, rollout_host};
use serde_json::Value;

/// The timeout of the commands of a document.
const COMMANDS: Duration = Duration::from_secs(120);

/// Returns the blocks of shell commands below a heading of a document.
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

/// Runs a script with the host's program on the path.
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
    // On port 0 there is no journal unless `--journal` names one.
    serve.arg(guest("conform")).args(["--listen", "127.0.0.1:0", "--journal", "j"]).current_dir(dir.path());
    let server = serve.start();
    let (model, server_url) = (model.line("listening on ").await, server.line("listening on ").await);

    let script = format!("{post}\n{poll}\n{trajectory}\n")
        .replace("http://127.0.0.1:9100/v1", &model)
        .replace("http://127.0.0.1:9000", &server_url);
    let ran = shell(dir.path(), &script).await;

    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}{stderr}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("result.json")).unwrap()).unwrap();
    assert_eq!(result["status"], "success", "{result:#}");
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let trajectory: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("trajectory.json")).unwrap()).unwrap();
    assert_eq!(trajectory["session_id"], "first", "{trajectory:#}");
    assert!(!dir.path().join("rollouts/first").exists(), "no file is written for a rollout");
}

#[tokio::test]
async fn the_script_of_the_guide_is_valid() {
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

/// Finds every document below a directory.
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

/// Returns the lines of a document outside of its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the anchors of a document: one for each heading, derived as on the web site.
fn anchors(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim();
        // Only the text of a link counts.
        let title = title.split("](").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest));
        let title: String = title.collect();
        let kept = title.to_lowercase();
        let kept = kept.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let is_new = found.insert(anchor.clone());
        assert!(is_new, "two headings have the anchor '{anchor}'");
    }
    found
}

/// Returns the targets of a document's links, without those to other machines.
fn link_targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    // A link may be broken into two lines.
    let text = prose(text).collect::<Vec<_>>().join("\n");
    for rest in text.split("](").skip(1) {
        let target = rest.split(')').next().unwrap_or_default();
        if !target.contains("://") && !target.contains(char::is_whitespace) {
            targets.push(target.to_owned());
        }
    }
    targets
}

#[test]
fn every_link_of_the_documents_leads_to_a_file_and_to_a_heading_in_it() {
    let mut all = Vec::new();
    documents(project_root(), &mut all);
    let (mut links, mut wrong) = (0, Vec::new());
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        for target in link_targets(&text) {
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = match file {
                "" => path.clone(),
                file => path.parent().expect("a file is in a folder").join(file),
            };
            let is_there = if anchor.is_empty() {
                to.exists()
            } else {
                std::fs::read_to_string(&to).is_ok_and(|text| anchors(&text).contains(anchor))
            };
            if !is_there {
                wrong.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn anchors_come_from_headings_and_not_from_comments_in_code() {
    let text = "# Of `eval --replay`, again\n```sh\n# a comment\n```\n## [A](b.md#c) link\n";
    let expected = ["of-eval---replay-again", "a-link"].map(str::to_owned);
    assert_eq!(anchors(text), HashSet::from(expected));
}

/// Finds sources and documents of the project.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "build", "venvs"].contains(&&*name) {
            sources(&path, found);
        } else if [".rs", ".toml", ".md", ".py"].iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

#[test]
fn every_decision_that_is_referred_to_has_a_record() {
    let records = std::fs::read_dir(project_root().join("docs/adr")).unwrap();
    let records = records.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let numbers: HashSet<u32> = records.filter_map(|name| name.split('-').next()?.parse().ok()).collect();
    let mut all = Vec::new();
    sources(project_root(), &mut all);
    let (mut references, mut wrong) = (0, Vec::new());
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        let after = ["docs/adr/", "(ADR ", "[ADR ", " ADR "].map(|mark| text.split(mark).skip(1));
        for rest in after.into_iter().flatten() {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let Ok(number) = digits.parse::<u32>() else { continue };
            references += 1;
            if !numbers.contains(&number) {
                wrong.push(format!("{}: {number}", path.display()));
            }
        }
    }
    assert!(references > 20, "only {references} references were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_guide_for_a_first_workflow_has_the_commands_of_the_first_page() {
    let words = |block: &str| {
        let lines = block.lines().map(|line| line.split('#').next().unwrap_or(line));
        let lines = lines.filter(|line| !line.contains("--base-url") && !line.contains(" serve "));
        let line = |line: &str| line.replace(" --lang python", "").replace(" --interactive", "");
        lines.map(|shown| line(shown.trim())).collect::<Vec<_>>()
    };
    let first_page = &commands("README.md", "## A first workflow")[0];
    let guide = all_commands("docs/get-started/first-workflow.md");

    // `wheel.rs` runs the commands of the first page.
    let expected = words(first_page);

    assert_eq!(words(&guide)[..expected.len()], expected);
}

#[test]
fn every_page_is_in_the_index_and_every_decision_in_the_list_of_decisions() {
    for (folder, index) in [("docs", "docs/README.md"), ("docs/adr", "docs/adr/README.md")] {
        let root = project_root().join(folder);
        let mut pages = Vec::new();
        documents(&root, &mut pages);
        let text = std::fs::read_to_string(project_root().join(index)).unwrap();
        let listed: HashSet<String> = link_targets(&text).into_iter().collect();
        let names = pages.iter().map(|page| page.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
        let missing: Vec<String> = names
            .filter(|name| name != "README.md" && (folder != "docs" || !name.starts_with("adr/0")))
            .filter(|name| !listed.contains(name))
            .collect();
        assert!(missing.is_empty(), "{index} does not list {missing:?}");
    }
}

/// Returns all shell commands of a document.
fn all_commands(document: &str) -> String {
    let path = project_root().join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks =
        text.split("```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or(rest).to_owned());
    blocks.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_commands_of_the_operators_guide_create_two_tenants() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(guest("conform"), dir.path().join("my_agent.wasm")).unwrap();
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let script = all_commands("docs/operate/two-tenants.md")
        .replace("127.0.0.1:9000", &format!("127.0.0.1:{}", free()));
    let script = script.replace("127.0.0.1:9100", &format!("127.0.0.1:{}", free()));

    // Job control, as in an interactive shell.
    let ran =
        shell(dir.path(), &format!("set -m; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"))
            .await;

    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let log = std::fs::read_to_string(dir.path().join("server.log")).unwrap_or_default();
    assert!(ran.status.success(), "{stdout}\n{stderr}\n{log}");
    let result: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("result.json")).unwrap()).unwrap();
    assert_eq!(
        (&result["status"], &result["sample"]["reward"]),
        (&"success".into(), &1.0.into()),
        "{result:#}"
    );
    let counted = "rollout_host_rollouts_accepted_total{plugin=\"calc\",tenant=\"red\"} 1";
    assert!(stdout.lines().any(|line| line == counted), "{stdout}");
    let left = std::fs::read_dir(dir.path().join("catalog/tenants")).unwrap().count();
    assert_eq!(left, 1, "the tenant that was deleted leaves no files");
}
