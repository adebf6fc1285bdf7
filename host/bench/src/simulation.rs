//! A simulation of a cluster of gateways and workers, event by event, with costs that were measured.
//!
//! It answers questions that no two machines can: how evenly a thousand workers are used when each gateway knows their room
//! of up to a second ago, how long admissions wait at gateways, workers and NATS servers, and what a dead worker costs.
//! Slots, queues, the placement by id and by room, status reads, batches of the log, and takeovers are those of the program.
//! Networks and disks are a fixed time each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

use super::stats::percentile;

/// Seconds between two reads of a worker's status by a gateway.
const STATUS_SECS: f64 = 1.0;

/// Number of parts in which the workers' status is read within this time.
const STATUS_PARTS: usize = 50;

/// Seconds over which records of a log are gathered into a batch.
const BATCH_SECS: f64 = 0.005;

/// Number of other workers that a rollout may be placed at.
const OTHERS_MAX: usize = 2;

/// Seconds after which a refused caller asks again.
const RETRY_SECS: f64 = 5.0;

/// Part of a rollout's CPU time that is needed for its admission; the rest is needed at its end.
const ADMISSION_PART: f64 = 0.5;

/// The measured costs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Costs {
    /// CPU time of a rollout at its worker, in milliseconds.
    pub worker_ms: f64,
    /// CPU time of a rollout at a gateway, in milliseconds.
    pub gateway_ms: f64,
    /// CPU time of a rollout at one NATS server, in milliseconds.
    pub nats_ms: f64,
    /// CPU time of one read of a worker's status, at gateway and worker together, in milliseconds.
    pub status_ms: f64,
    /// Bytes of a rollout in the log.
    pub log_bytes: f64,
}

/// The cluster and its load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of workers.
    pub workers: usize,
    /// Slots of each worker.
    pub slots: u32,
    /// Cores of each machine.
    pub cores: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Number of groups of three NATS servers. The log of a worker is in one of them.
    pub nats_groups: usize,
    /// Rollouts in flight.
    pub in_flight: u64,
    /// Mean time of a rollout in its slot, in seconds.
    pub rollout_secs: f64,
    /// Simulated time in seconds.
    pub secs: f64,
    /// Time of a request and its answer between two machines, in milliseconds.
    pub network_ms: f64,
    /// Seconds between two heartbeats of a worker.
    pub heartbeat_secs: f64,
    /// Seconds without a heartbeat after which a worker is dead.
    pub lease_secs: f64,
    /// CPU time of the delivery of a heartbeat to one watcher, in milliseconds.
    pub delivery_ms: f64,
    /// Workers that die, at even intervals.
    pub deaths: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The figures of a simulation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Admitted rollouts.
    pub admitted: u64,
    /// Admissions a second.
    pub admitted_per_sec: f64,
    /// Admissions that went to another worker than the one that their id prefers.
    pub placed_elsewhere: u64,
    /// Answers 429.
    pub refused: u64,
    /// Rollouts that waited for a slot although another worker had a free one.
    pub waited_needlessly: u64,
    /// Percentiles of the time of an admission in milliseconds: 50, 99, 99.9.
    pub admission_ms: [f64; 3],
    /// Use of the cores of gateways, workers and NATS servers, from 0 to 1.
    pub use_of_cores: [f64; 3],
    /// The greatest number of slots in use at one worker, as a part of them.
    pub fullest_worker: f64,
    /// Rollouts that other workers continued.
    pub taken_over: u64,
    /// The longest pause of these, in seconds.
    pub longest_pause_secs: f64,
    /// Log of all workers, in MB a second.
    pub log_mb_per_sec: f64,
    /// Deliveries of heartbeats to watchers a second.
    pub deliveries_per_sec: f64,
}

/// Random numbers that are the same in each run with the same seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    /// Returns the time until the next of events that are independent of each other.
    fn until_next(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

/// The cores of a machine: work is done in the order in which it arrives.
struct Cores {
    free_at: BinaryHeap<Reverse<Time>>,
    busy: f64,
}

impl Cores {
    fn new(count: usize) -> Self {
        Self { free_at: (0..count.max(1)).map(|_| Reverse(Time(0.0))).collect(), busy: 0.0 }
    }

    /// Does some work that arrives at a time, and returns its end.
    fn work(&mut self, at: f64, secs: f64) -> f64 {
        self.busy += secs;
        let Reverse(Time(free)) = self.free_at.pop().unwrap_or(Reverse(Time(0.0)));
        let end = free.max(at) + secs;
        self.free_at.push(Reverse(Time(end)));
        end
    }
}

/// A time that can be sorted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A caller asks for a rollout.
    Ask,
    /// A caller that was refused asks again.
    AskAgain,
    /// A gateway reads the status of a part of the workers.
    Status { gateway: usize, part: usize },
    /// An admission reaches the worker that takes it.
    Arrive { worker: usize },
    /// A rollout ends at the worker of this start.
    End { worker: usize, start: u32 },
    /// A rollout ends that was continued by a process of its own at another worker.
    EndAdopted { worker: usize },
    /// A worker dies.
    Death,
    /// Another worker continues the rollouts of a dead one, which starts again empty.
    Takeover { worker: usize, rollouts: u32 },
}

struct Worker {
    cores: Cores,
    running: u32,
    waiting: VecDeque<()>,
    /// Counts its deaths, so that ends of rollouts that died with it are ignored.
    start: u32,
    is_up: bool,
}

impl Worker {
    fn room(&self, slots: u32) -> i64 {
        i64::from(slots) - i64::from(self.running) - self.waiting.len() as i64
    }
}

/// A gateway with what it knows of the workers.
struct Gateway {
    cores: Cores,
    room: Vec<i64>,
    is_up: Vec<bool>,
}

struct Simulation<'a> {
    plan: &'a Plan,
    costs: Costs,
    random: Random,
    queue: BinaryHeap<Reverse<(Time, Event)>>,
    gateways: Vec<Gateway>,
    workers: Vec<Worker>,
    nats: Vec<Cores>,
    admissions: Vec<f64>,
    outcome: Outcome,
}

/// Simulates a cluster.
#[must_use]
pub fn simulate(plan: &Plan, costs: Costs) -> Outcome {
    let worker = || Worker {
        cores: Cores::new(plan.cores),
        running: 0,
        waiting: VecDeque::new(),
        start: 0,
        is_up: true,
    };
    let gateway = || Gateway {
        cores: Cores::new(plan.cores),
        room: vec![i64::from(plan.slots); plan.workers],
        is_up: vec![true; plan.workers],
    };
    let mut simulation = Simulation {
        plan,
        costs,
        random: Random(plan.seed.max(1)),
        queue: BinaryHeap::new(),
        gateways: (0..plan.gateways.max(1)).map(|_| gateway()).collect(),
        workers: (0..plan.workers).map(|_| worker()).collect(),
        nats: (0..plan.nats_groups.max(1)).map(|_| Cores::new(plan.cores)).collect(),
        admissions: Vec::new(),
        outcome: Outcome::default(),
    };
    simulation.begin();
    while let Some(Reverse((Time(now), event))) = simulation.queue.pop() {
        if now > plan.secs {
            break;
        }
        simulation.step(now, event);
    }
    simulation.end()
}

impl Simulation<'_> {
    fn at(&mut self, time: f64, event: Event) {
        self.queue.push(Reverse((Time(time), event)));
    }

    /// Fills the cluster with the rollouts in flight, as if it had run for long.
    fn begin(&mut self) {
        for number in 0..self.plan.in_flight {
            let worker = (number % self.plan.workers.max(1) as u64) as usize;
            self.workers[worker].running += 1;
            let left = self.random.until_next(self.plan.rollout_secs);
            self.at(left, Event::End { worker, start: 0 });
        }
        self.at(0.0, Event::Ask);
        for gateway in 0..self.gateways.len() {
            let first = self.random.unit() * STATUS_SECS;
            self.at(first, Event::Status { gateway, part: 0 });
        }
        for number in 0..self.plan.deaths {
            let part = (number + 1) as f64 / (self.plan.deaths + 1) as f64;
            self.at(self.plan.secs * part, Event::Death);
        }
    }

    fn step(&mut self, now: f64, event: Event) {
        match event {
            Event::Ask => {
                let mean = self.plan.rollout_secs / self.plan.in_flight.max(1) as f64;
                let next = now + self.random.until_next(mean);
                self.at(next, Event::Ask);
                self.ask(now);
            }
            Event::AskAgain => self.ask(now),
            Event::Status { gateway, part } => self.read_status(now, gateway, part),
            Event::Arrive { worker } => self.arrive(now, worker),
            Event::End { worker, start } => self.finish(now, worker, start),
            Event::EndAdopted { worker } => self.work_at_end(now, worker),
            Event::Death => self.die(now),
            Event::Takeover { worker, rollouts } => self.take_over(now, worker, rollouts),
        }
    }

    /// Passes an admission through a gateway to a worker and the log, and notes its time.
    fn ask(&mut self, now: f64) {
        let gateway = self.random.below(self.gateways.len());
        let home = self.random.below(self.workers.len());
        let network = self.plan.network_ms / 1e3;
        let at_gateway = now + network / 2.0;
        let cpu = self.costs.gateway_ms / 1e3 * ADMISSION_PART;
        let mut time = self.gateways[gateway].cores.work(at_gateway, cpu);
        let Some(worker) = self.place(gateway, home) else {
            self.outcome.refused += 1;
            self.at(now + RETRY_SECS, Event::AskAgain);
            return;
        };
        if worker != home {
            // The worker of the id is asked first.
            self.outcome.placed_elsewhere += 1;
            time += network;
            time = self.workers[home].cores.work(time, cpu);
        }
        self.gateways[gateway].room[worker] -= 1;
        let cpu = self.costs.worker_ms / 1e3 * ADMISSION_PART;
        time = self.workers[worker].cores.work(time + network / 2.0, cpu);
        time += self.random.unit() * BATCH_SECS;
        let cpu = self.costs.nats_ms / 1e3 * ADMISSION_PART;
        let group = worker % self.nats.len();
        // The leader has the answer of one follower before it acknowledges.
        time = self.nats[group].work(time + network / 2.0, cpu) + network;
        self.at(time, Event::Arrive { worker });
        self.admissions.push((time + network - now) * 1e3);
    }

    /// Returns the worker that takes a rollout, as the gateway and the worker of its id decide.
    fn place(&self, gateway: usize, home: usize) -> Option<usize> {
        let known = &self.gateways[gateway];
        let slots = self.plan.slots;
        let has_room = |worker: &usize| self.workers[*worker].is_up && self.workers[*worker].room(slots) > 0;
        if known.is_up[home] && known.room[home] > 0 {
            return self.workers[home].is_up.then_some(home);
        }
        // As many are tried as the program tries.
        let mut others: Vec<usize> = Vec::new();
        for worker in (0..self.workers.len()).filter(|worker| known.is_up[*worker] && known.room[*worker] > 0)
        {
            let is_better = |other: &usize| known.room[worker] > known.room[*other];
            let place = others.iter().position(is_better).unwrap_or(others.len());
            if place < OTHERS_MAX {
                others.insert(place, worker);
                others.truncate(OTHERS_MAX);
            }
        }
        others.into_iter().find(has_room).or_else(|| self.workers[home].is_up.then_some(home))
    }

    fn arrive(&mut self, now: f64, worker: usize) {
        let slots = self.plan.slots;
        self.outcome.admitted += 1;
        if self.workers[worker].running < slots {
            return self.run(now, worker);
        }
        self.workers[worker].waiting.push_back(());
        let has_room = |other: &Worker| other.is_up && other.room(slots) > 0;
        self.outcome.waited_needlessly += u64::from(self.workers.iter().any(has_room));
    }

    fn run(&mut self, now: f64, worker: usize) {
        self.workers[worker].running += 1;
        let used = f64::from(self.workers[worker].running) / f64::from(self.plan.slots.max(1));
        self.outcome.fullest_worker = self.outcome.fullest_worker.max(used);
        let end = now + self.random.until_next(self.plan.rollout_secs);
        let start = self.workers[worker].start;
        self.at(end, Event::End { worker, start });
    }

    fn finish(&mut self, now: f64, worker: usize, start: u32) {
        if self.workers[worker].start != start {
            return;
        }
        self.work_at_end(now, worker);
        self.workers[worker].running -= 1;
        if self.workers[worker].waiting.pop_front().is_some() {
            self.run(now, worker);
        }
    }

    /// Does what follows when a rollout has ended: its records, and the answer to its caller.
    fn work_at_end(&mut self, now: f64, worker: usize) {
        let rest = 1.0 - ADMISSION_PART;
        self.workers[worker].cores.work(now, self.costs.worker_ms / 1e3 * rest);
        let group = worker % self.nats.len();
        self.nats[group].work(now, self.costs.nats_ms / 1e3 * rest);
        let gateway = self.random.below(self.gateways.len());
        self.gateways[gateway].cores.work(now, self.costs.gateway_ms / 1e3 * rest);
    }

    fn read_status(&mut self, now: f64, gateway: usize, part: usize) {
        let half = self.costs.status_ms / 2e3;
        let slots = self.plan.slots;
        let known = &mut self.gateways[gateway];
        for (worker, state) in self.workers.iter_mut().enumerate().skip(part).step_by(STATUS_PARTS) {
            known.cores.work(now, half);
            state.cores.work(now, half);
            known.room[worker] = state.room(slots);
            known.is_up[worker] = state.is_up;
        }
        let next = now + STATUS_SECS / STATUS_PARTS as f64;
        self.at(next, Event::Status { gateway, part: (part + 1) % STATUS_PARTS });
    }

    fn die(&mut self, now: f64) {
        let worker = self.random.below(self.workers.len());
        if !self.workers[worker].is_up {
            return;
        }
        let state = &mut self.workers[worker];
        let rollouts = state.running + state.waiting.len() as u32;
        state.start += 1;
        (state.running, state.is_up) = (0, false);
        state.waiting.clear();
        // Half a heartbeat has passed already.
        let lease = self.plan.lease_secs - self.plan.heartbeat_secs / 2.0;
        self.at(now + lease, Event::Takeover { worker, rollouts });
    }

    /// Repeats what each rollout did so far, on the cores of one other worker.
    fn take_over(&mut self, now: f64, dead: usize, rollouts: u32) {
        let by = (dead + 1) % self.workers.len();
        let mut end = now;
        for _ in 0..rollouts {
            end = end.max(self.workers[by].cores.work(now, self.costs.worker_ms / 1e3 * ADMISSION_PART));
            let over = end + self.random.until_next(self.plan.rollout_secs);
            // Its process has slots of its own there.
            self.at(over, Event::EndAdopted { worker: by });
        }
        self.outcome.taken_over += u64::from(rollouts);
        let pause = end - now + self.plan.lease_secs - self.plan.heartbeat_secs / 2.0;
        self.outcome.longest_pause_secs = self.outcome.longest_pause_secs.max(pause);
        self.workers[dead].is_up = true;
    }

    fn end(self) -> Outcome {
        let Self { plan, costs, mut admissions, mut outcome, gateways, workers, nats, .. } = self;
        admissions.sort_by(f64::total_cmp);
        outcome.admission_ms =
            [0.5, 0.99, 0.999].map(|share| percentile(&admissions, share).unwrap_or_default());
        let used = |busy: f64, machines: usize| busy / (plan.secs * (plan.cores * machines.max(1)) as f64);
        let busy = [
            gateways.iter().map(|one| one.cores.busy).sum(),
            workers.iter().map(|one| one.cores.busy).sum(),
            nats.iter().map(|one| one.busy).sum::<f64>(),
        ];
        outcome.admitted_per_sec = outcome.admitted as f64 / plan.secs;
        // Each worker and each gateway watches the heartbeats of all workers.
        let watchers = plan.workers + plan.gateways;
        outcome.deliveries_per_sec = (plan.workers * watchers) as f64 / plan.heartbeat_secs;
        let deliveries = outcome.deliveries_per_sec * plan.delivery_ms
            / 1e3
            / (plan.cores * plan.nats_groups.max(1)) as f64;
        outcome.use_of_cores = [
            used(busy[0], plan.gateways),
            used(busy[1], plan.workers),
            used(busy[2], plan.nats_groups) + deliveries,
        ];
        outcome.log_mb_per_sec = outcome.admitted_per_sec * costs.log_bytes / 1e6;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs =
        Costs { worker_ms: 2.0, gateway_ms: 0.5, nats_ms: 0.2, status_ms: 0.2, log_bytes: 10_000.0 };

    fn plan() -> Plan {
        Plan {
            workers: 20,
            slots: 50,
            cores: 4,
            gateways: 2,
            nats_groups: 1,
            in_flight: 900,
            rollout_secs: 20.0,
            secs: 60.0,
            network_ms: 0.5,
            heartbeat_secs: 5.0,
            lease_secs: 30.0,
            delivery_ms: 0.005,
            deaths: 0,
            seed: 7,
        }
    }

    #[test]
    fn work_waits_for_a_free_core() {
        let mut cores = Cores::new(2);
        assert_eq!([cores.work(0.0, 3.0), cores.work(0.0, 1.0), cores.work(0.5, 1.0)], [3.0, 1.0, 2.0]);
        assert_eq!(cores.busy, 5.0);
    }

    #[test]
    fn the_same_seed_gives_the_same_cluster_and_load_is_what_was_asked_for() {
        let (one, other) = (simulate(&plan(), COSTS), simulate(&plan(), COSTS));
        assert_eq!(one.admitted, other.admitted);
        assert!((one.admitted_per_sec - 45.0).abs() < 5.0, "{one:?}");
        assert!(one.placed_elsewhere > 0 && one.fullest_worker > 0.9, "{one:?}");
        assert!(one.admission_ms[0] > 2.0 && one.admission_ms[0] <= one.admission_ms[2], "{one:?}");
        assert_eq!(one.taken_over, 0);
    }

    #[test]
    fn rollouts_of_a_dead_worker_continue_after_its_lease() {
        let outcome = simulate(&Plan { deaths: 1, secs: 100.0, ..plan() }, COSTS);
        assert!((20..=60).contains(&outcome.taken_over), "{outcome:?}");
        assert!((27.0..35.0).contains(&outcome.longest_pause_secs), "{outcome:?}");
    }

    #[test]
    fn slow_gateways_show_in_the_time_of_admissions() {
        let slow = Costs { gateway_ms: 200.0, ..COSTS };
        let (fast, slow) = (simulate(&plan(), COSTS), simulate(&plan(), slow));
        assert!(slow.admission_ms[0] > fast.admission_ms[0] + 50.0, "{slow:?}");
        assert!(slow.use_of_cores[0] > 0.5, "{slow:?}");
    }
}
