//! Commands that administer a running server through its admin API.

mod client;
pub(super) mod key;
pub(super) mod plugin;
pub(super) mod push;
mod quota;
pub(super) mod secret;
pub(super) mod table;
pub(super) mod tenant;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::print::outln;
use super::{OUTPUT, setup};
use client::Client;

/// Heading of the options for the server.
const SERVER: &str = "Server";

/// Options for the server and the key.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerOptions {
    /// URL of the server, such as https://rollouts.example.
    #[arg(long = "to", value_name = "URL", env = "ROLLOUT_HOST_URL", hide_env_values = true, help_heading = SERVER)]
    url: String,
    /// Environment variable with the key.
    #[arg(long, value_name = "VAR", default_value = "ROLLOUT_HOST_KEY", help_heading = SERVER)]
    key_env: String,
}

/// Options for the server, the key and the tenant.
#[derive(Clone, Debug, Args)]
pub(super) struct TenantServerOptions {
    #[command(flatten)]
    server: ServerOptions,
    /// Tenant to work on; required with an operator key, which belongs to no tenant.
    #[arg(long, value_name = "NAME", help_heading = SERVER)]
    tenant: Option<String>,
}

/// Options for the output.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct AnswerOptions {
    /// Prints the server's response as JSON.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

impl AnswerOptions {
    /// Prints a response as JSON, or calls `text` to print it for people.
    fn show(self, answer: &Value, text: impl FnOnce()) {
        if self.json {
            outln!("{answer:#}");
        } else {
            text();
        }
    }
}

impl ServerOptions {
    /// Runs `work` with a client of the server.
    fn run<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        self.run_for(None, work)
    }

    fn run_for<T>(&self, tenant: Option<&str>, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        let key = setup::key_from_env("--key-env", Some(&self.key_env))?;
        let key = key.context("no key is given")?;
        let client = Client::new(&self.url, key, tenant)?;
        setup::runtime()?.block_on(work(client))
    }
}

impl TenantServerOptions {
    /// Runs `work` with a client of the server, for the tenant.
    fn run<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        self.server.run_for(self.tenant.as_deref(), work)
    }
}

/// Renders a moment for people: `2026-11-23 12:00`.
fn moment(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    let (day, time) = text.split_once('T').unwrap_or((text, ""));
    format!("{day} {}", time.get(..5).unwrap_or_default()).trim_end().to_owned()
}

/// Renders a text or a number of a response, without quotes; `null` is empty.
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
    fn moments_are_shown_in_minutes() {
        assert_eq!(moment(&json!("2026-11-23T12:34:56Z")), "2026-11-23 12:34");
        assert_eq!(moment(&Value::Null), "");
        assert_eq!(moment(&json!("Tä")), "");
    }
}
