//! `secret`: keys that a tenant's configurations name.

use std::io::Read;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::{AnswerOptions, TenantServerOptions, plain};
use crate::print::outln;
use crate::{Exit, setup};

/// The longest secret that is read, in bytes.
const SECRET_BYTES_MAX: u64 = 16 << 10;

/// Keeps secrets at a server with a catalog: keys of judges and tools, which a plugin's configuration
/// names in the place of environment variables.
///
/// A server keeps them sealed and gives them to nobody.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host secret set judge-key < judge.key\n  \
    rollout-host secret set judge-key --from-env JUDGE_KEY\n  \
    rollout-host secret list")]
pub(crate) struct Secret {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps a secret, in the place of the one that had the name.
    Set(Set),
    /// Lists the names of secrets.
    List(List),
    /// Removes a secret.
    Remove(Remove),
}

#[derive(Debug, Args)]
struct Set {
    /// Its name: lower-case letters, digits, '-' and '_'.
    name: String,
    /// Environment variable with the secret. [default: it is read from standard input]
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

impl Secret {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Set(Set { name, from_env, server }) => {
                let value = match setup::key_from_env("--from-env", from_env.as_deref())? {
                    Some(secret) => secret.expose().to_owned(),
                    None => read()?,
                };
                let body = json!({ "value": value });
                server.run(async |client| client.ask(Method::PUT, &["secrets", &name], Some(body)).await)?;
                outln!("secret '{name}' is kept");
            }
            Command::List(List { server, answer }) => {
                let secrets = server.run(async |client| client.get(&["secrets"]).await)?;
                answer.show(&secrets["items"], || {
                    for name in secrets["items"].as_array().into_iter().flatten() {
                        outln!("{}", plain(name));
                    }
                    if secrets["items"] == Value::Array(Vec::new()) {
                        outln!("there are no secrets; `rollout-host secret set` keeps one");
                    }
                });
            }
            Command::Remove(Remove { name, server }) => {
                server.run(async |client| client.ask(Method::DELETE, &["secrets", &name], None).await)?;
                outln!("secret '{name}' is removed");
            }
        }
        Ok(Exit::Done)
    }
}

/// What comes on standard input, without the line's end.
fn read() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().take(SECRET_BYTES_MAX + 1).read_to_string(&mut text).context("standard input")?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        bail!("standard input has more than {SECRET_BYTES_MAX} bytes, which is no secret");
    }
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        bail!("standard input has no secret; pipe it in, or give --from-env VAR");
    }
    Ok(text.to_owned())
}
