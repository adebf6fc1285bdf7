//! `mock-model`: an endpoint that stands in for a model.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::{Exit, setup};
use crate::mock_model::{MockModel, Script, Settings};

/// Serves an OpenAI-compatible endpoint that stands in for a model and says so. It can
/// work out arithmetic, calls a calculator tool where one is offered, and makes seeded
/// mistakes; a script can have it reply anything else.
#[derive(Debug, Args)]
pub(super) struct MockModelCommand {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    #[command(flatten)]
    behaviour: Behaviour,
}

/// How the stand-in behaves.
#[derive(Debug, Args)]
pub(super) struct Behaviour {
    /// Time that it takes for a reply.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency: u64,
    /// Share of its replies that are wrong, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    error_rate: f64,
    /// Share of the requests that it answers with 503, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    failure_rate: f64,
    /// What decides which replies are wrong.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Replies from a file: JSON Lines, the first line whose `when` holds is sent.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl Behaviour {
    fn settings(self) -> Result<Settings> {
        Ok(Settings {
            latency: Duration::from_millis(self.latency),
            error_rate: self.error_rate,
            failure_rate: self.failure_rate,
            seed: self.seed,
            script: self.script.as_deref().map(script).transpose()?,
        })
    }
}

/// Reads a script of replies.
pub(super) fn script(path: &Path) -> Result<Script> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Script::parse(&text).with_context(|| format!("{}", path.display()))
}

impl MockModelCommand {
    pub fn run(self) -> Result<Exit> {
        let settings = self.behaviour.settings()?;
        setup::runtime()?.block_on(async {
            let mut stop = setup::StopSignal::new()?;
            let model = MockModel::start(self.listen, settings).await?;
            eprintln!("a stand-in, not a model: it works out arithmetic and knows nothing else");
            println!("listening on {}", model.base_url());
            model.run_until(stop.next()).await;
            Ok(Exit::Done)
        })
    }
}
