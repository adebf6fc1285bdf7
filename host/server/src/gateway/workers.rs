//! The workers of a cluster as a gateway knows them.
//!
//! A task per address reads the worker's status every second. An address whose name resolves to several machines, such as a
//! headless service, stands for a worker on each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::{Client, Url};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use super::placement::Candidate;
use crate::worker::{KEY_HEADER, STATUS_PATH, ServedLog, TENANTS_MAX, WorkerStatus};
use rollout_outbound::{Secret, describe};

/// Interval at which a worker's status is read.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time for reading a status.
const STATUS_TIME_MAX: Duration = Duration::from_secs(3);

/// Interval at which names of workers are resolved again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum size of a status in bytes.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// Maximum number of logs without a worker whose last sight is known.
const GONE_MAX: usize = 10_000;

/// A worker at one address.
pub(super) struct Worker {
    /// Base of its URLs, without a slash at the end.
    pub base: String,
    state: Mutex<WorkerState>,
    /// Wakes the task that reads its status.
    check: Notify,
}

#[derive(Default)]
struct WorkerState {
    /// Its last status.
    last: Option<Arc<WorkerStatus>>,
    /// Whether it answered last time.
    is_up: bool,
    /// Reason why it did not answer.
    problem: Option<String>,
    /// Time since when it has not answered.
    down_since: Option<Instant>,
    /// Rollouts that this gateway has sent since its last status, and while that one was read.
    sent: [Sent; 2],
}

/// Rollouts that were sent to a worker.
#[derive(Default)]
struct Sent {
    all: i64,
    by_tenant: HashMap<i64, i64>,
}

impl Sent {
    fn of(&self, tenant: Option<i64>) -> i64 {
        tenant.and_then(|tenant| self.by_tenant.get(&tenant).copied()).unwrap_or(0)
    }

    fn add(&mut self, tenant: Option<i64>, count: i64) {
        match tenant {
            Some(tenant) if self.by_tenant.len() < TENANTS_MAX || self.by_tenant.contains_key(&tenant) => {
                let sent = self.by_tenant.entry(tenant).or_default();
                *sent = sent.saturating_add(count);
            }
            _ => {}
        }
    }
}

impl WorkerState {
    /// Returns the number of further rollouts of a tenant that would have a slot, as far as this gateway knows.
    fn room(&self, tenant: Option<i64>) -> Option<i64> {
        let last = self.last.as_ref()?;
        let [now, later] = &self.sent;
        let of_all = last.room?.saturating_sub(now.all).saturating_sub(later.all);
        let own = last.tenants.iter().find(|room| Some(room.tenant) == tenant).map(|room| room.room);
        let own = own.unwrap_or(last.room?).saturating_sub(now.of(tenant)).saturating_sub(later.of(tenant));
        Some(own.min(of_all))
    }
}

impl Worker {
    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the worker's last status, and whether the worker answers at present.
    pub(super) fn status(&self) -> (Option<Arc<WorkerStatus>>, bool) {
        let state = self.state();
        (state.last.clone(), state.is_up)
    }

    /// Returns whether the worker answers at present.
    pub(super) fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Records that a rollout is sent to the worker.
    pub(super) fn sent(&self, tenant: Option<i64>) {
        let mut state = self.state();
        let [_, later] = &mut state.sent;
        later.all = later.all.saturating_add(1);
        later.add(tenant, 1);
    }

    /// Records that the worker has not taken a rollout that was sent.
    pub(super) fn not_taken(&self, tenant: Option<i64>) {
        let mut state = self.state();
        let [_, later] = &mut state.sent;
        later.all = later.all.saturating_sub(1);
        later.add(tenant, -1);
    }

    /// Records that the worker has refused a rollout that was sent. Until its next status it has no room for this
    /// tenant.
    pub(super) fn refused(&self, tenant: Option<i64>) {
        self.not_taken(tenant);
        let mut state = self.state();
        let room = state.room(tenant).unwrap_or(0).max(0);
        let is_shared = state.last.as_ref().is_some_and(|last| last.has_tenants);
        let [_, later] = &mut state.sent;
        match is_shared {
            true => later.add(tenant, room),
            false => later.all = later.all.saturating_add(room),
        }
    }

    /// Returns the worker's name, or its address while the name is unknown.
    pub(super) fn name(&self) -> String {
        self.state().last.as_ref().map_or_else(|| self.base.clone(), |status| status.worker.clone())
    }

    /// Returns the reason why the worker does not answer.
    pub(super) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }
}

/// Place of a log.
pub(super) enum LogPlace {
    /// A worker serves it.
    At(Arc<Worker>),
    /// No worker serves it at present.
    Nowhere {
        /// The time since a worker served it, or since this gateway started.
        since: Duration,
    },
}

/// The known workers.
pub(super) struct Workers {
    client: Client,
    key: Secret,
    table: Mutex<Table>,
    /// Changes when a worker appears, disappears or serves another log.
    changes: watch::Sender<u64>,
    started: Instant,
}

#[derive(Default)]
struct Table {
    by_base: BTreeMap<String, Arc<Worker>>,
    /// The worker of each log, with the epoch of the worker's claim.
    by_log: HashMap<String, (u64, Arc<Worker>)>,
    /// Time at which a log without a worker was last served.
    gone: HashMap<String, Instant>,
}

impl Workers {
    pub(super) fn new(client: Client, key: Secret) -> Self {
        Self { client, key, table: Mutex::default(), changes: watch::Sender::new(0), started: Instant::now() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all workers by address.
    pub(super) fn all(&self) -> Vec<Arc<Worker>> {
        self.table().by_base.values().cloned().collect()
    }

    /// Returns the workers that answer, for placement of a rollout of this tenant.
    pub(super) fn candidates(&self, tenant: Option<i64>) -> Vec<Candidate<Arc<Worker>>> {
        let candidate = |worker: Arc<Worker>| {
            let state = worker.state();
            let status = state.last.as_ref().filter(|_| state.is_up)?;
            let (name, weight) = (status.worker.clone(), status.max_concurrent);
            // A worker that drains takes no rollout, however many slots are free.
            let room = state.room(tenant).map(|room| if status.accepting { room } else { room.min(0) });
            drop(state);
            Some(Candidate { name, weight, room, worker })
        };
        self.all().into_iter().filter_map(candidate).collect()
    }

    /// Returns the names of the workers that do not answer.
    pub(super) fn unreachable(&self) -> Vec<String> {
        self.all().iter().filter(|worker| !worker.state().is_up).map(|worker| worker.name()).collect()
    }

    /// Returns whether one of the workers that do not answer may still return: it has not been away for this time.
    pub(super) fn may_return(&self, lost_after: Option<Duration>) -> bool {
        let may_return = |worker: &Arc<Worker>| {
            let state = worker.state();
            let since = state.down_since.unwrap_or(self.started);
            !state.is_up && lost_after.is_none_or(|lost_after| since.elapsed() < lost_after)
        };
        self.all().iter().any(may_return)
    }

    /// Returns the place of a log.
    pub(super) fn find(&self, log: &str) -> LogPlace {
        let table = self.table();
        match table.by_log.get(log) {
            Some((_, worker)) => LogPlace::At(worker.clone()),
            None => LogPlace::Nowhere { since: table.gone.get(log).unwrap_or(&self.started).elapsed() },
        }
    }

    /// Returns a receiver of changes. Take it before a lookup, and await it when the lookup found nothing.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Records that a worker did not answer a request, and reads its status at once.
    pub(super) fn suspect(&self, worker: &Arc<Worker>, problem: &str) {
        self.note(worker, Err(problem.to_owned()));
        worker.check.notify_one();
    }

    /// Reads the status of the workers in a list that changes, until the list's sender is dropped.
    pub(super) async fn watch_list(self: &Arc<Self>, mut list: watch::Receiver<BTreeSet<String>>) {
        let mut tasks = HashMap::new();
        let mut watching = JoinSet::new();
        loop {
            let bases = list.borrow_and_update().clone();
            self.watch_only(&bases, &mut tasks, &mut watching);
            if list.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the status of the workers at these addresses at intervals. Returns only if there are no addresses.
    pub(super) async fn watch(self: &Arc<Self>, addresses: &[Url]) {
        let mut watching = JoinSet::new();
        for address in addresses {
            let (workers, address) = (self.clone(), address.clone());
            watching.spawn(async move { workers.watch_address(&address).await });
        }
        while watching.join_next().await.is_some() {}
    }

    /// Watches the workers behind one address. Tasks of machines that the name no longer resolves to are stopped.
    async fn watch_address(self: &Arc<Self>, address: &Url) {
        let mut tasks = HashMap::new();
        let mut watching = JoinSet::new();
        let mut interval = tokio::time::interval(RESOLVE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let Some(bases) = resolve(address).await else { continue };
            self.watch_only(&bases.into_iter().collect(), &mut tasks, &mut watching);
        }
    }

    /// Starts the tasks of new workers, and stops those of workers that are no longer among these.
    fn watch_only(
        self: &Arc<Self>,
        bases: &BTreeSet<String>,
        tasks: &mut HashMap<String, AbortHandle>,
        watching: &mut JoinSet<()>,
    ) {
        for base in bases {
            if !tasks.contains_key(base) {
                let worker = self.add(base);
                let workers = self.clone();
                let task = watching.spawn(async move { workers.watch_worker(&worker).await });
                tasks.insert(base.clone(), task);
            }
        }
        let left: Vec<String> = tasks.keys().filter(|base| !bases.contains(*base)).cloned().collect();
        for base in left {
            if let Some(task) = tasks.remove(&base) {
                task.abort();
            }
            self.remove(&base);
        }
    }

    async fn watch_worker(&self, worker: &Arc<Worker>) {
        loop {
            {
                // Rollouts that are sent from now on may be missing in this status.
                let mut state = worker.state();
                let later = std::mem::take(&mut state.sent[1]);
                let [now, _] = &mut state.sent;
                now.all = now.all.saturating_add(later.all);
                later.by_tenant.into_iter().for_each(|(tenant, count)| now.add(Some(tenant), count));
            }
            let read = tokio::time::timeout(STATUS_TIME_MAX, self.read_status(&worker.base)).await;
            let read = read.unwrap_or_else(|_| Err("it did not answer in time".to_owned()));
            self.note(worker, read);
            let _ = tokio::time::timeout(STATUS_INTERVAL, worker.check.notified()).await;
        }
    }

    async fn read_status(&self, base: &str) -> Result<WorkerStatus, String> {
        let request = self.client.get(format!("{base}{STATUS_PATH}")).header(KEY_HEADER, self.key.expose());
        let response = request.send().await.map_err(describe)?;
        let status = response.status();
        if response.content_length().is_none_or(|length| length > STATUS_BYTES_MAX as u64) {
            return Err(format!("its status ({status}) is too long, or has no length"));
        }
        let body = response.bytes().await.map_err(describe)?;
        if !status.is_success() {
            let body = String::from_utf8_lossy(&body);
            return Err(format!("it answered {status}: {}", rollout_wire::text::beginning(&body, 200)));
        }
        serde_json::from_slice(&body).map_err(|error| format!("its status is not valid: {error}"))
    }

    fn add(&self, base: &str) -> Arc<Worker> {
        let worker = Worker { base: base.to_owned(), state: Mutex::default(), check: Notify::new() };
        self.table().by_base.entry(base.to_owned()).or_insert_with(|| Arc::new(worker)).clone()
    }

    fn remove(&self, base: &str) {
        let removed = self.table().by_base.remove(base);
        if let Some(worker) = removed {
            tracing::info!(worker = worker.name(), "a worker has left");
            self.note(&worker, Err("its name no longer resolves to this address".to_owned()));
        }
    }

    /// Records a worker's status, or the reason why it could not be read. Waiting requests continue if a log has
    /// another place now.
    fn note(&self, worker: &Arc<Worker>, read: Result<WorkerStatus, String>) {
        let mut table = self.table();
        let before = table.by_log.values().filter(|(_, known)| Arc::ptr_eq(known, worker)).count();
        let is_changed = match read {
            Ok(status) => {
                let logs = status.logs.clone();
                let mut state = worker.state();
                let was_up = std::mem::replace(&mut state.is_up, true);
                (state.problem, state.down_since) = (None, None);
                state.sent[0] = Sent::default();
                let name = status.worker.clone();
                state.last = Some(Arc::new(status));
                drop(state);
                if !was_up {
                    tracing::info!(worker = name, url = worker.base, "a worker answers");
                }
                // A worker that has lost its log reports that late.
                let of_others = |log: &ServedLog| {
                    let known = table.by_log.get(&log.name);
                    known.is_some_and(|(epoch, known)| *epoch > log.epoch && !Arc::ptr_eq(known, worker))
                };
                let logs: Vec<ServedLog> = logs.into_iter().filter(|log| !of_others(log)).collect();
                let is_known = |log: &ServedLog| {
                    let known = table.by_log.get(&log.name);
                    known.is_some_and(|(epoch, known)| *epoch == log.epoch && Arc::ptr_eq(known, worker))
                };
                let is_same = before == logs.len() && logs.iter().all(is_known);
                if !is_same {
                    table.forget(worker);
                    for ServedLog { name, epoch } in logs {
                        table.gone.remove(&name);
                        table.by_log.insert(name, (epoch, worker.clone()));
                    }
                }
                !is_same || !was_up
            }
            Err(problem) => {
                let mut state = worker.state();
                let was_up = std::mem::replace(&mut state.is_up, false);
                if was_up || state.problem.is_none() {
                    let name = state.last.as_ref().map_or(&*worker.base, |status| &status.worker);
                    tracing::warn!(worker = name, url = worker.base, problem, "a worker does not answer");
                }
                state.problem = Some(problem);
                state.down_since.get_or_insert_with(Instant::now);
                drop(state);
                table.forget(worker);
                was_up
            }
        };
        drop(table);
        if is_changed {
            self.changes.send_modify(|version| *version += 1);
        }
    }
}

impl Table {
    /// Removes the places of a worker's logs, and records the time when they were last served.
    fn forget(&mut self, worker: &Arc<Worker>) {
        let now = Instant::now();
        let gone = &mut self.gone;
        self.by_log.retain(|log, (_, known)| {
            let stays = !Arc::ptr_eq(known, worker);
            if !stays {
                gone.insert(log.clone(), now);
            }
            stays
        });
        while gone.len() > GONE_MAX {
            let Some(oldest) = gone.iter().min_by_key(|(_, at)| **at).map(|(log, _)| log.clone()) else {
                return;
            };
            gone.remove(&oldest);
        }
    }
}

/// Returns the bases of the URLs of the workers at an address. Returns `None` if its name does not resolve at present.
async fn resolve(address: &Url) -> Option<Vec<String>> {
    let base = address.as_str().trim_end_matches('/').to_owned();
    let Some(name) = address.domain().filter(|_| address.scheme() == "http") else {
        // The certificate of an encrypted worker is for its name.
        return Some(vec![base]);
    };
    let port = address.port_or_known_default().unwrap_or(80);
    match tokio::net::lookup_host((name, port)).await {
        Ok(found) => Some(found.map(|address| format!("http://{address}")).collect()),
        Err(error) => {
            tracing::debug!(%error, url = base, "the name of workers does not resolve");
            None
        }
    }
}
