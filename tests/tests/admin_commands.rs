//! Tests of the commands that are clients of the admin API, with a server with a catalog.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Process, Ran, Start, guest, rollout_host};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The timeout of a command. One of them compiles.
const COMMAND: Duration = Duration::from_secs(300);

/// A server with an empty catalog, and the operator's key.
struct Server {
    dir: TempDir,
    url: String,
    operator: String,
    _process: Process,
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let operator = format!("rh_{}", "0".repeat(42) + "A");
        let catalog = dir.path().join("catalog");
        let mut command =
            rollout_host(["serve", "--listen", "127.0.0.1:0", "--operator-key-env", "OPERATOR"]);
        let process = command.arg("--catalog").arg(&catalog).env("OPERATOR", &operator).start();
        let url = process.line("listening on ").await;
        Self { dir, url, operator, _process: process }
    }

    /// Runs a command with this key.
    async fn run_as(&self, key: &str, arguments: &[&str]) -> Ran {
        let mut command = rollout_host(arguments);
        command.env("ROLLOUT_HOST_URL", &self.url).env("ROLLOUT_HOST_KEY", key);
        command.start().ended_within(COMMAND).await
    }

    /// Runs a command of the operator, which must succeed; returns its standard output.
    async fn done(&self, arguments: &[&str]) -> String {
        done(self.run_as(&self.operator, arguments).await, arguments)
    }

    async fn author(&self, tenant: &str) -> String {
        self.done(&["tenant", "create", tenant]).await;
        self.done(&["key", "create", "--tenant", tenant, "--rights", "author"]).await.trim().to_owned()
    }
}

/// Returns the contents of all files below a directory.
fn written(folder: PathBuf) -> Vec<u8> {
    let (mut folders, mut all) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => all.extend(std::fs::read(path).unwrap()),
            }
        }
    }
    all
}

fn done(ran: Ran, arguments: &[&str]) -> String {
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
    ran.stdout
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn a_component_is_pushed_activated_rolled_back_and_removed() {
    let server = Server::start().await;
    let author = server.author("team-a").await;
    let (conform, config) = (guest("conform"), server.dir.path().join("c.toml"));
    std::fs::write(&config, "[limits]\nsamples-max = 8\n").unwrap();
    let run = async |arguments: &[&str]| server.run_as(&author, arguments).await;
    let push = ["push", text(&conform), "--name", "calc", "--activate"];

    let first = run(&push).await;
    assert!(first.stderr.contains("uploading "), "{}", first.stderr);
    let output = done(first, &push);
    assert!(
        output.contains("passed") && output.ends_with("version 1 of plugin 'calc' is active\n"),
        "{output}"
    );
    let nothing = run(&["plugin", "rollback", "calc"]).await;
    assert_eq!(nothing.code, Some(2), "{}", nothing.stderr);
    let with_config = ["push", text(&conform), "--name", "calc", "--config", text(&config), "--json"];
    let second = run(&with_config).await;
    assert!(second.stderr.contains("the server already has "), "{}", second.stderr);
    let pushed = parsed(&done(second, &with_config));
    assert_eq!(
        (&pushed["version"], &pushed["active"], &pushed["report"]["valid"]),
        (&json!(2), &json!(false), &json!(true))
    );

    let output = done(run(&["plugin", "activate", "calc", "2"]).await, &["activate"]);
    assert_eq!(output, "version 2 of plugin 'calc' is active, after 1\n");
    let output = done(run(&["plugin", "rollback", "calc"]).await, &["rollback"]);
    assert_eq!(output, "version 1 of plugin 'calc' is active, after 2\n");
    let output = done(run(&["plugin", "set", "calc", "--default", "--quota", "running=2"]).await, &["set"]);
    assert!(output.contains("running=2"), "{output}");
    let listed = parsed(&done(run(&["plugin", "list", "--json"]).await, &["list"]));
    assert_eq!((&listed[0]["active"], &listed[0]["default"]), (&json!(1), &json!(true)));
    let shown = done(run(&["plugin", "show", "calc"]).await, &["show"]);
    assert!(shown.contains("version  active  passed") && shown.contains("\n2        no      yes"), "{shown}");
    let shown = done(run(&["plugin", "show", "calc", "2"]).await, &["show"]);
    assert!(shown.starts_with("version 2\n") && shown.ends_with("\n[limits]\nsamples-max = 8\n"), "{shown}");
    assert_eq!(done(run(&["plugin", "remove", "calc"]).await, &["remove"]), "plugin 'calc' is removed\n");
    let gone = run(&["plugin", "show", "calc"]).await;
    assert_eq!((gone.code, gone.stderr.as_str()), (Some(2), "error: there is no plugin 'calc'\n"));
}

#[tokio::test]
async fn a_name_of_new_is_a_valid_plugin_name_and_an_invalid_one_is_refused_before_a_request() {
    let server = Server::start().await;
    let author = server.author("team_a").await;
    let conform = guest("conform");

    let wrong = server.run_as(&author, &["push", text(&conform), "--name", "My.Agent"]).await;
    let push = ["push", text(&conform), "--name", "my_agent", "--activate"];
    let pushed = server.run_as(&author, &push).await;

    assert_eq!(wrong.code, Some(2), "{}", wrong.stdout);
    assert!(wrong.stderr.contains("invalid name 'My.Agent'"), "{}", wrong.stderr);
    assert!(pushed.stderr.contains("uploading "), "it was not there yet: {}", pushed.stderr);
    let output = done(pushed, &push);
    assert!(output.ends_with("version 1 of plugin 'my_agent' is active\n"), "{output}");
}

#[tokio::test]
async fn a_plugin_that_fails_its_checks_exits_1_with_the_report_of_validate() {
    let server = Server::start().await;
    let author = server.author("team-a").await;
    let made = server.dir.path().join("made.wasm");
    std::fs::write(&made, wat::parse_str(r#"(component (import "vendor:gpu/kernels" (instance)))"#).unwrap())
        .unwrap();
    let ran = server.run_as(&author, &["push", text(&made), "--name", "bad", "--activate"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("FAILED   imports"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("version 1 of plugin 'bad' did not pass and cannot be activated\n"));
    let ran = server.run_as(&author, &["plugin", "activate", "bad", "1"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("failed its checks"), "{}", ran.stderr);
    let (conform, config) = (guest("conform"), server.dir.path().join("c.toml"));
    std::fs::write(&config, "[plugin]\nname = 1\n").unwrap();
    let push = ["push", text(&conform), "--name", "odd", "--config", text(&config)];
    let ran = server.run_as(&author, &push).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stdout.contains("FAILED   configuration"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_key_is_alone_on_standard_output_and_invalid_after_it_was_revoked() {
    let server = Server::start().await;
    server.done(&["tenant", "create", "team-a"]).await;
    let create = [
        "key",
        "create",
        "--tenant",
        "team-a",
        "--rights",
        "viewer",
        "--name",
        "laptop",
        "--expires-in",
        "1d",
    ];
    let ran = server.run_as(&server.operator, &create).await;
    let key = ran.stdout.trim_end();
    assert_eq!(ran.stdout, format!("{key}\n"));
    assert!(key.starts_with("rh_") && !ran.stderr.contains(key), "{}", ran.stderr);
    assert!(ran.stderr.contains("viewer of tenant 'team-a'; it is not shown again"), "{}", ran.stderr);
    assert_eq!(server.run_as(key, &["plugin", "list"]).await.code, Some(0));
    let refused = server.run_as(key, &["plugin", "remove", "calc"]).await;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("this route needs an author's key"), "{}", refused.stderr);
    let listed = server.done(&["key", "list", "--tenant", "team-a"]).await;
    assert!(listed.contains(&key[..11]) && !listed.contains(key) && listed.contains("laptop"), "{listed}");
    let id = listed.lines().nth(1).and_then(|line| line.split_whitespace().next()).unwrap();
    assert_eq!(server.done(&["key", "revoke", id]).await, format!("key {id} is revoked\n"));
    let refused = server.run_as(key, &["plugin", "list"]).await;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("neither expired nor revoked"), "{}", refused.stderr);
    assert!(server.done(&["key", "list"]).await.contains("revoked 2"));
}

#[tokio::test]
async fn a_tenant_is_created_changed_shown_and_deleted() {
    let server = Server::start().await;
    let create = ["tenant", "create", "team-a", "--quota", "running=4", "--allow", "10.0.0.0/8", "--json"];
    let made = parsed(&server.done(&create).await);
    assert_eq!(
        (&made["quotas"], &made["network"]["allow"]),
        (&json!({"running": 4}), &json!(["10.0.0.0/8"]))
    );
    let set =
        ["tenant", "set", "team-a", "--quota", "running=none", "--quota", "weight=2", "--public", "listed"];
    let output = server.done(&set).await;
    assert!(output.contains("weight=2") && output.contains("listed only: 10.0.0.0/8"), "{output}");
    assert!(!output.contains("running="), "{output}");
    let output = server.done(&["tenant", "show", "team-a"]).await;
    assert!(output.contains("no usage in the last 30 days"), "{output}");
    assert!(server.done(&["tenant", "list"]).await.starts_with("name    default plugin"));
    for (wrong, output) in [
        (&["tenant", "create", "Team"][..], "lower-case letters"),
        (&["tenant", "create", "team-a"], "a tenant 'team-a' exists already"),
        (&["tenant", "set", "team-a"], "no change is given"),
        (&["tenant", "set", "team-a", "--allow", "http://h"], "is a URL"),
        (&["tenant", "delete", "team-a"], "confirm it with --yes"),
        (&["plugin", "list"], "?tenant=NAME"),
    ] {
        let ran = server.run_as(&server.operator, wrong).await;
        assert_eq!(ran.code, Some(2), "{wrong:?}");
        assert!(ran.stderr.contains(output), "{}", ran.stderr);
    }
    assert_eq!(server.done(&["plugin", "list", "--tenant", "team-a", "--json"]).await, "[]\n");
    assert_eq!(server.done(&["tenant", "delete", "team-a", "--yes"]).await, "tenant 'team-a' is deleted\n");
    assert_eq!(server.done(&["tenant", "list", "--json"]).await, "[]\n");
}

#[tokio::test]
async fn a_secret_is_read_from_standard_input_or_a_variable() {
    let server = Server::start().await;
    let author = server.author("team-a").await;
    let mut command = rollout_host(["secret", "set", "judge"]);
    command.env("ROLLOUT_HOST_URL", &server.url).env("ROLLOUT_HOST_KEY", &author);
    let (process, mut input) = command.start_with_input();
    tokio::io::AsyncWriteExt::write_all(&mut input, b"s3cret\n").await.unwrap();
    drop(input);
    assert_eq!(process.ended_within(COMMAND).await.stdout, "secret 'judge' is stored\n");
    let mut command = rollout_host(["secret", "set", "tool", "--from-env", "TOOL_KEY"]);
    command.env("ROLLOUT_HOST_URL", &server.url).env("ROLLOUT_HOST_KEY", &author).env("TOOL_KEY", "other");
    assert_eq!(command.start().ended_within(COMMAND).await.code, Some(0));
    let written = written(server.dir.path().join("catalog"));
    assert!(!written.windows(6).any(|part| part == b"s3cret"));
    let listed = server.run_as(&author, &["secret", "list"]).await;
    assert_eq!(listed.stdout, "judge\ntool\n");
    let empty = server.run_as(&author, &["secret", "set", "judge"]).await;
    assert!(empty.stderr.contains("standard input has no secret"), "{}", empty.stderr);
    assert_eq!(
        server.run_as(&author, &["secret", "remove", "tool"]).await.stdout,
        "secret 'tool' is removed\n"
    );
}

#[tokio::test]
async fn an_invalid_or_unreachable_server_is_named() {
    let server = Server::start().await;
    let nowhere = "http://127.0.0.1:1";
    let ran = server.run_as("rh_x", &["plugin", "list", "--to", nowhere]).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("http://127.0.0.1:1/ does not answer"), "{}", ran.stderr);
    let below = format!("{}/elsewhere", server.url);
    let ran = server.run_as(&server.operator, &["plugin", "list", "--to", &below]).await;
    assert_eq!(ran.code, Some(2));
    assert!(!ran.stderr.contains(&server.operator), "{}", ran.stderr);
    let mut command = rollout_host(["plugin", "list", "--to", nowhere]);
    let ran = command.start().ended_within(COMMAND).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("ROLLOUT_HOST_KEY, which is not set"), "{}", ran.stderr);
}
