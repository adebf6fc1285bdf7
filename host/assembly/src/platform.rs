//! What a process has once, whoever's plugins it serves.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::Config;
use crate::{AssemblyError, Components, Connections, Deployed, NotLoaded, Sources};
use rollout_core::budget::Budget;
use rollout_core::capacity::{GuestCost, Machine, Slots};
use rollout_core::engine::{Engine, EngineError, MemoryPlan};
use rollout_core::outbound::{Secret, Transport};
use rollout_core::plugin::Plugin;
use rollout_core::rollout::{Deployment, ServedAs, Started};
use rollout_core::telemetry::Metrics;

/// What there is room for besides rollouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// Instances of tools.
    pub tools: u32,
    /// Instances of deployments that are brought in while rollouts run.
    pub loading: u32,
    /// Open files.
    pub descriptors: u64,
}

/// How much of the machine there is, and the engine in it. Settled before any component is there.
pub struct Platform {
    machine: Machine,
    budget: Budget,
    plan: MemoryPlan,
    cost: GuestCost,
    engine: Engine,
}

/// Whose a deployment is.
pub struct Placed<'a> {
    /// The connections that its requests are sent over.
    pub transport: &'a Transport,
    /// What it is counted in.
    pub metrics: &'a Arc<Metrics>,
    /// The key of the judge's server.
    pub judge_key: Option<Secret>,
    /// What it is called there.
    pub served_as: ServedAs,
}

/// The part of the memory budget that idle instances may have besides it, for those that come after them. With
/// what the process has for itself it stays below a tenth of the budget and 64 MiB.
const IDLE_PART: usize = 16;

impl Platform {
    /// What this configuration asks for, as far as there is room. A guest has at most so many bytes of
    /// memory.
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
        // One descriptor is the rollout's own, to its model.
        let descriptors = 1 + descriptors_for_callers;
        let cost = GuestCost { descriptors, mappings: plan.mappings_per_instance(), memory_bytes: 0 };
        let slots = machine.slots(config.max_concurrent, config.queue_max, cost);
        let instances = slots.running_max.saturating_add(instances);
        let engine = Engine::planned(plan, instances, memory_bytes_max, budget.total() / IDLE_PART)?;
        Ok(Self { machine, budget, plan, cost, engine })
    }

    /// What compiles and runs guests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What may be held for all rollouts together.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Where the memory of guests comes from.
    pub fn plan(&self) -> MemoryPlan {
        self.plan
    }

    /// How many rollouts there is room for of those that were asked for, where each needs so many bytes.
    pub fn room(&self, running_asked: u32, queue_asked: u32, memory_bytes: u64) -> Slots {
        self.machine.slots(running_asked, queue_asked, GuestCost { memory_bytes, ..self.cost })
    }

    /// The bytes that a rollout of this deployment needs, found out by starting an instance of each kind.
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

    /// Brings components in beside those that are served already, and sees that they start. `load` blocks
    /// for as long as compiling takes.
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
