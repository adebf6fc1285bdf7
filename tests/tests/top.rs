//! Tests of the command `top` against live servers, in a terminal and without one.

use rollout_tests::{
    Answer, Controller, OPERATOR, ServeCatalog, Start, TestHost, TestTerminal, host_program, in_time,
    rollout_host, until,
};
use serde_json::json;

/// Returns the command line of `top` for a shell.
fn top(arguments: &str) -> String {
    format!("'{}' top {arguments}", host_program().display())
}

#[tokio::test]
async fn without_a_terminal_one_snapshot_is_printed() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--journal", "journal").start().await;
    host.run(&controller.rollout("What is 1 + 2?").id("first").label("3")).await;
    host.run(&controller.rollout("please trap").id("broken")).await;
    controller.hold();
    let admitted = host.admit(&controller.rollout("What is 2 + 2?").id("held").label("4")).await;
    controller.chats_arrived(1).await;

    let ran = rollout_host(["top", host.url()]).start().ended().await;

    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
    let line = |beginning: &str| {
        let found = ran.stdout.lines().find(|line| line.starts_with(beginning));
        found.unwrap_or_else(|| panic!("no line begins with {beginning:?}:\n{}", ran.stdout)).to_owned()
    };
    assert_eq!(line("conform"), format!("conform at {}", host.url()));
    assert!(line("running: ").starts_with("running: 1 of "), "{}", ran.stdout);
    assert!(line("ended: ").starts_with("ended: 1 with a reward, mean 1, 1 without"), "{}", ran.stdout);
    assert!(line("held").contains("running"), "{}", ran.stdout);
    assert!(line("first").split_whitespace().any(|word| word == "1"), "{}", ran.stdout);
    assert!(line("trap").contains("broken"), "{}", ran.stdout);
    controller.release();
    host.result(&admitted).await;
}

#[tokio::test]
async fn a_person_watches_rollouts_and_opens_a_conversation() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--journal", "journal").start().await;
    let line = format!("stty -a > before; {}; echo \"exit $?\"; stty -a > after", top(host.url()));
    let terminal = TestTerminal::start(&line).await;

    let screen = terminal.shows("No rollout runs at present.").await;
    assert!(screen.contains("Running 0") && screen.contains("Failures"), "{screen}");
    controller.hold();
    let admitted = host.admit(&controller.rollout("What is 1 + 2?").id("watched").label("3")).await;
    let screen = terminal.shows("watched").await;
    assert!(screen.contains("running"), "{screen}");
    terminal.press(&["Enter"]).await;
    let screen = terminal.shows("waiting for the model").await;
    assert!(screen.contains("What is 1 + 2?"), "{screen}");
    controller.release();
    host.result(&admitted).await;
    let screen = terminal.shows("reward 1").await;
    assert!(screen.contains("The sum is #### 3"), "{screen}");

    terminal.press(&["Escape"]).await;
    terminal.shows("Running 0").await;
    terminal.press(&["Tab", "Tab"]).await;
    terminal.shows("watched").await;
    // A small terminal shows the beginning of each line.
    terminal.resize(40, 10).await;
    let screen = terminal.shows("q quit  ↑↓ select  Enter open  Tab other\n").await;
    assert!(screen.contains("watched"), "{screen}");
    terminal.resize(80, 24).await;
    terminal.shows("Tab other list").await;
    terminal.press(&["q"]).await;
    let screen = terminal.shows("exit 0").await;
    assert!(!screen.contains("Finished"), "the screen from before is back:\n{screen}");
    let mode = async |name: &str| {
        let path = terminal.folder().join(name);
        // The shell has written the file when its next command has run.
        until(name, async || std::fs::read_to_string(&path).ok().filter(|text| text.contains("echo"))).await
    };
    assert_eq!(mode("after").await, mode("before").await);
}

#[tokio::test]
async fn a_signal_and_a_server_that_stops_restore_the_terminal() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").start().await;
    let line = format!("{} & echo $! > pid; fg; echo \"exit $?\"", top(host.url()));
    let terminal = TestTerminal::start(&format!("set -m; {line}")).await;
    terminal.shows("No rollout runs at present.").await;
    // A server that is gone does not end the view; a signal does.
    host.kill().await;
    terminal.shows("does not answer").await;
    let pid = std::fs::read_to_string(terminal.folder().join("pid")).unwrap();
    let killed = tokio::process::Command::new("kill").arg(pid.trim()).status();
    assert!(in_time("kill", killed).await.unwrap().success());
    terminal.shows("exit 0").await;
    drop(controller);
}

#[tokio::test]
async fn a_key_sees_its_tenant_and_an_operator_chooses_one() {
    let controller = Controller::start().await;
    let catalog = ServeCatalog::default().start().await;
    let tenant = catalog.tenant("lab", json!({"running": 4})).await;
    catalog.serve(&tenant, "sums", "conform", "").await;
    let host = catalog.plugin(&tenant, "sums");
    host.run(&controller.rollout("What is 1 + 2?").id("of-lab").label("3")).await;
    let url = catalog.url();
    let snapshot = async |arguments: &[&str], key: &str| {
        let mut command = rollout_host(["top", &*url]);
        command.args(arguments).env("THE_KEY", key).start().ended().await
    };

    let ran = snapshot(&["--server-key-env", "THE_KEY"], &tenant.viewer).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("of-lab") && ran.stdout.contains("sums"), "{}", ran.stdout);
    let plugin = ran.stdout.lines().find(|line| line.starts_with("sums")).unwrap();
    let columns: Vec<&str> = plugin.split_whitespace().collect();
    assert_eq!(columns[1..7], ["1", "0", "4", "0", "1", "0"], "{}", ran.stdout);
    let ran = snapshot(&["--server-key-env", "THE_KEY"], OPERATOR).await;
    assert!(ran.stdout.contains("lab") && !ran.stdout.contains("of-lab"), "{}", ran.stdout);
    let ran = snapshot(&["--server-key-env", "THE_KEY", "--tenant", "lab"], OPERATOR).await;
    assert!(ran.stdout.contains("of-lab"), "{}", ran.stdout);

    for (arguments, key, expected) in [
        (&["--server-key-env", "THE_KEY"][..], "wrong", "the key is not valid"),
        (&[], "", "--server-key-env VAR"),
        (&["--server-key-env", "MISSING"], "", "MISSING, which is not set"),
        (&["--server-key-env", "THE_KEY", "--tenant", "none"], OPERATOR, "none"),
    ] {
        let ran = snapshot(arguments, key).await;
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }

    let key = OPERATOR;
    let terminal =
        TestTerminal::start(&format!("KEY={key} {}", top(&format!("{url} --server-key-env KEY")))).await;
    terminal.shows("Tenants 1").await;
    terminal.press(&["Enter"]).await;
    let screen = terminal.shows("sums").await;
    assert!(screen.contains("Esc all tenants"), "{screen}");
    terminal.press(&["Tab", "Tab"]).await;
    terminal.shows("of-lab").await;
    terminal.press(&["Enter"]).await;
    terminal.shows("The sum is #### 3").await;
    terminal.press(&["Escape"]).await;
    terminal.shows("Finished 1").await;
    terminal.press(&["Escape"]).await;
    terminal.shows("Tenants 1").await;
}

#[tokio::test]
async fn hostile_text_does_not_reach_the_terminal() {
    let controller = Controller::start().await;
    let host = TestHost::of("noisy").option("--journal", "journal").start().await;
    let attack = "\u{1b}[2J\u{1b}]0;title\u{7}\u{202e}gone";
    let reply =
        json!({"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": attack}}]});
    controller.answer_chats([Answer::Json(reply.to_string())]);
    host.run(&controller.rollout("print it").id("hostile\u{1b}[31m")).await;

    let ran = rollout_host(["top", host.url()]).start().ended().await;
    assert!(ran.stdout.contains("hostile\\u{1b}[31m") && !ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    let terminal = TestTerminal::start(&top(host.url())).await;
    terminal.shows("Running 0").await;
    terminal.press(&["Tab", "Tab", "Enter"]).await;
    let screen = terminal.shows("gone").await;
    assert!(screen.contains("\\u{1b}[2J\\u{1b}]0;title\\u{7}\\u{202e}gone"), "{screen}");
}

#[tokio::test]
async fn other_servers_are_named_in_the_message() {
    let controller = Controller::start().await;
    let ran = rollout_host(["top", &controller.base_url()]).start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("responded 404"), "{}", ran.stderr);
    let ran = rollout_host(["top", "127.0.0.1:9000"]).start().ended().await;
    assert!(ran.stderr.contains("must begin with http"), "{}", ran.stderr);
}
