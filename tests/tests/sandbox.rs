//! Tests of the sandbox: the compiler process drops nearly all rights, and the server those that it does not need.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_tests::{Controller, Process, Start, TestHost, guest, rollout_host};

/// Confines a process like the compiler, and tries to escape. Returns each attempt with its error.
async fn tried(part: &str) -> BTreeMap<String, String> {
    let limits = ["--plan", "pooled", "--memory-bytes-max", "1073741824", "--cpu-secs-max", "10"];
    let mut command = rollout_host(["compile-component"]);
    let command = command.args(limits).args(["--probe", part]);
    let ran = command.start().ended().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let line = |line: &str| {
        let (what, came) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        (what.to_owned(), came.to_owned())
    };
    ran.stdout.lines().map(line).collect()
}

#[tokio::test]
async fn the_compiler_process_can_open_connect_start_and_run_nothing() {
    let tried = tried("all").await;

    assert!(tried["confinement"].ends_with("system calls filtered"), "{tried:#?}");
    let all = [
        "read a file",
        "list a folder",
        "make a file",
        "connect",
        "start a thread",
        "signal the parent",
        "make code",
        "fork",
        "exec",
    ];
    for what in all {
        assert_eq!(tried[what], "EPERM", "{what}: {tried:#?}");
    }
    assert_eq!(tried.len(), 1 + all.len());
}

#[tokio::test]
async fn the_rules_for_files_apply_without_the_filter_if_the_kernel_supports_them() {
    let tried = tried("files").await;

    let expected = match tried["confinement"].as_str() {
        "enforced" => "EACCES",
        // Older kernels enforce a part of the rules, and the host reports which.
        confinement => {
            assert!(confinement.contains("this kernel"), "{confinement}");
            return;
        }
    };
    for what in ["read a file", "list a folder", "make a file", "connect", "exec"] {
        assert_eq!(tried[what], expected, "{what}: {tried:#?}");
    }
}

#[tokio::test]
async fn the_limits_on_files_apply_without_the_rest() {
    let tried = tried("limits").await;

    for what in ["read a file", "list a folder", "make a file", "connect"] {
        assert_eq!(tried[what], "EMFILE", "{what}: {tried:#?}");
    }
}

/// Returns a line of `/proc/PID/task/TID/status` of every thread of a process.
fn of_threads(process: &Process, name: &str) -> BTreeMap<String, String> {
    let tasks = format!("/proc/{}/task", process.id().expect("it runs"));
    let tasks = std::fs::read_dir(tasks).expect("this is a Linux");
    // A thread that ends meanwhile has no privileges either.
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("a thread has it").trim().to_owned()
    };
    status
        .map(|status| (format!("{} {}", field(&status, "Name"), field(&status, "Pid")), field(&status, name)))
        .collect()
}

#[tokio::test]
async fn a_server_has_no_privileges_in_any_thread_and_gets_none() {
    const NONE: &str = "0000000000000000";
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (thread, capabilities) in of_threads(host.process(), name) {
            assert_eq!(capabilities, NONE, "{name} of {thread}");
        }
    }
    for (thread, set) in of_threads(host.process(), "NoNewPrivs") {
        assert_eq!(set, "1", "{thread}");
    }
}

#[tokio::test]
async fn a_server_keeps_its_privileges_if_configured() {
    let own = std::fs::read_to_string("/proc/self/status").expect("this is a Linux");
    let own = own.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it has some").trim();

    let host = TestHost::of("conform").flag("--keep-privileges").start().await;

    assert!(of_threads(host.process(), "CapEff").values().all(|capabilities| capabilities == own));
    assert!(of_threads(host.process(), "NoNewPrivs").values().all(|set| set == "0"));
}

#[tokio::test]
async fn a_server_with_rules_for_files_works_and_reaches_no_other_files() {
    let controller = Controller::start().await;
    let outside = tempfile::tempdir().expect("a temporary directory can be made");
    let cache = tempfile::tempdir().expect("a temporary directory can be made");
    let cache = cache.path().join("compiled");
    let host =
        TestHost::of("conform").flag("--landlock").option("--cache-dir", cache.display()).start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5");
    let result = host.run(&request).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    assert_eq!(host.trajectory(request.rollout_id()).await["session_id"], request.rollout_id());
    assert!(std::fs::read_dir(&cache).expect("it was made").count() > 1, "code was compiled and stored");

    // The root's path now leads to a directory that the host was not given.
    std::fs::rename(host.kept(), host.kept().with_extension("away")).expect("it can be moved");
    std::os::unix::fs::symlink(outside.path(), host.kept()).expect("it can be linked");
    let second = controller.rollout("Calculate 2 + 3.").label("5");
    let result = host.run(&second).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    host.idle().await;

    let stderr = host.stop().await.stderr;
    if stderr.contains("not enforced") {
        return;
    }
    assert!(stderr.contains("access to files is restricted to those that the settings name"), "{stderr}");
    assert_eq!(std::fs::read_dir(outside.path()).expect("it is there").count(), 0, "{stderr}");
}

/// Returns the error of serving with these settings.
async fn refused(dir: &Path, config: &str) -> String {
    let file = dir.join("config.toml");
    std::fs::write(&file, config).expect("it can be written");
    let mut command = rollout_host(["serve"]);
    command.arg(guest("conform")).args(["--listen", "127.0.0.1:0", "--config"]).arg(&file);
    let ran = command.current_dir(dir).start().ended().await;
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    ran.stderr
}

#[tokio::test]
async fn rules_for_files_are_refused_together_with_settings_that_they_would_break() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for (lines, named) in [
        ("on-start = 'true'\n[hardening]\nlandlock = true\n", "on-start"),
        ("[hardening]\nlandlock = true\n[[tools.mcp]]\ncommand = ['true']\n", "tool server"),
    ] {
        let stderr = refused(dir.path(), lines).await;
        assert!(stderr.contains("landlock") && stderr.contains(named), "{stderr}");
    }
}
