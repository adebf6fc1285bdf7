//! Components in a registry: pushed, pulled by tag and digest, signed and verified, against Debian's registry.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use rollout_tests::{Controller, REGISTRY_USER, Ran, Start, TestHost, TestRegistry, guest, rollout_host};
use serde_json::Value;
use tempfile::TempDir;

/// Time for a command that may compile a component.
const COMMAND: Duration = Duration::from_secs(300);

/// A place for a cache and credentials of its own.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        Self(dir)
    }

    /// Stores the credentials for a registry as container tools do.
    fn log_in(&self, address: &str, user: &str, password: &str) {
        let auths = serde_json::json!({"auths": {address: {"username": user, "password": password}}});
        std::fs::write(self.0.path().join("config.json"), auths.to_string()).unwrap();
    }

    async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        let mut command = rollout_host(arguments);
        // Pulled components are beside compiled code.
        command.env("XDG_CACHE_HOME", self.0.path().join("cache")).env("DOCKER_CONFIG", self.0.path());
        command.start().ended_within(COMMAND).await
    }

    async fn push(&self, component: &Path, reference: &str) -> Ran {
        let component = component.to_str().unwrap();
        self.run(["push", component, "--to", reference, "--plain-http"]).await
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

#[track_caller]
fn done(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    ran.stdout.trim()
}

#[track_caller]
fn refused(ran: &Ran, code: i32, reason: &str) {
    assert_eq!(ran.code, Some(code), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(reason), "expected '{reason}': {}", ran.stderr);
}

#[tokio::test]
async fn a_pushed_component_is_inspected_and_served_by_tag_and_by_digest() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let tag = registry.reference("team/conform:1.0.0");
    let by_digest = done(&home.push(&guest("conform"), &tag).await).to_owned();
    assert!(by_digest.starts_with(&registry.reference("team/conform@sha256:")), "{by_digest}");
    // The same component has the same manifest.
    assert_eq!(done(&home.push(&guest("conform"), &tag).await), by_digest);

    // Other tools find the format of the CNCF.
    let url = format!("http://{}/v2/team/conform/manifests/1.0.0", registry.address());
    let accept = "application/vnd.oci.image.manifest.v1+json";
    let manifest =
        rollout_outbound::http_client().unwrap().get(url).header("accept", accept).send().await.unwrap();
    let manifest: Value = serde_json::from_slice(&manifest.bytes().await.unwrap()).unwrap();
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json", "{manifest:#}");
    assert_eq!(manifest["layers"].as_array().map(Vec::len), Some(1), "{manifest:#}");
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm", "{manifest:#}");

    let inspected = home.run(["inspect", &tag, "--plain-http", "--json"]).await;
    let about: Value = serde_json::from_str(done(&inspected)).unwrap();
    let digest = about["digest"].as_str().unwrap();
    assert_eq!(manifest["layers"][0]["digest"], format!("sha256:{digest}"));
    assert_eq!(std::fs::read(registry.blob(digest)).unwrap(), std::fs::read(guest("conform")).unwrap());
    assert!(inspected.stderr.contains(&format!("{tag} is {by_digest}")), "{}", inspected.stderr);

    let controller = Controller::start().await;
    let serve = TestHost::of_component(by_digest.into()).flag("--plain-http");
    let host = serve.variable("DOCKER_CONFIG", &home.path("")).start().await;
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
}

#[tokio::test]
async fn a_component_that_the_registry_changed_is_refused() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let tag = registry.reference("conform:1");
    done(&home.push(&guest("conform"), &tag).await);
    let about: Value =
        serde_json::from_str(done(&home.run(["inspect", &tag, "--plain-http", "--json"]).await)).unwrap();
    let blob = registry.blob(about["digest"].as_str().unwrap());
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, bytes).unwrap();

    // A cache of its own has nothing yet.
    let ran = Home::new().run(["inspect", &tag, "--plain-http"]).await;
    refused(&ran, 2, "the registry, or something before it, changed it");
}

#[tokio::test]
async fn a_registry_with_users_takes_the_credentials_of_container_tools() {
    let registry = TestRegistry::start_with_user().await;
    let home = Home::new();
    let tag = registry.reference("conform:1");
    refused(&home.push(&guest("conform"), &tag).await, 2, "there are no credentials for it; log in");
    home.log_in(registry.address(), REGISTRY_USER.0, "wrong");
    refused(&home.push(&guest("conform"), &tag).await, 2, "the credentials give no such right");
    home.log_in(registry.address(), REGISTRY_USER.0, REGISTRY_USER.1);
    done(&home.push(&guest("conform"), &tag).await);
    done(&home.run(["inspect", &tag, "--plain-http"]).await);
    assert!(!registry.log().contains(REGISTRY_USER.1), "the password is in no log");
}

#[tokio::test]
async fn a_component_is_taken_if_a_listed_key_signed_it_and_refused_otherwise() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let tag = registry.reference("team/conform:1");
    done(&home.push(&guest("conform"), &tag).await);
    for key in ["mine", "other"] {
        done(&home.run(["sign", "--generate-key", &home.path(key)]).await);
    }
    let (mine, other) = (home.path("mine.pub"), home.path("other.pub"));
    refused(&home.run(["verify", &tag, "--plain-http", "--key", &mine]).await, 1, "is not signed");

    done(&home.run(["sign", &tag, "--plain-http", "--key", &home.path("mine")]).await);
    done(&home.run(["verify", &tag, "--plain-http", "--key", &other, "--key", &mine]).await);
    refused(&home.run(["verify", &tag, "--plain-http", "--key", &other]).await, 1, "none of a listed key");
    let inspected = home.run(["inspect", &tag, "--plain-http", "--verify-key", &mine]).await;
    assert!(inspected.stderr.contains("is signed by key"), "{}", inspected.stderr);
    done(&inspected);
    let ran = home.run(["serve", &tag, "--plain-http", "--verify-key", &other]).await;
    refused(&ran, 1, "none of a listed key");
    let file = guest("conform");
    let ran = home.run(["inspect", file.to_str().unwrap(), "--verify-key", &mine]).await;
    refused(&ran, 2, "a file has no signature");

    // A second signature leaves the first; a signature of one component is none of another.
    done(&home.run(["sign", &tag, "--plain-http", "--key", &home.path("other")]).await);
    done(&home.run(["verify", &tag, "--plain-http", "--key", &mine]).await);
    done(&home.push(&guest("only_grader"), &tag).await);
    refused(&home.run(["verify", &tag, "--plain-http", "--key", &mine]).await, 1, "is not signed");
}

#[tokio::test]
async fn wrong_references_name_what_is_wrong() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let missing = registry.reference("missing:1");
    refused(&home.run(["inspect", &missing, "--plain-http"]).await, 2, "has no 1 in missing");
    let invalid = registry.reference("Missing:1");
    refused(&home.run(["inspect", &invalid, "--plain-http"]).await, 2, "invalid repository 'Missing'");
    refused(
        &home.run(["inspect", "oci://registry.example/a:1", "--plain-http"]).await,
        2,
        "--plain-http is for registries on loopback addresses only",
    );
    // Without the option, TLS is spoken to a server that has none.
    refused(&home.run(["inspect", &missing]).await, 2, "cannot be reached");
    refused(&home.run(["inspect", "oci://169.254.169.254/a:1"]).await, 2, "may not be reached");
    let component = guest("conform");
    let arguments = ["push", component.to_str().unwrap(), "--to", &missing, "--name", "calc"];
    refused(&home.run(arguments).await, 2, "--name");
}
