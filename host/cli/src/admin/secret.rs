//! The command `secret`, which manages secrets that a tenant's configurations refer to.

use std::io::Read;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::{AnswerOptions, TenantServerOptions, plain};
use crate::print::outln;
use crate::{Exit, setup};

/// Maximum number of bytes of a secret.
const SECRET_BYTES_MAX: u64 = 16 << 10;

/// Manages secrets on a server with a catalog: keys of judges and tools, which a plugin's configuration names
/// instead of environment variables.
///
/// The server stores secrets encrypted and never returns them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host secret set judge-key < judge.key\n  \
    rollout-host secret set judge-key --from-env JUDGE_KEY\n  \
    rollout-host secret list")]
pub(crate) struct SecretCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stores a secret and replaces an existing one of the same name.
    Set(Set),
    /// Lists the names of secrets.
    List(List),
    /// Removes a secret.
    Remove(Remove),
}

#[derive(Debug, Args)]
struct Set {
    /// Name of the secret: lower-case letters, digits, '-' and '_'.
    name: String,
    /// Environment variable with the secret. [default: standard input]
    #[arg(long, value_name = "VAR")]
    from_env: Option<String>,
    #[command(flatten)]
    server: TenantServerOptions,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    server: TenantServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Remove {
    /// The secret.
    name: String,
    #[command(flatten)]
    server: TenantServerOptions,
}

impl SecretCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Set(Set { name, from_env, server }) => {
                let value = match setup::key_from_env("--from-env", from_env.as_deref())? {
                    Some(secret) => secret.expose().to_owned(),
                    None => read()?,
                };
                let body = json!({ "value": value });
                server.run(async |client| client.call(Method::PUT, &["secrets", &name], Some(body)).await)?;
                outln!("secret '{name}' is stored");
            }
            Command::List(List { server, answer }) => {
                let secrets = server.run(async |client| client.get(&["secrets"]).await)?;
                answer.show(&secrets["items"], || {
                    for name in secrets["items"].as_array().into_iter().flatten() {
                        outln!("{}", plain(name));
                    }
                    if secrets["items"] == Value::Array(Vec::new()) {
                        outln!("there are no secrets; add one with `rollout-host secret set`");
                    }
                });
            }
            Command::Remove(Remove { name, server }) => {
                server.run(async |client| client.call(Method::DELETE, &["secrets", &name], None).await)?;
                outln!("secret '{name}' is removed");
            }
        }
        Ok(Exit::Done)
    }
}

/// Reads a secret from standard input, without the line end.
fn read() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        bail!("the secret on standard input has more than {SECRET_BYTES_MAX} bytes");
    }
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        bail!("standard input has no secret; pipe it in, or give --from-env VAR");
    }
    Ok(text.to_owned())
}
