//! The command `plugin`, which manages a tenant's plugins and their active versions.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{self, Client};
use super::push::{Component, NewVersion, refusal_is_plugin_fault};
use super::quota::{self, QuotaArg};
use super::table::Table;
use super::{AnswerOptions, TenantServerOptions, moment, plain};
use crate::Exit;
use crate::print::{out, outln};
use crate::registry::AccessOptions;
use rollout_catalog::Name;
use rollout_registry::Reference;
use rollout_wire::text::printable;

/// Maximum number of versions that `show` prints.
const VERSIONS_SHOWN: usize = 20;

/// Adds, lists, activates, rolls back and removes plugins of a server with a catalog.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 done; 1 a version cannot be loaded; 2 not done.\n\nExamples:\n  \
    rollout-host plugin list --to https://rollouts.example\n  \
    rollout-host plugin add calc --from oci://registry.example/team/calc:1.0.0 --activate\n  \
    rollout-host plugin activate calc 3\n  \
    rollout-host plugin rollback calc\n  \
    rollout-host plugin set calc --default --quota running=8")]
pub(crate) struct PluginCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the tenant's plugins.
    List(List),
    /// Adds a component of a registry as the next version of a plugin.
    ///
    /// This command resolves the reference to a digest, pulls the component and uploads it with its manifest and
    /// signatures. The server checks them and keeps the digest: it connects to no registry and needs no credentials for
    /// one. If the operator lists trusted keys for the tenant, one of them has to have signed the component.
    Add(Box<Add>),
    /// Shows a plugin and its versions, or one version with its report.
    Show(Show),
    /// Activates a version. Running rollouts finish with the version that they started with.
    Activate(Activate),
    /// Activates the previously active version.
    Rollback(Rollback),
    /// Changes a plugin's quotas and whether it is the tenant's default plugin.
    Set(Set),
    /// Removes a plugin with all its versions.
    Remove(Remove),
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the version passed, and is active if --activate is given; 1 the plugin is at \
    fault, or no trusted key signed it; 2 not done.\n\nExamples:\n  \
    rollout-host plugin add calc --from oci://registry.example/team/calc:1.0.0 --activate"
)]
struct Add {
    /// Name of the plugin, which is created if it does not exist.
    name: Name,
    /// The component: oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:….
    #[arg(long, value_name = "REFERENCE")]
    from: Reference,
    /// Separate component with the grader, also a reference.
    #[arg(long, value_name = "REFERENCE")]
    grader: Option<Reference>,
    /// Configuration file of the plugin, as for push.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Activates the version if it passes.
    #[arg(long)]
    activate: bool,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    registry: AccessOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Show {
    /// The plugin.
    name: String,
    /// A version of the plugin.
    number: Option<u32>,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Clone, Copy, Debug, Args)]
struct Waiting {
    /// Does not wait until all workers of a cluster have loaded the version: for a worker that hangs, or that cannot load it.
    #[arg(long)]
    no_wait: bool,
}

#[derive(Debug, Args)]
struct Activate {
    /// The plugin.
    name: String,
    /// The version.
    number: u32,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Rollback {
    /// The plugin.
    name: String,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Set {
    /// The plugin.
    name: String,
    #[arg(long = "quota", value_name = "NAME=NUMBER", help = quota::help(|quota| !quota.is_tenant_only()))]
    quotas: Vec<QuotaArg>,
    /// Makes the plugin the tenant's default, which is also served at the root path.
    #[arg(long)]
    default: bool,
    /// Makes the plugin no longer the tenant's default.
    #[arg(long, conflicts_with = "default")]
    no_default: bool,
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Remove {
    /// The plugin.
    name: String,
    #[command(flatten)]
    server: TenantServerOptions,
}

impl PluginCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::List(List { server, answer }) => {
                let plugins = server.run(async |client| client.list(&["plugins"], &[]).await)?;
                answer.show(&Value::Array(plugins.clone()), || list(&plugins));
            }
            Command::Add(add) => return add.run(),
            Command::Show(Show { name, number: None, server, answer }) => {
                let (mut plugin, versions) = server.run(async |client| {
                    let plugin = client.get(&["plugins", &name]).await?;
                    Ok((plugin, client.list(&["plugins", &name, "deployments"], &[]).await?))
                })?;
                plugin["deployments"] = Value::Array(versions);
                answer.show(&plugin, || show(&plugin));
            }
            Command::Show(Show { name, number: Some(number), server, answer }) => {
                let number = number.to_string();
                let path = ["plugins", &name, "deployments", &number];
                let deployment = server.run(async |client| client.get(&path).await)?;
                answer.show(&deployment, || show_version(&deployment));
            }
            Command::Activate(Activate { name, number, waiting, server, answer }) => {
                let body = Some(client::version(number));
                let done =
                    server.run(async |client| activate(&client, &name, "activate", waiting, body).await)?;
                answer.show(&done, || print_active(&name, &done));
            }
            Command::Rollback(Rollback { name, waiting, server, answer }) => {
                let done =
                    server.run(async |client| activate(&client, &name, "rollback", waiting, None).await)?;
                answer.show(&done, || print_active(&name, &done));
            }
            Command::Set(set) => set.run()?,
            Command::Remove(Remove { name, server }) => {
                server.run(async |client| client.call(Method::DELETE, &["plugins", &name], None).await)?;
                outln!("plugin '{name}' is removed");
            }
        }
        Ok(Exit::Done)
    }
}

impl Add {
    fn run(self) -> Result<Exit> {
        let pull = |reference: &Reference| Component::pull(reference, &self.registry);
        let version = NewVersion {
            name: &self.name,
            component: pull(&self.from)?,
            grader: self.grader.as_ref().map(pull).transpose()?,
            config: self.config.as_deref(),
            activate: self.activate,
        };
        version.push(&self.server, self.answer)
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let mut change = json!({ "quotas": quota::change(&self.quotas) });
        if self.default || self.no_default {
            change["default"] = Value::Bool(self.default);
        } else if self.quotas.is_empty() {
            bail!("no change is given; give --quota, --default or --no-default");
        }
        let path = ["plugins", &self.name];
        let plugin = self.server.run(async |client| client.call(Method::PATCH, &path, Some(change)).await)?;
        self.answer.show(&plugin, || show(&plugin));
        Ok(())
    }
}

/// Activates a version. A conflict is the plugin's fault: the version failed its checks or cannot be loaded.
async fn activate(
    client: &Client,
    name: &str,
    verb: &str,
    Waiting { no_wait }: Waiting,
    body: Option<Value>,
) -> Result<Value> {
    let query: &[_] = if no_wait { &[("wait", "false")] } else { &[] };
    let done = client.call_with(Method::POST, &["plugins", name, verb], query, body).await;
    done.map_err(refusal_is_plugin_fault)
}

fn print_active(name: &str, done: &Value) {
    match &done["before"] {
        Value::Null => outln!("version {} of plugin '{name}' is active", done["version"]),
        before => outln!("version {} of plugin '{name}' is active, after {before}", done["version"]),
    }
}

fn list(plugins: &[Value]) {
    let mut table = Table::new(["name", "active", "newest", "default", "since", "quotas"]);
    for plugin in plugins {
        table.row([
            plain(&plugin["name"]),
            plain(&plugin["active"]),
            plain(&plugin["newest"]),
            if plugin["default"] == true { "yes".to_owned() } else { String::new() },
            moment(&plugin["created_at"]),
            quota::line(&plugin["quotas"]),
        ]);
    }
    out!(
        "{}",
        table.text("there are no plugins; add one with `rollout-host push` or `rollout-host plugin add`")
    );
}

fn show(plugin: &Value) {
    list(std::slice::from_ref(plugin));
    let Some(versions) = plugin["deployments"].as_array() else { return };
    let mut table = Table::new(["version", "active", "passed", "pushed", "by", "component", "grader"]);
    let yes = |value: &Value| if *value == true { "yes".to_owned() } else { "no".to_owned() };
    let short = |digest: &Value| plain(digest).chars().take(12).collect::<String>();
    for version in versions.iter().take(VERSIONS_SHOWN) {
        table.row([
            plain(&version["version"]),
            yes(&version["active"]),
            yes(&version["passed"]),
            moment(&version["created_at"]),
            plain(&version["created_by"]),
            short(&version["component"]),
            short(&version["grader"]),
        ]);
    }
    out!("\n{}", table.text("there are no versions"));
    if versions.len() > VERSIONS_SHOWN {
        outln!("and {} older versions; --json shows all", versions.len() - VERSIONS_SHOWN);
    }
}

fn show_version(deployment: &Value) {
    use serde::Deserialize as _;
    let title = format!("version {}", deployment["version"]);
    for part in ["component", "grader"] {
        let origin = &deployment[format!("{part}_origin")];
        let signers = origin["signers"].as_array().into_iter().flatten().map(plain).collect::<Vec<_>>();
        if let Some(reference) = origin["reference"].as_str() {
            let by = if signers.is_empty() {
                String::new()
            } else {
                format!(", signed by key {}", signers.join(" and "))
            };
            outln!("{part}: {}{by}", printable(reference));
        }
    }
    match crate::validate::Report::deserialize(&deployment["report"]) {
        Ok(report) => out!("{}", report.text(&title)),
        Err(_) => outln!("{title}\n\nits report comes from another version of this program; --json shows it"),
    }
    if let Some(config) = deployment["config"].as_str() {
        outln!("\n{}", printable(config.trim_end()));
    }
}
