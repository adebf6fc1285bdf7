//! `push`: a component to a server.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::{Method, StatusCode};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::client::{Client, Refused};
use super::{AnswerOptions, TenantServerOptions};
use crate::print::{errln, out, outln};
use crate::validate::Report;
use crate::{Exit, PluginFault};
use rollout_catalog::Name;
use rollout_wire::digest::sha256_hex;

/// Uploads a component to a server, which checks it as `validate` does, and adds it as the next
/// version of a plugin.
///
/// What failed its checks is kept with its report, and cannot be activated. What passed is served
/// once it is activated: rollouts that run end on what they began with, new ones get the new version.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it passed, and is active if that was asked for; 1 the plugin is at fault; \
    2 not done.\n\nExamples:\n  export ROLLOUT_HOST_URL=https://rollouts.example ROLLOUT_HOST_KEY=rh_…\n  \
    rollout-host push calc.wasm --name calc --activate\n  \
    rollout-host push agent.wasm --grader grader.wasm --config agent.toml --to http://127.0.0.1:9000 --name agent"
)]
pub(crate) struct Push {
    /// The component.
    file: PathBuf,
    /// The plugin that it is a version of, which is made if it is new.
    #[arg(long, value_name = "NAME")]
    name: Name,
    /// Its configuration: [plugin], [grader], [limits], [model] and [judge] of a file as for serve.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A grader of its own, in another component.
    #[arg(long, value_name = "FILE")]
    grader: Option<PathBuf>,
    /// Makes it active if it passes.
    #[arg(long)]
    activate: bool,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

impl Push {
    pub(crate) fn run(self) -> Result<Exit> {
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
            let waiting = waiting("the server compiles and checks it");
            let path = ["plugins", &self.name, "deployments"];
            let pushed = client.ask(Method::POST, &path, Some(body)).await;
            waiting.finish_and_clear();
            pushed
        })?;
        self.show(&pushed)
    }

    fn show(&self, pushed: &Value) -> Result<Exit> {
        let report = Report::deserialize(&pushed["report"]).context("the server's report is none")?;
        let version = &pushed["version"];
        let not_active = pushed["activation_error"].as_str();
        self.answer.show(pushed, || {
            out!("{}", report.text(&self.file.display().to_string()));
            outln!();
            let standing = match (pushed["passed"] == true, pushed["active"] == true) {
                (_, true) => "is active",
                (true, false) => "can be activated",
                (false, false) => "did not pass, and cannot be activated",
            };
            outln!("version {version} of plugin '{}' {standing}", self.name);
        });
        match not_active {
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

/// Uploads a component, unless the server has it of this tenant. Gives its digest.
async fn upload(client: &Client, path: &Path, bytes: Bytes) -> Result<String> {
    let digest = sha256_hex(&bytes);
    let place = ["components", &digest];
    match client.get(&place).await {
        Ok(_) => {
            errln!("{} is at the server already", path.display());
            return Ok(digest);
        }
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    let bar = Arc::new(bar(path, bytes.len() as u64));
    let seen = Arc::clone(&bar);
    let done = client.put(&place, bytes, move |sent| seen.set_position(sent)).await;
    bar.finish_and_clear();
    done.with_context(|| format!("cannot upload {}", path.display()))?;
    Ok(digest)
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
}

/// A bar where somebody sees it, a line where not.
fn bar(path: &Path, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        errln!("uploading {}, {} KiB", path.display(), bytes.div_ceil(1024));
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("uploading {msg}  {wide_bar}  {bytes} of {total_bytes}");
    let bar = ProgressBar::new(bytes).with_message(path.display().to_string());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn waiting(what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        errln!("{what}");
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
