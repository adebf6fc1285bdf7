//! `validate`: everything about a plugin that can be checked without a model.

mod lone_grader;
mod report;
mod run;
mod tools;

use crate::print::{out, outln};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::mock_model::script;
use super::options::RolloutOptions;
use super::{DATA, Exit, OUTPUT, PluginFault, plugin_file, setup};
pub(crate) use report::Report;
use rollout_assembly::Options;
use rollout_assembly::config::{Config, Judge, RawConfig, RawJudge};
use rollout_core::engine::Engine;
use rollout_core::error::Fault;
use rollout_core::id::RolloutId;
use rollout_core::imports::{Imports, Live, RefusedKind, RefusedUse, RefusedUses, Role, RunContext};
use rollout_core::instance::{self, Bounds, Permit};
use rollout_core::limits::DECLARE_TIME_MAX;
use rollout_core::plugin::{self, Description, Plugin, Problem};
use rollout_core::rollout::{Failure, FailureKind, Finished, Host, Outcome, Stage};
use rollout_core::telemetry::Metrics;
use rollout_eval as eval;
use rollout_eval::Row;
use rollout_eval::run::Model;
use rollout_mock_model::{MockModel, MockModelSettings, Script};
use run::{Recorder, Scratch, Trace};

/// What a row's prompt and label are, where no data is given.
const QUESTION: &str = "What is 6 * 7? Give the final answer after ####.";
const ANSWER: &str = "42";

/// How long a reply takes in the second of two runs, in which nothing else is different.
/// Calls at once end in another order then, and less time is left.
const SECOND_LATENCY: Duration = Duration::from_millis(20);

/// Checks everything about a plugin that can be checked without a model.
///
/// The component itself, its settings, that it starts, and one rollout against replies
/// that are known before: it registers a sample, its grader rates it, and a second run
/// does the same to the byte. The replies are those of the built-in stand-in for a model,
/// which works out arithmetic and calls a calculator, or those of --script; the row is a
/// sum, or the first of --data.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 nothing failed; 1 the plugin is at fault; 2 something else is, or it \
    was not done.\n\nExamples:\n  rollout-host validate my_agent.wasm\n  \
    rollout-host validate my_agent.wasm --data rows.jsonl --script replies.jsonl")]
pub(super) struct Validate {
    /// The component.
    plugin: PathBuf,
    /// Rows, as for eval; the first is run. [default: a sum]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    data: Option<PathBuf>,
    /// Replies of the model; `rollout-host mock-model --help` has the form.
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    script: Option<PathBuf>,
    /// Writes one JSON object.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Seconds that the checks may take once the component is compiled; past them they have failed. A server
    /// gives them to what is pushed. [default: no limit]
    #[arg(long, value_name = "SECS")]
    secs_max: Option<f64>,
    #[command(flatten)]
    rollout: RolloutOptions,
}

impl Validate {
    pub(crate) fn run(self) -> Result<Exit> {
        if self.secs_max.is_some() {
            // Where memory runs out, the kernel ends this process before the server that started it. Where the file is not
            // there, there is nothing to say.
            let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        }
        let config = self.config()?;
        let row = self.row()?;
        let script = self.script.as_deref().map(script).transpose()?;
        let runtime = setup::runtime()?;
        let mut report = Report::default();
        self.check(&runtime, &config, &row, script, &mut report)?;
        let plugin = self.plugin.display().to_string();
        if self.json {
            outln!("{:#}", report.json(&plugin));
        } else {
            out!("{}", report.text(&plugin));
        }
        Ok(report.exit())
    }

    fn config(&self) -> Result<Config> {
        // No server is asked for anything: the stand-in plays the judge too.
        let judge = RawJudge { model: Some(Judge::STAND_IN.to_owned()), ..RawJudge::default() };
        let raw = RawConfig { max_concurrent: Some(1), judge, ..self.rollout.raw_config()? };
        Ok(raw.resolve()?)
    }

    fn row(&self) -> Result<Row> {
        if let Some(path) = &self.data {
            let first = eval::rows::load(path, &eval::rows::Options::default())?.rows.into_iter().next();
            return first.with_context(|| format!("{} has no rows", path.display()));
        }
        let message = json!({"role": "user", "content": QUESTION}).to_string();
        Ok(Row {
            index: 0,
            prompt: vec![RawValue::from_string(message)?],
            label: Some(ANSWER.to_owned()),
            metadata: Some(RawValue::from_string(json!({"_validation": true}).to_string())?),
        })
    }

    fn check(
        &self,
        runtime: &Runtime,
        config: &Config,
        row: &Row,
        script: Option<Script>,
        report: &mut Report,
    ) -> Result<()> {
        let Some(plugin) = self.component(config, report)? else { return Ok(()) };
        let deadline = Deadline::new(self.secs_max);
        self.settings(runtime, config, &plugin, report)?;
        let about = plugin.about();
        if about.tool {
            deadline.block_on(runtime, report, async |report| {
                described(&plugin, config, report).await;
                Ok(())
            })?;
        }
        if report.has_failed() {
            for name in ["starts", "runs", "sample", "reward", "deterministic"] {
                report.skipped(name, "because of what failed above");
            }
            return Ok(());
        }
        if about.workflow || about.agent_loop {
            self.agent(runtime, &deadline, config, row, script, report)
        } else if about.grader {
            deadline.block_on(runtime, report, async |report| {
                lone_grader::check(&plugin, config, row, report).await
            })
        } else {
            report.skipped("runs", "there is no agent and no grader in it");
            Ok(())
        }
    }

    /// The component as such: its bytes, its type, its imports.
    fn component(&self, config: &Config, report: &mut Report) -> Result<Option<Plugin>> {
        let engine = Engine::new(1, config.limits.memory_bytes_max)?;
        let loader = self.rollout.plugin.load.loader(config)?;
        let about = plugin_file::read(&self.plugin, &config.load_limits).and_then(|bytes| {
            loader.inspect(&engine, &bytes).map_err(|error| plugin_file::at_fault("the file", error))
        });
        let about = match about {
            Ok(about) => about,
            Err(error) => {
                let fault = error.downcast::<PluginFault>()?;
                report.failed("component", fault.0, "give the .wasm file that `rollout-host build` wrote");
                return Ok(None);
            }
        };
        report.passed("component", format!("valid, {} KiB", about.size_bytes.div_ceil(1024)));
        problems(&about, report);
        if report.has_failed() {
            return Ok(None);
        }
        plugin_file::load(&loader, &engine, &self.plugin, &config.load_limits).map(Some)
    }

    /// What it declares of its configuration, and the operator's values.
    fn settings(
        &self,
        runtime: &Runtime,
        config: &Config,
        plugin: &Plugin,
        report: &mut Report,
    ) -> Result<()> {
        let declared = runtime.block_on(plugin.declaration(
            &config.limits,
            config.clock_begins,
            &Arc::new(Metrics::new()),
        ));
        let declared = match declared {
            Ok(declared) => declared,
            Err(error) => {
                let advice =
                    "the schema and the defaults come from the type that the plugin names as its settings";
                report.failed("settings", error.to_string(), advice);
                return Ok(());
            }
        };
        match &declared {
            None => report.skipped("settings", "it declares none, so its configuration is not checked"),
            Some(declared) => {
                let keys: Vec<String> = declared.fields().into_iter().map(|field| field.key).collect();
                report.passed("settings", if keys.is_empty() { "none".to_owned() } else { keys.join(", ") });
            }
        }
        match plugin::resolve(declared.as_ref(), config.plugin.as_ref()) {
            Ok(settings) if settings.values.is_none() => report.skipped("configuration", "there is none"),
            Ok(_) => report.passed("configuration", "fits"),
            Err(error) => report.failed_by(
                Fault::Caller,
                "configuration",
                error.to_string(),
                "`rollout-host config` lists what there is; --set KEY=VALUE or [plugin] of --config give it",
            ),
        }
        Ok(())
    }

    /// A plugin with an agent: it starts, and runs twice.
    fn agent(
        &self,
        runtime: &Runtime,
        deadline: &Deadline,
        config: &Config,
        row: &Row,
        script: Option<Script>,
        report: &mut Report,
    ) -> Result<()> {
        let scratch = Scratch::new()?;
        let recorder = Arc::new(Recorder::default());
        let sources = self.rollout.sources(&self.plugin);
        let options = Options {
            artifact_root: Some(scratch.path().to_owned()),
            observer: Some(recorder.clone()),
            ..Options::default()
        };
        // Held to the end, and with it the stand-in for a judge.
        let assembled = match self.rollout.host(runtime, sources, config, options) {
            Ok(assembled) => assembled,
            Err(error) => {
                let fault = error.downcast::<PluginFault>()?;
                report.failed("starts", fault.0, "an instance has to start within the limits");
                return Ok(());
            }
        };
        report.passed("starts", "an instance starts");
        deadline.block_on(runtime, report, async |report| {
            agent_loop(&assembled.host, row, script.clone(), report).await?;
            twice(&assembled.host, row, script, &recorder, &scratch, report).await
        })
    }
}

/// When checks have to be done, if they have to be by a time.
struct Deadline {
    secs_max: f64,
    at: Option<Instant>,
}

impl Deadline {
    fn new(secs_max: Option<f64>) -> Self {
        let time = secs_max.and_then(|secs| Duration::try_from_secs_f64(secs).ok());
        Self { secs_max: secs_max.unwrap_or(0.0), at: time.and_then(|time| Instant::now().checked_add(time)) }
    }

    /// Does some of the checks. What they found is in the report when time is up, which fails the plugin.
    fn block_on(
        &self,
        runtime: &Runtime,
        report: &mut Report,
        checks: impl AsyncFnOnce(&mut Report) -> Result<()>,
    ) -> Result<()> {
        let Some(at) = self.at else { return runtime.block_on(checks(report)) };
        let done = runtime.block_on(async { tokio::time::timeout_at(at, checks(report)).await });
        done.unwrap_or_else(|_| {
            let why = format!("it did not end: its checks may take {} s", self.secs_max);
            report.failed(
                "runs",
                why,
                "a rollout with answers that come at once has to end within that time",
            );
            Ok(())
        })
    }
}

/// What the component's type says that keeps it from being served, each under its name.
fn problems(about: &Description, report: &mut Report) {
    let mut failed = |name: &str, problem: &Problem| report.failed(name, problem.to_string(), "");
    for problem in &about.problems {
        match problem {
            Problem::OtherVersion { .. } => failed("contract", problem),
            Problem::UnknownImport { .. } => failed("imports", problem),
            Problem::DoesNotLink { .. } => failed("links", problem),
            Problem::NothingToRun | Problem::TwoAgentForms => failed("exports", problem),
        }
    }
    let of = |found: fn(&Problem) -> bool| about.problems.iter().any(found);
    if !of(|problem| matches!(problem, Problem::OtherVersion { .. })) {
        let version = about.contract_version.as_deref().unwrap_or("none");
        report.passed("contract", format!("version {version}"));
    }
    if !of(|problem| matches!(problem, Problem::NothingToRun | Problem::TwoAgentForms)) {
        let parts = [
            (about.workflow, "a workflow"),
            (about.agent_loop, "an agent loop"),
            (about.grader, "a grader"),
            (about.tool, "tools for others"),
            (about.settings, "settings"),
        ];
        let parts: Vec<&str> = parts.iter().filter(|(has, _)| *has).map(|(_, part)| *part).collect();
        report.passed("exports", parts.join(", "));
    }
    if !of(|problem| matches!(problem, Problem::UnknownImport { .. } | Problem::DoesNotLink { .. })) {
        report.passed("imports", format!("all {} are given", about.imports.len()));
    }
}

/// The stand-in, at a pace.
async fn stand_in(script: Option<Script>, latency: Duration) -> Result<(MockModel, Model)> {
    let settings = MockModelSettings { latency, script, ..MockModelSettings::default() };
    let mock = MockModel::start(SocketAddr::from(([127, 0, 0, 1], 0)), settings).await?;
    let model = Model::new(&mock.base_url(), "mock", None)?;
    Ok((mock, model))
}

/// What an agent loop says before it runs: its name and its tools.
async fn agent_loop(host: &Host, row: &Row, script: Option<Script>, report: &mut Report) -> Result<()> {
    let advice = "`name` gives a text, the same every time";
    match (host.agent_name().await, host.agent_name().await) {
        (Ok(None), _) => return Ok(()),
        (Ok(Some(name)), _) if name.trim().is_empty() => {
            report.failed("EMPTY_NAME", "its name is empty", advice);
        }
        (Ok(Some(first)), Ok(Some(second))) if first != second => {
            report.failed("name", format!("it is '{first}' and then '{second}'"), advice);
        }
        (Ok(Some(name)), Ok(_)) => report.passed("name", name),
        (Err(error), _) | (_, Err(error)) => {
            report.failed("MISSING_NAME", format!("asked for its name, it {error}"), advice);
        }
    }
    let (_mock, model) = stand_in(script, Duration::ZERO).await?;
    match run::offers(host, row, &model).await? {
        Err(failure) => report.failed(
            "GET_TOOLS_EXCEPTION",
            failure.reason,
            "`get_tools` is asked before the loop runs, with no model at hand",
        ),
        Ok(offered) => {
            let offered: Vec<Value> =
                offered.iter().map(|tool| serde_json::from_str(tool.get()).unwrap_or_default()).collect();
            tools::check(report, "tools", &offered);
        }
    }
    Ok(())
}

/// Two runs of the same rollout against the same replies.
async fn twice(
    host: &Host,
    row: &Row,
    script: Option<Script>,
    recorder: &Recorder,
    scratch: &Scratch,
    report: &mut Report,
) -> Result<()> {
    let (_mock, model) = stand_in(script.clone(), Duration::ZERO).await?;
    let finished = run::rollout(host, row, &model).await?;
    let requests = recorder.take();
    let first = Trace::of(&requests, &finished, scratch.path());
    if host.agent_name().await.is_ok_and(|name| name.is_none()) {
        tools::check(report, "tools", &run::offered(&requests));
    }
    came_of_it(&finished, host.grader().is_some(), report);
    refused_uses(&finished.refused_uses, report);
    let (_mock, model) = stand_in(script, SECOND_LATENCY).await?;
    let again = run::rollout(host, row, &model).await?;
    let second = Trace::of(&recorder.take(), &again, scratch.path());
    match first.difference(&second) {
        None => {
            let detail = format!("two runs did the same, with {} each", calls(requests.len() as u64));
            report.passed("deterministic", detail);
        }
        Some(difference) => report.failed(
            "deterministic",
            difference,
            "the same replies have to lead to the same rollout; what depends on the time left, or on which of \
             several calls is over first, does not",
        ),
    }
    Ok(())
}

/// What the first run shows, a check each.
fn came_of_it(finished: &Finished, is_graded: bool, report: &mut Report) {
    let failure = match &finished.outcome {
        Outcome::Scored { reward } => {
            ran(finished, report);
            return report.passed("reward", reward.to_string());
        }
        Outcome::Unscored(failure) => failure,
    };
    if failure.stage != Stage::Grader {
        report.failed_by(fault(failure), "runs", said(failure), advice(failure));
        report.skipped("sample", "it did not run to its end");
        return report.skipped("reward", "it did not run to its end");
    }
    match failure.kind {
        FailureKind::NoSample => {
            report.passed("runs", "the agent came to its end");
            report.failed(
                "sample",
                "it registered no sample, so there is nothing to grade or to train on",
                "return the messages, or open a sample; an agent made by `ctx.agent()` has one",
            );
            report.skipped("reward", "there is no sample");
        }
        FailureKind::NotGraded if finished.samples.is_empty() => {
            report.passed("runs", "the agent came to its end");
            report.failed("sample", "it registered no sample", "return the messages, or open a sample");
            report.skipped("reward", "there is no sample");
        }
        FailureKind::NotGraded | FailureKind::NoReward if !is_graded => {
            ran(finished, report);
            report.skipped("reward", "there is no grader; --grader FILE gives one");
        }
        FailureKind::Withdrawn => {
            ran(finished, report);
            report.warned("reward", said(failure), "nothing of this row would be trained on");
        }
        FailureKind::NoReward => {
            ran(finished, report);
            report.failed(
                "reward",
                said(failure),
                "a grader gives every sample that it does not withdraw a reward",
            );
        }
        _ => {
            ran(finished, report);
            report.failed_by(fault(failure), "reward", said(failure), advice(failure));
        }
    }
}

fn ran(finished: &Finished, report: &mut Report) {
    report.passed("runs", format!("the agent came to its end, after {}", calls(finished.usage.chat_calls)));
    let messages: Vec<String> =
        finished.samples.iter().map(|sample| sample.record.messages.len().to_string()).collect();
    let samples = if messages.len() == 1 { "one".to_owned() } else { messages.len().to_string() };
    let detail = format!("{samples}, with {} messages", messages.join(" and "));
    if finished.samples.iter().all(|sample| !sample.lacks_reply()) {
        report.passed("sample", detail);
    } else {
        report.warned(
            "sample",
            format!("{detail}, and without a reply of the model"),
            "an agent has to be awaited before `run` returns; what the model did not write says nothing of it",
        );
    }
}

/// What the guests' own runtimes refused: programs swallow it, and their rewards mean nothing then.
fn refused_uses(refused: &RefusedUses, report: &mut Report) {
    for (kind, RefusedUse { count, first }) in refused.iter() {
        let times = if *count == 1 { String::new() } else { format!(", {count} times") };
        let advice = match kind {
            RefusedKind::Process => {
                "run code in place, or by a tool of the host; a component starts no processes"
            }
            RefusedKind::File => "read data while modules are imported, and keep what is made in memory",
            RefusedKind::Network => {
                "ask the model, the judge or a tool of the host; a component has no network"
            }
            RefusedKind::Thread => {
                "a thread runs where it is started, to its end: hand it all that it needs before"
            }
            RefusedKind::Module => {
                "name the package in the project's dependencies, or grade code that needs it elsewhere"
            }
            RefusedKind::Alarm => "the host's limit of CPU time ends a computation that takes too long",
        };
        report.warned("refused", format!("it {}{times}: {first}", kind.what()), advice);
    }
}

fn calls(count: u64) -> String {
    if count == 1 { "one call of a model".to_owned() } else { format!("{count} calls of a model") }
}

fn said(failure: &Failure) -> String {
    format!("{}: {}", failure.kind.as_str(), failure.reason)
}

/// Returns who is at fault. A checked rollout runs alone, so it is the one that used up the memory budget.
fn fault(failure: &Failure) -> Fault {
    if failure.kind == FailureKind::Memory { Fault::Plugin } else { failure.fault }
}

fn advice(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::Error | FailureKind::Invalid => {
            "if it needs another row or other replies than a sum's, --data FILE and --script FILE give them"
        }
        FailureKind::Trap | FailureKind::Exit => "a plugin gives up by returning an error",
        FailureKind::Memory | FailureKind::Cpu | FailureKind::Timeout | FailureKind::Limit => {
            "do less, or raise the limit by --limit-…"
        }
        _ => "",
    }
}

fn bounds(config: &Config) -> Bounds {
    let deadline = Some(Instant::now() + config.limits.grader_time_max);
    Bounds { memory_bytes_max: config.limits.memory_bytes_max, deadline, permit: Permit::alone() }
}

/// The tools that a component has for others.
async fn described(plugin: &Plugin, config: &Config, report: &mut Report) {
    let deadline = Some(Instant::now() + DECLARE_TIME_MAX);
    let (limits, bounds) = (Arc::new(config.limits.clone()), Bounds { deadline, ..bounds(config) });
    let Ok(id) = RolloutId::parse("validate") else { return };
    let run = RunContext {
        clock_begins: config.clock_begins,
        ..RunContext::of_no_rollout(id, None, Arc::new(Metrics::new()))
    };
    let outside = Live::until(bounds.deadline);
    let imports = Imports::new(Role::Declaration, Arc::new(run), limits, outside, Arc::default());
    match instance::describe_tools(plugin.linked(), imports, bounds).await {
        Ok(texts) => {
            let described: Vec<Value> =
                texts.iter().map(|text| serde_json::from_str(text).unwrap_or(Value::Null)).collect();
            tools::check(report, "tools", &described);
        }
        Err(error) => report.failed("GET_TOOLS_EXCEPTION", format!("asked for its tools, it {error}"), ""),
    }
}
