//! Components in a registry: pushed, pulled by tag and digest, signed and verified, against Debian's registry.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use rollout_tests::{
    Controller, REGISTRY_USER, Ran, Start, TestCatalog, TestHost, TestRegistry, TestTenant, guest,
    has_javascript, javascript_host, project_root, rollout_host,
};
use serde_json::Value;
use tempfile::TempDir;

/// Time for a command that may compile a component.
const COMMAND: Duration = Duration::from_secs(300);

/// A directory for a separate cache and separate credentials.
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

    /// Runs a command with a key of a server.
    async fn run_with_key<A: AsRef<OsStr>>(
        &self,
        catalog: &TestCatalog,
        key: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Ran {
        let mut command = rollout_host(arguments);
        command.env("XDG_CACHE_HOME", self.0.path().join("cache")).env("DOCKER_CONFIG", self.0.path());
        command.env("ROLLOUT_HOST_URL", catalog.url()).env("ROLLOUT_HOST_KEY", key);
        command.start().ended_within(COMMAND).await
    }

    /// Adds a component of a registry to a tenant of a server.
    async fn add(&self, catalog: &TestCatalog, tenant: &TestTenant, from: &str) -> Ran {
        let arguments = ["plugin", "add", "conform", "--from", from, "--plain-http", "--activate", "--json"];
        self.run_with_key(catalog, &tenant.author, arguments).await
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

    // Other tools find the format of the CNCF for components.
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

    // A separate cache is empty at first.
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

    // A second signature leaves the first in place. A signature of one component is not valid for another.
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
    // Without the option, the client speaks TLS to a server without TLS.
    refused(&home.run(["inspect", &missing]).await, 2, "cannot be reached");
    refused(&home.run(["inspect", "oci://169.254.169.254/a:1"]).await, 2, "may not be reached");
    let component = guest("conform");
    let arguments = ["push", component.to_str().unwrap(), "--to", &missing, "--name", "calc"];
    refused(&home.run(arguments).await, 2, "--name");
}

#[tokio::test]
async fn a_tenant_deploys_a_component_of_a_registry_if_a_trusted_key_signed_it() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("team-a", serde_json::json!({})).await;
    let tag = registry.reference("team/conform:1");
    let by_digest = done(&home.push(&guest("conform"), &tag).await).to_owned();
    for key in ["mine", "other"] {
        done(&home.run(["sign", "--generate-key", &home.path(key)]).await);
    }
    let trust = ["tenant", "set", "team-a", "--trusted-key", &home.path("mine.pub"), "--json"];
    let set = home.run_with_key(&catalog, rollout_tests::OPERATOR, trust).await;
    let set: Value = serde_json::from_str(done(&set)).unwrap();
    let id = set["trusted_keys"][0]["id"].as_str().unwrap().to_owned();

    refused(&home.add(&catalog, &tenant, &tag).await, 1, "has no signature");
    let file = guest("conform");
    let push = ["push", file.to_str().unwrap(), "--name", "conform"];
    let pushed = home.run_with_key(&catalog, &tenant.author, push).await;
    refused(&pushed, 1, "the tenant takes only components that a trusted key signed");
    done(&home.run(["sign", &tag, "--plain-http", "--key", &home.path("other")]).await);
    refused(&home.add(&catalog, &tenant, &tag).await, 1, "none of a trusted key");
    done(&home.run(["sign", &tag, "--plain-http", "--key", &home.path("mine")]).await);
    let added: Value = serde_json::from_str(done(&home.add(&catalog, &tenant, &tag).await)).unwrap();
    assert_eq!(added["active"], true, "{added:#}");
    assert_eq!(added["component_origin"]["reference"], by_digest, "{added:#}");
    assert_eq!(added["component_origin"]["signers"], serde_json::json!([id]), "{added:#}");

    // The tag moves, and the deployment stays the same.
    done(&home.push(&guest("only_grader"), &tag).await);
    let controller = Controller::start().await;
    let host = catalog.plugin(&tenant, "conform");
    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    assert_eq!(result["status"], "success", "{result:#}");
    let show = ["plugin", "show", "conform", "1"];
    let shown = home.run_with_key(&catalog, &tenant.viewer, show).await;
    assert!(
        done(&shown).contains(&format!("component: {by_digest}, signed by key {id}")),
        "{}",
        shown.stdout
    );

    // A component whose signer is no longer trusted cannot be activated.
    let trust = ["tenant", "set", "team-a", "--trusted-key", &home.path("other.pub")];
    done(&home.run_with_key(&catalog, rollout_tests::OPERATOR, trust).await);
    let activate = ["plugin", "activate", "conform", "1"];
    let activated = home.run_with_key(&catalog, &tenant.author, activate).await;
    refused(&activated, 1, "no trusted key of the tenant signed");
}

#[tokio::test]
async fn a_deployment_from_a_registry_stays_within_rights_and_quotas() {
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("team-a", serde_json::json!({"component-bytes": 1000})).await;
    let tag = registry.reference("conform:1");
    done(&home.push(&guest("conform"), &tag).await);
    refused(&home.add(&catalog, &tenant, &tag).await, 2, "quota component-bytes is 1000");
    let viewer = TestTenant { author: tenant.viewer.clone(), ..tenant };
    refused(&home.add(&catalog, &viewer, &tag).await, 2, "author");
    let serve = ["serve", "--catalog", &home.path("catalog"), "--plain-http"];
    refused(&home.run(serve).await, 2, "with --catalog the server connects to no registry");
    let serve = ["serve", "--catalog", &home.path("catalog"), "--verify-key", "release.pub"];
    refused(&home.run(serve).await, 2, "each tenant has a list of trusted keys");
}

/// Returns options of `verify` and `sign` for builds with the tools of the tests.
fn build_options() -> Vec<String> {
    let command = javascript_host("build");
    let options = command.get_args().skip(1).map(|option| option.to_str().unwrap().to_owned());
    options.map(|option| format!("--build-option={option}")).collect()
}

#[tokio::test]
async fn a_component_is_verified_and_attested_by_building_its_project_again() {
    if !has_javascript() {
        return;
    }
    let registry = TestRegistry::start().await;
    let home = Home::new();
    let project = tempfile::tempdir().unwrap();
    let source =
        "import { defineGrader } from 'rollout-sdk';\nexport const grader = defineGrader(() => 1);\n";
    std::fs::write(project.path().join("package.json"), r#"{"name": "ones", "main": "ones.ts"}"#).unwrap();
    std::fs::write(project.path().join("ones.ts"), source).unwrap();
    let component = home.path("ones.wasm");
    let built = javascript_host("build").arg(project.path()).args(["-o", &component]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let dir = project.path().to_str().unwrap();
    let rebuild = |plugin: &str, more: &[&str]| {
        let mut arguments =
            vec!["verify".to_owned(), plugin.to_owned(), "--rebuild".to_owned(), dir.to_owned()];
        arguments.extend(more.iter().map(|option| (*option).to_owned()));
        arguments.extend(build_options());
        arguments
    };
    let tag = registry.reference("ones:1");
    done(&home.push(Path::new(&component), &tag).await);
    done(&home.run(["sign", "--generate-key", &home.path("mine")]).await);
    let (mine, public) = (home.path("mine"), home.path("mine.pub"));

    let verified = home.run(rebuild(&component, &[])).await;
    assert!(done(&verified).contains("is what"), "{}", verified.stdout);
    let mut attest = vec!["sign", &tag, "--plain-http", "--key", &mine, "--attest", dir];
    let options = build_options();
    attest.extend(options.iter().map(String::as_str));
    done(&home.run(&attest).await);
    let verified = home.run(rebuild(&tag, &["--plain-http", "--key", &public])).await;
    let text = done(&verified);
    let (_, rest) = text.split_once("states: built from source sha256:").unwrap_or_else(|| panic!("{text}"));
    assert!(rest.contains("in javascript, SDK 0.1.0, options --esbuild"), "{text}");
    assert!(text.contains("is what"), "{text}");

    // Changed source gives other bytes, which are neither verified nor attested.
    std::fs::write(project.path().join("ones.ts"), source.replace("=> 1", "=> 0.5")).unwrap();
    refused(&home.run(rebuild(&component, &[])).await, 1, "the source, a dependency, the SDK");
    refused(&home.run(&attest).await, 1, "the source, a dependency, the SDK");
}

#[tokio::test]
async fn the_commands_of_the_page_publish_and_consume_a_plugin() {
    let page = std::fs::read_to_string(project_root().join("docs/serve/registries.md")).unwrap();
    let (_, publishing) = page.split_once("## Publishing a plugin in ten lines").unwrap();
    let (scripts, _) = publishing.split_once("## References").unwrap();
    let registry = TestRegistry::start().await;
    let catalog = TestCatalog::start().await;
    let tenant = catalog.tenant("team-a", serde_json::json!({})).await;
    let dir = tempfile::tempdir().unwrap();
    let row = r#"{"user_prompt": "What is 2 + 3?", "ground_truth": "5"}"#;
    std::fs::write(dir.path().join("rows.jsonl"), row).unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let mut done_commands = Vec::new();
    for line in scripts.lines().filter(|line| line.starts_with("rollout-host ")) {
        let (line, _) = line.split_once('#').unwrap_or((line, ""));
        let mut words: Vec<String> = line.split_whitespace().skip(1).map(str::to_owned).collect();
        let command = words[0].clone();
        match &*command {
            // A project is built by other tests; a guest stands for the component here.
            "new" => {
                std::fs::copy(guest("conform"), dir.path().join("calc.wasm")).unwrap();
                continue;
            }
            // The server would run until it is stopped; another test serves a reference.
            "serve" => continue,
            _ => {}
        }
        let local = format!("oci://{}", registry.address());
        let is_reference = |word: &String| word.starts_with("oci://");
        if words.iter().any(is_reference) {
            words.push("--plain-http".to_owned());
        }
        let words = words.iter().map(|word| word.replace("oci://registry.example", &local));
        let mut run = rollout_host(words);
        run.current_dir(dir.path()).env("DOCKER_CONFIG", dir.path());
        run.env("XDG_CACHE_HOME", dir.path().join("cache")).env("ROLLOUT_HOST_URL", catalog.url());
        let key = if command == "tenant" { rollout_tests::OPERATOR } else { &tenant.author };
        let ran = run.env("ROLLOUT_HOST_KEY", key).start().ended_within(COMMAND).await;
        assert_eq!(ran.code, Some(0), "{line}: {}{}", ran.stdout, ran.stderr);
        done_commands.push(command);
    }
    let expected = ["sign", "push", "sign", "verify", "inspect", "eval", "tenant", "plugin"];
    assert_eq!(done_commands, expected);
}
