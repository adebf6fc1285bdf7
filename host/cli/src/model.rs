//! Options for the model, for every command that runs a plugin itself.

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

/// Name that selects the built-in stand-in.
const MOCK: &str = "mock";

/// Options for the model.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelOptions {
    /// Name of the model at its server; `mock` runs the built-in stand-in.
    #[arg(long = "model", value_name = "NAME")]
    pub name: String,
    /// URL of the model's server, without /chat/completions.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Environment variable with the server's key.
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Starts without checking that the servers of model and judge are reachable and accept their keys.
    #[arg(long)]
    no_model_check: bool,
    /// With `--model mock`: fraction of wrong replies, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub mock_error_rate: f64,
    /// With `--model mock`: seed that selects the wrong replies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mock_seed: u64,
    /// With `--model mock`: time until a reply.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    mock_latency: u64,
    /// With `--model mock`: file with replies; `rollout-host mock-model --help` describes its format.
    #[arg(long, value_name = "FILE")]
    mock_script: Option<PathBuf>,
}

impl ModelOptions {
    /// Returns the server's key, or an error if no server is given.
    pub(crate) fn key(&self) -> Result<Option<Secret>> {
        if self.base_url.is_none() && self.name != MOCK {
            bail!(
                "the model '{}' needs the URL of its server; add --base-url URL, or use `--model mock`",
                self.name
            );
        }
        setup::key_from_env("--api-key-env", self.api_key_env.as_deref())
    }

    /// Checks that the servers of model and judge are reachable and returns the model. The stand-in, if it is
    /// used, serves until it is dropped.
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
        errln!("the model is the built-in stand-in, which only solves arithmetic");
        Ok((Model::new(&mock.base_url(), MOCK, key)?, Some(mock)))
    }

    /// Checks that a server is reachable and accepts the key.
    async fn check(
        &self,
        role: &str,
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
                format!("is it running, and is {url_option} correct?")
            }
            (Unreachable::Unauthorized { .. }, false) => {
                format!("name the environment variable with its key with {key_option} VAR")
            }
            (Unreachable::Unauthorized { .. }, true) => {
                format!("is the key that {key_option} names correct?")
            }
        };
        bail!("the {role}'s server cannot be used: {error}; {advice} (--no-model-check skips this check)")
    }
}
