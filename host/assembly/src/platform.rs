//! The process-wide parts of a host, which serve the plugins of all tenants.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::Config;
use crate::{AssemblyError, Components, Connections, Deployed, NotLoaded, Sources};
use rollout_core::budget::Budget;
use rollout_core::capacity::{GuestCost, Machine, Slots};
use rollout_core::telemetry::Metrics;
use rollout_guest::engine::{Engine, EngineError, MemoryPlan};
use rollout_guest::plugin::Plugin;
use rollout_outbound::{Secret, Transport};
use rollout_rollout::{Deployment, ServedAs, Started};

/// Resources that are reserved in addition to those of rollouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// Number of instances of tools.
    pub tools: u32,
    /// Number of instances of deployments that are checked while rollouts run.
    pub loading: u32,
    /// Number of open files.
    pub descriptors: u64,
}

/// The capacity of the machine, and the engine. Created before any component is loaded.
pub struct Platform {
    machine: Machine,
    budget: Budget,
    plan: MemoryPlan,
    cost: GuestCost,
    engine: Engine,
}

/// Clients, metrics and name of a tenant's deployment.
pub struct Placed<'a> {
    /// Connections for its requests.
    pub transport: &'a Transport,
    /// Metrics in which it is counted.
    pub metrics: &'a Arc<Metrics>,
    /// Key of the judge's server.
    pub judge_key: Option<Secret>,
    /// Name of the deployment on the server.
    pub served_as: ServedAs,
}

/// Divisor of the memory budget for the memory that idle instances retain for later ones, in addition to the
/// budget. Together with the process's own memory it stays below a tenth of the budget plus 64 MiB.
const IDLE_PART: usize = 16;

impl Platform {
    /// Creates the platform that a configuration requests, as far as the machine has room. A guest has at
    /// most `memory_bytes_max` bytes of memory.
    pub fn new(
        config: &Config,
        descriptors_for_callers: u64,
        besides: Besides,
        memory_bytes_max: usize,
    ) -> Result<Self, EngineError> {
        let memory_budget_bytes = config.memory_budget_bytes.map(|bytes| bytes as u64);
        let machine = Machine::read();
        let descriptors_max = machine.descriptors_max.saturating_sub(besides.descriptors);
        let machine = Machine { memory_budget_bytes, descriptors_max, ..machine };
        let budget = Budget::new(usize::try_from(machine.memory_budget()).unwrap_or(usize::MAX));
        let instances = besides.tools.saturating_add(besides.loading);
        let instances_max = config.max_concurrent.saturating_add(instances);
        let plan = MemoryPlan::within(instances_max, machine.guest_mappings_max());
        // One descriptor is for the rollout's connection to its model.
        let descriptors = 1 + descriptors_for_callers;
        let cost = GuestCost { descriptors, mappings: plan.mappings_per_instance(), memory_bytes: 0 };
        let slots = machine.slots(config.max_concurrent, config.queue_max, cost);
        let instances = slots.running_max.saturating_add(instances);
        let engine = Engine::planned(plan, instances, memory_bytes_max, budget.total() / IDLE_PART)?;
        Ok(Self { machine, budget, plan, cost, engine })
    }

    /// Returns the engine, which compiles and runs guests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the memory budget of all rollouts together.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the source of the guests' memory.
    pub fn plan(&self) -> MemoryPlan {
        self.plan
    }

    /// Returns how many of the requested rollouts there is room for if each needs `memory_bytes`.
    pub fn room(&self, running_requested: u32, queue_requested: u32, memory_bytes: u64) -> Slots {
        self.machine.slots(running_requested, queue_requested, GuestCost { memory_bytes, ..self.cost })
    }

    /// Measures the bytes that a rollout of this deployment needs by starting an instance of each role.
    pub async fn memory_of(
        &self,
        deployment: &Deployment,
        metrics: &Arc<Metrics>,
    ) -> Result<u64, AssemblyError> {
        let started = deployment.try_start(&self.budget, metrics).await;
        let Started { memory_bytes, .. } =
            started.map_err(|(role, why)| AssemblyError::CannotStart { role, why })?;
        Ok(memory_bytes as u64)
    }

    /// Loads components while others are served, and checks that instances start. `load` blocks for as long
    /// as compiling takes.
    pub async fn deploy(
        &self,
        config: &Config,
        sources: Sources<'_>,
        placed: Placed<'_>,
        load: impl Fn(&Engine, &Path) -> Result<Plugin, NotLoaded>,
    ) -> Result<Deployed, AssemblyError> {
        let Placed { transport, metrics, judge_key, served_as } = placed;
        let served_as = Some(served_as);
        let load = |path: &Path| load(&self.engine, path);
        let components = Components::load(config, sources, Bytes::new(), load).await?;
        let judge = transport.clone();
        let connections = Connections { transport, metrics, observer: None, judge_key, judge, served_as };
        let deployed = components.deploy(config, connections, load).await?;
        self.memory_of(&deployed.deployment, metrics).await?;
        Ok(deployed)
    }
}
