//! The options that say which model is asked, the same for every command that runs a
//! plugin itself.

use crate::print::errln;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::mock_model::script;
use super::setup;
use rollout_assembly::config::Judge;
use rollout_eval::run::Model;
use rollout_mock_model::{MockModel, MockModelSettings};
use rollout_outbound::{self as outbound, Secret, Unreachable};

/// The model's name that stands for the built-in stand-in.
const MOCK: &str = "mock";

/// Which model is asked.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelOptions {
    /// The model's name at its server; `mock` runs the built-in stand-in.
    #[arg(long = "model", value_name = "NAME")]
    pub name: String,
    /// The model's server, up to and without /chat/completions.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Environment variable with the server's key.
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Begins without a look at whether the servers of model and judge are there and take
    /// their keys.
    #[arg(long)]
    no_model_check: bool,
    /// With `--model mock`: share of its replies that are wrong, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub mock_error_rate: f64,
    /// With `--model mock`: what decides which replies are wrong.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mock_seed: u64,
    /// With `--model mock`: time that it takes for a reply.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    mock_latency: u64,
    /// With `--model mock`: replies from a file; `rollout-host mock-model --help` has its form.
    #[arg(long, value_name = "FILE")]
    mock_script: Option<PathBuf>,
}

impl ModelOptions {
    /// The server's key, after a look at whether there is a server at all.
    pub(crate) fn key(&self) -> Result<Option<Secret>> {
        if self.base_url.is_none() && self.name != MOCK {
            bail!("--base-url URL says where the model '{}' is; `--model mock` needs none", self.name);
        }
        setup::key_from_env("--api-key-env", self.api_key_env.as_deref())
    }

    /// Where the model is, after a look at whether it is there, and the judge, where that has an
    /// address. The stand-in serves for as long as it is held.
    pub(crate) async fn endpoint(
        &self,
        key: Option<Secret>,
        judge: Option<&Judge>,
    ) -> Result<(Model, Option<MockModel>)> {
        if let Some(base_url) = &self.base_url {
            self.check("model", base_url, key.as_ref(), ["--base-url", "--api-key-env"]).await?;
        }
        if let Some(Judge { url: Some(url), api_key_env, .. }) = judge {
            let key = setup::key_from_env("judge.api-key-env", api_key_env.as_deref())?;
            self.check("judge", url, key.as_ref(), ["--judge-url", "--judge-api-key-env"]).await?;
        }
        if let Some(base_url) = &self.base_url {
            return Ok((Model::new(base_url, &self.name, key)?, None));
        }
        let settings = MockModelSettings {
            latency: Duration::from_millis(self.mock_latency),
            error_rate: self.mock_error_rate,
            failure_rate: 0.0,
            seed: self.mock_seed,
            script: self.mock_script.as_deref().map(script).transpose()?,
        };
        let mock = MockModel::start(SocketAddr::from(([127, 0, 0, 1], 0)), settings).await?;
        errln!("the model is the built-in stand-in, which works out arithmetic and knows nothing else");
        Ok((Model::new(&mock.base_url(), MOCK, key)?, Some(mock)))
    }

    /// A server that is not there, or does not take the key, answers no rollout either.
    async fn check(
        &self,
        who: &str,
        base_url: &str,
        key: Option<&Secret>,
        [url_option, key_option]: [&str; 2],
    ) -> Result<()> {
        if self.no_model_check {
            return Ok(());
        }
        let Err(error) = outbound::probe(&outbound::http_client()?, base_url, key).await else {
            return Ok(());
        };
        let advice = match (&error, key.is_some()) {
            (Unreachable::NoConnection { .. }, _) => {
                format!("is it running, and is {url_option} right?")
            }
            (Unreachable::Unauthorized { .. }, false) => {
                format!("{key_option} VAR names the environment variable with its key")
            }
            (Unreachable::Unauthorized { .. }, true) => {
                format!("is the key right that {key_option} names?")
            }
        };
        bail!("the {who}'s server cannot be used: {error}; {advice} (--no-model-check begins all the same)")
    }
}
