//! Instances of guests, each for one run, or for one episode of an environment.
//!
//! Each function here, one for each export that a guest can have, builds a store, instantiates the plugin in it, calls
//! the guest and drops the store. The guest's whole state is in that store. Two runs share compiled code and nothing
//! else.
//!
//! This module depends neither on HTTP nor on rollouts. It takes imports, a deadline and input, and returns the guest's
//! result or a [`RunError`].

mod agent_loop;
mod busy;
mod cpu;
mod environment;
mod error;
mod group;
mod memory;
mod native;
mod permit;
mod rest;
mod ticker;
mod waits;
mod workflow;

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wasmtime::Store;
use wasmtime::component::{Component, Instance, InstancePre, Linker};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::imports::bindings::exports::rollout::plugin::{
    agent_loop as loop_export, environment as environment_export, grader, group_grader, settings, tool,
    workflow as workflow_export,
};
use crate::imports::bindings::rollout::plugin::types;
use crate::imports::{self, Imports, Record};
pub use agent_loop::{LoopOutcome, LoopRequest};
pub(crate) use busy::BusyThreads;
use cpu::CpuMeter;
pub use environment::{
    EnvironmentDescription, Episode, EpisodeAction, EpisodeFailure, EpisodeOutcome, EpisodeStart, SplitKind,
    TaskSplit,
};
pub use error::RunError;
use error::{host_failed, running, starting};
pub use group::{GroupToGrade, GuestRating, MemberToGrade};
pub(crate) use memory::{ASYNC_STACK_BYTES, CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use memory::{MemoryCharge, MemoryLimit, StackCharge};
pub use native::{NativeAgent, NativeCall, NativeReply};
pub use permit::Permit;
pub(crate) use rest::Rester;
use rest::Run;
use rollout_core::limits::Limits;
pub(crate) use ticker::Ticker;
pub use workflow::WorkflowOutcome;

/// The data of a store.
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

/// Returns a linker with everything that plugins may import, the same for every plugin. A call outside the instance's
/// role is refused when it is made.
pub(crate) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<InstanceState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    imports::refuse_sockets(&mut linker, |state: &mut InstanceState| &mut state.imports)?;
    imports::add_to_linker(&mut linker, |state: &mut InstanceState| &mut state.imports)?;
    waits::note(&mut linker)?;
    Ok(linker)
}

/// The contract's exports that a component has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forms {
    pub workflow: bool,
    pub agent_loop: bool,
    pub grader: bool,
    pub group_grader: bool,
    pub environment: bool,
    pub tool: bool,
    pub settings: bool,
}

/// A component with linked imports and exports.
#[derive(Clone)]
pub struct LinkedPlugin(Arc<Linked>);

#[derive(Clone)]
struct Linked {
    /// Standard input of its instances.
    input: Bytes,
    /// A resource that is released when the component is dropped.
    _held: Option<Arc<dyn Any + Send + Sync>>,
    busy: BusyThreads,
    /// Bytes that the engine allocates for an instance in addition to its memories and tables.
    kept_bytes: usize,
    pre: InstancePre<InstanceState>,
    workflow: Option<workflow_export::GuestIndices>,
    agent_loop: Option<loop_export::GuestIndices>,
    grader: Option<grader::GuestIndices>,
    group_grader: Option<group_grader::GuestIndices>,
    environment: Option<environment_export::GuestIndices>,
    tool: Option<tool::GuestIndices>,
    settings: Option<settings::GuestIndices>,
}

impl LinkedPlugin {
    /// Returns the size of its compiled code in bytes.
    pub(crate) fn code_bytes(&self) -> u64 {
        let image = self.0.pre.component().image_range();
        (image.end as usize).saturating_sub(image.start as usize) as u64
    }

    /// Returns the number of files that the component may hold open: one for each of its memories.
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
            group_grader: forms.group_grader.then(|| group_grader::GuestIndices::new(&pre)).transpose()?,
            environment: forms
                .environment
                .then(|| environment_export::GuestIndices::new(&pre))
                .transpose()?,
            tool: forms.tool.then(|| tool::GuestIndices::new(&pre)).transpose()?,
            settings: forms.settings.then(|| settings::GuestIndices::new(&pre)).transpose()?,
            pre,
        })))
    }

    /// Returns a copy that keeps a value until it is dropped.
    pub(crate) fn holding(&self, held: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(Linked { _held: Some(held), ..(*self.0).clone() }))
    }

    /// Returns a copy whose instances read `input` from standard input.
    pub fn with_input(&self, input: Bytes) -> Self {
        Self(Arc::new(Linked { input, ..(*self.0).clone() }))
    }
}

/// A sample as a grader receives it.
pub struct SampleToGrade {
    /// Its id.
    pub id: String,
    /// Its messages, one JSON object each.
    pub messages: Vec<String>,
    /// Its metrics.
    pub metrics: Vec<(String, f64)>,
}

/// A grader's verdict on one sample, unchecked.
#[derive(Debug)]
pub struct GuestVerdict {
    /// The id of the sample that the verdict refers to.
    pub sample_id: String,
    /// The reward.
    pub reward: Option<f64>,
    /// Its metrics.
    pub metrics: Vec<(String, f64)>,
    /// Whether the sample should be excluded from training.
    pub withdraw: bool,
}

/// Limits of an instance, and the permit to create it.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Maximum size of linear memories and tables together, in bytes.
    pub memory_bytes_max: usize,
    /// Time when the instance is stopped, whether it runs or waits.
    pub deadline: Option<Instant>,
    /// The permit, which is held until the store is dropped.
    pub permit: Permit,
}

/// Creates an instance within the bounds, finds the component's export of one form in it, calls the export, and returns
/// the future of the call. This is a macro, because each form has its own type and the future of a closure cannot be
/// declared `Send`.
///
/// Starting is boxed separately and dropped when the guest runs, because its future is three times as large as that of
/// a waiting guest.
macro_rules! in_guest {
    ($plugin:ident, $imports:ident, $bounds:ident, $form:ident or $missing:literal,
     |$store:ident, $guest:ident| $work:block) => {{
        let linked = $plugin.0.clone();
        let kept = $imports.record_and_limits();
        let Bounds { memory_bytes_max, deadline, permit } = $bounds;
        let charge = MemoryCharge::new($imports.record());
        let stack = StackCharge::new(charge.clone());
        let starting = Box::pin(start(linked.clone(), $imports, memory_bytes_max, charge.clone()));
        let run = Box::pin(async move {
            // Declared first, so that they are dropped last, after the store.
            let _held = (charge, permit);
            let indices = linked.$form.as_ref().ok_or(RunError::Missing($missing))?;
            let (mut $store, instance) = starting.await?;
            let $guest = indices.load(&mut $store, &instance).map_err(host_failed)?;
            $work
        });
        within(&$plugin, deadline, kept, stack, run)
    }};
}

/// Runs a workflow with the prompt's messages. The result is unchecked text and numbers.
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

/// Runs an agent loop. The result is unchecked text.
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

/// Asks an agent loop for the tools of one rollout: OpenAI function tools as unchecked JSON text.
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

/// Asks a plugin for the declaration of its configuration: a JSON Schema and the defaults, as unchecked text.
pub(crate) fn declare(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<settings::Declaration, RunError>> {
    in_guest!(plugin, imports, bounds, settings or "declared settings", |store, guest| {
        guest.call_declare(&mut store).await.map_err(|error| running(&store, &error))
    })
}

/// Asks a component for the tools that it exports: OpenAI function tools as unchecked JSON text.
pub fn describe_tools(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<Vec<String>, RunError>> {
    in_guest!(plugin, imports, bounds, tool or "tool", |store, guest| {
        guest.call_describe(&mut store).await.map_err(|error| running(&store, &error))
    })
}

/// Calls a tool of a component. The inner error is the tool's message to the model.
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

/// Asks a component for the description of its environment.
pub fn describe_environment(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> impl Future<Output = Result<EnvironmentDescription, RunError>> {
    in_guest!(plugin, imports, bounds, environment or "environment", |store, guest| {
        guest.call_describe(&mut store).await.map(Into::into).map_err(|error| running(&store, &error))
    })
}

/// Asks an environment for a task: a JSON object as unchecked text.
pub fn environment_task(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    split: String,
    index: u64,
) -> impl Future<Output = Result<String, RunError>> {
    in_guest!(plugin, imports, bounds, environment or "environment", |store, guest| {
        let result = guest.call_task(&mut store, &split, index).await;
        Ok(result.map_err(|error| running(&store, &error))??)
    })
}

/// Creates the instance of an episode, which starts with the first call. Each call takes at most `call_time_max`.
pub fn start_episode(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    call_time_max: Duration,
) -> Episode {
    let (sender, mut calls) = tokio::sync::mpsc::channel(1);
    let plugin = plugin.clone();
    let run = async move {
        let run = in_guest!(plugin, imports, bounds, environment or "environment", |store, guest| {
            environment::serve(&guest, &mut store, &mut calls, call_time_max).await
        });
        run.await
    };
    Episode::new(sender, run)
}

impl Linked {
    /// Checks that each export has the types of this contract. A plugin for another version of it would fail every
    /// rollout.
    fn check_exports(&self, store: &mut Store<InstanceState>, instance: &Instance) -> Result<(), RunError> {
        let loaded = [
            self.workflow.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.agent_loop.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.grader.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.group_grader.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.environment.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.tool.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
            self.settings.as_ref().map(|export| export.load(&mut *store, instance).map(drop)),
        ];
        loaded.into_iter().flatten().collect::<Result<(), _>>().map_err(|error| {
            RunError::Contract(format!(
                "it was built for another version of the contract than this host's; rebuild it: {error:#}"
            ))
        })
    }
}

/// Creates an instance and drops it without calling it. Returns the time that it took; its memory is in the record.
pub async fn try_start(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
) -> Result<Duration, RunError> {
    let linked = plugin.0.clone();
    let kept = imports.record_and_limits();
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

/// Runs a grader on the samples.
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

/// Runs the reward function of a group.
pub fn run_group_grader(
    plugin: &LinkedPlugin,
    imports: Imports,
    bounds: Bounds,
    group: GroupToGrade,
) -> impl Future<Output = Result<Vec<GuestRating>, RunError>> {
    let group: group_grader::Group = group.into();
    in_guest!(plugin, imports, bounds, group_grader or "group grader", |store, guest| {
        let result = guest.call_grade_group(&mut store, &group).await;
        let ratings = result.map_err(|error| running(&store, &error))??;
        Ok(ratings.into_iter().map(Into::into).collect())
    })
}

/// Creates a store with an instance, and records the time.
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

/// Applies the deadline and the CPU budget to the whole run, including instantiation. When one is used up, the future
/// is dropped with the store in it, so that nothing can use that store again. The future is boxed, because each future
/// around it would add its size again.
async fn within<R: Send + 'static>(
    plugin: &LinkedPlugin,
    deadline: Option<Instant>,
    (record, limits): (Arc<Record>, Arc<Limits>),
    stack: StackCharge,
    run: Pin<Box<dyn Future<Output = Result<R, RunError>> + Send>>,
) -> Result<R, RunError> {
    let budget = limits.guest_cpu_time_max;
    let _wall_time = record.meter().wall_time();
    let metered = async {
        let meter = CpuMeter::new(record.clone(), budget, stack);
        let run = Run::new(run, plugin.0.busy.rester());
        match busy::run(&plugin.0.busy, meter, run).await {
            Ok(result) => result,
            Err(cpu::Exhausted) => Err(RunError::Cpu(budget.as_secs_f64())),
        }
    };
    let Some(deadline) = deadline else { return metered.await };
    // The timer has a resolution of milliseconds, and a whole rollout may run in less. Therefore a run with no time
    // left does not start, and a run that ended after the deadline fails.
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
    // Set before instantiation, because a start function runs in it.
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
