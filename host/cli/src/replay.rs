//! The command `replay`, which runs a recorded rollout of a journal or a file again.

mod script;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::journal::{self, stored_component};
use super::options::HostOptions;
use super::print::outln;
use super::progress::Working;
use super::{Exit, PluginFault, setup};
use rollout_assembly::config::{Config, RawConfig, RawJudge};
use rollout_assembly::{Options, Sources};
use rollout_guest::imports::Difference;
use rollout_rollout::{
    AfterWorkflow, DeploymentId, Failure, FailureKind, Finished, Host, Next, Outcome, ReplayEnd, RolloutEnd,
    Stage, Steps, StoredRollout, drive,
};
use rollout_server::dialect::osmosis::a;
use rollout_transcript::{CallResult, End, Event, StoredCall};
use rollout_wire::id::RolloutId;
use rollout_wire::text::{beginning, printable};
use script::Script;

/// Maximum number of bytes of a text that are shown in a line.
const SHOWN_BYTES: usize = 72;

/// Maximum number of lines of a difference that are shown.
const DIFF_LINES_MAX: usize = 60;

/// Replays a recorded rollout with the recorded answers, without calling a model, and reports whether it
/// behaves the same.
///
/// The component is the one stored in the journal, or another build of it given by --plugin. If `serve` or
/// `eval` had a --config with tools, limits or sampling parameters, give the same one.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every call and the outcome are the same; 1 they differ; 2 the rollout could not be replayed.\n\n\
    Examples:\n  \
    rollout-host replay r1\n  \
    rollout-host replay r1 --journal /var/lib/rollouts/journal --plugin my_agent.wasm --until 3\n  \
    rollout-host replay row-00007-run-0 --journal evals/my_agent-rows-1700000000\n  \
    rollout-host replay r1 --save r1.rollout\n  \
    rollout-host replay r1.rollout --plugin my_agent.wasm --interactive"
)]
pub(super) struct Replay {
    /// Id of the rollout, of the last one if several have this id; or a file that --save wrote.
    #[arg(value_name = "ID|FILE")]
    id: String,
    /// Directory of the journal or of an evaluation's results, even while another process has it open.
    /// [default: the journal of a `serve` with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// Component to run instead of the one that is stored in the journal or next to the file.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Stops before this call of the workflow, counted from 1, and compares the earlier calls.
    #[arg(long, value_name = "CALL", value_parser = clap::value_parser!(u32).range(1..))]
    until: Option<u32>,
    /// Writes the rollout with its whole history, but without keys, to a file that can be shared.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["until", "plugin", "interactive"])]
    save: Option<PathBuf>,
    /// Shows the rollout as `test` does and stops at every reply of the model.
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    host: HostOptions,
}

/// A recorded rollout and the directory in which its components may be.
struct Source {
    stored: StoredRollout,
    components_dir: PathBuf,
}

impl Replay {
    pub(crate) fn run(self) -> Result<Exit> {
        let raw = RawConfig { max_concurrent: Some(1), ..self.host.raw_config()? };
        let config = raw.clone().resolve()?;
        if let Some(to) = &self.save {
            return self.save(&config, to);
        }
        let Source { stored, components_dir } = self.source(&config)?;
        let config = with_judge_of(raw, &stored).resolve()?;
        let DeploymentId { workflow, grader, .. } = &stored.deployment;
        let stored_component = |digest: &str| component(&components_dir, digest);
        let plugin = self.plugin.clone().unwrap_or_else(|| stored_component(workflow));
        let given = self.host.rollout.grader.clone();
        let grader = given.or_else(|| grader.as_deref().map(stored_component));
        check_exists(&plugin, "--plugin")?;
        grader.as_deref().map_or(Ok(()), |grader| check_exists(grader, "--grader"))?;
        let runtime = setup::runtime()?;
        let sources = Sources::of(&plugin, grader.as_deref());
        let assembled = self.host.rollout.host(&runtime, sources, &config, Options::default())?;
        let exit = runtime.block_on(self.replay(&assembled.host, &config, stored));
        // A thread that waits for a line of input is not awaited.
        runtime.shutdown_background();
        exit
    }

    /// Reads the rollout from a file or a journal.
    fn source(&self, config: &Config) -> Result<Source> {
        let file = Path::new(&self.id);
        if file.is_file() {
            let stored = StoredRollout::load(file).with_context(|| format!("cannot replay {}", self.id))?;
            let components_dir = file.parent().unwrap_or(Path::new("")).to_owned();
            return Ok(Source { stored, components_dir });
        }
        let (journal, id) = (journal::find(self.journal.as_deref(), config)?, self.rollout_id()?);
        let found = StoredRollout::find(&journal, &id);
        let found = found.with_context(|| format!("the journal in {} cannot be read", journal.display()))?;
        Ok(Source { stored: found.ok_or_else(|| self.not_found(&journal))?, components_dir: journal })
    }

    /// Writes the rollout to a file.
    fn save(&self, config: &Config, to: &Path) -> Result<Exit> {
        let (journal, id) = (journal::find(self.journal.as_deref(), config)?, self.rollout_id()?);
        let saved = StoredRollout::save(&journal, &id, to);
        let saved = saved.with_context(|| format!("cannot save the rollout to {}", to.display()))?;
        let DeploymentId { workflow, grader, .. } = saved.ok_or_else(|| self.not_found(&journal))?.deployment;
        outln!("{} has rollout '{}', without keys", to.display(), self.id);
        for digest in [Some(workflow), grader].into_iter().flatten() {
            let component = stored_component(&journal, &digest);
            outln!("it ran {digest}, which is {}", component.display());
        }
        Ok(Exit::Done)
    }

    fn rollout_id(&self) -> Result<RolloutId> {
        let id = RolloutId::parse(self.id.as_str());
        id.with_context(|| format!("'{}' is neither a file nor the id of a rollout", self.id))
    }

    fn not_found(&self, journal: &Path) -> anyhow::Error {
        anyhow::anyhow!("there is no rollout '{}' in the journal in {}", self.id, journal.display())
    }

    /// Replays the rollout and reports the result.
    async fn replay(&self, host: &Host, config: &Config, stored: StoredRollout) -> Result<Exit> {
        let model = rollout_rollout::RequestSecrets::default().endpoint(&stored.request.model);
        let model = model.context("the address of the rollout's model is invalid")?;
        let model = match stored.request.model.profile {
            Some(_) => a::with_caller_profile(model, &stored.request, &config.osmosis_init, host.form()),
            None => Some(model),
        };
        let model = model.context("the rollout's requests cannot be created")?;
        let stored = match self.until {
            Some(call) => stored.until(call),
            None => stored,
        };
        let steps = self.interactive.then(|| Script::new(&stored));
        if steps.is_none() {
            show("workflow", &stored.workflow);
            show("grader", &stored.grader);
        }
        let recorded = stored.outcome.clone();
        let grade = recorded.as_ref().map_or(self.until.is_none(), |recorded| was_graded(recorded));
        let replay = host.replay(stored, model).context("the rollout cannot be replayed")?;
        let working = steps.is_none().then(|| Working::on("running the rollout again".to_owned()));
        let ended =
            drive(replay.rollout, Box::new(Replaying { grade: grade && host.grader().is_some() })).await;
        let now = match ended {
            RolloutEnd::Finished(now) | RolloutEnd::Cancelled(now) => now,
            RolloutEnd::Crashed(failure) => return Err(PluginFault(failure.reason).into()),
        };
        drop(working);
        let end = replay.end.get();
        if let Some(steps) = steps
            && !steps.show(end, &now).await
        {
            outln!("quit; the rollouts were not compared");
            return Ok(Exit::NotDone);
        }
        Ok(compare(recorded.as_deref(), &now, end, self.until))
    }
}

/// Returns the path of a component, in the directory itself or in the journal that it is.
fn component(dir: &Path, digest: &str) -> PathBuf {
    let plain = dir.join(format!("{digest}.wasm"));
    if plain.is_file() { plain } else { stored_component(dir, digest) }
}

/// Checks that the file of a component exists.
pub(super) fn check_exists(component: &Path, option: &str) -> Result<()> {
    if !component.exists() {
        bail!("{} does not exist; give the component with {option}", component.display());
    }
    Ok(())
}

/// Configures a judge with the recorded name if the grader had a judge and none is configured. A replay never
/// calls it.
fn with_judge_of(raw: RawConfig, stored: &StoredRollout) -> RawConfig {
    let model = stored.grader.iter().find_map(|event| match event {
        Event::Started { request, .. } => {
            let StoredCall::Model(request) = StoredCall::read(request).ok()? else { return None };
            let body: Value = serde_json::from_str(&request.template?.body).ok()?;
            Some(body.get("model")?.as_str()?.to_owned())
        }
        _ => None,
    });
    match model {
        Some(model) if raw.judge.model.is_none() => {
            let url = Some("http://127.0.0.1:9/v1".to_owned());
            RawConfig { judge: RawJudge { url, model: Some(model), ..raw.judge }, ..raw }
        }
        _ => raw,
    }
}

/// Steps of a replay, which only grade.
struct Replaying {
    grade: bool,
}

impl Steps for Replaying {
    type End = RolloutEnd;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::graded(self.grade))
    }

    async fn finished(self: Box<Self>, ended: RolloutEnd) -> RolloutEnd {
        ended
    }
}

/// Returns whether the grader ran.
fn was_graded(finished: &Finished) -> bool {
    match &finished.outcome {
        Outcome::Scored { .. } => true,
        Outcome::Unscored(failure) => {
            failure.stage == Stage::Grader && failure.kind != FailureKind::NotGraded
        }
    }
}

/// Prints the recorded events, one per line.
fn show(role: &str, events: &[Event]) {
    for event in events {
        match event {
            Event::Started { at, call, request, .. } => {
                outln!("{role} call {call}, move {at}: {}", request_line(request));
            }
            Event::Answered { call, result, .. } => outln!("  to {call}: {}", answer_line(result)),
            Event::Ended { call, end: End::Refused(answer) } => {
                outln!("  to {call}: {}", line(&answer.content));
            }
            Event::TimedOut { at } => outln!("{role} wait timed out, move {at}"),
            Event::TimeLeft { at, left } => {
                let left = left.map_or("no deadline".to_owned(), |left| format!("{} ms", left.as_millis()));
                outln!("{role} time left, move {at}: {left}");
            }
            // The answer of a call is shown, not its end.
            Event::Ended { .. } | Event::Cut { .. } => {}
        }
    }
}

/// Shortens a text to one line.
pub(super) fn line(text: &str) -> String {
    printable(&beginning(text, SHOWN_BYTES)).replace('\n', " ")
}

fn request_line(request: &[u8]) -> String {
    let request = match StoredCall::read(request) {
        Ok(StoredCall::Tool(call)) => return line(&format!("{}({})", call.tool, call.arguments)),
        Ok(StoredCall::Model(request)) => request,
        Err(_) => return line("?"),
    };
    let before = if request.shared == 0 { String::new() } else { format!("after {}, ", request.shared) };
    let last = request.new.last().map_or("nothing new", |message| message.get());
    line(&format!("{before}{last}"))
}

fn answer_line(result: &CallResult) -> String {
    match result {
        CallResult::Model(Ok(reply)) => line(reply.completion.message()),
        CallResult::Model(Err(failure)) => line(&failure.to_string()),
        CallResult::Tool(answer) => line(&answer.content),
    }
}

/// Compares the replay with the record and prints the result.
fn compare(then: Option<&Finished>, now: &Finished, end: Option<&ReplayEnd>, until: Option<u32>) -> Exit {
    if let Some(ReplayEnd::Diverged(role, diverged)) = end {
        outln!("\nnot the same: in the {}, {diverged}", role.as_str());
        if let Difference::Asked { then, now, .. } = &diverged.difference {
            let text = |what: Option<&[u8]>| what.map(readable).unwrap_or_default();
            diff(&text(then.as_ref().map(|(_, what)| &**what)), &text(now.as_deref()));
        }
        return Exit::Plugin;
    }
    let is_cut = matches!(end, Some(ReplayEnd::PastOver(_)));
    let Some(then) = then else {
        let to = until.map_or("as far as it is recorded".to_owned(), |call| format!("up to call {call}"));
        outln!("\nthe same {to}{}", if is_cut { "" } else { ", and the rollout ends there" });
        return Exit::Done;
    };
    // The recorded rollout was stopped from outside; a replay cannot know when.
    if is_cut && matches!(then.outcome, Outcome::Unscored(_)) {
        outln!("\nthe same, up to where the rollout was stopped: {}", outcome(then));
        return Exit::Done;
    }
    let (was, is) = (result(then), result(now));
    if was == is {
        outln!("\nthe same: {}", outcome(then));
        return Exit::Done;
    }
    outln!("\nnot the same: the calls match, but the outcome differs");
    diff(&was, &is);
    Exit::Plugin
}

/// Renders the outcome of a rollout.
pub(super) fn outcome(finished: &Finished) -> String {
    match &finished.outcome {
        Outcome::Scored { reward } => format!("reward {reward}"),
        Outcome::Unscored(failure) => {
            format!(
                "no reward, {} {}: {}",
                failure.stage.as_str(),
                failure.kind.as_str(),
                line(&failure.reason)
            )
        }
    }
}

/// Renders the results that a replay must reproduce, for a comparison line by line.
fn result(finished: &Finished) -> String {
    let mut text = match &finished.outcome {
        Outcome::Scored { reward } => format!("reward {reward}\n"),
        Outcome::Unscored(failure) => {
            format!("no reward: {} {}: {}\n", failure.stage.as_str(), failure.kind.as_str(), failure.reason)
        }
    };
    for sample in &finished.samples {
        let record = &sample.record;
        let reward = sample.reward.map_or("none".to_owned(), |reward| reward.to_string());
        text += &format!("sample {}: reward {reward}, withdrawn: {}\n", record.id, record.withdrawn);
        for (name, value) in &record.metrics {
            text += &format!("  {name} {value}\n");
        }
        for (name, value) in record.fields.iter() {
            text += &format!("  {name} = {value}\n");
        }
        for message in record.messages.iter() {
            text += &format!("  {message}\n");
        }
    }
    text
}

/// Renders a request as indented JSON.
fn readable(what: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(what);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_default()
}

/// Prints the lines that differ, with one line of context.
fn diff(then: &str, now: &str) {
    let diff = TextDiff::from_lines(then, now);
    let groups = diff.grouped_ops(1);
    let changes = groups.iter().flatten().flat_map(|change| diff.iter_changes(change));
    for (number, change) in changes.enumerate() {
        if number == DIFF_LINES_MAX {
            outln!("… and more");
            return;
        }
        let sign = match change.tag() {
            ChangeTag::Delete => "then -",
            ChangeTag::Insert => "now  +",
            ChangeTag::Equal => "      ",
        };
        outln!("{sign} {}", printable(change.value().trim_end_matches('\n')));
    }
}
