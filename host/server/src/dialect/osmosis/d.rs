//! Generation D: the caller polls for the result under a lease.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Problem;
use super::journaled::{self, Facts};
use super::placed::{Place, Placing};
use super::request::{ParsedRequest, Polled as PolledRequest};
use super::sample::{WireSample, category};
use super::{Osmosis, id_in_path};
use crate::connection::{Caller, WhenWritten};
use crate::dialect::delivery::{Delivery, Message};
use crate::dialect::driver::{Addresses, Renderer, Source};
use crate::dialect::ledger::{HeldBody, Lease, LedgerEntry, PollStatus, Polled, PublicOutcome, phase_status};
use crate::random;
use crate::worker::{self, Chosen, Elsewhere};
use rollout_core::budget::Use;
use rollout_core::telemetry::{Refusal, TraceParent};
use rollout_rollout::{
    AdmitError, Failure, FailureKind, Finished, ForkPoint, GroupReport, GroupSeat, Handle, Host, JOIN_SECS,
    Outcome, Rollout, Stage, StoredResult, UnfinishedRollout, drive,
};
use rollout_wire as wire;
use rollout_wire::digest::{hex, sha256_parts};
use rollout_wire::id::{InvalidRolloutId, RolloutId};

/// Category of a failure of the host.
const INTERNAL_ERROR: &str = "internal_error";

/// Header with the lease of a poll.
pub(crate) const LEASE_HEADER: &str = "X-Osmosis-Rollout-Lease";

/// The response to the caller of an admitted rollout.
#[derive(Serialize)]
pub(super) struct Admission {
    rollout_id: RolloutId,
    status: &'static str,
    polling_lease_token: String,
    result_wait_timeout_sec: f64,
    polling_lease_timeout_sec: f64,
}

/// The response to the caller of a group of forks.
#[derive(Serialize)]
pub(super) struct TreeAdmission {
    group: TreeGroup,
    fork_of: ForkPoint,
    rollouts: Vec<Admission>,
}

/// The group of forks that one request started.
#[derive(Serialize)]
struct TreeGroup {
    id: RolloutId,
    size: u32,
}

/// A result, or the status of a rollout without one.
#[derive(Serialize)]
struct ResultBody<'a> {
    rollout_id: &'a RolloutId,
    status: &'static str,
    sample: Option<WireSample<'a>>,
    err_message: Option<&'a str>,
    err_category: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<GroupReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_of: Option<&'a ForkPoint>,
}

impl<'a> ResultBody<'a> {
    fn bare(rollout_id: &'a RolloutId, status: &'static str) -> Self {
        let (sample, err_message, err_category) = (None, None, None);
        Self { rollout_id, status, sample, err_message, err_category, group: None, fork_of: None }
    }

    fn bytes(&self) -> Bytes {
        wire::json_with(self, self.sample.as_ref().map_or(0, WireSample::message_bytes))
    }

    /// Returns its approximate size in bytes.
    fn memory_bytes(&self) -> usize {
        self.sample.as_ref().map_or(0, WireSample::message_bytes)
    }
}

/// Returns the response to a poll for a rollout without a result, for a gateway that cannot reach the rollout's worker.
pub(crate) fn unfinished(id: &RolloutId) -> Response {
    json_response(ResultBody::bare(id, "running").bytes())
}

/// Returns the response to a poll for a rollout that was lost with its worker.
pub(crate) fn lost(id: &RolloutId, reason: &str) -> Response {
    let (err_message, err_category) = (Some(reason), Some(INTERNAL_ERROR));
    json_response(ResultBody { err_message, err_category, ..ResultBody::bare(id, "failure") }.bytes())
}

fn json_response(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Admits a rollout and starts a task for it. A gateway chooses the token of the lease; a repeated request with the same
/// token finds its rollout. A worker without room names the one that takes the rollout in its place.
pub(super) async fn start(
    osmosis: &Osmosis,
    request: PolledRequest,
    (parent, chosen): (Option<TraceParent>, Option<Chosen>),
) -> Result<Admission, ApiError> {
    let inner = &osmosis.0;
    let PolledRequest { parsed, grade, continuations: _ } = request;
    check_group(osmosis, &parsed)?;
    let id = parsed.rollout.id.clone();
    let host = inner.serving.host();
    let token = chosen.as_ref().map_or_else(random::token, |chosen| chosen.token.clone());
    let token = inner.log.as_ref().map_or_else(|| token.clone(), |log| worker::lease(log, &token));
    let admission = Admission::new(osmosis, id.clone(), token);
    let token = &admission.polling_lease_token;
    // A stored result reserves its id, so that no caller reads the result of another.
    let entry = match inner.ledger.reserve(&id) {
        Ok(entry) => entry,
        Err(_) => {
            // The gateway did not receive the first answer.
            let found = inner.ledger.find(&id).filter(|polled| chosen.is_some() && polled.is_lease(token));
            if let Some(polled) = found {
                journaled::wait_until_stored(polled.log()).await.map_err(ApiError::after_admission)?;
                return Ok(admission);
            }
            host.check_journal_for_refusal()?;
            host.metrics().refused(Refusal::Duplicate);
            return Err(ApiError::Registered);
        }
    };
    // It may have callbacks.
    if chosen.is_some() && host.find(&id).is_some() {
        host.metrics().refused(Refusal::Duplicate);
        return Err(ApiError::Registered);
    }
    place(osmosis, &host, (&id, chosen.as_ref()), host.room() > 0)?;
    let admitted = match admit(&host, entry, parsed, (grade, token)).await {
        Err(refused) => {
            let reserved = inner.ledger.reserve(&id);
            return Err(placed_or(refused, chosen.is_some() && reserved.is_ok(), || {
                place(osmosis, &host, (&id, chosen.as_ref()), false)
            }));
        }
        Ok(admitted) => admitted,
    };
    let handle = admitted.start(osmosis, &host, parent);
    journaled::wait_until_stored(handle.log()).await.map_err(|error| {
        handle.cancel();
        if chosen.is_some() { error.after_admission() } else { error }
    })?;
    Ok(admission)
}

/// Admits a rollout that has not started.
async fn admit(
    host: &Host,
    entry: LedgerEntry,
    parsed: ParsedRequest,
    (grade, token): (bool, &str),
) -> Result<Admitted, ApiError> {
    host.check_journal_for_refusal()?;
    Admitted::new(host, entry, parsed.forked(host).await?, (grade, token))
}

/// Returns an error with the worker that takes a new rollout in the place of this one, if a gateway sent it and there is such
/// a worker. Must be called while the rollout's id is reserved.
pub(super) fn place(
    osmosis: &Osmosis,
    host: &Host,
    (id, chosen): (&RolloutId, Option<&Chosen>),
    has_room: bool,
) -> Result<(), ApiError> {
    let Some(Chosen { token, other, is_repeated }) = chosen else { return Ok(()) };
    let placing = Placing { id, token, other: other.as_deref(), has_room, is_repeated: *is_repeated };
    let time_max = host.time_max() + osmosis.0.ledger.times().result_ttl;
    let elsewhere = match osmosis.0.placed.place(&placing, host.budget(), time_max) {
        Place::Here => return Ok(()),
        Place::At { worker, may_choose } => Elsewhere { worker: Some(worker), may_choose },
        Place::Undecided => Elsewhere { worker: None, may_choose: false },
    };
    Err(ApiError::Elsewhere(elsewhere))
}

/// Returns the error for a rollout that was not admitted. Nothing of it is here, so another worker may take it if a gateway
/// sent it and its id is reserved again.
pub(super) fn placed_or(
    refused: ApiError,
    is_reserved: bool,
    place: impl FnOnce() -> Result<(), ApiError>,
) -> ApiError {
    match is_reserved && refused.is_by_this_worker() {
        true => place().err().unwrap_or(refused),
        false => refused,
    }
}

/// Admits a group of forks of one rollout, all or none, and starts a task for each. The same request with the same token of
/// a gateway is the same group.
pub(super) async fn start_tree(
    osmosis: &Osmosis,
    request: PolledRequest,
    count: u32,
    (parent, chosen_token): (Option<TraceParent>, Option<String>),
) -> Result<TreeAdmission, ApiError> {
    let inner = &osmosis.0;
    let PolledRequest { parsed, grade, continuations: _ } = request;
    let (group, fork_of) = (parsed.rollout.id.clone(), parsed.fork_of.clone());
    let missing = || ApiError::Invalid(vec![Problem::invalid_value("fork_of", "is missing")]);
    let fork_of = fork_of.ok_or_else(missing)?;
    let host = inner.serving.host();
    host.check_journal_for_refusal()?;
    let (mut forks, mut known) = (Vec::new(), Vec::new());
    for member in 0..count {
        let too_long = |why: InvalidRolloutId| {
            ApiError::Invalid(vec![Problem::invalid_value("rollout_id", &why.to_string())])
        };
        let id = RolloutId::parse(format!("{}-{member}", group.as_str())).map_err(too_long)?;
        let token = match &chosen_token {
            Some(token) => hex(&sha256_parts(&[token.as_bytes(), &member.to_be_bytes()])),
            None => random::token(),
        };
        let token = inner.log.as_ref().map_or_else(|| token.clone(), |log| worker::lease(log, &token));
        let admission = Admission::new(osmosis, id.clone(), token);
        let token = &admission.polling_lease_token;
        let entry = match inner.ledger.reserve(&id) {
            Ok(entry) => entry,
            Err(_)
                if let Some(polled) = inner.ledger.find(&id)
                    && chosen_token.is_some()
                    && polled.is_lease(token) =>
            {
                // The gateway did not receive the first answer.
                journaled::wait_until_stored(polled.log()).await.map_err(ApiError::after_admission)?;
                known.push(admission);
                continue;
            }
            Err(_) => {
                host.metrics().refused(Refusal::Duplicate);
                return Err(ApiError::Registered);
            }
        };
        let charge = host.budget().charge(Use::Request, parsed.memory_bytes()).map_err(AdmitError::from)?;
        let mut fork = parsed.again(charge);
        fork.rollout.id = id;
        fork.rollout.group = Some(GroupSeat { id: group.clone(), size: count, member, join_secs: JOIN_SECS });
        forks.push((admission, entry, fork.forked(&host).await?));
    }
    let answer = |rollouts| TreeAdmission { group: TreeGroup { id: group, size: count }, fork_of, rollouts };
    match (forks.is_empty(), known.is_empty()) {
        (true, _) => return Ok(answer(known)),
        // The others have ended, and their ids are free.
        (false, false) => return Err(ApiError::Registered),
        (false, true) => {}
    }
    let mut admitted: Vec<(Admission, Admitted)> = Vec::new();
    for (admission, entry, fork) in forks {
        match Admitted::new(&host, entry, fork, (grade, &admission.polling_lease_token)) {
            Ok(fork) => admitted.push((admission, fork)),
            Err(refused) => {
                admitted.into_iter().for_each(|(_, fork)| fork.withdraw());
                return Err(refused);
            }
        }
    }
    let (rollouts, handles): (Vec<Admission>, Vec<Handle>) =
        admitted.into_iter().map(|(admission, fork)| (admission, fork.start(osmosis, &host, parent))).unzip();
    for handle in &handles {
        let stored = journaled::wait_until_stored(handle.log()).await;
        stored.inspect_err(|_| handles.iter().for_each(Handle::cancel))?;
    }
    Ok(answer(rollouts))
}

/// Refuses a group on a worker whose members may be at several: each fork is at the worker of its parent.
pub(super) fn check_group(osmosis: &Osmosis, parsed: &ParsedRequest) -> Result<(), ApiError> {
    let is_divided = parsed.rollout.group.is_some() && parsed.fork_of.is_some() && osmosis.0.log.is_some();
    let why =
        "forks in a group are started by one request behind a gateway; send continuations instead of group";
    let refused = || ApiError::Invalid(vec![Problem::invalid_value("group", why)]);
    (!is_divided).then_some(()).ok_or_else(refused)
}

impl Admission {
    fn new(osmosis: &Osmosis, rollout_id: RolloutId, polling_lease_token: String) -> Self {
        let times = osmosis.0.ledger.times();
        Self {
            rollout_id,
            status: "queued",
            polling_lease_token,
            result_wait_timeout_sec: times.result_wait.as_secs_f64(),
            polling_lease_timeout_sec: times.lease.as_secs_f64(),
        }
    }
}

/// An admitted rollout that has not started.
struct Admitted {
    rollout: Box<Rollout>,
    entry: LedgerEntry,
    facts: Facts,
    lease: Lease,
    form: Form,
}

impl Admitted {
    fn new(
        host: &Host,
        entry: LedgerEntry,
        parsed: ParsedRequest,
        (grade, token): (bool, &str),
    ) -> Result<Self, ApiError> {
        let ParsedRequest { rollout, resources, gradable, label, fork_of: _ } = parsed;
        let lease = Lease::of(token);
        // Continuations of one rollout share a prefix, which a trainer learns from the result.
        let fork_of = rollout.fork.as_ref().filter(|_| rollout.group.is_some());
        let fork_of = fork_of.map(|fork| fork.point.clone());
        let form = journaled::Form::Polled { lease: lease.clone(), grade, fork_of: fork_of.clone() };
        let facts = Facts { delivery: Delivery::polled(), gradable: gradable && grade, form };
        let rollout = journaled::admit(host, (rollout, resources), &facts, &Addresses::default())?;
        let form = Form { grade, is_expired: false, label, fork_of };
        Ok(Self { rollout, entry, facts, lease, form })
    }

    /// Starts a task for the rollout, and returns its handle.
    fn start(self, osmosis: &Osmosis, host: &Host, parent: Option<TraceParent>) -> Handle {
        let Self { rollout, mut entry, facts, lease, form } = self;
        let trace = rollout.traced_below(parent);
        let (id, handle) = (rollout.id().clone(), rollout.handle());
        let log = handle.log().cloned();
        entry.fill(&id, lease, log.clone());
        entry.begin(id.clone(), id.as_str(), Some(rollout.handle()));
        let client = (&osmosis.0.callbacks, Addresses::default());
        let driver = journaled::driver(host, entry, &facts, client, (log, trace), Polling { id, form });
        osmosis.0.tasks.spawn(drive(rollout, driver));
        handle
    }

    /// Ends the rollout before it started. Its caller never learns of it.
    fn withdraw(self) {
        if let Some(log) = self.rollout.log() {
            log.end();
        }
    }
}

/// Continues a rollout of an earlier process, or stores its result.
pub(super) fn resume(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    facts: Facts,
) -> Result<(), String> {
    let journaled::Form::Polled { lease, grade, fork_of } = &facts.form else {
        return Err("no caller polls for the rollout".to_owned());
    };
    let inner = &osmosis.0;
    let (id, label) = (unfinished.request.id.clone(), unfinished.request.label.clone());
    // An earlier process may have died after it stored the result and before it ended the rollout in the journal, so a
    // stored result with this id is the rollout's own.
    let mut entry = inner.ledger.reserve_anyway(&id).map_err(|_| "its id is taken")?;
    let log = unfinished.log().clone();
    let form = Form { grade: *grade, is_expired: false, label, fork_of: fork_of.clone() };
    let renderer = Polling { id: id.clone(), form };
    let client = (&inner.callbacks, Addresses::default());
    journaled::continue_rollout((osmosis, host), unfinished, id.as_str(), Ok, |_| {
        entry.fill(&id, lease.clone(), Some(log.clone()));
        journaled::driver(host, entry, &facts, client, (Some(log), Default::default()), renderer)
    })
}

/// Parts of a result in addition to the rollout's outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Form {
    /// Whether the caller asked for a reward.
    grade: bool,
    /// Whether the lease expired, so that no caller polls any more.
    is_expired: bool,
    label: Option<String>,
    /// The origin of a fork in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fork_of: Option<ForkPoint>,
}

/// The result of one rollout.
struct Polling {
    id: RolloutId,
    form: Form,
}

impl Renderer for Polling {
    type Form = Form;

    fn body(&self, _message: Message, source: &Source<'_>, delivery: &Delivery) -> Bytes {
        match source {
            Source::Finished(finished) => self.form(delivery).result(finished).bytes(),
            // Nothing is posted after the workflow.
            Source::Workflow(_) => Bytes::new(),
            Source::Crashed(crashed) => failure(&self.id, crashed, None).bytes(),
        }
    }

    fn result_bytes(&self, finished: &Finished, delivery: &Delivery) -> usize {
        self.form(delivery).result(finished).memory_bytes()
    }

    fn public_outcome(&self, finished: &Finished, delivery: &Delivery) -> PublicOutcome {
        PublicOutcome::with_status(self.form(delivery).result(finished).status)
    }

    fn form(&self, delivery: &Delivery) -> Form {
        Form { is_expired: delivery.is_expired(), ..self.form.clone() }
    }
}

impl Form {
    /// Creates the caller's view of a finished rollout.
    fn result<'a>(&'a self, finished: &'a Finished) -> ResultBody<'a> {
        let (group, fork_of) = (finished.group.as_ref().map(GroupReport::from), self.fork_of.as_ref());
        ResultBody { group, fork_of, ..self.result_of_one(finished) }
    }

    fn result_of_one<'a>(&'a self, finished: &'a Finished) -> ResultBody<'a> {
        let id = &finished.id;
        if self.is_expired {
            return ResultBody {
                err_message: Some("polling lease expired"),
                err_category: Some("lease_expired"),
                ..ResultBody::bare(id, "failure")
            };
        }
        let failed = match &finished.outcome {
            Outcome::Scored { .. } => None,
            Outcome::Unscored(failure) => Some(failure),
        };
        let sample = |graded| WireSample::only(finished, self.label.as_deref(), graded);
        match failed {
            None => ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") },
            Some(reason) => match reason.kind {
                FailureKind::Withdrawn => {
                    ResultBody { sample: sample(true), ..ResultBody::bare(id, "success") }
                }
                FailureKind::NotGraded if !self.grade => {
                    ResultBody { sample: sample(false), ..ResultBody::bare(id, "success") }
                }
                // The caller asked for a reward, and no grader ran.
                FailureKind::NotGraded => ResultBody::bare(id, "failure"),
                FailureKind::Cancelled => {
                    ResultBody { err_message: Some("cancelled"), ..ResultBody::bare(id, "cancelled") }
                }
                _ if reason.stage == Stage::Grader => failure(id, reason, sample(false)),
                _ => failure(id, reason, None),
            },
        }
    }
}

fn failure<'a>(id: &'a RolloutId, failure: &'a Failure, sample: Option<WireSample<'a>>) -> ResultBody<'a> {
    let category = if failure.kind == FailureKind::Host { INTERNAL_ERROR } else { category(failure) };
    let (err_message, err_category) = (Some(failure.reason.as_str()), Some(category));
    ResultBody { sample, err_message, err_category, ..ResultBody::bare(id, "failure") }
}

/// Records that another worker has the rollout that a gateway placed there. Only gateways have the request's token.
pub(super) async fn confirm_place(
    State(osmosis): State<Osmosis>,
    path: Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let chosen = osmosis.0.log.as_ref().and_then(|_| Chosen::of(&headers));
    let (id, chosen) = id_in_path(path).zip(chosen).ok_or(ApiError::UnknownRollout)?;
    let is_there = chosen.other.is_some_and(|worker| osmosis.0.placed.confirm(&id, &chosen.token, &worker));
    if is_there { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::UnknownRollout) }
}

/// Renews the lease and returns the result, or waits for it and returns the status.
pub(super) async fn result(
    State(osmosis): State<Osmosis>,
    path: Path<String>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let ledger = &osmosis.0.ledger;
    let lease = headers.get(LEASE_HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let at = || vec![json!("header"), json!(LEASE_HEADER)];
    let lease = match lease.as_deref() {
        None => {
            return Err(ApiError::Invalid(vec![Problem::new(
                "missing",
                at(),
                "Field required",
                Value::Null,
            )]));
        }
        Some("") => {
            let problem =
                Problem::new("string_too_short", at(), "String should have at least 1 character", "".into());
            return Err(ApiError::Invalid(vec![problem.with(json!({"min_length": 1}))]));
        }
        Some(lease) => lease,
    };
    let id = id_in_path(path).ok_or(ApiError::UnknownRollout)?;
    let polled = ledger.find(&id);
    if let Some(polled) = &polled {
        if !polled.is_lease(lease) {
            return Err(ApiError::WrongLease);
        }
        match ledger.next_status(polled, caller.as_deref()).await {
            PollStatus::Ended(copy) => {
                return Ok(result_response(&osmosis, Read::Here(polled.clone()), copy));
            }
            PollStatus::Live(phase) => {
                return Ok(json_response(ResultBody::bare(polled.id(), phase_status(phase)).bytes()));
            }
            PollStatus::Journaled => {}
        }
    }
    let kept = polled.and_then(|polled| polled.stored_result()).or_else(|| ledger.stored_result(&id));
    let kept = kept.ok_or(ApiError::UnknownRollout)?;
    let render = |form: &Form, finished: &Finished| form.result(finished).bytes();
    let copy = ledger.read_stored(&id, kept, Lease::of(lease), render).await?;
    Ok(result_response(&osmosis, Read::Journaled(kept), Arc::new(copy)))
}

/// A result for a poll.
enum Read {
    /// A result with a copy in memory.
    Here(Arc<Polled>),
    /// A result in the journal only.
    Journaled(StoredResult),
}

/// Returns the response with a result. The result counts as read once all of it was sent.
fn result_response(osmosis: &Osmosis, read: Read, copy: Arc<HeldBody>) -> Response {
    let body = copy.body.clone();
    let mut response = json_response(body);
    // A partially sent result stays unread.
    let osmosis = osmosis.clone();
    let when_written = WhenWritten::new(move || {
        // The copy is charged until the response is written.
        let _ = &copy;
        match &read {
            Read::Here(polled) => osmosis.0.ledger.was_read(polled),
            Read::Journaled(kept) => osmosis.0.ledger.was_read_from_journal(*kept),
        }
    });
    response.extensions_mut().insert(when_written);
    response
}
