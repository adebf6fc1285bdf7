//! The host's functions that a guest calls.
//!
//! [`Imports`] lives as long as one store and serves one role of one rollout. The [`Record`] outlives the
//! store: it has the data of a rollout that remains when its guest is stopped (samples, observed exchanges,
//! artifacts, log). All other state ends with the store. A guest has handles, never an address, a key or a
//! label.
//!
//! This module knows nothing of engines, deadlines or protocols.

mod artifacts;
mod ask;
mod boundary;
mod calls;
mod context;
mod divergence;
mod fork_origin;
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
                include rollout:plugin/group-grader-plugin@0.1.0;
                include rollout:plugin/environment-plugin@0.1.0;
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
        // Error types of the imports, before they are returned to the guest or end it.
        trappable_error_type: {
            "rollout:plugin/samples.open-error" => super::gate::SampleOpenError,
            "rollout:plugin/samples.record-error" => super::gate::SampleRecordError,
            "rollout:plugin/models.error" => super::gate::ModelCallError,
            "rollout:plugin/artifacts.error" => super::gate::ArtifactError,
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

pub use boundary::{Boundary, RunLog};
pub(crate) use divergence::PastOver;
pub use divergence::{Difference, Diverged};
pub use fork_origin::{Ancestor, ForkOrigin, ForkPoint};
pub(crate) use gate::{CallError, ModelCallError};
pub use host_tools::{HostTool, HostTools, ToolRequest};
pub use outside::{Live, ModelAccess, Outside};
pub use past::{Past, Then};
pub use record::{
    ArtifactFile, JudgeFailure, LogEntry, LogLevel, Record, Recorded, Remains, RolloutUsage, read_log,
};
pub use refused::{RefusedKind, RefusedUse, RefusedUses};
pub(crate) use samples::OpenSample;
pub(crate) use sockets::refuse as refuse_sockets;

/// The role of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs the agent, in either form.
    Workflow,
    /// Rates samples.
    Grader,
    /// Rates the samples of a group of rollouts.
    GroupGrader,
    /// Runs one episode of an environment.
    Environment,
    /// Makes one call of a tool for other plugins.
    Tool,
    /// Declares the plugin's properties or tools, without a model, samples or a rollout.
    Declaration,
}

impl Role {
    /// Returns the role's name for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Grader => "grader",
            Self::GroupGrader => "group grader",
            Self::Environment => "environment",
            Self::Tool => "tool",
            Self::Declaration => "declaration",
        }
    }
}

/// The rollout that an instance was made for, as its guest sees it, and the host's metrics.
#[derive(Clone, Debug)]
pub struct RunContext {
    /// The id of the rollout.
    pub rollout_id: RolloutId,
    /// The caller's name for the rollout, if that is not a valid id.
    pub caller_id: Option<String>,
    /// Number of the attempt: 1 at first.
    pub attempt: u32,
    /// The operator's configuration for the plugin, a JSON object.
    pub config: Option<Arc<RawValue>>,
    /// The row's metadata, as this instance may see it.
    pub metadata: Option<Arc<RawValue>>,
    /// Number of samples that the caller accepts.
    pub samples_max: u32,
    /// The caller's sampling parameters, the defaults of requests.
    pub caller_params: CallerParams,
    /// The rollout's origin, if it is a fork.
    pub fork: Option<Arc<ForkOrigin>>,
    /// The date and time at which the guest's clocks start.
    pub clock_begins: ClockStart,
    /// The host's metrics. Guests do not see them.
    pub metrics: Arc<Metrics>,
}

impl RunContext {
    /// Creates the context of an instance that declares a plugin. The id determines only its random numbers.
    pub fn without_rollout(
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

    /// Returns the id and attempt that seed the random numbers of a run in this role, once it has passed
    /// `era` forks.
    fn identity(&self, role: Role, era: usize) -> (&RolloutId, u32) {
        match self.ancestors(role).get(era) {
            Some(ancestor) => (&ancestor.id, ancestor.attempt),
            None => (&self.rollout_id, self.attempt),
        }
    }

    /// Returns the rollouts whose events a run in this role repeats. Graders repeat none.
    fn ancestors(&self, role: Role) -> &[Ancestor] {
        let fork = self.fork.as_ref().filter(|_| !matches!(role, Role::Grader | Role::GroupGrader));
        fork.map(|fork| fork.ancestors.as_slice()).unwrap_or_default()
    }
}

/// A violation of the contract that no error of an import can report. It ends the instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractViolation {
    /// The guest used an import that its role does not have.
    #[error("a {role} called {import}, which only a {allowed} may")]
    WrongRole {
        /// The guest's role.
        role: &'static str,
        /// The import.
        import: &'static str,
        /// The role that may use it.
        allowed: &'static str,
    },
    /// The guest finished a call through an interface that did not start it.
    #[error("{0}.finish was given a call that {1}.start made")]
    WrongCall(&'static str, &'static str),
    /// The guest was stopped within a call, and its rollout is over.
    #[error("called the host when its rollout was over")]
    RolloutOver,
    /// The guest called the host more often than it may.
    #[error("called the host more often than host-calls-max, {0} times; the operator can raise it")]
    HostCalls(u64),
    /// The guest gave a tool call an id that is too long to store.
    #[error("gave a tool call an id of {given} bytes; {max} are the most")]
    LongCallId {
        /// Length of the id in bytes.
        given: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The guest passed more tool calls at once than a model's reply may have.
    #[error("tools.execute was given {given} calls, more than the {max} that a reply of a model may ask for")]
    ManyCalls {
        /// Number of calls that the guest passed.
        given: usize,
        /// Maximum number of calls.
        max: usize,
    },
    /// The guest requested observed exchanges that exceed its memory.
    #[error(
        "asked for observed requests of {bytes} bytes together, more than memory-bytes-max, {max}; the operator can raise it"
    )]
    ManyObserved {
        /// Size of the requests in bytes.
        bytes: usize,
        /// Memory limit of the guest in bytes.
        max: usize,
    },
    /// The guest requested more of a history than its memory holds.
    #[error(
        "asked for messages of {bytes} bytes of a sample's history at once, more than memory-bytes-max, {max}; \
         ask for fewer at a time"
    )]
    LongHistory {
        /// Size of the messages in bytes.
        bytes: usize,
        /// Memory limit of the guest in bytes.
        max: usize,
    },
    /// The guest waited for more calls than may be pending.
    #[error(
        "calls.wait was given {given} calls, more than concurrent-calls-max, {max}, that can be under way at \
         once; name each once, or the operator can raise it"
    )]
    LongWait {
        /// Number of calls that the guest passed.
        given: usize,
        /// Maximum number of calls.
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
    pending_calls: u32,
    host_calls: u64,
    clock: GuestClock,
    pub(crate) table: ResourceTable,
}

impl Imports {
    /// Creates the imports for one role in one run, with `outside` as its models and tools.
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
            pending_calls: 0,
            host_calls: 0,
            clock,
            table,
        }
    }

    /// Replaces the boundary that answers are delivered through.
    pub fn across(self, boundary: Arc<Boundary>) -> Self {
        let mut imports = self;
        imports.boundary = boundary;
        imports
    }

    /// Creates the WASI context of a guest: no arguments, environment, files or network, random numbers
    /// determined by the rollout, and output that goes to the log. Standard input holds `input`, which is
    /// empty on a server.
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

    /// Returns the rollout's record.
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Returns the rollout's limits.
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// Returns the record, which outlives the instance, and the limits.
    pub(crate) fn record_and_limits(&self) -> (Arc<Record>, Arc<Limits>) {
        (self.record.clone(), self.limits.clone())
    }

    /// Measures the start of the instance until the returned values are dropped.
    pub(crate) fn time_start(&self) -> (Timing, Span) {
        (self.run.metrics.time(Step::InstanceStart), self.record.trace().span("instance_start"))
    }
}

impl Drop for Imports {
    /// Aborts the guest's pending calls.
    fn drop(&mut self) {
        self.boundary.close();
    }
}

/// Adds the contract's imports to a linker. `imports` returns the imports in a store's data.
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
