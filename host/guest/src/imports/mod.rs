//! What a guest may ask of the host.
//!
//! [`Imports`] lives as long as one store and answers for one role of one rollout.
//! What a rollout must keep when its guest is stopped (samples, observed exchanges,
//! artifacts, log) is in the [`Record`], which outlives the store; everything else
//! goes with it. A guest holds handles, never an address, a key or a label.
//!
//! This module knows nothing of engines, deadlines or protocols.

mod artifacts;
mod ask;
mod boundary;
mod calls;
mod context;
mod fork;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gate;
mod host_tools;
mod log;
mod meter;
mod models;
mod outside;
mod past;
mod record;
mod refused;
mod samples;
mod sockets;
mod stdio;
mod tools;
mod virtual_clock;

/// The contract's types, generated from `wit/`.
pub(crate) mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit",
        inline: "
            package rollout:host;
            world host {
                include rollout:plugin/workflow-plugin@0.1.0;
                include rollout:plugin/agent-loop-plugin@0.1.0;
                include rollout:plugin/grader-plugin@0.1.0;
                include rollout:plugin/tool-plugin@0.1.0;
                include rollout:plugin/with-settings@0.1.0;
            }
        ",
        world: "rollout:host/host",
        imports: {
            "rollout:plugin/calls.wait": async | trappable,
            "rollout:plugin/models.complete": async | trappable,
            "rollout:plugin/models.finish": async | trappable,
            "rollout:plugin/tools.execute": async | trappable,
            "rollout:plugin/tools.finish": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        // What an import answers with, before it is the guest's or ends it.
        trappable_error_type: {
            "rollout:plugin/samples.open-error" => super::gate::OpenRefused,
            "rollout:plugin/samples.record-error" => super::gate::RecordRefused,
            "rollout:plugin/models.error" => super::gate::AskRefused,
            "rollout:plugin/artifacts.error" => super::gate::FileRefused,
        },
        with: {
            "rollout:plugin/samples.sample": super::samples::OpenSample,
            "rollout:plugin/calls.call": super::calls::Call,
        },
    });
}

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder};

use rollout_core::limits::Limits;
use rollout_core::telemetry::{Metrics, Span, Step, Timing};
use rollout_wire::id::RolloutId;
use rollout_wire::openai::CallerParams;

use virtual_clock::GuestClock;
pub use virtual_clock::{ClockStart, InvalidClockStart};

pub(crate) use boundary::PastOver;
pub use boundary::{Boundary, Difference, Diverged, RunLog};
pub use fork::{Ancestor, ForkOrigin, ForkPoint};
pub use host_tools::{HostTool, HostTools, ToolRequest};
pub use outside::{Live, ModelAccess, Outside};
pub use past::{Past, Then};
pub use record::{
    ArtifactFile, JudgeFailure, LogEntry, LogLevel, Record, Recorded, Remains, RolloutUsage, read_log,
};
pub use refused::{RefusedKind, RefusedUse, RefusedUses};
pub(crate) use sockets::refuse as refuse_sockets;

/// What an instance was made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To run the agent, in either form.
    Workflow,
    /// To rate.
    Grader,
    /// To make one call of a tool for others.
    Tool,
    /// To say what the plugin is or offers: no model, no samples, no rollout.
    Declaration,
}

impl Role {
    /// The word for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Grader => "grader",
            Self::Tool => "tool",
            Self::Declaration => "declaration",
        }
    }
}

/// What a guest is told about the rollout that its instance was made for, and where the
/// host counts what it does for it.
#[derive(Clone, Debug)]
pub struct RunContext {
    /// The rollout.
    pub rollout_id: RolloutId,
    /// What its caller calls it, where that could be no id.
    pub caller_id: Option<String>,
    /// 1 for the first try.
    pub attempt: u32,
    /// The operator's configuration of the plugin, a JSON object.
    pub config: Option<Arc<RawValue>>,
    /// The row's metadata, as this instance may see it.
    pub metadata: Option<Arc<RawValue>>,
    /// Samples that the caller takes.
    pub samples_max: u32,
    /// The caller's sampling parameters, for requests that do not say otherwise.
    pub caller_params: CallerParams,
    /// Where the rollout comes from, if it is a fork.
    pub fork: Option<Arc<ForkOrigin>>,
    /// The date that its clocks begin at.
    pub clock_begins: ClockStart,
    /// What the host counts. No guest sees it.
    pub metrics: Arc<Metrics>,
}

impl RunContext {
    /// For an instance that says what a plugin is, under an id that only decides on its
    /// random numbers.
    pub fn of_no_rollout(
        rollout_id: RolloutId,
        config: Option<Arc<RawValue>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            rollout_id,
            caller_id: None,
            attempt: 1,
            config,
            metadata: None,
            samples_max: 0,
            caller_params: CallerParams::default(),
            fork: None,
            clock_begins: ClockStart::default(),
            metrics,
        }
    }

    /// Whose random numbers a run in this role has, by id and try, once it has passed so many forks.
    fn identity(&self, role: Role, era: usize) -> (&RolloutId, u32) {
        match self.ancestors(role).get(era) {
            Some(ancestor) => (&ancestor.id, ancestor.attempt),
            None => (&self.rollout_id, self.attempt),
        }
    }

    /// Whose past a run in this role has. A grader has none of another rollout's.
    fn ancestors(&self, role: Role) -> &[Ancestor] {
        let fork = self.fork.as_ref().filter(|_| role != Role::Grader);
        fork.map(|fork| fork.ancestors.as_slice()).unwrap_or_default()
    }
}

/// Ends the instance: the guest broke the contract in a way that it cannot be told of.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// It used an import that its role does not have.
    #[error("a {role} called {import}, which only a {allowed} may")]
    WrongRole {
        /// What it is.
        role: &'static str,
        /// What it called.
        import: &'static str,
        /// Who may.
        allowed: &'static str,
    },
    /// It finished a call through an interface that did not start it.
    #[error("{0}.finish was given a call that {1}.start made")]
    WrongCall(&'static str, &'static str),
    /// It was stopped within a call, and its rollout is over.
    #[error("called the host when its rollout was over")]
    Over,
    /// It called the host more often than it may.
    #[error("called the host more often than host-calls-max, {0} times; the operator can raise it")]
    HostCalls(u64),
    /// It gave a tool call an id that is too long to be kept.
    #[error("gave a tool call an id of {given} bytes; {max} are the most")]
    LongCallId {
        /// Its length in bytes.
        given: usize,
        /// The longest.
        max: usize,
    },
    /// It had more tools called at once than a model can ask for.
    #[error("tools.execute was given {given} calls, more than the {max} that a reply of a model may ask for")]
    ManyCalls {
        /// Calls that it gave.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// It asked to see more than it has memory for.
    #[error(
        "asked for observed requests of {bytes} bytes together, more than memory-bytes-max, {max}; the operator can raise it"
    )]
    ManyObserved {
        /// What they have.
        bytes: usize,
        /// What it has.
        max: usize,
    },
    /// It asked for more of a history than it has memory for.
    #[error(
        "asked for messages of {bytes} bytes of a sample's history at once, more than memory-bytes-max, {max}; \
         ask for fewer at a time"
    )]
    LongHistory {
        /// What they have.
        bytes: usize,
        /// What it has.
        max: usize,
    },
    /// It waited for more calls than can be under way.
    #[error(
        "calls.wait was given {given} calls, more than concurrent-calls-max, {max}, that can be under way at \
         once; name each once, or the operator can raise it"
    )]
    LongWait {
        /// Calls that it named.
        given: usize,
        /// The limit.
        max: u32,
    },
}

/// The imports of one store.
pub struct Imports {
    role: Role,
    run: Arc<RunContext>,
    limits: Arc<Limits>,
    outside: Arc<dyn Outside>,
    boundary: Arc<Boundary>,
    record: Arc<Record>,
    calls_under_way: u32,
    host_calls: u64,
    clock: GuestClock,
    pub(crate) table: ResourceTable,
}

impl Imports {
    /// Imports for one role in one run, whose guest finds outside what is there for it.
    pub fn new(
        role: Role,
        run: Arc<RunContext>,
        limits: Arc<Limits>,
        outside: impl Outside + 'static,
        record: Arc<Record>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles_max);
        let clock = GuestClock::new(run.clock_begins);
        Self {
            role,
            run,
            limits,
            outside: Arc::new(outside),
            boundary: Arc::default(),
            record,
            calls_under_way: 0,
            host_calls: 0,
            clock,
            table,
        }
    }

    /// The same, with what crosses from outside at this boundary.
    pub fn across(self, boundary: Arc<Boundary>) -> Self {
        let mut imports = self;
        imports.boundary = boundary;
        imports
    }

    /// What a guest's standard library finds: no arguments, environment, files or
    /// network; random numbers that the rollout decides; output that goes to the log. On standard
    /// input there is what the plugin was given, which is nothing where it is served.
    pub(crate) fn wasi(&self, input: Bytes) -> WasiCtx {
        let mut builder = WasiCtxBuilder::new();
        virtual_clock::seed(&mut builder, &self.run, self.role, self.boundary.era());
        builder
            .wall_clock(self.clock.clone())
            .monotonic_clock(self.clock.clone())
            .max_random_size(self.limits.random_bytes_max)
            .allow_tcp(false)
            .allow_udp(false)
            .stdout(stdio::LogStream::new(self.record.clone(), self.limits.clone(), LogLevel::Info))
            .stderr(stdio::LogStream::new(self.record.clone(), self.limits.clone(), LogLevel::Warn));
        if !input.is_empty() {
            builder.stdin(MemoryInputPipe::new(input));
        }
        builder.build()
    }

    /// The rollout's record.
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// The rollout's limits.
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// What outlives the instance, and what bounds it.
    pub(crate) fn kept(&self) -> (Arc<Record>, Arc<Limits>) {
        (self.record.clone(), self.limits.clone())
    }

    /// Times the start of the instance until what is given back is dropped.
    pub(crate) fn time_start(&self) -> (Timing, Span) {
        (self.run.metrics.time(Step::InstanceStart), self.record.trace().span("instance_start"))
    }
}

impl Drop for Imports {
    /// What the guest has under way ends with it.
    fn drop(&mut self) {
        self.boundary.closes();
    }
}

/// Offers the contract's imports to every plugin. `imports` finds them in a store.
pub(crate) fn add_to_linker<T: Send + 'static>(
    linker: &mut Linker<T>,
    imports: fn(&mut T) -> &mut Imports,
) -> wasmtime::Result<()> {
    use bindings::rollout::plugin;
    plugin::types::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::context::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::samples::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::calls::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::models::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::tools::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::artifacts::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::log::add_to_linker::<T, HasSelf<Imports>>(linker, imports)?;
    plugin::observations::add_to_linker::<T, HasSelf<Imports>>(linker, imports)
}
