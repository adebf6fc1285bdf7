//! A trainer's records of its rollouts, and the invariants that they must satisfy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};

use rollout_tests::OracleRequest;

/// The margin before an admission: an event that happened this long before an admission was requested is certainly in
/// the journal once the admission was answered. A busy server handles both late, and an admission is on disk after every
/// event before it.
const SETTLED: Duration = Duration::from_millis(500);

/// The maximum delay with which messages of a dead server are read.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// One of many rollouts. Its number determines everything.
#[derive(Clone, Copy)]
pub(super) struct Plan(pub u64);

impl Plan {
    pub(super) fn id(self) -> String {
        format!("k{}", self.0)
    }

    /// Returns whether its caller polls, instead of receiving callbacks.
    pub(super) fn is_polled(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// Returns whether its result depends only on the model.
    pub(super) fn is_steady(self) -> bool {
        !(self.0 / 2).is_multiple_of(4)
    }

    pub(super) fn turns(self) -> u64 {
        2 + self.0 / 8 % 3
    }

    pub(super) fn prompt(self) -> String {
        let word = if self.is_steady() { "steady" } else { "free" };
        format!("{} {word} {}", self.turns(), self.id())
    }
}

/// A received callback.
pub(super) struct Callback {
    pub at: Instant,
    pub acknowledged: Option<Instant>,
    pub body: String,
}

/// The records of a trainer.
#[derive(Default)]
pub(super) struct Ledger {
    /// Admitted rollouts, with the lease if there is one.
    pub admitted: BTreeMap<String, Option<String>>,
    /// Rollouts that were requested again, because the first answer was lost with a server.
    pub asked_again: BTreeSet<String>,
    /// Polled results, with the time of their first report.
    pub results: BTreeMap<String, (Instant, String)>,
    /// Ids of read results, in order.
    pub read: Vec<String>,
    pub callbacks: BTreeMap<(String, String), Vec<Callback>>,
    pub kills: Vec<Kill>,
    /// The times of each admission: of its request, and of its answer.
    pub admissions: Vec<[Instant; 2]>,
}

/// The kill of a server.
pub(super) struct Kill {
    begins: Instant,
    /// The time after which no message of the server arrives.
    gone: Instant,
    /// The times of events that were certainly in its journal.
    kept: Option<Range<Instant>>,
}

impl Ledger {
    /// Records a kill that began at this time.
    pub(super) fn killed(&mut self, begins: Instant) {
        let answered = self.admissions.iter().filter(|[_, answered]| *answered < begins);
        let stored_until = answered.filter_map(|[requested, _]| requested.checked_sub(SETTLED)).max();
        let kept =
            self.kills.last().zip(stored_until).map(|(before, stored_until)| before.gone..stored_until);
        self.kills.push(Kill { begins, gone: Instant::now() + UNDER_WAY, kept });
    }
}

impl Kill {
    /// Returns the time between an earlier event and this kill.
    pub(super) fn age_of(&self, at: Instant) -> Option<Duration> {
        self.begins.checked_duration_since(at)
    }

    pub(super) fn has_stored(&self, at: Instant) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.contains(&at))
    }

    pub(super) fn is_between(&self, before: Instant, after: Instant) -> bool {
        before < self.gone && self.begins < after
    }
}

/// Checks that repeated callbacks are equal, and were repeated only if a server may not have received the answer.
pub(super) fn check_callbacks(ledger: &Ledger) {
    let (mut again, mut known) = (0, 0);
    // A rollout whose admission was lost may have ended before it was requested again.
    let all = ledger.callbacks.iter().filter(|((id, _), _)| !ledger.asked_again.contains(id));
    for ((id, which), all) in all {
        for (before, after) in all.iter().zip(&all[1..]) {
            assert_eq!(before.body, after.body, "two {which} callbacks of {id}");
            // The answer may have been in transit to a server that died.
            let knew = |kill: &Kill| before.acknowledged.is_some_and(|at| kill.has_stored(at));
            let died = |kill: &Kill| kill.is_between(before.at, after.at) && !knew(kill);
            assert!(
                ledger.kills.iter().any(died),
                "the {which} callback of {id} was acknowledged after {:?}, and repeated after {:?}",
                before.acknowledged.map(|at| at.duration_since(before.at)),
                after.at.duration_since(before.at),
            );
            again += 1;
        }
        let acknowledged = all.last().and_then(|last| last.acknowledged);
        known +=
            usize::from(acknowledged.is_some_and(|at| ledger.kills.iter().any(|kill| kill.has_stored(at))));
    }
    println!("{again} callbacks were repeated, and {known} were not after a kill");
    assert!(known > 0, "no callback was acknowledged before a kill");
}

/// Checks that no model call was repeated after its answer was stored, and that no rollout diverged.
pub(super) fn check_calls(ledger: &Ledger, requests: &[OracleRequest]) {
    // The model's texts identify a rollout, because prompts do.
    let id_in_path =
        |one: &OracleRequest| one.path.strip_prefix("/rollouts/")?.split('/').next().map(str::to_owned);
    let mut of_answers: HashMap<&str, String> = HashMap::new();
    for one in requests {
        of_answers.extend(id_in_path(one).map(|id| (one.answer.as_str(), id)));
    }
    let answer_in = |text: &str| text.find("answer ").and_then(|at| text.get(at..at + 23)).map(str::to_owned);
    let mut calls: BTreeMap<String, Vec<&OracleRequest>> = BTreeMap::new();
    for one in requests {
        let of_judge = || of_answers.get(answer_in(&one.messages)?.as_str()).cloned();
        let id = id_in_path(one).or_else(of_judge).unwrap_or_else(|| panic!("a call of no rollout: {one:?}"));
        calls.entry(id).or_default().push(one);
    }
    let mut again = 0;
    for (id, calls) in &calls {
        again += check_calls_of(ledger, id, calls);
    }
    println!("{} calls, of which {again} were repeated", requests.len());
}

/// Checks the calls of one rollout; returns the number of repeated calls.
fn check_calls_of(ledger: &Ledger, id: &str, calls: &[&OracleRequest]) -> usize {
    let called_back = |which: &str| {
        let all = ledger.callbacks.get(&(id.to_owned(), which.to_owned()));
        all.and_then(|all| Some(all.first()?.at))
    };
    let is_judge = |one: &OracleRequest| !one.path.contains("/rollouts/");
    // A rollout that was requested again may have ended before, as in `check_callbacks`.
    if ledger.asked_again.contains(id) {
        return 0;
    }
    // A reported result was stored before.
    let workflow_over = called_back("completion");
    let over = ledger.results.get(id).map(|(at, _)| *at).or_else(|| called_back("grader"));
    let mut questions: BTreeMap<&str, Vec<&OracleRequest>> = BTreeMap::new();
    for one in calls {
        let end = if is_judge(one) { over } else { workflow_over.or(over) };
        let is_late = end.is_some_and(|end| one.at > end);
        assert!(!is_late, "{id} was reported, and calls again: {}", one.messages);
        questions.entry(&one.messages).or_default().push(one);
    }
    for repetitions in questions.values() {
        for pair in repetitions.windows(2) {
            let [before, after] = pair else { continue };
            // Once the guest continues with an answer, that is being written to disk.
            let turns = |one: &OracleRequest| one.messages.matches("\"role\"").count();
            let is_next = |one: &&&OracleRequest| is_judge(one) || turns(one) > turns(before);
            let later = calls.iter().filter(is_next).map(|one| one.at);
            let continued = later.filter(|at| *at > before.at).min();
            let settled =
                continued.into_iter().chain(before.answered).max().filter(|_| before.answered.is_some());
            let died = |kill: &Kill| kill.is_between(before.at, after.at);
            assert!(ledger.kills.iter().any(died), "{id} repeats a call without a kill: {}", before.messages);
            let knew = |kill: &Kill| kill.begins < after.at && settled.is_some_and(|at| kill.has_stored(at));
            assert!(
                !ledger.kills.iter().any(knew),
                "{id} had an answer long before a kill, and repeats the call: {}",
                before.messages
            );
        }
    }
    let plan = id.strip_prefix('k').and_then(|number| number.parse().ok()).map(Plan);
    let turns = plan.map_or(2, Plan::turns) as usize;
    // Times and random numbers of an unsteady rollout may not have been on disk when it made a call.
    if over.is_some() && plan.is_none_or(Plan::is_steady) {
        assert_eq!(questions.len(), 2 * turns + 1, "every call of {id} is of one course of things");
    }
    calls.len() - questions.len()
}
