//! Measures the first page and its live updates with many generated rollouts.
//!
//! As a test, with few rollouts, it checks the content of the page. `scripts/bench-pages` runs it with many rollouts
//! and prints the measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{NotShown, ROOT, Scope, Viewed, Viewer, router};
use rollout_core::budget::Budget;
use rollout_core::telemetry::Metrics;
use rollout_outbound::Secret;
use rollout_page::{Gauge, LoadSample, PluginSource, TenantLine, number};
use rollout_rollout::generated::GeneratedRollouts;
use rollout_rollout::{Share, SlotPool, Slots};

/// Environment variable with the numbers of finished and running rollouts and of seconds.
const SIZES: &str = "ROLLOUT_BENCH_PAGES";

/// Number of tenants with finished rollouts. A tenant has at most 20,000 of them.
const TENANTS: usize = 5;

/// Number of rollouts that end, and of those that start, in a second of live updates.
const ENDED_PER_SECOND: u64 = 100;

/// Number of requests of the first page that are measured.
const REQUESTS: usize = 20;

/// A server with generated rollouts.
struct Generated {
    slots: Slots,
    budget: Budget,
    metrics: Arc<Metrics>,
}

impl Generated {
    fn viewer() -> Viewer {
        Viewer { tenant: None, is_operator: false, rights: String::new(), may_activate: false }
    }

    fn load(&self) -> LoadSample {
        let counts = self.slots.tenant().activity().counts();
        LoadSample { ended: counts.scored + counts.unscored, tokens: counts.tokens, ..LoadSample::default() }
    }
}

impl Viewed for Generated {
    fn name(&self) -> String {
        "generated".to_owned()
    }

    fn is_keyed(&self) -> bool {
        false
    }

    fn is_behind_gateway(&self) -> bool {
        false
    }

    fn is_encrypted(&self) -> bool {
        false
    }

    fn viewer(&self, _: &str) -> Option<Viewer> {
        Some(Self::viewer())
    }

    fn anyone(&self) -> Viewer {
        Self::viewer()
    }

    fn scope(&self, _: Viewer, _: Option<String>) -> BoxFuture<'_, Result<Scope, NotShown>> {
        let [running, _] = self.slots.tenant().busy();
        let scope = Scope {
            number: 0,
            slots: self.slots.tenant().clone(),
            journal: None,
            budget: self.budget.clone(),
            plugins: Vec::new(),
            gauges: vec![Gauge::new("running", running as u64, 20_000, number)],
            quotas: Vec::new(),
            load: self.load(),
        };
        async { Ok(scope) }.boxed()
    }

    fn tenants(&self) -> Vec<TenantLine> {
        Vec::new()
    }

    fn process_gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    fn loads(&self) -> Vec<(i64, LoadSample)> {
        vec![(0, self.load())]
    }

    fn plugin(
        &self,
        _: Viewer,
        _: Option<String>,
        _: String,
    ) -> BoxFuture<'_, Result<PluginSource, NotShown>> {
        async { Err(NotShown::Failed) }.boxed()
    }

    fn activate(
        &self,
        _: Secret,
        _: Option<String>,
        _: String,
        _: Option<u32>,
    ) -> BoxFuture<'_, Result<(), NotShown>> {
        async { Err(NotShown::Failed) }.boxed()
    }

    fn is_accepting(&self) -> bool {
        true
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

/// Figures of a server with some numbers of rollouts.
struct Figures {
    /// Median time of the first page.
    page: Duration,
    /// Size of the first page in bytes.
    bytes: usize,
    /// CPU time of the server's thread during the live updates, as a part of one core.
    core: f64,
    /// Number of live updates.
    updates: u64,
    text: String,
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

/// Serves the pages in a thread of its own. Each message to the returned sender asks for the thread's CPU time.
fn serve(
    generated: Generated,
) -> (String, tokio::sync::mpsc::UnboundedSender<oneshot::Sender<Duration>>, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}{ROOT}", listener.local_addr().unwrap());
    let (sender, mut questions) = tokio::sync::mpsc::unbounded_channel::<oneshot::Sender<Duration>>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let server = axum::serve(listener, router(generated)).into_future();
            tokio::pin!(server);
            loop {
                tokio::select! {
                    _ = &mut server => return,
                    question = questions.recv() => match question {
                        Some(answer) => drop(answer.send(thread_cpu())),
                        None => return,
                    },
                }
            }
        });
    });
    (url, sender, thread)
}

async fn measured(pool: &SlotPool, finished: usize, running: usize, time: Duration) -> Figures {
    let mut others = Vec::new();
    let mut shown = None;
    for _ in 0..TENANTS {
        let slots = pool.tenant(Share::default()).plugin(Share::default());
        let mut rollouts = GeneratedRollouts::new(slots.clone());
        for _ in 0..finished / TENANTS {
            rollouts.start().unwrap();
            rollouts.end();
        }
        others.extend(shown.replace((slots, rollouts)));
    }
    let (slots, mut rollouts) = shown.unwrap();
    for _ in 0..running {
        rollouts.start().unwrap();
    }
    let budget = Budget::new(1 << 30);
    let (url, cpu, thread) =
        serve(Generated { slots: slots.clone(), budget, metrics: Arc::new(Metrics::new()) });
    let cpu_time = async || {
        let (sender, answer) = oneshot::channel();
        cpu.send(sender).unwrap();
        answer.await.unwrap()
    };
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = async || http.get(format!("{url}/")).send().await.unwrap().text().await.unwrap();

    let text = get().await;
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        get().await;
        times.push(began.elapsed());
    }
    times.sort_unstable();

    let (is_over, updates) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let churn = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            while !is_over.load(Ordering::Relaxed) {
                rollouts.end();
                rollouts.start().unwrap();
                std::thread::sleep(Duration::from_micros(1_000_000 / ENDED_PER_SECOND));
            }
        }
    });
    let before = cpu_time().await;
    let began = Instant::now();
    let response = http.get(format!("{url}/events")).send().await.unwrap();
    let mut events = response.bytes_stream();
    // As the script of a page does: each event has the page requested again.
    while began.elapsed() < time {
        let part = events.next().await.unwrap().unwrap();
        for _ in 0..String::from_utf8_lossy(&part).matches("event: change").count() {
            get().await;
            updates.fetch_add(1, Ordering::Relaxed);
        }
    }
    let core = (cpu_time().await - before).as_secs_f64() / began.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    churn.join().unwrap();
    drop(events);
    drop(cpu);
    thread.join().unwrap();
    Figures {
        page: times[REQUESTS / 2],
        bytes: text.len(),
        core,
        updates: updates.load(Ordering::Relaxed),
        text,
    }
}

#[tokio::test]
async fn the_first_page_has_a_size_whatever_the_number_of_rollouts() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let sizes = std::env::var(SIZES).unwrap_or_else(|_| "2000 200 1".to_owned());
    let sizes: Vec<usize> = sizes.split_whitespace().map(|size| size.parse().unwrap()).collect();
    let [finished, running, secs] = sizes[..] else { panic!("{SIZES}: FINISHED RUNNING SECONDS") };
    let pool = SlotPool::new(20_000, 20_000);
    let time = Duration::from_secs(secs as u64);

    let many = measured(&pool, finished, running, time).await;
    let few = measured(&pool, 0, 10, time).await;

    println!(
        "{finished} finished and {running} running rollouts, {secs} s of live updates; baseline: 0 and 10"
    );
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "first page       {:8.2} ms   baseline {:8.2} ms   ratio {:.2}",
        millis(many.page),
        millis(few.page),
        millis(many.page) / millis(few.page)
    );
    println!(
        "live updates     {:8.3} % of a core ({} updates)   baseline {:8.3} % ({} updates)   ratio {:.2}",
        many.core * 100.0,
        many.updates,
        few.core * 100.0,
        few.updates,
        many.core / few.core
    );
    println!("size of the page {:8} bytes   baseline {:8} bytes", many.bytes, few.bytes);
    assert!(many.text.contains(&number(running as u64)), "{}", many.text);
    assert!(many.bytes < 200_000, "{}", many.bytes);
    assert!(many.updates >= 1 && few.updates >= 1);
}
