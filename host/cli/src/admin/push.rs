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
        let component = read(&self.file)?;
        let grader = self.grader.as_deref().map(read).transpose()?;
        let config = self.config.as_deref().map(read_text).transpose()?;
        let pushed = self.server.run(async |client| {
            let component = upload(&client, &self.file, component).await?;
            let grader = match (&self.grader, grader) {
                (Some(path), Some(bytes)) => Some(upload(&client, path, bytes).await?),
                _ => None,
            };
            let body =
                json!({"component": component, "grader": grader, "config": config, "activate": self.activate});
            let waiting = waiting("the server compiles and checks the component");
            let path = ["plugins", name, "deployments"];
            let pushed = client.call(Method::POST, &path, Some(body)).await;
            waiting.finish_and_clear();
            pushed
        })?;
        self.show(name, &pushed)
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

    fn show(&self, name: &Name, pushed: &Value) -> Result<Exit> {
        let report = Report::deserialize(&pushed["report"]).context("the server's report is invalid")?;
        let version = &pushed["version"];
        let activation_error = pushed["activation_error"].as_str();
        self.answer.show(pushed, || {
            out!("{}", report.text(&self.file.display().to_string()));
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
}

fn read(path: &Path) -> Result<Bytes> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes.into())
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Uploads a component unless the server has it for this tenant. Returns its digest.
async fn upload(client: &Client, path: &Path, bytes: Bytes) -> Result<String> {
    let digest = sha256_hex(&bytes);
    let path_segments = ["components", &digest];
    match client.get(&path_segments).await {
        Ok(_) => {
            errln!("the server already has {}", path.display());
            return Ok(digest);
        }
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    let bar = Arc::new(bytes_bar("uploading", &path.display().to_string(), bytes.len() as u64));
    let progress = Arc::clone(&bar);
    let done = client.put(&path_segments, bytes, move |sent| progress.set_position(sent)).await;
    bar.finish_and_clear();
    done.with_context(|| format!("cannot upload {}", path.display()))?;
    Ok(digest)
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
