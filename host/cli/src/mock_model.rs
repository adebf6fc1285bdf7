//! The command `mock-model`, which serves an endpoint that stands in for a model.

use crate::print::{errln, outln};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::{Exit, setup};
use rollout_mock_model::{MockModel, MockModelSettings, Script};

/// Serves an OpenAI-compatible endpoint that stands in for a model.
///
/// The stand-in solves the arithmetic in the last user message, calls a calculator if one is offered (a tool
/// with a string argument named expression, or with calc, arith or eval in its name or description), and
/// makes seeded mistakes. A script can define any other reply.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host mock-model --listen 127.0.0.1:9100 --script replies.jsonl",
    after_long_help = SCRIPT_HELP)]
pub(super) struct MockModelCommand {
    /// Address to listen on; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    #[command(flatten)]
    behaviour: Behaviour,
}

/// Format of a script, as in `docs/write/mock-model.md`.
const SCRIPT_HELP: &str = r#"A script is JSON Lines. The first line whose `when` matches and whose `times` are not used up is
the reply; if no line matches, the stand-in tries arithmetic. Every key is optional:
  when.contains    text in the last user message
  when.rollout_id  the rollout
    when.call        number of the call in this rollout and sample, from 1
  when.has_tools   whether tools are offered
    times            maximum number of uses of the line in one rollout
    delay_ms         wait before the reply, instead of --latency
  headers          headers of the response
and exactly one of:
    message          an assistant message, optionally with finish_reason, usage, status
    body             JSON that is sent unchanged, optionally with status
  text_body        any other text
    hang             true: never answers
    disconnect       true: closes the connection
    status           400 or more, alone: an error in the API's format

Examples:
  rollout-host mock-model --listen 127.0.0.1:9100
  echo '{"message": {"content": "I do not know."}}' > replies.jsonl
  rollout-host mock-model --script replies.jsonl"#;

/// Options for the stand-in's behaviour.
#[derive(Debug, Args)]
#[command(next_help_heading = "Behaviour")]
pub(super) struct Behaviour {
    /// Time until a reply.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency: u64,
    /// Fraction of wrong replies, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    error_rate: f64,
    /// Fraction of requests that are answered with 503, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    failure_rate: f64,
    /// Seed that selects the wrong replies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// File with replies in JSON Lines, whose format is described below. The first line whose `when` matches
    /// is sent.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

impl Behaviour {
    fn settings(self) -> Result<MockModelSettings> {
        Ok(MockModelSettings {
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
    pub(crate) fn run(self) -> Result<Exit> {
        let settings = self.behaviour.settings()?;
        setup::runtime()?.block_on(async {
            let mut stop = setup::StopSignal::new()?;
            let model = MockModel::start(self.listen, settings).await?;
            errln!("this is a stand-in, not a model: it only solves arithmetic");
            outln!("listening on {}", model.base_url());
            model.run_until(stop.next()).await;
            Ok(Exit::Done)
        })
    }
}
