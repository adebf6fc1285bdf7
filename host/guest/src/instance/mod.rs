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
mod error;
mod memory;
mod permit;
mod ticker;
mod workflow;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wasmtime::Store;
use wasmtime::component::{Component, Instance, InstancePre, Linker, Resource};
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::io::poll as wasi_poll;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::imports::bindings::exports::rollout::plugin::{
    agent_loop as loop_export, grader, settings, tool, workflow as workflow_export,
};
use crate::imports::bindings::rollout::plugin::types;
use crate::imports::{self, Imports, Record};
use crate::stack;
pub use agent_loop::{LoopOutcome, LoopRequest};
pub(crate) use busy::BusyThreads;
use cpu::CpuMeter;
pub use error::RunError;
use error::{host_failed, running, starting};
pub(crate) use memory::{ASYNC_STACK_BYTES, CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use memory::{MemoryCharge, MemoryLimit, StackCharge};
pub use permit::Permit;
use rollout_core::limits::Limits;
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
    note_waits(&mut linker)?;
    imports::refuse_sockets(&mut linker, |state: &mut InstanceState| &mut state.imports)?;
    imports::add_to_linker(&mut linker, |state: &mut InstanceState| &mut state.imports)?;
    Ok(linker)
}

/// Puts functions that note the guest's stack in the place of those in which WASI lets a guest wait.
fn note_waits(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut poll = linker.instance("wasi:io/poll@0.2.12")?;
    poll.func_wrap_async("poll", |mut store, (pollables,): (Vec<Resource<DynPollable>>,)| {
        Box::new(async move {
            stack::note_place();
            let table = &mut store.data_mut().imports.table;
            Ok((wasi_poll::Host::poll(table, pollables).await?,))
        })
    })?;
    poll.func_wrap_async("[method]pollable.block", |mut store, (pollable,): (Resource<DynPollable>,)| {
        Box::new(async move {
            stack::note_place();
            let table = &mut store.data_mut().imports.table;
            wasi_poll::HostPollable::block(table, pollable).await
        })
    })?;
    linker.allow_shadowing(false);
    Ok(())
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
    /// What was taken for it, given back when it is gone.
    _held: Option<Arc<dyn Any + Send + Sync>>,
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

    /// Number of files that the component may hold open: one for each of its memories.
    pub(crate) fn open_files(&self) -> u64 {
        let required = self.0.pre.component().resources_required();
        required.map_or(1, |required| u64::from(required.num_memories).max(1))
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
            _held: None,
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

    /// The same, which holds something for as long as it is there.
    pub(crate) fn holding(&self, held: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(Linked { _held: Some(held), ..(*self.0).clone() }))
    }

    /// The same, whose instances find this on standard input.
    pub fn with_input(&self, input: Bytes) -> Self {
        Self(Arc::new(Linked { input, ..(*self.0).clone() }))
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
        let charge = MemoryCharge::new($imports.record());
        let stack = StackCharge::new(charge.clone());
        let starting = Box::pin(start(linked.clone(), $imports, memory_bytes_max, charge.clone()));
        let run = Box::pin(async move {
            // Come first, so that they are dropped last, after the store.
            let _held = (charge, permit);
            let indices = linked.$form.as_ref().ok_or(RunError::Missing($missing))?;
            let (mut $store, instance) = starting.await?;
            let $guest = indices.load(&mut $store, &instance).map_err(host_failed)?;
            $work
        });
        within($plugin, deadline, kept, stack, run)
    }};
}

/// Runs a workflow from the prompt's messages. What it gives back is text and numbers that
/// nobody has checked.
pub fn run_workflow(
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
pub fn run_agent_loop(
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
pub fn agent_loop_tools(
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
pub fn agent_loop_name(
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
pub async fn try_start(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> Result<Duration, RunError> {
    let linked = plugin.0.clone();
    let kept = imports.kept();
    let Bounds { memory_bytes_max, deadline, permit } = bounds;
    let charge = MemoryCharge::new(imports.record());
    let stack = StackCharge::new(charge.clone());
    let run = Box::pin(async move {
        let _held = (charge.clone(), permit);
        let started = std::time::Instant::now();
        let (mut store, instance) = make(&linked, imports, memory_bytes_max, charge).await?;
        let elapsed = started.elapsed();
        linked.check_exports(&mut store, &instance)?;
        Ok(elapsed)
    });
    within(plugin, deadline, kept, stack, run).await
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

/// Makes a store and the instance in it, which is counted.
async fn start(
    plugin: Arc<Linked>,
    imports: Imports,
    memory_bytes_max: usize,
    charge: MemoryCharge,
) -> Result<(Store<InstanceState>, Instance), RunError> {
    let _timing = imports.time_start();
    make(&plugin, imports, memory_bytes_max, charge).await
}

async fn make(
    plugin: &Linked,
    imports: Imports,
    memory_bytes_max: usize,
    charge: MemoryCharge,
) -> Result<(Store<InstanceState>, Instance), RunError> {
    let mut store = store(plugin, imports, memory_bytes_max, charge);
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
    stack: StackCharge,
    run: cpu::Run<Result<R, RunError>>,
) -> Result<R, RunError> {
    let budget = limits.guest_cpu_time_max;
    let _wall_time = record.meter().wall_time();
    let metered = async {
        let meter = CpuMeter::new(record.clone(), budget, stack);
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

fn store(
    plugin: &Linked,
    imports: Imports,
    memory_bytes_max: usize,
    charge: MemoryCharge,
) -> Store<InstanceState> {
    let wasi = imports.wasi(plugin.input.clone());
    let memory = MemoryLimit::new(memory_bytes_max, imports.record().clone(), charge);
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
