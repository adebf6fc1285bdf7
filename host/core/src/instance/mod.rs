//! One guest, alive for one run.
//!
//! Each of the functions here, one for each thing that a guest can be asked, builds a store,
//! instantiates the plugin in it, calls the guest and drops the store. Everything the guest
//! could touch was in that store. Two runs share compiled code and nothing else.
//!
//! This module knows no HTTP and no rollout. It is given imports, a deadline and
//! input, and gives back what the guest returned or a [`RunError`].

mod agent_loop;
mod busy;
mod cpu;
mod memory;
mod permit;
mod ticker;
mod workflow;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wasmtime::component::{Component, Instance, InstancePre, Linker, ResourceTableError};
use wasmtime::{Store, Trap};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

use crate::error::Fault;
use crate::imports::bindings::exports::rollout::plugin::{
    agent_loop as loop_export, grader, settings, tool, workflow as workflow_export,
};
use crate::imports::bindings::rollout::plugin::types;
use crate::imports::{self, Diverged, Ended, Imports, PastOver, Record};
use crate::limits::Limits;
use crate::telemetry::Limit;
pub use agent_loop::{LoopOutcome, LoopRequest};
pub(crate) use busy::BusyThreads;
use cpu::CpuMeter;
use memory::MemoryLimit;
pub(crate) use memory::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
pub use permit::Permit;
pub(crate) use ticker::Ticker;
pub use workflow::WorkflowOutcome;

/// All that belongs to one store.
pub struct InstanceState {
    imports: Imports,
    wasi: WasiCtx,
    memory: MemoryLimit,
}

impl WasiView for InstanceState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.imports.table }
    }
}

/// Everything that a plugin may import, the same for every plugin. A call outside the
/// instance's role is refused when it is made.
pub(crate) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<InstanceState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    imports::add_to_linker(&mut linker, |state: &mut InstanceState| &mut state.imports)?;
    Ok(linker)
}

/// Which of the contract's exports a component has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forms {
    pub workflow: bool,
    pub agent_loop: bool,
    pub grader: bool,
    pub tool: bool,
    pub settings: bool,
}

/// A component with its imports connected and its exports found.
#[derive(Clone)]
pub struct LinkedPlugin(Arc<Linked>);

#[derive(Clone)]
struct Linked {
    /// What its instances find on standard input.
    input: Bytes,
    busy: BusyThreads,
    /// What the engine keeps for an instance beside its memories and tables.
    kept_bytes: usize,
    pre: InstancePre<InstanceState>,
    workflow: Option<workflow_export::GuestIndices>,
    agent_loop: Option<loop_export::GuestIndices>,
    grader: Option<grader::GuestIndices>,
    tool: Option<tool::GuestIndices>,
    settings: Option<settings::GuestIndices>,
}

impl LinkedPlugin {
    /// The bytes that its compiled code takes.
    pub(crate) fn code_bytes(&self) -> u64 {
        let image = self.0.pre.component().image_range();
        (image.end as usize).saturating_sub(image.start as usize) as u64
    }

    pub(crate) fn new(
        linker: &Linker<InstanceState>,
        component: &Component,
        forms: Forms,
        kept_bytes: u64,
        busy: BusyThreads,
    ) -> wasmtime::Result<Self> {
        let pre = linker.instantiate_pre(component)?;
        Ok(Self(Arc::new(Linked {
            input: Bytes::new(),
            busy,
            kept_bytes: usize::try_from(kept_bytes).unwrap_or(usize::MAX),
            workflow: forms.workflow.then(|| workflow_export::GuestIndices::new(&pre)).transpose()?,
            agent_loop: forms.agent_loop.then(|| loop_export::GuestIndices::new(&pre)).transpose()?,
            grader: forms.grader.then(|| grader::GuestIndices::new(&pre)).transpose()?,
            tool: forms.tool.then(|| tool::GuestIndices::new(&pre)).transpose()?,
            settings: forms.settings.then(|| settings::GuestIndices::new(&pre)).transpose()?,
            pre,
        })))
    }

    /// The same, whose instances find this on standard input.
    pub fn with_input(&self, input: Bytes) -> Self {
        Self(Arc::new(Linked { input, ..(*self.0).clone() }))
    }
}

/// Why a run ended without the guest's own result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Its wall time is over.
    #[error("ran past its deadline")]
    Deadline,
    /// The guest says so.
    #[error("{0}")]
    Failed(String),
    /// The guest says that what it was given is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The guest says that a time limit of its own passed.
    #[error("{0}")]
    TimedOut(String),
    /// It asked for more memory than it may have, and could not do without.
    #[error(
        "needed more memory than memory-bytes-max of {max} bytes; use less, or ask the operator to raise it"
    )]
    Memory {
        /// The limit.
        max: usize,
    },
    /// It used more CPU time than it may.
    #[error("used more CPU time than guest-cpu-secs-max, {0} s; do less, or ask the operator to raise it")]
    Cpu(f64),
    /// It handed more over in one call of the host, or holds more handles, than it may.
    #[error("{0}")]
    Limit(String),
    /// It did what no wasm may do.
    #[error("trapped: {reason}")]
    Trapped {
        /// Which trap, and where in the guest as far as its names are known.
        reason: String,
    },
    /// It called exit.
    #[error("called exit({0}) instead of returning")]
    Exited(i32),
    /// It broke the contract.
    #[error("broke the contract: {0}")]
    Contract(String),
    /// It was made again, and did not do what it did before.
    #[error("did not do again what it did before: {0}")]
    Diverged(Diverged),
    /// It was made again, and is where its past ends.
    #[error("is where its past ends")]
    PastOver,
    /// The plugin has no such half.
    #[error("the plugin has no {0}")]
    Missing(&'static str),
    /// The host could not run it.
    #[error("the host failed while running the plugin: {0}")]
    Host(String),
}

impl RunError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Deadline
            | Self::Failed(_)
            | Self::Invalid(_)
            | Self::TimedOut(_)
            | Self::Memory { .. }
            | Self::Cpu(_)
            | Self::Limit(_)
            | Self::Trapped { .. }
            | Self::Exited(_)
            | Self::Contract(_)
            | Self::Diverged(_) => Fault::Plugin,
            Self::Missing(_) | Self::Host(_) | Self::PastOver => Fault::Host,
        }
    }
}

impl From<types::Failure> for RunError {
    fn from(failure: types::Failure) -> Self {
        match failure {
            types::Failure::Failed(reason) => Self::Failed(reason),
            types::Failure::Invalid(reason) => Self::Invalid(reason),
            types::Failure::TimedOut(reason) => Self::TimedOut(reason),
        }
    }
}

/// A sample as a grader gets it.
pub struct SampleToGrade {
    /// Its id.
    pub id: String,
    /// Its messages, one JSON object each.
    pub messages: Vec<String>,
    /// Its measurements.
    pub metrics: Vec<(String, f64)>,
}

/// What a grader says of one sample. Nothing in it is checked yet.
#[derive(Debug)]
pub struct GuestVerdict {
    /// The sample it names.
    pub sample_id: String,
    /// The reward it gives.
    pub reward: Option<f64>,
    /// Its measurements.
    pub metrics: Vec<(String, f64)>,
    /// Whether it asks that the sample not be trained on.
    pub withdraw: bool,
}

/// How much memory an instance may have and until when it may run, and that it may be made.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Linear memories and tables together, in bytes.
    pub memory_bytes_max: usize,
    /// When it is stopped, running or waiting.
    pub deadline: Option<Instant>,
    /// Held for as long as there is a store.
    pub permit: Permit,
}

/// Makes an instance within the bounds, finds in it what the component exports of one
/// form, and lets that do one thing: gives the future of that. A macro, because each form
/// has a type of its own and a closure's future cannot be said to be sendable.
///
/// Starting has a box of its own, which is gone when the guest runs, because its future is
/// three times as large as what a guest that waits needs.
macro_rules! in_guest {
    ($plugin:ident, $imports:ident, $bounds:ident, $form:ident or $missing:literal,
     |$store:ident, $guest:ident| $work:block) => {{
        let linked = $plugin.0.clone();
        let kept = $imports.kept();
        let Bounds { memory_bytes_max, deadline, permit } = $bounds;
        let starting = Box::pin(start(linked.clone(), $imports, memory_bytes_max));
        let run = Box::pin(async move {
            // Comes first, so that it is dropped last, after the store.
            let _permit = permit;
            let indices = linked.$form.as_ref().ok_or(RunError::Missing($missing))?;
            let (mut $store, instance) = starting.await?;
            let $guest = indices.load(&mut $store, &instance).map_err(host_failed)?;
            $work
        });
        within($plugin, deadline, kept, run)
    }};
}

/// Runs a workflow from the prompt's messages. What it gives back is text and numbers that
/// nobody has checked.
pub(crate) fn run_workflow(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    prompt: Vec<String>,
) -> impl Future<Output = Result<WorkflowOutcome, RunError>> {
    in_guest!(plugin, imports, bounds, workflow or "workflow", |store, guest| {
        let result = guest.call_run(&mut store, &prompt).await;
        Ok(result.map_err(|error| running(&store, &error))??.into())
    })
}

/// Runs an agent loop. What it gives back is text that nobody has checked.
pub(crate) fn run_agent_loop(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    request: LoopRequest,
) -> impl Future<Output = Result<LoopOutcome, RunError>> {
    in_guest!(plugin, imports, bounds, agent_loop or "agent loop", |store, guest| {
        let result = guest.call_run(&mut store, &request.into()).await;
        Ok(result.map_err(|error| running(&store, &error))??.into())
    })
}

/// Asks an agent loop for the tools of one rollout: OpenAI function tools as JSON text
/// that nobody has checked.
pub(crate) fn agent_loop_tools(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    request: LoopRequest,
) -> impl Future<Output = Result<Vec<String>, RunError>> {
    in_guest!(plugin, imports, bounds, agent_loop or "agent loop", |store, guest| {
        let result = guest.call_get_tools(&mut store, &request.into()).await;
        Ok(result.map_err(|error| running(&store, &error))??)
    })
}

/// Asks an agent loop for its name.
pub(crate) fn agent_loop_name(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<String, RunError>> {
    in_guest!(plugin, imports, bounds, agent_loop or "agent loop", |store, guest| {
        guest.call_name(&mut store).await.map_err(|error| running(&store, &error))
    })
}

/// Asks a plugin what it declares of its configuration: a JSON Schema and the defaults,
/// as text that nobody has checked.
pub(crate) fn declare(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<settings::Declaration, RunError>> {
    in_guest!(plugin, imports, bounds, settings or "declared settings", |store, guest| {
        guest.call_declare(&mut store).await.map_err(|error| running(&store, &error))
    })
}

/// Asks for the tools that a component has for others: OpenAI function tools as JSON
/// text that nobody has checked.
pub fn describe_tools(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<Vec<String>, RunError>> {
    in_guest!(plugin, imports, bounds, tool or "tool", |store, guest| {
        guest.call_describe(&mut store).await.map_err(|error| running(&store, &error))
    })
}

/// Makes one call of a component's tool. The inner error is what the tool wants told to
/// the model.
pub(crate) fn call_tool(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    name: String,
    arguments: String,
) -> impl Future<Output = Result<Result<String, String>, RunError>> {
    in_guest!(plugin, imports, bounds, tool or "tool", |store, guest| {
        guest.call_call(&mut store, &name, &arguments).await.map_err(|error| running(&store, &error))
    })
}

impl Linked {
    /// Sees that each export has the types of this contract. One that was built for another
    /// version of it would fail every rollout.
    fn check_exports(&self, store: &mut Store<InstanceState>, instance: &Instance) -> Result<(), RunError> {
        let loaded = [
            self.workflow.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.agent_loop.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.grader.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.tool.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.settings.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
        ];
        loaded.into_iter().flatten().collect::<Result<(), _>>().map_err(|error| {
            RunError::Contract(format!(
                "it was built for another version of the contract than this host's; build it again: {error:#}"
            ))
        })
    }
}

/// Makes an instance and drops it without calling it. Gives the time that took; what
/// memory it had is in the record.
pub(crate) async fn try_start(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> Result<Duration, RunError> {
    let linked = plugin.0.clone();
    let kept = imports.kept();
    let Bounds { memory_bytes_max, deadline, permit } = bounds;
    let run = Box::pin(async move {
        let _permit = permit;
        let started = std::time::Instant::now();
        let (mut store, instance) = make(&linked, imports, memory_bytes_max).await?;
        let elapsed = started.elapsed();
        linked.check_exports(&mut store, &instance)?;
        Ok(elapsed)
    });
    within(plugin, deadline, kept, run).await
}

/// Runs a grader over the samples.
pub fn run_grader(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    label: Option<&str>,
    samples: Vec<SampleToGrade>,
) -> impl Future<Output = Result<Vec<GuestVerdict>, RunError>> {
    let samples: Vec<grader::GradedSample> = samples.into_iter().map(Into::into).collect();
    let label = label.map(ToOwned::to_owned);
    in_guest!(plugin, imports, bounds, grader or "grader", |store, guest| {
        let result = guest.call_grade(&mut store, label.as_deref(), &samples).await;
        let verdicts = result.map_err(|error| running(&store, &error))??;
        Ok(verdicts.into_iter().map(Into::into).collect())
    })
}

fn host_failed(error: wasmtime::Error) -> RunError {
    RunError::Host(format!("{error:#}"))
}

/// Makes a store and the instance in it, which is counted.
async fn start(
    plugin: Arc<Linked>,
    imports: Imports,
    memory_bytes_max: usize,
) -> Result<(Store<InstanceState>, Instance), RunError> {
    let _timing = imports.time_start();
    make(&plugin, imports, memory_bytes_max).await
}

async fn make(
    plugin: &Linked,
    imports: Imports,
    memory_bytes_max: usize,
) -> Result<(Store<InstanceState>, Instance), RunError> {
    let mut store = store(plugin, imports, memory_bytes_max);
    if !store.data_mut().memory.charge(plugin.kept_bytes) {
        return Err(RunError::Memory { max: memory_bytes_max });
    }
    match plugin.pre.instantiate_async(&mut store).await {
        Ok(instance) => Ok((store, instance)),
        Err(error) => Err(starting(&store, &error)),
    }
}

/// Deadline and CPU budget go around the whole run, instantiation among it: what is
/// dropped when one is over is the future with the store in it, so nothing can use that
/// store again. It comes in a box, because every future that it was handed through would
/// have its size again.
async fn within<R: Send + 'static>(
    plugin: &LinkedPlugin,
    deadline: Option<Instant>,
    (record, limits): (Arc<Record>, Arc<Limits>),
    run: busy::Run<Result<R, RunError>>,
) -> Result<R, RunError> {
    let budget = limits.guest_cpu_time_max;
    let _wall_time = record.meter().wall_time();
    let metered = async {
        let meter = CpuMeter::new(record.clone(), budget);
        match busy::run(&plugin.0.busy, meter, run).await {
            Ok(result) => result,
            Err(cpu::Exhausted) => Err(RunError::Cpu(budget.as_secs_f64())),
        }
    };
    let Some(deadline) = deadline else { return metered.await };
    // The timer counts in milliseconds, within which a whole rollout may run: a run with
    // no time left does not begin, and one that ends late is late.
    if Instant::now() >= deadline {
        return Err(RunError::Deadline);
    }
    match tokio::time::timeout_at(deadline, metered).await {
        Ok(result) if Instant::now() <= deadline => result,
        Ok(_) | Err(_) => Err(RunError::Deadline),
    }
}

fn store(plugin: &Linked, imports: Imports, memory_bytes_max: usize) -> Store<InstanceState> {
    let wasi = imports.wasi(plugin.input.clone());
    let memory = MemoryLimit::new(memory_bytes_max, imports.record().clone());
    let limits = imports.limits().clone();
    let state = InstanceState { imports, wasi, memory };
    let mut store = Store::new(plugin.pre.engine(), state);
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(limits.host_call_bytes_max);
    store.set_max_component_handles(limits.handles_max);
    // Armed before instantiation, because a start function runs in it.
    store.set_epoch_deadline(cpu::TICKS);
    store.epoch_deadline_callback(|_| Ok(cpu::at_tick()));
    store
}

/// Why an instance did not come to be.
fn starting(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    // A start function is the guest's, and does all that others do.
    if error.is::<Trap>() || error.is::<I32Exit>() || error.is::<Ended>() || error.is::<Diverged>() {
        return running(store, error);
    }
    // The engine has no type for this one.
    let what = error.root_cause().to_string();
    if what.starts_with("resource limit exceeded") {
        return RunError::Limit(format!(
            "has more parts than {CORE_INSTANCES_MAX} core instances, {MEMORIES_MAX} memories and \
             {TABLES_MAX} tables: {what}"
        ));
    }
    RunError::Host(format!("{error:#}"))
}

/// Why a guest did not return.
fn running(store: &Store<InstanceState>, error: &wasmtime::Error) -> RunError {
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return RunError::Exited(*code);
    }
    if let Some(ended) = error.downcast_ref::<Ended>() {
        return RunError::Contract(ended.to_string());
    }
    if let Some(diverged) = error.downcast_ref::<Diverged>() {
        return RunError::Diverged(diverged.clone());
    }
    if error.is::<PastOver>() {
        return RunError::PastOver;
    }
    let memory = &store.data().memory;
    if memory.refused() {
        return RunError::Memory { max: memory.bytes_max() };
    }
    let limits = store.data().imports.limits();
    // The engine has no type for these two that could be told apart from outside.
    let what = error.root_cause().to_string();
    if what.contains("fuel") {
        store.data().imports.record().limit_hit(Limit::HostCallBytes);
        let max = limits.host_call_bytes_max;
        return RunError::Limit(format!(
            "handed over more than host-call-bytes-max, {max} bytes, in one call; the operator can raise it"
        ));
    }
    if what.contains("handle") && what.contains("limit")
        || error
            .downcast_ref::<ResourceTableError>()
            .is_some_and(|error| matches!(error, ResourceTableError::Full))
    {
        store.data().imports.record().limit_hit(Limit::Handles);
        let max = limits.handles_max;
        return RunError::Limit(format!(
            "holds, or names in one call, more handles than handles-max, {max}; the operator can raise it"
        ));
    }
    if let Some(asked) = random_bytes_asked(&what) {
        store.data().imports.record().random_refused(asked);
        let max = limits.random_bytes_max;
        return RunError::Limit(format!(
            "asked for {asked} random bytes in one call, more than random-bytes-max, {max}; the operator can \
             raise it"
        ));
    }
    RunError::Trapped { reason: trap_text(error) }
}

/// How many random bytes a guest asked for when that was too many, which the engine
/// says in words only: `requested len 70000 exceeds limit 65536`.
fn random_bytes_asked(what: &str) -> Option<usize> {
    let (asked, limit) = what.strip_prefix("requested len ")?.split_once(" exceeds limit ")?;
    limit.parse::<u64>().ok()?;
    asked.parse().ok()
}

/// Frames that every panic goes through, and that say nothing of where it came from.
const RUNTIME_FRAMES: [&str; 5] = ["panic", "abort", "rust_begin_unwind", "rt::lang_start", "__rust_"];

/// The trap and the innermost frames that have a name.
fn trap_text(error: &wasmtime::Error) -> String {
    const FRAMES_SHOWN: usize = 4;
    let what = error.root_cause().to_string();
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return what };
    let frames: Vec<String> = backtrace
        .frames()
        .iter()
        .filter_map(|frame| frame.func_name().map(demangled))
        .filter(|name| !RUNTIME_FRAMES.iter().any(|part| name.contains(part)))
        .take(FRAMES_SHOWN)
        .collect();
    if frames.is_empty() { what } else { format!("{what} (in {})", frames.join(" < ")) }
}

/// A function's name as its author wrote it, without the hash of Rust's mangling.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

impl From<SampleToGrade> for grader::GradedSample {
    fn from(SampleToGrade { id, messages, metrics }: SampleToGrade) -> Self {
        let metrics = metrics.into_iter().map(|(name, value)| types::Metric { name, value }).collect();
        Self { id, messages, metrics }
    }
}

impl From<grader::Verdict> for GuestVerdict {
    fn from(grader::Verdict { sample_id, reward, metrics, withdraw }: grader::Verdict) -> Self {
        let metrics = metrics.into_iter().map(|metric| (metric.name, metric.value)).collect();
        Self { sample_id, reward, metrics, withdraw }
    }
}
