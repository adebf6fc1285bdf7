//! The command `plugin`, which manages a tenant's plugins and their active versions.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::client::{self, Client, RequestRefused};
use super::quota::{self, QuotaArg};
use super::table::Table;
use super::{AnswerOptions, TenantServerOptions, moment, plain};
use crate::print::{out, outln};
use crate::{Exit, PluginFault};

/// Maximum number of versions that `show` prints.
const VERSIONS_SHOWN: usize = 20;

/// Lists, activates, rolls back and removes plugins of a server with a catalog.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 done; 1 a version cannot be loaded; 2 not done.\n\nExamples:\n  \
    rollout-host plugin list --to https://rollouts.example\n  \
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

#[derive(Debug, Args)]
struct Activate {
    /// The plugin.
    name: String,
    /// The version.
    number: u32,
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
            Command::Activate(Activate { name, number, server, answer }) => {
                let body = Some(client::version(number));
                let done = server.run(async |client| activate(&client, &name, "activate", body).await)?;
                answer.show(&done, || print_active(&name, &done));
            }
            Command::Rollback(Rollback { name, server, answer }) => {
                let done = server.run(async |client| activate(&client, &name, "rollback", None).await)?;
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
async fn activate(client: &Client, name: &str, verb: &str, body: Option<Value>) -> Result<Value> {
    let done = client.call(Method::POST, &["plugins", name, verb], body).await;
    done.map_err(|error| match error.downcast_ref::<RequestRefused>() {
        Some(refused) if refused.status == StatusCode::CONFLICT => PluginFault(refused.to_string()).into(),
        _ => error,
    })
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
    out!("{}", table.text("there are no plugins; add one with `rollout-host push`"));
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
    match crate::validate::Report::deserialize(&deployment["report"]) {
        Ok(report) => out!("{}", report.text(&title)),
        Err(_) => outln!("{title}\n\nits report comes from another version of this program; --json shows it"),
    }
    if let Some(config) = deployment["config"].as_str() {
        outln!("\n{}", rollout_wire::text::printable(config.trim_end()));
    }
}
