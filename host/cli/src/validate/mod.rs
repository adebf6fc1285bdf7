//! The command `validate`, which checks a plugin without a model.

mod environment;
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
use super::progress::Working;
use super::{DATA, Exit, OUTPUT, PluginFault, plugin_file, setup};
pub(crate) use report::Report;
use rollout_assembly::config::{Config, Judge, RawConfig, RawJudge};
use rollout_assembly::{Assembled, Options};
use rollout_core::error::Fault;
use rollout_core::limits::DECLARE_TIME_MAX;
use rollout_core::telemetry::Metrics;
use rollout_eval as eval;
use rollout_eval::Row;
use rollout_eval::run::Model;
use rollout_guest::engine::Engine;
use rollout_guest::imports::{Imports, Live, RefusedKind, RefusedUse, RefusedUses, Role, RunContext};
use rollout_guest::instance::{self, Bounds, Permit};
use rollout_guest::plugin::{self, Description, Plugin, Problem};
use rollout_mock_model::{MockModel, MockModelSettings, Script};
use rollout_rollout::{Failure, FailureKind, Finished, Host, Outcome, Stage};
use rollout_wire::id::RolloutId;
use run::{Recorder, Scratch, Trace};

/// Prompt and label of the default row.
const QUESTION: &str = "What is 6 * 7? Give the final answer after ####.";
const ANSWER: &str = "42";

/// Latency of replies in the second of two runs, the only difference between them.
///
/// Concurrent calls then finish in another order, and less time is left.
const SECOND_LATENCY: Duration = Duration::from_millis(20);

/// Checks everything about a plugin that can be checked without a model.
///
/// The checks cover the component, its settings, its start, and one rollout with fixed replies: it registers
/// a sample, its grader grades it, and a second run is identical to the byte. Replies come from the built-in
/// stand-in for a model, which solves arithmetic and calls a calculator, or from --script; the row is a sum,
/// or the first of --data. Of an environment the checks cover names, schemas, tools, splits and tasks, and two
/// equal episodes with one made-up action of each kind; the reset has the first task, or the row of --data.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all checks passed; 1 the plugin is at fault; 2 something else is at fault, or \
    the checks were not done.\n\nExamples:\n  rollout-host validate my_agent.wasm\n  \
    rollout-host validate my_agent.wasm --data rows.jsonl --script replies.jsonl"
)]
pub(super) struct Validate {
    /// Component to check.
    plugin: PathBuf,
    /// File with rows, as for eval; the first row is run. [default: a sum]
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    data: Option<PathBuf>,
    /// File with replies of the model; `rollout-host mock-model --help` describes its format.
    #[arg(long, value_name = "FILE", help_heading = DATA)]
    script: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Maximum number of seconds for the checks after compilation; longer checks fail. A server sets it for
    /// pushed components. [default: no limit]
    #[arg(long, value_name = "SECS")]
    secs_max: Option<f64>,
    #[command(flatten)]
    rollout: RolloutOptions,
}

impl Validate {
    pub(crate) fn run(mut self) -> Result<Exit> {
        self.rollout.pull(&mut self.plugin)?;
        if self.secs_max.is_some() {
            // If memory runs out, the kernel stops this process instead of the server that started it.
            // Systems without the file are ignored.
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
        // No real server is called: the stand-in is the judge too.
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

    /// Runs the checks that apply to the parts of the component.
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
                tool_component(&plugin, config, report).await;
                Ok(())
            })?;
        }
        if report.has_failed() {
            for name in ["starts", "runs", "sample", "reward", "deterministic"] {
                report.skipped(name, "skipped because of the failures above");
            }
            return Ok(());
        }
        if about.workflow || about.agent_loop {
            self.agent(runtime, &deadline, config, row, script, report)
        } else if about.environment {
            self.environment(runtime, &deadline, config, row, report)
        } else if about.grader {
            deadline.block_on(runtime, report, async |report| {
                lone_grader::check(&plugin, config, row, report).await
            })
        } else {
            report.skipped("runs", "the component has neither an agent nor a grader");
            Ok(())
        }
    }

    /// Checks the component itself: its bytes, its type, its imports.
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

    /// Checks the declared settings and the operator's values.
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
                let advice = "schema and defaults come from the type that the plugin exports as its settings";
                report.failed("settings", error.to_string(), advice);
                return Ok(());
            }
        };
        match &declared {
            None => {
                report.skipped("settings", "it declares no settings, so its configuration is not checked");
            }
            Some(declared) => {
                let keys: Vec<String> = declared.fields().into_iter().map(|field| field.key).collect();
                report.passed("settings", if keys.is_empty() { "none".to_owned() } else { keys.join(", ") });
            }
        }
        match plugin::resolve(declared.as_ref(), config.plugin.as_ref()) {
            Ok(settings) if settings.values.is_none() => report.skipped("configuration", "the plugin has no configuration"),
            Ok(_) => report.passed("configuration", "valid"),
            Err(error) => report.failed_by(
                Fault::Caller,
                "configuration",
                error.to_string(),
                "`rollout-host config` lists the settings; give values with --set KEY=VALUE or in [plugin] of --config",
            ),
        }
        Ok(())
    }

    /// Checks a plugin with an agent: it starts and runs twice.
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
        let options = Options {
            artifact_root: Some(scratch.path().to_owned()),
            observer: Some(recorder.clone()),
            ..Options::default()
        };
        // Holds the stand-in for a judge until the checks end.
        let Some(assembled) = self.start(runtime, config, options, report)? else { return Ok(()) };
        deadline.block_on(runtime, report, async |report| {
            agent_loop(&assembled.host, row, script.clone(), report).await?;
            run_twice(&assembled.host, row, script, &recorder, &scratch, report).await?;
            if assembled.host.has_environment() {
                let row = self.data.is_some().then_some(row);
                environment::check(&assembled.host, config.sessions, row, report).await?;
            }
            Ok(())
        })
    }

    /// Starts a host for the checks, and reports whether an instance starts.
    fn start(
        &self,
        runtime: &Runtime,
        config: &Config,
        options: Options,
        report: &mut Report,
    ) -> Result<Option<Assembled>> {
        let sources = self.rollout.sources(&self.plugin);
        match self.rollout.host(runtime, sources, config, options) {
            Ok(assembled) => {
                report.passed("starts", "an instance starts");
                Ok(Some(assembled))
            }
            Err(error) => {
                let fault = error.downcast::<PluginFault>()?;
                report.failed("starts", fault.0, "an instance must start within the limits");
                Ok(None)
            }
        }
    }

    /// Checks a plugin that is only an environment.
    fn environment(
        &self,
        runtime: &Runtime,
        deadline: &Deadline,
        config: &Config,
        row: &Row,
        report: &mut Report,
    ) -> Result<()> {
        let Some(assembled) = self.start(runtime, config, Options::default(), report)? else { return Ok(()) };
        deadline.block_on(runtime, report, async |report| {
            let row = self.data.is_some().then_some(row);
            environment::check(&assembled.host, config.sessions, row, report).await
        })
    }
}

/// Deadline of the checks, if there is one.
struct Deadline {
    secs_max: f64,
    at: Option<Instant>,
}

impl Deadline {
    fn new(secs_max: Option<f64>) -> Self {
        let time = secs_max.and_then(|secs| Duration::try_from_secs_f64(secs).ok());
        Self { secs_max: secs_max.unwrap_or(0.0), at: time.and_then(|time| Instant::now().checked_add(time)) }
    }

    /// Runs checks until the deadline. After it, the report keeps the results so far and fails the plugin.
    fn block_on(
        &self,
        runtime: &Runtime,
        report: &mut Report,
        checks: impl AsyncFnOnce(&mut Report) -> Result<()>,
    ) -> Result<()> {
        let _working = Working::on("checking".to_owned());
        let Some(at) = self.at else { return runtime.block_on(checks(report)) };
        let done = runtime.block_on(async { tokio::time::timeout_at(at, checks(report)).await });
        done.unwrap_or_else(|_| {
            let why = format!("its checks did not end within {} s", self.secs_max);
            report.failed("runs", why, "a rollout with immediate replies must end within that time");
            Ok(())
        })
    }
}

/// Reports the problems that prevent a component from being served, each under the name of its check.
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
    let has = |kind: fn(&Problem) -> bool| about.problems.iter().any(kind);
    if !has(|problem| matches!(problem, Problem::OtherVersion { .. })) {
        let version = about.contract_version.as_deref().unwrap_or("none");
        report.passed("contract", format!("version {version}"));
    }
    if !has(|problem| matches!(problem, Problem::NothingToRun | Problem::TwoAgentForms)) {
        let parts = [
            (about.workflow, "a workflow"),
            (about.agent_loop, "an agent loop"),
            (about.grader, "a grader"),
            (about.group_grader, "a group grader"),
            (about.environment, "an environment"),
            (about.tool, "tools for others"),
            (about.settings, "settings"),
        ];
        let parts: Vec<&str> =
            parts.iter().filter(|(is_exported, _)| *is_exported).map(|(_, part)| *part).collect();
        report.passed("exports", parts.join(", "));
        if about.group_grader {
            report
                .passed("groups", "members of a group are rated by the group grader; this run has no group");
        }
    }
    if !has(|problem| matches!(problem, Problem::UnknownImport { .. } | Problem::DoesNotLink { .. })) {
        report.passed("imports", format!("all {} are provided", about.imports.len()));
    }
}

/// Starts the stand-in for a model with a latency.
async fn stand_in(script: Option<Script>, latency: Duration) -> Result<(MockModel, Model)> {
    let settings = MockModelSettings { latency, script, ..MockModelSettings::default() };
    let mock = MockModel::start(SocketAddr::from(([127, 0, 0, 1], 0)), settings).await?;
    let model = Model::new(&mock.base_url(), "mock", None)?;
    Ok((mock, model))
}

/// Checks the name and the tools that an agent loop declares before it runs.
async fn agent_loop(host: &Host, row: &Row, script: Option<Script>, report: &mut Report) -> Result<()> {
    let advice = "`name` must always return the same text";
    match (host.agent_name().await, host.agent_name().await) {
        (Ok(None), _) => return Ok(()),
        (Ok(Some(name)), _) if name.trim().is_empty() => {
            report.failed("EMPTY_NAME", "its name is empty", advice);
        }
        (Ok(Some(first)), Ok(Some(second))) if first != second => {
            report.failed("name", format!("it is first '{first}' and then '{second}'"), advice);
        }
        (Ok(Some(name)), Ok(_)) => report.passed("name", name),
        (Err(error), _) | (_, Err(error)) => {
            report.failed("MISSING_NAME", format!("when its name was requested, it {error}"), advice);
        }
    }
    let (_mock, model) = stand_in(script, Duration::ZERO).await?;
    match run::offers(host, row, &model).await? {
        Err(failure) => report.failed(
            "GET_TOOLS_EXCEPTION",
            failure.reason,
            "`get_tools` is called before the loop runs and cannot call the model",
        ),
        Ok(offered) => {
            let offered: Vec<Value> =
                offered.iter().map(|tool| serde_json::from_str(tool.get()).unwrap_or_default()).collect();
            tools::check(report, "tools", &offered);
        }
    }
    Ok(())
}

/// Runs the same rollout twice with the same replies and compares the runs.
async fn run_twice(
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
    let first = Trace::new(&requests, &finished, scratch.path());
    if host.agent_name().await.is_ok_and(|name| name.is_none()) {
        tools::check(report, "tools", &run::offered_tools(&requests));
    }
    report_outcome(&finished, host.grader().is_some(), report);
    refused_uses(&finished.refused_uses, report);
    let (_mock, model) = stand_in(script, SECOND_LATENCY).await?;
    let again = run::rollout(host, row, &model).await?;
    let second = Trace::new(&recorder.take(), &again, scratch.path());
    match first.difference(&second) {
        None => {
            let detail = format!("two runs were identical, with {} each", calls(requests.len() as u64));
            report.passed("deterministic", detail);
        }
        Some(difference) => report.failed(
            "deterministic",
            difference,
            "the same replies must lead to the same rollout; do not depend on the time left, or on which of \
             several calls ends first",
        ),
    }
    Ok(())
}

/// Reports the results of the first run, one check each.
fn report_outcome(finished: &Finished, is_graded: bool, report: &mut Report) {
    let failure = match &finished.outcome {
        Outcome::Scored { reward } => {
            ran(finished, report);
            return report.passed("reward", reward.to_string());
        }
        Outcome::Unscored(failure) => failure,
    };
    if failure.stage != Stage::Grader {
        report.failed_by(fault(failure), "runs", describe(failure), advice(failure));
        report.skipped("sample", "the agent did not run to its end");
        return report.skipped("reward", "the agent did not run to its end");
    }
    match failure.kind {
        FailureKind::NoSample => {
            report.passed("runs", "the agent ran to its end");
            report.failed(
                "sample",
                "it registered no sample, so nothing can be graded or trained on",
                "return the messages, or open a sample; an agent created by `ctx.agent()` has one",
            );
            report.skipped("reward", "there is no sample");
        }
        FailureKind::NotGraded if finished.samples.is_empty() => {
            report.passed("runs", "the agent ran to its end");
            report.failed("sample", "it registered no sample", "return the messages, or open a sample");
            report.skipped("reward", "there is no sample");
        }
        FailureKind::NotGraded | FailureKind::NoReward if !is_graded => {
            ran(finished, report);
            report.skipped("reward", "the plugin has no grader; give one with --grader FILE");
        }
        FailureKind::Withdrawn => {
            ran(finished, report);
            report.warned("reward", describe(failure), "the row would be excluded from training");
        }
        FailureKind::NoReward => {
            ran(finished, report);
            report.failed(
                "reward",
                describe(failure),
                "a grader must give a reward to every sample that it does not withdraw",
            );
        }
        _ => {
            ran(finished, report);
            report.failed_by(fault(failure), "reward", describe(failure), advice(failure));
        }
    }
}

/// Reports a run that ended, and its samples.
fn ran(finished: &Finished, report: &mut Report) {
    report.passed("runs", format!("the agent ran to its end, after {}", calls(finished.usage.chat_calls)));
    let messages: Vec<String> =
        finished.samples.iter().map(|sample| sample.record.messages.len().to_string()).collect();
    let samples = if messages.len() == 1 { "one".to_owned() } else { messages.len().to_string() };
    let detail = format!("{samples}, with {} messages", messages.join(" and "));
    if finished.samples.iter().all(|sample| !sample.lacks_reply()) {
        report.passed("sample", detail);
    } else {
        report.warned(
            "sample",
            format!("{detail}, but without a reply of the model"),
            "await the agent before `run` returns; a sample without a reply says nothing about the model",
        );
    }
}

/// Reports calls that the guest's runtime refused. A program that ignores such an error may have a
/// meaningless reward.
fn refused_uses(refused: &RefusedUses, report: &mut Report) {
    for (kind, RefusedUse { count, first }) in refused.iter() {
        let times = if *count == 1 { String::new() } else { format!(", {count} times") };
        let advice = match kind {
            RefusedKind::Process => {
                "run code in the component, or by a tool of the host; a component cannot start processes"
            }
            RefusedKind::File => "read data while modules are imported, and keep generated data in memory",
            RefusedKind::Network => {
                "call the model, the judge or a tool of the host; a component has no network"
            }
            RefusedKind::Thread => {
                "a thread runs to its end where it is started: give it all its inputs before"
            }
            RefusedKind::Module => {
                "add the package to the project's dependencies, or run code that needs it elsewhere"
            }
            RefusedKind::Alarm => {
                "rely on the host's limit of CPU time, which stops a computation that takes too long"
            }
        };
        report.warned("refused", format!("it {}{times}: {first}", kind.description()), advice);
    }
}

fn calls(count: u64) -> String {
    if count == 1 { "one call of a model".to_owned() } else { format!("{count} calls of a model") }
}

fn describe(failure: &Failure) -> String {
    format!("{}: {}", failure.kind.as_str(), failure.reason)
}

/// Returns the party at fault. A checked rollout runs alone, so a used-up memory budget is the plugin's fault.
fn fault(failure: &Failure) -> Fault {
    if failure.kind == FailureKind::Memory { Fault::Plugin } else { failure.fault }
}

fn advice(failure: &Failure) -> &'static str {
    match failure.kind {
        FailureKind::Error | FailureKind::Invalid => {
            "if it needs another row or other replies than a sum's, give them with --data FILE and --script FILE"
        }
        FailureKind::Trap | FailureKind::Exit => "a plugin should fail by returning an error",
        FailureKind::Memory | FailureKind::Cpu | FailureKind::Timeout | FailureKind::Limit => {
            "use less, or raise the limit with --limit-…"
        }
        _ => "",
    }
}

fn bounds(config: &Config) -> Bounds {
    let deadline = Some(Instant::now() + config.limits.grader_time_max);
    Bounds { memory_bytes_max: config.limits.memory_bytes_max, deadline, permit: Permit::alone() }
}

/// Checks the tools of a component that provides tools to others.
async fn tool_component(plugin: &Plugin, config: &Config, report: &mut Report) {
    let deadline = Some(Instant::now() + DECLARE_TIME_MAX);
    let (limits, bounds) = (Arc::new(config.limits.clone()), Bounds { deadline, ..bounds(config) });
    let Ok(id) = RolloutId::parse("validate") else { return };
    let run = RunContext {
        clock_begins: config.clock_begins,
        ..RunContext::without_rollout(id, None, Arc::new(Metrics::new()))
    };
    let outside = Live::until(bounds.deadline);
    let imports = Imports::new(Role::Declaration, Arc::new(run), limits, outside, Arc::default());
    match instance::describe_tools(plugin.linked(), imports, bounds).await {
        Ok(texts) => {
            let tools: Vec<Value> =
                texts.iter().map(|text| serde_json::from_str(text).unwrap_or(Value::Null)).collect();
            tools::check(report, "tools", &tools);
        }
        Err(error) => {
            report.failed("GET_TOOLS_EXCEPTION", format!("when its tools were requested, it {error}"), "");
        }
    }
}
