//! Tests that a restarted server continues its rollouts after a kill, without visible effects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rollout_tests::{
    Answers, Controller, Oracle, OracleRequest, Serve, Start, TestHost, guest, rollout_host, until,
};

/// Settings with a journal beside the artifacts.
const JOURNAL: &str = "[journal]\ndir = 'journal'\n";

fn journaled(guest_name: &str) -> Serve {
    TestHost::of(guest_name).config(JOURNAL)
}

#[tokio::test]
async fn a_rollout_continues_under_its_lease_and_repeats_only_unanswered_calls() {
    let controller = Controller::start().await;
    let serve = journaled("conform");
    let host = serve.clone().start().await;
    controller.hold();
    let request = controller.rollout("Calculate 2 + 3.").label("5").with("llm_api_key", "s3cret-key");
    let admitted = host.admit(&request).await;
    controller.chats_arrived(1).await;

    let host = host.killed(&serve).await;
    controller.release();

    let result = host.result(&admitted).await;
    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let chats = controller.chats();
    assert!(chats.iter().all(|chat| chat.header("authorization") == Some("Bearer s3cret-key")));
    assert_eq!(chats.len(), 2, "the unanswered call was repeated");
    // The unread result is still available with the lease.
    let host = host.killed(&serve).await;
    assert_eq!(host.result(&admitted).await, result);
    let host = host.killed(&serve).await;
    assert_eq!(host.result(&admitted).await, result, "a result may have been lost in transit");
    assert_eq!(host.ask(&request).await.status, 409, "its id is in use");
    let wrong = rollout_tests::Admitted { lease: "another".to_owned(), ..admitted };
    assert_eq!(host.poll(&wrong).await.status, 403);
    assert_eq!(controller.chats().len(), 2);
}

#[tokio::test]
async fn a_long_result_that_was_read_is_the_same_when_it_is_read_again() {
    let controller = Controller::start().await;
    let host = journaled("conform").start().await;
    let request = controller.rollout(&format!("Calculate 2 + 3.{}", " ".repeat(100_000))).label("5");
    let admitted = host.admit(&request).await;
    let first = host.result(&admitted).await;
    assert_eq!(first["sample"]["reward"], 1.0, "{first:#}");

    // From here on the result is only in the journal.
    for _ in 0..3 {
        assert_eq!(host.result(&admitted).await, first);
    }
}

#[tokio::test]
async fn no_file_contains_a_key_or_a_lease() {
    let controller = Controller::start().await;
    let host = journaled("conform").start().await;
    let request = controller
        .rollout("Calculate 2 + 3.")
        .label("5")
        .with("llm_api_key", "s3cret-of-the-model")
        .with_callbacks("s3cret-of-the-caller");
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;
    let polled = host.admit(&controller.rollout("Calculate 2 + 3.").with("llm_api_key", "s3cret-two")).await;
    host.result(&polled).await;

    let mut read = 0;
    for file in std::fs::read_dir(host.dir().join("journal")).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            // Components contain only the author's data.
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for secret in ["s3cret", polled.lease.as_str()] {
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{} has {secret}", path.display());
        }
        read += usize::from(bytes.windows(12).any(|part| part == b"Calculate 2 "));
    }
    assert!(read > 0, "the events are there");
}

#[tokio::test]
async fn an_acknowledged_cancellation_stays() {
    let controller = Controller::start().await;
    let serve = journaled("conform");
    let host = serve.clone().start().await;
    controller.hold();
    let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_arrived(1).await;
    host.cancel(&admitted.id).await;

    let host = host.killed(&serve).await;

    assert_eq!(host.result(&admitted).await["status"], "cancelled");
    assert_eq!(controller.chats().len(), 1);
}

#[tokio::test]
async fn rollouts_that_run_when_a_server_stops_continue_at_the_next_start() {
    let controller = Controller::start().await;
    let serve = TestHost::of("conform").config(&format!("drain-secs = 1.0\n{JOURNAL}"));
    let host = serve.clone().start().await;
    controller.hold();
    let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_arrived(1).await;

    let (ran, host) = host.stopped(&serve).await;
    controller.release();

    assert_eq!(ran.code, Some(0), "nothing is lost: {}", ran.stderr);
    assert!(ran.stderr.contains("left to the next start"), "{}", ran.stderr);
    assert_eq!(host.result(&admitted).await["sample"]["reward"], 1.0);
}

#[tokio::test]
async fn two_servers_cannot_have_one_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let serve = TestHost::of("conform").option("--journal", journal.display());
    let _first = serve.clone().start().await;
    let plugin = guest("conform");
    let arguments: [&std::ffi::OsStr; 6] = [
        "serve".as_ref(),
        plugin.as_os_str(),
        "--listen".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--journal".as_ref(),
        journal.as_os_str(),
    ];

    let second = rollout_host(arguments).current_dir(dir.path()).start().ended().await;

    assert_ne!(second.code, Some(0));
    assert!(second.stderr.contains("is locked by another process"), "{}", second.stderr);
}

#[tokio::test]
async fn only_an_unacknowledged_callback_is_sent_again() {
    let controller = Controller::start().await;
    let serve = journaled("judged").config("[judge]\nmodel = 'mock'\n");
    let host = serve.clone().start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    // The completion is acknowledged, the grader's callback is not answered.
    controller.hold_callbacks();
    assert_eq!(host.ask(&request).await.status, 202);
    controller.callbacks_arrived(1).await;
    let host = host.killed(&serve).await;
    // It was not acknowledged, so it is sent again.
    controller.callbacks_arrived(2).await;
    controller.release_callbacks();
    controller.callbacks_arrived(3).await;

    // A normal stop, because a server that is killed between an answer and its record may rightly repeat the call.
    let (ran, host) = host.stopped(&serve).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    host.idle().await;
    let host = host.killed(&serve).await;
    host.idle().await;

    let paths: Vec<String> = controller.callbacks().iter().map(|callback| callback.path.clone()).collect();
    let of = |end: &str| paths.iter().filter(|path| path.ends_with(end)).count();
    assert_eq!((of("completion"), of("grader")), (2, 1), "{paths:?}");
    let callbacks = controller.callbacks();
    assert_eq!(callbacks[0].body, callbacks[1].body, "a repeated callback is the same");
    assert_eq!(controller.chats().len(), 1, "the model's answer was stored");
}

#[tokio::test]
async fn another_component_ends_the_rollouts_of_the_previous_one() {
    let controller = Controller::start().await;
    let host = journaled("conform").start().await;
    controller.hold();
    let admitted = host.admit(&controller.rollout("Calculate 2 + 3.").label("5")).await;
    controller.chats_arrived(1).await;

    let host = host.killed(&journaled("hold")).await;

    let result = host.result(&admitted).await;
    assert_eq!(result["status"], "failure", "{result:#}");
    let reason = result["err_message"].as_str().unwrap();
    assert!(reason.contains("the component was") && reason.len() > 128, "both digests: {reason}");
    assert_eq!(controller.chats().len(), 1);
}

/// Returns options of a host for a guest in which every turn depends on the previous ones, with a tool and a judge.
fn long_way(judge_url: &str) -> Serve {
    let tools = guest("tool_kit");
    journaled("long_way").config(&format!(
        "[judge]\nurl = '{judge_url}'\nmodel = 'judge'\n[[tools.component]]\npath = '{}'\n",
        tools.display()
    ))
}

/// Measures for how long a thread of this process waits for a processor, so that a test's bound of time includes it.
struct Stalls {
    over: Arc<AtomicBool>,
    longest: std::thread::JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Self {
        const PAUSE: Duration = Duration::from_millis(5);
        let over = Arc::<AtomicBool>::default();
        let is_over = over.clone();
        let longest = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(PAUSE);
                longest = longest.max(began.elapsed() - PAUSE);
            }
            longest
        });
        Self { over, longest }
    }

    /// Returns a bound of time on an idle machine, extended for this one. An answer passes several threads.
    fn added_to(self, bound: Duration) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        bound + 8 * self.longest.join().expect("the thread only sleeps")
    }
}

#[tokio::test]
async fn a_long_rollout_that_is_killed_repeatedly_is_the_same_rollout() {
    let controller = Controller::start().await;
    let oracle = Oracle::start(Answers::New).await;
    let url = oracle.url();
    let serve = long_way(&url);
    let mut host = serve.clone().start().await;
    const TURNS: usize = 12;
    let request = controller
        .rollout(&TURNS.to_string())
        .label("x")
        .with("chat_completions_url", url.clone())
        .with("agent_timeout_sec", 300.0);
    let stalls = Stalls::watch();
    let admitted = host.admit(&request).await;
    let mut killed = Vec::new();
    for kills in 1..=5 {
        until("it has come further", async || (oracle.count() > kills * 4).then_some(())).await;
        let began = Instant::now();
        host = host.killed(&serve).await;
        killed.push((began, Instant::now()));
    }

    let result = host.result(&admitted).await;

    let lost_within = stalls.added_to(Duration::from_millis(50));
    // Whether the process that made a call died before it had the answer for long.
    let is_lost = |one: &OracleRequest| {
        let kill = killed.iter().find(|(_, ended)| one.at < *ended);
        kill.is_some_and(|(began, _)| one.answered.is_none_or(|at| at + lost_within > *began))
    };

    assert_eq!(result["status"], "success", "{result:#}");
    let requests = oracle.requests();
    let mut answers: HashMap<String, Vec<&OracleRequest>> = HashMap::new();
    for one in &requests {
        answers.entry(one.messages.clone()).or_default().push(one);
    }
    for again in answers.values().filter(|requests| requests.len() > 1) {
        // A call is repeated only if its answer was missing or in transit when the process died.
        for before in &again[..again.len() - 1] {
            assert!(is_lost(before), "a call was repeated long after its answer: {}", before.messages);
        }
    }
    let text = result["sample"]["messages"].to_string();
    let is_used = |requests: &&Vec<&OracleRequest>| {
        requests.last().is_some_and(|last| text.contains(&last.answer.to_uppercase()))
    };
    assert_eq!(answers.values().filter(is_used).count(), 2 * TURNS, "each answer is in the result");
    // The others are the judge's call, and calls that followed from answers which were lost with the process.
    let judged = requests.last().map(|last| last.messages.clone()).unwrap_or_default();
    for (question, requests) in answers.iter().filter(|(_, requests)| !is_used(requests)) {
        let all_lost = requests.iter().all(|one| is_lost(one));
        assert!(all_lost || *question == judged, "a call of a diverging run: {question}");
    }
}
