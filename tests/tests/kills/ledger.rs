//! What a trainer knows of its rollouts, and what has to hold of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};

use rollout_tests::Asked;

/// How long before an admission was asked for, and answered before a kill, something has to have
/// happened for the journal to have it for certain: a server with much to do hears late of both, and
/// an admission is on disk after whatever it heard of before.
const SETTLED: Duration = Duration::from_millis(500);

/// What a server sent that is gone is read this much later at the most.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// One of many rollouts. Its number says all.
#[derive(Clone, Copy)]
pub(super) struct Plan(pub u64);

impl Plan {
    pub(super) fn id(self) -> String {
        format!("k{}", self.0)
    }

    /// Whether it is polled for, or its caller is called back.
    pub(super) fn is_polled(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// Whether its result depends on nothing but the model.
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

/// A callback that came.
pub(super) struct Callback {
    pub at: Instant,
    pub acknowledged: Option<Instant>,
    pub body: String,
}

/// What a trainer knows.
#[derive(Default)]
pub(super) struct Ledger {
    /// Admitted, with the lease where there is one.
    pub admitted: BTreeMap<String, Option<String>>,
    /// Whether the answer to its request was lost with a server, and it was asked for again.
    pub asked_again: BTreeSet<String>,
    /// Results that were polled for, each with when it was reported first.
    pub results: BTreeMap<String, (Instant, String)>,
    /// In the order in which they were read.
    pub read: Vec<String>,
    pub callbacks: BTreeMap<(String, String), Vec<Callback>>,
    pub kills: Vec<Kill>,
    /// When each admission was asked for, and answered.
    pub admissions: Vec<[Instant; 2]>,
}

/// When a server was killed.
pub(super) struct Kill {
    begins: Instant,
    /// Nothing of it comes any more.
    gone: Instant,
    /// What happened in its life before this was in its journal.
    kept: Option<Range<Instant>>,
}

impl Ledger {
    /// A server was killed, from this time on.
    pub(super) fn killed(&mut self, begins: Instant) {
        let answered = self.admissions.iter().filter(|[_, answered]| *answered < begins);
        let kept_to = answered.filter_map(|[asked, _]| asked.checked_sub(SETTLED)).max();
        let kept = self.kills.last().zip(kept_to).map(|(before, kept_to)| before.gone..kept_to);
        self.kills.push(Kill { begins, gone: Instant::now() + UNDER_WAY, kept });
    }
}

impl Kill {
    /// How long before this kill something was, if it was before it.
    pub(super) fn age_of(&self, at: Instant) -> Option<Duration> {
        self.begins.checked_duration_since(at)
    }

    pub(super) fn has_kept(&self, at: Instant) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.contains(&at))
    }

    pub(super) fn is_between(&self, before: Instant, after: Instant) -> bool {
        before < self.gone && self.begins < after
    }
}

/// What was said twice is the same, and was said again only where a server may not have heard the
/// answer.
pub(super) fn check_callbacks(ledger: &Ledger) {
    let (mut again, mut known) = (0, 0);
    // One whose admission was not heard of may have been over when it was asked for again.
    let all = ledger.callbacks.iter().filter(|((id, _), _)| !ledger.asked_again.contains(id));
    for ((id, which), all) in all {
        for (before, after) in all.iter().zip(&all[1..]) {
            assert_eq!(before.body, after.body, "two {which} callbacks of {id}");
            // It was on its way to a server that died.
            let knew = |kill: &Kill| before.acknowledged.is_some_and(|at| kill.has_kept(at));
            let died = |kill: &Kill| kill.is_between(before.at, after.at) && !knew(kill);
            assert!(
                ledger.kills.iter().any(died),
                "the {which} callback of {id} was taken after {:?}, and came again after {:?}",
                before.acknowledged.map(|at| at.duration_since(before.at)),
                after.at.duration_since(before.at),
            );
            again += 1;
        }
        let taken = all.last().and_then(|last| last.acknowledged);
        known += usize::from(taken.is_some_and(|at| ledger.kills.iter().any(|kill| kill.has_kept(at))));
    }
    println!("{again} callbacks came again, and {known} did not after a kill");
    assert!(known > 0, "no callback was taken before a kill");
}

/// Nothing was asked again that had been answered and kept, and no rollout took another course.
pub(super) fn check_calls(ledger: &Ledger, asked: &[Asked]) {
    // Texts of the model are of one rollout, because its prompt is.
    let id_in_path = |one: &Asked| one.path.strip_prefix("/rollouts/")?.split('/').next().map(str::to_owned);
    let mut of_answers: HashMap<&str, String> = HashMap::new();
    for one in asked {
        of_answers.extend(id_in_path(one).map(|id| (one.answer.as_str(), id)));
    }
    let answer_in = |text: &str| text.find("answer ").and_then(|at| text.get(at..at + 23)).map(str::to_owned);
    let mut calls: BTreeMap<String, Vec<&Asked>> = BTreeMap::new();
    for one in asked {
        let of_judge = || of_answers.get(answer_in(&one.messages)?.as_str()).cloned();
        let id = id_in_path(one).or_else(of_judge).unwrap_or_else(|| panic!("of nobody: {one:?}"));
        calls.entry(id).or_default().push(one);
    }
    let mut again = 0;
    for (id, calls) in &calls {
        again += check_calls_of(ledger, id, calls);
    }
    println!("{} calls, of which {again} were made again", asked.len());
}

/// The same of one rollout; gives how many calls were made again.
fn check_calls_of(ledger: &Ledger, id: &str, calls: &[&Asked]) -> usize {
    let called_back = |which: &str| {
        let all = ledger.callbacks.get(&(id.to_owned(), which.to_owned()));
        all.and_then(|all| Some(all.first()?.at))
    };
    let is_judge = |one: &Asked| !one.path.contains("/rollouts/");
    // See `check_callbacks`.
    if ledger.asked_again.contains(id) {
        return 0;
    }
    // What was reported was kept before.
    let workflow_over = called_back("completion");
    let over = ledger.results.get(id).map(|(at, _)| *at).or_else(|| called_back("grader"));
    let mut questions: BTreeMap<&str, Vec<&Asked>> = BTreeMap::new();
    for one in calls {
        let end = if is_judge(one) { over } else { workflow_over.or(over) };
        let is_late = end.is_some_and(|end| one.at > end);
        assert!(!is_late, "{id} was reported, and asks again: {}", one.messages);
        questions.entry(&one.messages).or_default().push(one);
    }
    for asked in questions.values() {
        for pair in asked.windows(2) {
            let [before, after] = pair else { continue };
            // Once the guest goes on with it, the answer is on its way to the disk.
            let turns = |one: &Asked| one.messages.matches("\"role\"").count();
            let is_next = |one: &&&Asked| is_judge(one) || turns(one) > turns(before);
            let later = calls.iter().filter(is_next).map(|one| one.at);
            let goes_on = later.filter(|at| *at > before.at).min();
            let settled =
                goes_on.into_iter().chain(before.answered).max().filter(|_| before.answered.is_some());
            let died = |kill: &Kill| kill.is_between(before.at, after.at);
            assert!(ledger.kills.iter().any(died), "{id} asks twice in one life: {}", before.messages);
            let knew = |kill: &Kill| kill.begins < after.at && settled.is_some_and(|at| kill.has_kept(at));
            assert!(
                !ledger.kills.iter().any(knew),
                "{id} had an answer long before a kill, and asks again: {}",
                before.messages
            );
        }
    }
    let plan = id.strip_prefix('k').and_then(|number| number.parse().ok()).map(Plan);
    let turns = plan.map_or(2, Plan::turns) as usize;
    // What a free one says of time and chance may have been on its way to the disk when it asked.
    if over.is_some() && plan.is_none_or(Plan::is_steady) {
        assert_eq!(questions.len(), 2 * turns + 1, "every call of {id} is of one course of things");
    }
    calls.len() - questions.len()
}
