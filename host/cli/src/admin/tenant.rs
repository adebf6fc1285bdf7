//! The command `tenant`, which manages tenants.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};

use super::quota::{self, QuotaArg};
use super::table::Table;
use super::{AnswerOptions, ServerOptions, moment, plain};
use crate::Exit;
use crate::print::{out, outln};

/// Creates, changes and deletes tenants of a server with a catalog. Needs an operator key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host tenant create team-a --quota running=16 --quota weight=2 --to https://rollouts.example\n  \
    rollout-host tenant set team-a --quota running=none --allow 10.1.0.0/16 --allow '*.models.internal:8000'\n  \
    rollout-host tenant set team-a --trusted-key release.key.pub\n  \
    rollout-host tenant show team-a")]
pub(crate) struct TenantCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates a tenant.
    Create(Create),
    /// Lists all tenants.
    List(List),
    /// Shows a tenant and its usage in the last 30 days.
    Show(Show),
    /// Changes quotas and network rules of a tenant.
    Set(Set),
    /// Deletes a tenant with its keys, rollouts, plugins and files.
    Delete(Delete),
}

#[derive(Debug, Args)]
struct Changes {
    #[arg(long = "quota", value_name = "NAME=NUMBER", help = quota::help(|_| true))]
    quotas: Vec<QuotaArg>,
    /// Private host, address or network, optionally with a port, that the tenant's requests may go to; may be
    /// repeated. The new list replaces the old one.
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// Allows requests to no private address.
    #[arg(long, conflicts_with = "allow")]
    allow_none: bool,
    /// Whether requests may go to all public addresses, or only to those that are listed.
    #[arg(long, value_enum)]
    public: Option<Public>,
    /// Public key (PEM) of a trusted signer; may be repeated. The tenant can then deploy only components that one of
    /// the keys signed. The new list replaces the old one.
    #[arg(long, value_name = "FILE")]
    trusted_key: Vec<PathBuf>,
    /// Lets the tenant deploy components without a signature.
    #[arg(long, conflicts_with = "trusted_key")]
    no_trusted_keys: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Public {
    Open,
    Listed,
}

#[derive(Debug, Args)]
struct Create {
    /// Name of the tenant: lower-case letters, digits, '-' and '_'.
    name: String,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Show {
    /// The tenant.
    name: String,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Set {
    /// The tenant.
    name: String,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Delete {
    /// The tenant.
    name: String,
    /// Confirms the deletion, which cannot be undone.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerOptions,
}

impl Changes {
    fn network(&self) -> Value {
        let mut network = json!({});
        if self.allow_none || !self.allow.is_empty() {
            network["allow"] = json!(self.allow);
        }
        match self.public {
            Some(Public::Open) => network["public"] = json!("open"),
            Some(Public::Listed) => network["public"] = json!("listed"),
            None => {}
        }
        network
    }

    fn body(&self) -> Result<Value> {
        let mut body = json!({"quotas": quota::change(&self.quotas), "network": self.network()});
        if self.no_trusted_keys || !self.trusted_key.is_empty() {
            let read = |file: &PathBuf| {
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
            };
            body["trusted_keys"] = json!(self.trusted_key.iter().map(read).collect::<Result<Vec<_>>>()?);
        }
        Ok(body)
    }
}

impl TenantCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Create(Create { name, changes, server, answer }) => {
                let mut body = changes.body()?;
                body["name"] = json!(name);
                let created =
                    server.run(async |client| client.call(Method::POST, &["tenants"], Some(body)).await)?;
                answer.show(&created, || list(std::slice::from_ref(&created)));
            }
            Command::List(List { server, answer }) => {
                let tenants = server.run(async |client| client.list(&["tenants"], &[]).await)?;
                answer.show(&Value::Array(tenants.clone()), || list(&tenants));
            }
            Command::Show(Show { name, server, answer }) => {
                let tenant = server.run(async |client| {
                    let mut tenant = client.get(&["tenants", &name]).await?;
                    tenant["usage"] = client.get(&["tenants", &name, "usage"]).await?;
                    Ok(tenant)
                })?;
                answer.show(&tenant, || show(&tenant));
            }
            Command::Set(Set { name, changes, server, answer }) => {
                let body = changes.body()?;
                if body == json!({"quotas": {}, "network": {}}) {
                    bail!(
                        "no change is given; give --quota, --allow, --allow-none, --public, --trusted-key or --no-trusted-keys"
                    );
                }
                let path = ["tenants", &name];
                let tenant =
                    server.run(async |client| client.call(Method::PATCH, &path, Some(body)).await)?;
                answer.show(&tenant, || list(std::slice::from_ref(&tenant)));
            }
            Command::Delete(Delete { name, yes, server }) => {
                if !yes {
                    bail!(
                        "this deletes all keys, rollouts, plugins and files of tenant '{name}'; confirm it with --yes"
                    );
                }
                server.run(async |client| client.call(Method::DELETE, &["tenants", &name], None).await)?;
                outln!("tenant '{name}' is deleted");
            }
        }
        Ok(Exit::Done)
    }
}

fn list(tenants: &[Value]) {
    let mut table = Table::new(["name", "default plugin", "since", "quotas", "network", "trusted keys"]);
    for tenant in tenants {
        let network = &tenant["network"];
        let listed = if network["public"] == "listed" { "listed only: " } else { "" };
        let allow = network["allow"].as_array().into_iter().flatten();
        let allow = allow.map(plain).collect::<Vec<_>>().join(" ");
        let keys = tenant["trusted_keys"].as_array().into_iter().flatten();
        table.row([
            plain(&tenant["name"]),
            plain(&tenant["default_plugin"]),
            moment(&tenant["created_at"]),
            quota::line(&tenant["quotas"]),
            format!("{listed}{allow}"),
            keys.map(|key| plain(&key["id"])).collect::<Vec<_>>().join(" "),
        ]);
    }
    out!("{}", table.text("there are no tenants; create one with `rollout-host tenant create`"));
}

fn show(tenant: &Value) {
    list(std::slice::from_ref(tenant));
    let usage = &tenant["usage"];
    outln!("\ncomponents: {} bytes\n", usage["component_bytes"]);
    let mut table = Table::new(["day (UTC)", "model tokens", "guest CPU seconds"]);
    for day in usage["days"].as_array().into_iter().flatten() {
        let cpu = day["guest_cpu_seconds"].as_f64().unwrap_or_default();
        table.row([plain(&day["day"]), plain(&day["model_tokens"]), format!("{cpu:.1}")]);
    }
    out!("{}", table.text("no usage in the last 30 days"));
}
