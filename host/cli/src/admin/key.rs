//! The command `key`, which manages keys.

use std::time::Duration;

use anyhow::Result;
use chrono::{SecondsFormat, Utc};
use clap::{Args, Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};

use super::table::Table;
use super::{AnswerOptions, ServerOptions, moment, plain};
use crate::Exit;
use crate::print::{errln, out, outln};

/// Creates, lists and revokes keys of a server with a catalog. Needs an operator key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    rollout-host key create --tenant team-a --rights author --name laptop > author.key\n  \
    rollout-host key create --tenant team-a --rights caller --expires-in 30d\n  \
    rollout-host key list --tenant team-a\n  \
    rollout-host key revoke 7")]
pub(crate) struct KeyCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates a key and writes it to standard output. It is shown only once.
    Create(Create),
    /// Lists keys with their first characters and when they were last used.
    List(List),
    /// Revokes a key, so that the server refuses it.
    Revoke(Revoke),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rights {
    /// May do everything, for all tenants.
    Operator,
    /// May push and activate plugins of a tenant, and everything that a caller may.
    Author,
    /// May run rollouts of a tenant, and everything that a viewer may.
    Caller,
    /// May read a tenant's data.
    Viewer,
}

impl Rights {
    fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Caller => "caller",
            Self::Viewer => "viewer",
        }
    }
}

#[derive(Debug, Args)]
struct Create {
    /// Rights of the key.
    #[arg(long, value_enum)]
    rights: Rights,
    /// Tenant of the key; required unless it is an operator key.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Name of the key, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// Time until the key expires, such as 12h or 30d. [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct List {
    /// Lists only keys of this tenant. [default: all keys]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    answer: AnswerOptions,
}

#[derive(Debug, Args)]
struct Revoke {
    /// Id of the key, as shown by `key list`.
    id: u64,
    #[command(flatten)]
    server: ServerOptions,
}

impl KeyCommand {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Create(create) => create.run()?,
            Command::List(List { tenant, server, answer }) => {
                let query: Vec<(&str, &str)> =
                    tenant.iter().map(|tenant| ("tenant", tenant.as_str())).collect();
                let keys = server.run(async |client| client.list(&["keys"], &query).await)?;
                answer.show(&Value::Array(keys.clone()), || list(&keys));
            }
            Command::Revoke(Revoke { id, server }) => {
                let id = id.to_string();
                server.run(async |client| client.call(Method::DELETE, &["keys", &id], None).await)?;
                outln!("key {id} is revoked");
            }
        }
        Ok(Exit::Done)
    }
}

impl Create {
    fn run(self) -> Result<()> {
        let Self { rights, tenant, name, expires_in, server, answer } = self;
        let mut body = json!({"name": name, "rights": rights.name(), "tenant": tenant});
        if let Some(time) = expires_in {
            body["expires_at"] = json!((Utc::now() + time).to_rfc3339_opts(SecondsFormat::Secs, true));
        }
        let created = server.run(async |client| client.call(Method::POST, &["keys"], Some(body)).await)?;
        answer.show(&created, || {
            outln!("{}", plain(&created["key"]));
            let owner =
                created["tenant"].as_str().map_or(String::new(), |name| format!(" of tenant '{name}'"));
            errln!("key {}, {}{owner}; it is not shown again", created["id"], rights.name());
        });
        Ok(())
    }
}

/// Parses a time such as `90s`, `15m`, `12h` or `30d`.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time '{text}'; write 15m, 12h or 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let secs: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    // The maximum is a hundred years.
    let time = u64::from(number).saturating_mul(secs).min(100 * 365 * 24 * 60 * 60);
    if time == 0 { Err(wrong()) } else { Ok(Duration::from_secs(time)) }
}

fn list(keys: &[Value]) {
    let mut table = Table::new(["id", "key", "rights", "tenant", "name", "created", "last used", "expires"]);
    for key in keys {
        let ends = match (&key["revoked_at"], &key["expires_at"]) {
            (Value::Null, Value::Null) => String::new(),
            (Value::Null, end) => moment(end),
            (revoked, _) => format!("revoked {}", moment(revoked)),
        };
        table.row([
            plain(&key["id"]),
            format!("{}…", plain(&key["prefix"])),
            plain(&key["rights"]),
            plain(&key["tenant"]),
            plain(&key["name"]),
            moment(&key["created_at"]),
            moment(&key["last_used_at"]),
            ends,
        ]);
    }
    out!("{}", table.text("there are no keys; create one with `rollout-host key create`"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_a_number_and_a_unit() {
        for (text, secs) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(time(text), Ok(Duration::from_secs(secs)));
        }
        for wrong in ["", "d", "30", "0d", "-1d", "1w", "1.5h", "3ü"] {
            assert!(time(wrong).unwrap_err().contains("write 15m, 12h or 30d"), "{wrong}");
        }
    }
}
