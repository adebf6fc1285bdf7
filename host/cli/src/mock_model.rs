//! `mock-model`: an endpoint that stands in for a model.

use crate::print::{errln, outln};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::{Exit, setup};
use rollout_mock_model::{MockModel, MockModelSettings, Script};

/// Serves an OpenAI-compatible endpoint that stands in for a model and says so.
///
/// It works out the arithmetic in the last user message, calls a calculator where one is
/// offered (a tool with a string argument named expression, or whose name or description has
/// calc, arith or eval in it), and makes seeded mistakes. A script has it reply anything else.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host mock-model --listen 127.0.0.1:9100 --script replies.jsonl",
    after_long_help = SCRIPT_HELP)]
pub(super) struct MockModelCommand {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    #[command(flatten)]
    behaviour: Behaviour,
}

/// The form of a script, as in `docs/write/mock-model.md`.
const SCRIPT_HELP: &str = r#"A script is JSON Lines. The first line whose `when` holds and whose `times` are not used up
is played; where none is, arithmetic is tried. Every key may be left out:
  when.contains    text in the last user message
  when.rollout_id  the rollout
  when.call        which call of this rollout and sample it is, from 1
  when.has_tools   whether tools are offered
  times            how often the line is played in one rollout
  delay_ms         wait before it, in place of --latency
  headers          headers of the response
and what happens, exactly one of:
  message          an assistant message, with finish_reason, usage, status if need be
  body             JSON that is sent as it is, with status if need be
  text_body        any other text
  hang             true: no answer, ever
  disconnect       true: the connection ends
  status           400 or more, alone: an error as the API words it

Examples:
  rollout-host mock-model --listen 127.0.0.1:9100
  echo '{"message": {"content": "I do not know."}}' > replies.jsonl
  rollout-host mock-model --script replies.jsonl"#;

/// How the stand-in behaves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Behaviour")]
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
    /// Replies from a file: JSON Lines, the first line whose `when` holds is sent. Its form is
    /// below.
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
            errln!("a stand-in, not a model: it works out arithmetic and knows nothing else");
            outln!("listening on {}", model.base_url());
            model.run_until(stop.next()).await;
            Ok(Exit::Done)
        })
    }
}
