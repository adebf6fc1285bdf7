//! Commands that change a server while it runs: clients of its admin API.

mod client;
pub(super) mod key;
pub(super) mod plugin;
pub(super) mod push;
mod quota;
pub(super) mod secret;
mod table;
pub(super) mod tenant;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::print::outln;
use super::{OUTPUT, setup};
use client::Client;

/// Topic of the options that say which server is asked.
const SERVER: &str = "Server";

/// Which server is asked, and as whom.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerOptions {
    /// The server, such as https://rollouts.example.
    #[arg(long = "to", value_name = "URL", env = "ROLLOUT_HOST_URL", hide_env_values = true, help_heading = SERVER)]
    url: String,
    /// Environment variable with the key.
    #[arg(long, value_name = "VAR", default_value = "ROLLOUT_HOST_KEY", help_heading = SERVER)]
    key_env: String,
}

/// The same, for what is a tenant's.
#[derive(Clone, Debug, Args)]
pub(super) struct TenantServerOptions {
    #[command(flatten)]
    server: ServerOptions,
    /// The tenant that it is about; needed with an operator's key, which is no tenant's.
    #[arg(long, value_name = "NAME", help_heading = SERVER)]
    tenant: Option<String>,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct AnswerOptions {
    /// Writes the server's answer as JSON.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

impl AnswerOptions {
    /// Writes an answer as JSON, or what is made of it for people.
    fn show(self, answer: &Value, text: impl FnOnce()) {
        if self.json {
            outln!("{answer:#}");
        } else {
            text();
        }
    }
}

impl ServerOptions {
    /// Does something with the server.
    fn run<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        self.run_for(None, work)
    }

    fn run_for<T>(&self, tenant: Option<&str>, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        let key = setup::key_from_env("--key-env", Some(&self.key_env))?;
        let key = key.context("there is no key")?;
        let client = Client::new(&self.url, key, tenant)?;
        setup::runtime()?.block_on(work(client))
    }
}

impl TenantServerOptions {
    /// Does something with the server, for the tenant.
    fn run<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        self.server.run_for(self.tenant.as_deref(), work)
    }
}

/// What people read in the place of a moment: `2026-11-23 12:00`.
fn moment(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    let (day, time) = text.split_once('T').unwrap_or((text, ""));
    format!("{day} {}", time.get(..5).unwrap_or_default()).trim_end().to_owned()
}

/// A text or a number of an answer, without quotes; nothing where it is none.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn moments_are_shown_to_the_minute() {
        assert_eq!(moment(&json!("2026-11-23T12:34:56Z")), "2026-11-23 12:34");
        assert_eq!(moment(&Value::Null), "");
        assert_eq!(moment(&json!("Tä")), "");
    }
}
