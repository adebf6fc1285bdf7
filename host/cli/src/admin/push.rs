//! The command `push`, which uploads a component to a server.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use indicatif::ProgressBar;
use reqwest::{Method, StatusCode};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::client::{Client, RequestRefused};
use super::{AnswerOptions, TenantServerOptions};
use crate::print::{errln, out, outln};
use crate::progress::bytes_bar;
use crate::registry;
use crate::validate::Report;
use crate::{Exit, PluginFault};
use rollout_catalog::Name;
use rollout_registry::Reference;
use rollout_registry::evidence::Evidence;
use rollout_wire::digest::sha256_hex;

/// Uploads a component to a server, which checks it as `validate` does and adds it as the next version of a
/// plugin, or pushes it to a registry.
///
/// With --to oci://HOST/REPOSITORY:TAG the component is pushed to a registry, and its reference with the digest is
/// printed. Credentials are those that container tools stored.
///
/// A version that fails its checks is stored with its report and cannot be activated. One that passes is
/// served once it is activated: running rollouts finish with their version, new ones use the new version.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the version passed, and is active if --activate is given; 1 the plugin is at fault; \
    2 not done.\n\nExamples:\n  export ROLLOUT_HOST_URL=https://rollouts.example ROLLOUT_HOST_KEY=rh_…\n  \
    rollout-host push calc.wasm --name calc --activate\n  \
    rollout-host push agent.wasm --grader grader.wasm --config agent.toml --to http://127.0.0.1:9000 --name agent\n  \
    rollout-host push calc.wasm --to oci://registry.example/team/calc:1.0.0"
)]
pub(crate) struct Push {
    /// Component to upload.
    file: PathBuf,
    /// Name of the plugin, which is created if it does not exist. Required for a server.
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Configuration file of the plugin with the sections [plugin], [grader], [limits], [model] and [judge],
    /// as for serve.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Separate component with the grader.
    #[arg(long, value_name = "FILE")]
    grader: Option<PathBuf>,
    /// Activates the version if it passes.
    #[arg(long)]
    activate: bool,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    registry: registry::AccessOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

impl Push {
    pub(crate) fn run(self) -> Result<Exit> {
        if Reference::is_meant(&self.server.server.url) {
            return self.push_to_registry();
        }
        let Some(name) = &self.name else {
            bail!("--name NAME is required: the component becomes a version of that plugin");
        };
        let version = NewVersion {
            name,
            component: Component::read(&self.file)?,
            grader: self.grader.as_deref().map(Component::read).transpose()?,
            config: self.config.as_deref(),
            activate: self.activate,
        };
        version.push(&self.server, self.answer)
    }

    /// Pushes the component to a registry.
    fn push_to_registry(&self) -> Result<Exit> {
        let given = [
            ("--name", self.name.is_some()),
            ("--config", self.config.is_some()),
            ("--grader", self.grader.is_some()),
            ("--activate", self.activate),
        ];
        if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            bail!("{option} is for a server; a registry stores the component only");
        }
        let reference: Reference = self.server.server.url.parse()?;
        let pushed = registry::push(&self.file, &reference, &self.registry)?;
        self.answer.show(&json!({"reference": pushed.to_string()}), || outln!("{pushed}"));
        Ok(Exit::Done)
    }
}

/// A component that is uploaded.
pub(super) struct Component {
    /// Its file or reference, for messages.
    about: String,
    bytes: Bytes,
    /// Its origin and signatures, if it came from a registry.
    evidence: Option<Evidence>,
}

impl Component {
    fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { about: path.display().to_string(), bytes: bytes.into(), evidence: None })
    }

    /// Pulls a component with the evidence of its origin.
    pub(super) fn pull(reference: &Reference, access: &registry::AccessOptions) -> Result<Self> {
        let (bytes, evidence) = registry::pull_with_evidence(reference, access)?;
        Ok(Self { about: evidence.reference.clone(), bytes: bytes.into(), evidence: Some(evidence) })
    }

    /// Uploads the component unless the server has it for this tenant. Returns its digest.
    async fn upload(&self, client: &Client) -> Result<String> {
        let digest = sha256_hex(&self.bytes);
        let path_segments = ["components", &digest];
        match client.get(&path_segments).await {
            Ok(_) => {
                errln!("the server already has {}", self.about);
                return Ok(digest);
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        let bar = Arc::new(bytes_bar("uploading", &self.about, self.bytes.len() as u64));
        let progress = Arc::clone(&bar);
        let done =
            client.put(&path_segments, self.bytes.clone(), move |sent| progress.set_position(sent)).await;
        bar.finish_and_clear();
        done.with_context(|| format!("cannot upload {}", self.about))?;
        Ok(digest)
    }
}

/// The next version of a plugin on a server.
pub(super) struct NewVersion<'a> {
    pub name: &'a Name,
    pub component: Component,
    pub grader: Option<Component>,
    /// File with the plugin's configuration.
    pub config: Option<&'a Path>,
    pub activate: bool,
}

impl NewVersion<'_> {
    /// Uploads the components, lets the server check and add the version, and prints the report.
    pub(super) fn push(self, server: &TenantServerOptions, answer: AnswerOptions) -> Result<Exit> {
        let Self { name, component, grader, config, activate } = self;
        let config = config.map(read_text).transpose()?;
        let pushed = server.run(async |client| {
            let mut body = json!({"config": config, "activate": activate});
            body["component"] = json!(component.upload(&client).await?);
            body["component_evidence"] = json!(component.evidence);
            if let Some(grader) = &grader {
                body["grader"] = json!(grader.upload(&client).await?);
                body["grader_evidence"] = json!(grader.evidence);
            }
            let waiting = waiting("the server compiles and checks the component");
            let path = ["plugins", name, "deployments"];
            let pushed = client.call(Method::POST, &path, Some(body)).await;
            waiting.finish_and_clear();
            pushed.map_err(refusal_is_plugin_fault)
        })?;
        show(name, &component.about, &pushed, answer)
    }
}

/// Prints the server's report on a new version.
fn show(name: &Name, about: &str, pushed: &Value, answer: AnswerOptions) -> Result<Exit> {
    let report = Report::deserialize(&pushed["report"]).context("the server's report is invalid")?;
    let version = &pushed["version"];
    let activation_error = pushed["activation_error"].as_str();
    answer.show(pushed, || {
        out!("{}", report.text(about));
        outln!();
        let state = match (pushed["passed"] == true, pushed["active"] == true) {
            (_, true) => "is active",
            (true, false) => "can be activated",
            (false, false) => "did not pass and cannot be activated",
        };
        outln!("version {version} of plugin '{name}' {state}");
    });
    match activation_error {
        Some(why) => Err(PluginFault(why.to_owned()).into()),
        None => Ok(report.exit()),
    }
}

/// Converts the server's refusal of a version to the plugin's fault: no trusted key signed it, or it cannot be loaded.
pub(super) fn refusal_is_plugin_fault(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<RequestRefused>() {
        Some(refused) if refused.status == StatusCode::CONFLICT => PluginFault(refused.to_string()).into(),
        _ => error,
    }
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RequestRefused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
}

/// Returns a spinner; without a terminal, prints a line instead.
fn waiting(message: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        errln!("{message}");
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
