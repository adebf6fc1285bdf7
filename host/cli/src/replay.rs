//! `replay`: a rollout of a journal, or of a file, made again.

mod script;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::journal::{self, kept_component};
use super::options::HostOptions;
use super::print::outln;
use super::{Exit, PluginFault, setup};
use rollout_assembly::config::{Config, RawConfig, RawJudge};
use rollout_assembly::{Options, Sources};
use rollout_core::id::RolloutId;
use rollout_core::imports::Difference;
use rollout_core::rollout::{
    AfterWorkflow, DeploymentId, Ended, Failure, FailureKind, Finished, Host, Next, Outcome, ReplayEnd,
    Stage, Steps, StoredRollout, drive,
};
use rollout_core::text::{beginning, printable};
use rollout_server::dialect::osmosis::a;
use rollout_transcript::{CallResult, End, Event, StoredCall};
use script::Script;

/// How much of a text is shown in a line, in bytes.
const SHOWN_BYTES: usize = 72;

/// Lines of a difference that are shown.
const DIFF_LINES_MAX: usize = 60;

/// Makes a rollout of a journal again, with what was answered then and nobody asked, and says
/// whether it is the same.
///
/// The component is the one that the journal keeps, or another build of it given by --plugin. It needs
/// the same --config as `serve` or `eval` where that has tools, limits or sampling parameters.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every call and the outcome are the same; 1 they are not; 2 it could not be tried.\n\n\
    Examples:\n  \
    rollout-host replay r1\n  \
    rollout-host replay r1 --journal /var/lib/rollouts/journal --plugin my_agent.wasm --until 3\n  \
    rollout-host replay row-00007-run-0 --journal evals/my_agent-rows-1700000000\n  \
    rollout-host replay r1 --save r1.rollout\n  \
    rollout-host replay r1.rollout --plugin my_agent.wasm --interactive"
)]
pub(super) struct Replay {
    /// The rollout's id; of several with the same, the last one. Or a file that --save wrote.
    #[arg(value_name = "ID|FILE")]
    id: String,
    /// The journal, or the results of an evaluation, whoever has it open. [default: that of a
    /// `serve` with the same --config]
    #[arg(long, value_name = "DIR", overrides_with = "journal")]
    journal: Option<PathBuf>,
    /// A component in the place of the one that the journal keeps, or that lies beside the file.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Ends before this call of the workflow, from 1, and compares what is before.
    #[arg(long, value_name = "CALL", value_parser = clap::value_parser!(u32).range(1..))]
    until: Option<u32>,
    /// Writes the rollout to a file of its own, with all that happened and without keys, to be given to
    /// somebody else.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["until", "plugin", "interactive"])]
    save: Option<PathBuf>,
    /// Shows it as `test` does, and stops at every reply of the model.
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    host: HostOptions,
}

/// A rollout, and where components that ran it may be.
struct Source {
    stored: StoredRollout,
    beside: PathBuf,
}

impl Replay {
    pub(crate) fn run(self) -> Result<Exit> {
        let raw = RawConfig { max_concurrent: Some(1), ..self.host.raw_config()? };
        let config = raw.clone().resolve()?;
        if let Some(to) = &self.save {
            return self.save(&config, to);
        }
        let Source { stored, beside } = self.source(&config)?;
        let config = with_judge_of(raw, &stored).resolve()?;
        let DeploymentId { workflow, grader, .. } = &stored.deployment;
        let kept = |digest: &str| component(&beside, digest);
        let plugin = self.plugin.clone().unwrap_or_else(|| kept(workflow));
        let given = self.host.rollout.grader.clone();
        let grader = given.or_else(|| grader.as_deref().map(kept));
        is_there(&plugin, "--plugin")?;
        grader.as_deref().map_or(Ok(()), |grader| is_there(grader, "--grader"))?;
        let runtime = setup::runtime()?;
        let sources = Sources::of(&plugin, grader.as_deref());
        let assembled = self.host.rollout.host(&runtime, sources, &config, Options::default())?;
        let exit = runtime.block_on(self.again(&assembled.host, &config, stored));
        // A thread that waits for a line of input is not waited for.
        runtime.shutdown_background();
        exit
    }

    /// The rollout that is meant: in a file, or in a journal.
    fn source(&self, config: &Config) -> Result<Source> {
        let file = Path::new(&self.id);
        if file.is_file() {
            let stored = StoredRollout::load(file).with_context(|| format!("cannot replay {}", self.id))?;
            let beside = file.parent().unwrap_or(Path::new("")).to_owned();
            return Ok(Source { stored, beside });
        }
        let (journal, id) = (journal::to_read(self.journal.as_deref(), config)?, self.rollout_id()?);
        let found = StoredRollout::find(&journal, &id);
        let found = found.with_context(|| format!("the journal in {} cannot be read", journal.display()))?;
        Ok(Source { stored: found.ok_or_else(|| self.nobody(&journal))?, beside: journal })
    }

    /// Writes the rollout to a file of its own.
    fn save(&self, config: &Config, to: &Path) -> Result<Exit> {
        let (journal, id) = (journal::to_read(self.journal.as_deref(), config)?, self.rollout_id()?);
        let saved = StoredRollout::save(&journal, &id, to);
        let saved = saved.with_context(|| format!("cannot save it to {}", to.display()))?;
        let DeploymentId { workflow, grader, .. } = saved.ok_or_else(|| self.nobody(&journal))?.deployment;
        outln!("{} has rollout '{}', without keys", to.display(), self.id);
        for digest in [Some(workflow), grader].into_iter().flatten() {
            let kept = kept_component(&journal, &digest);
            outln!("it ran {digest}, which is {}", kept.display());
        }
        Ok(Exit::Done)
    }

    fn rollout_id(&self) -> Result<RolloutId> {
        let id = RolloutId::parse(self.id.as_str());
        id.with_context(|| format!("'{}' is no file, and no id either", self.id))
    }

    fn nobody(&self, journal: &Path) -> anyhow::Error {
        anyhow::anyhow!("there is no rollout '{}' in the journal in {}", self.id, journal.display())
    }

    /// Makes it again, and says what came of it.
    async fn again(&self, host: &Host, config: &Config, stored: StoredRollout) -> Result<Exit> {
        let model = rollout_core::rollout::RequestSecrets::default().endpoint(&stored.request.model);
        let model = model.context("the address of its model")?;
        let model = match stored.request.model.profile {
            Some(_) => a::asked_by(model, &stored.request, &config.osmosis_init, host.form()),
            None => Some(model),
        };
        let model = model.context("its requests cannot be made")?;
        let stored = match self.until {
            Some(call) => stored.until(call),
            None => stored,
        };
        let steps = self.interactive.then(|| Script::of(&stored));
        if steps.is_none() {
            show("workflow", &stored.workflow);
            show("grader", &stored.grader);
        }
        let then = stored.outcome.clone();
        let grade = then.as_ref().map_or(self.until.is_none(), |then| was_graded(then));
        let replay = host.replay(stored, model).context("it cannot be made again")?;
        let ended =
            drive(replay.rollout, Box::new(Replaying { grade: grade && host.grader().is_some() })).await;
        let now = match ended {
            Ended::Finished(now) | Ended::Cancelled(now) => now,
            Ended::Crashed(failure) => return Err(PluginFault(failure.reason).into()),
        };
        let end = replay.end.get();
        if let Some(steps) = steps
            && !steps.show(end, &now).await
        {
            outln!("quit; nothing was compared");
            return Ok(Exit::NotDone);
        }
        Ok(compared(then.as_deref(), &now, end, self.until))
    }
}

/// A component by its digest, beside a file or in a journal.
fn component(beside: &Path, digest: &str) -> PathBuf {
    let plain = beside.join(format!("{digest}.wasm"));
    if plain.is_file() { plain } else { kept_component(beside, digest) }
}

pub(super) fn is_there(component: &Path, option: &str) -> Result<()> {
    if !component.exists() {
        bail!("{} is not there; {option} says where the component is", component.display());
    }
    Ok(())
}

/// Where a grader had a judge and none is configured, it has one of that name. It is not asked.
fn with_judge_of(raw: RawConfig, stored: &StoredRollout) -> RawConfig {
    let model = stored.grader.iter().find_map(|event| match event {
        Event::Started { request, .. } => {
            let StoredCall::Model(request) = StoredCall::read(request).ok()? else { return None };
            let frame: Value = serde_json::from_str(&request.frame?.body).ok()?;
            Some(frame.get("model")?.as_str()?.to_owned())
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

/// Does nothing but grade.
struct Replaying {
    grade: bool,
}

impl Steps for Replaying {
    type End = Ended;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::graded(self.grade))
    }

    async fn finished(self: Box<Self>, ended: Ended) -> Ended {
        ended
    }
}

/// Whether the grader ran.
fn was_graded(finished: &Finished) -> bool {
    match &finished.outcome {
        Outcome::Scored { .. } => true,
        Outcome::Unscored(failure) => {
            failure.stage == Stage::Grader && failure.kind != FailureKind::NotGraded
        }
    }
}

/// What was asked and answered, a line each.
fn show(role: &str, events: &[Event]) {
    for event in events {
        match event {
            Event::Started { at, call, request, .. } => {
                outln!("{role} call {call}, move {at}: {}", asked(request));
            }
            Event::Answered { call, result, .. } => outln!("  to {call}: {}", answered(result)),
            Event::Ended { call, end: End::Refused(answer) } => {
                outln!("  to {call}: {}", line(&answer.content));
            }
            Event::TimedOut { at } => outln!("{role} waited in vain, move {at}"),
            Event::TimeLeft { at, left } => {
                let left = left.map_or("no end".to_owned(), |left| format!("{} ms", left.as_millis()));
                outln!("{role} has time left, move {at}: {left}");
            }
            // They say what a call's answer became, and the answer is shown.
            Event::Ended { .. } | Event::Cut { .. } => {}
        }
    }
}

pub(super) fn line(text: &str) -> String {
    printable(&beginning(text, SHOWN_BYTES)).replace('\n', " ")
}

fn asked(request: &[u8]) -> String {
    let request = match StoredCall::read(request) {
        Ok(StoredCall::Tool(call)) => return line(&format!("{}({})", call.tool, call.arguments)),
        Ok(StoredCall::Model(request)) => request,
        Err(_) => return line("?"),
    };
    let before = if request.shared == 0 { String::new() } else { format!("after {}, ", request.shared) };
    let last = request.new.last().map_or("nothing new", |message| message.get());
    line(&format!("{before}{last}"))
}

fn answered(result: &CallResult) -> String {
    match result {
        CallResult::Model(Ok(reply)) => line(reply.completion.message()),
        CallResult::Model(Err(failure)) => line(&failure.to_string()),
        CallResult::Tool(answer) => line(&answer.content),
    }
}

/// Says whether it is the same.
fn compared(then: Option<&Finished>, now: &Finished, end: Option<&ReplayEnd>, until: Option<u32>) -> Exit {
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
        let to = until.map_or("as far as it came".to_owned(), |call| format!("up to call {call}"));
        outln!("\nthe same {to}{}", if is_cut { "" } else { ", and it ends there" });
        return Exit::Done;
    };
    // It was ended from outside then: when, no replay can tell.
    if is_cut && matches!(then.outcome, Outcome::Unscored(_)) {
        outln!("\nthe same, up to where it was ended then: {}", outcome(then));
        return Exit::Done;
    }
    let (was, is) = (result(then), result(now));
    if was == is {
        outln!("\nthe same: {}", outcome(then));
        return Exit::Done;
    }
    outln!("\nnot the same: every call is, and what came of them is not");
    diff(&was, &is);
    Exit::Plugin
}

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

/// What has to be the same, line by line.
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

/// What was asked, as JSON over several lines.
fn readable(what: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(what);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_default()
}

/// Shows the lines that differ, with one around.
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
