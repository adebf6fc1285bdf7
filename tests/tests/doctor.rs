//! The command `doctor` against this machine, Debian's registry, and servers that are not registries.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_tests::{
    REGISTRY_USER, Ran, RawServer, Sends, Start, TestRegistry, rollout_host, rollout_host_with_open_files,
};
use serde_json::{Value, json};

/// Returns the state and finding of each check.
#[track_caller]
fn findings(ran: &Ran) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let lines =
        ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("one object a line"));
    lines.map(|line| (text(&line["check"]), (text(&line["state"]), text(&line["finding"])))).collect()
}

/// Runs doctor with separate credentials.
async fn doctor(home: &Path, arguments: &[&str]) -> Ran {
    let mut command = rollout_host(["doctor", "--json"].iter().chain(arguments));
    command.env("DOCKER_CONFIG", home).env("XDG_CACHE_HOME", home.join("cache"));
    command.start().ended().await
}

fn log_in(home: &Path, address: &str, password: &str) {
    let auths = json!({"auths": {address: {"username": REGISTRY_USER.0, "password": password}}});
    std::fs::write(home.join("config.json"), auths.to_string()).unwrap();
}

#[tokio::test]
async fn the_machine_the_confinement_and_the_directories_of_a_configuration_are_checked() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("host.toml");
    let journal = home.path().join("journal");
    std::fs::write(&config, format!("[journal]\ndir = {:?}\n", journal.to_str().unwrap())).unwrap();
    let ran = doctor(home.path(), &["--config", config.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let found = findings(&ran);
    assert_eq!(found["confined compilers"].0, "ok", "{found:#?}");
    assert!(found["confined compilers"].1.contains("system calls filtered"), "{found:#?}");
    assert_eq!(found["configuration"].0, "ok");
    assert_eq!(found["journal"].0, "ok");
    assert!(found["journal's disk"].1.contains(" ms (median"), "{found:#?}");
    assert!(!journal.exists(), "nothing is created");

    std::fs::write(&config, "[journal]\ndri = 1\n").unwrap();
    let ran = doctor(home.path(), &["--config", config.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    let (state, finding) = &findings(&ran)["configuration"];
    assert_eq!(state, "failed");
    assert!(finding.contains("dri"), "{finding}");
}

#[tokio::test]
async fn few_descriptors_are_a_warning_with_advice() {
    let ran = rollout_host_with_open_files(400, ["doctor"]).start().ended().await;
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("warning  open files: at most 400\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("'ulimit -n'"), "{}", ran.stdout);
    assert!(ran.stdout.contains("nothing failed; warnings: "), "{}", ran.stdout);
}

#[tokio::test]
async fn access_to_a_registry_is_checked_without_changing_it() {
    let registry = TestRegistry::start_with_user().await;
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.json"), "{}").unwrap();
    let reference = registry.reference("team/calc");
    let arguments = [&reference, "--plain-http", "--push"];
    let (pulls, pushes) = (format!("pulls from {reference}"), format!("pushes to {reference}"));

    let ran = doctor(home.path(), &arguments).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    let found = findings(&ran);
    assert_eq!(found[&pulls].0, "failed");
    assert!(found[&pulls].1.contains("log in with a container tool"), "{found:#?}");
    assert!(!found.contains_key(&pushes), "{found:#?}");

    log_in(home.path(), registry.address(), "wrong");
    let found = findings(&doctor(home.path(), &arguments).await);
    assert_eq!(found[&pulls].0, "failed");
    assert!(found[&pulls].1.contains("the credentials give no such right"), "{found:#?}");

    log_in(home.path(), registry.address(), REGISTRY_USER.1);
    let ran = doctor(home.path(), &arguments).await;
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let found = findings(&ran);
    let missing = "the registry answers with credentials, and has no such repository yet";
    assert_eq!(found[&pulls], ("ok".to_owned(), missing.to_owned()));
    assert_eq!(found[&pushes], ("ok".to_owned(), "permitted".to_owned()));
    // The repository was not created by the cancelled upload.
    assert_eq!(findings(&doctor(home.path(), &arguments).await)[&pulls].1, missing);
}

#[tokio::test]
async fn a_server_that_is_no_registry_fails_the_check() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.json"), "{}").unwrap();
    let server = RawServer::start(Sends::response(404, "not here")).await;
    let reference = format!("oci://{}/team/calc", server.address());
    let ran = doctor(home.path(), &[&reference, "--plain-http"]).await;
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    let (state, finding) = &findings(&ran)[&format!("pulls from {reference}")];
    assert_eq!(state, "failed");
    assert!(finding.contains("404, but not as a registry does"), "{finding}");
}
