//! `POST /run` and `POST /verify`: a row, from its request to its answer.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::meeting::{Attendance, HeldResult, Meeting};
use super::outcome::{self, Answered, RowFailure};
use super::row::{Form, RequestedRollout, Row};
use super::{ADMISSION_PAUSE, ADMISSION_TIME_MAX, DRIVER, Model, NemoGym, episode};
use crate::connection::{Caller, WhenWritten};
use crate::dialect::body::{Body, BodyRefused};
use crate::dialect::delivery::{Delivery, Message};
use crate::dialect::driver::{Addresses, Driver, Progress, Renderer, Source};
use crate::dialect::ledger::{LedgerEntry, PublicOutcome};
use crate::dialect::row::TRAJECTORY_MEMBERS;
use crate::random;
use rollout_core::budget::{Budget, Charge};
use rollout_core::error::Fault;
use rollout_core::telemetry::RolloutTrace;
use rollout_outbound::{Acknowledged, Undelivered};
use rollout_rollout::{
    AdmitError, AgentForm, Continuation, Finished, GroupRefused, GroupSeat, Host, JournalRefused,
    LoopOptions, Outcome, Resources, Rollout, RolloutLog, RolloutRequest, SampleTokens, TrajectoryExtra,
    UnfinishedRollout, drive,
};
use rollout_wire::atif::SchemaVersion;
use rollout_wire::digest::sha256_parts;
use rollout_wire::id::RolloutId;
use rollout_wire::metadata::RowMetadata;

/// Maximum size of a request in bytes. A row may contain images as text.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Facts that the journal stores with an admission.
#[derive(Serialize, Deserialize)]
struct Facts {
    /// The initial state of the delivery.
    delivery: Delivery,
    row: Row,
}

/// Runs a row and answers with its result.
pub(super) async fn run(
    State(gym): State<NemoGym>,
    caller: Option<Extension<Caller>>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    answer(&gym, caller, body, Row::of_run).await
}

/// Grades a conversation and answers with its reward.
pub(super) async fn verify(
    State(gym): State<NemoGym>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    let host = gym.0.serving.host();
    if host.has_environment() && host.grader().is_none() {
        let mut body = match body {
            Ok(body) => body,
            Err(refused) => return refused.into_response(),
        };
        return match body.parse(Row::of_verify) {
            Ok(Ok(row)) => json(episode::verified(&gym, &headers, &row).await),
            Ok(Err(why)) => failed(None, &RowFailure::of_row(why)),
            Err(refused) => refused.into_response(),
        };
    }
    // A grader reads only the conversation.
    gym.0.episodes.close(&headers, None);
    answer(&gym, caller, body, Row::of_verify).await
}

async fn answer(
    gym: &NemoGym,
    caller: Option<Extension<Caller>>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
    read: fn(&[u8]) -> Result<Row, String>,
) -> Response {
    gym.0.ledger.start();
    let mut body = match body {
        Ok(body) => body,
        Err(refused @ BodyRefused::NoMemory) => {
            return failed(None, &RowFailure::of_admission(refused.to_string()));
        }
        Err(refused) => return refused.into_response(),
    };
    let row = match body.parse(read) {
        Ok(Ok(row)) => row,
        Ok(Err(why)) => return failed(None, &RowFailure::of_row(why)),
        Err(refused) => return failed(None, &RowFailure::of_admission(refused.to_string())),
    };
    // Three copies: the row, its parts in the request, and the result, which repeats it.
    let charge = match body.becomes(3 * row.memory_bytes()) {
        Ok(charge) => charge,
        Err(refused) => return failed(Some(&row), &RowFailure::of_admission(refused.to_string())),
    };
    let key = key_of(&row);
    let row = Arc::new(row);
    let attendance = match gym.0.meetings.attend(&key) {
        Some(attendance) => attendance,
        None => match admitted(gym, caller, (&row, charge), key).await {
            Ok(attendance) => attendance,
            Err(failure) => return failed(Some(&row), &failure),
        },
    };
    match attendance.result().await {
        Some(result) => {
            let body = result.body.clone();
            let written = WhenWritten::new(move || {
                attendance.mark_written();
                // The charge ends with the last copy of the result.
                let _ = &result;
            });
            let mut response = json(body);
            response.extensions_mut().insert(written);
            response
        }
        None => failed(Some(&row), &RowFailure::of_host()),
    }
}

fn json(body: Bytes) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn failed(row: Option<&Row>, failure: &RowFailure) -> Response {
    json(failure.body(row))
}

/// Returns the digest by which a repeated request is recognized.
fn key_of(row: &Row) -> [u8; 32] {
    let form = if row.form == Form::Verify { "verify" } else { "run" };
    sha256_parts(&[form.as_bytes(), b"\0", row.body.get().as_bytes()])
}

/// Admits a row's rollout as soon as there is room. The wait ends early if the connection is needed for another caller.
async fn admitted(
    gym: &NemoGym,
    caller: Option<Extension<Caller>>,
    (row, charge): (&Arc<Row>, Charge),
    key: [u8; 32],
) -> Result<Attendance, RowFailure> {
    let settings = gym.settings();
    let requested = row.requested(&settings.fields).map_err(RowFailure::of_row)?;
    let model = match &settings.model {
        Some(model) => model,
        None if row.form == Form::Verify => no_model(),
        None => {
            let why = "this server has no model for NeMo Gym; set model-url in the table [nemo-gym] of its configuration";
            return Err(RowFailure::of_row(why));
        }
    };
    let seat =
        settings.group_size.map(|size| row.seat(size)).transpose().map_err(RowFailure::of_row)?.flatten();
    if seat.is_some() && gym.0.log.is_some() {
        let why = "group-size needs a server of its own: a gateway does not know which rows are a group";
        return Err(RowFailure::of_row(why));
    }
    let starts = start(gym, model, (row, requested, seat), charge, key);
    match &caller {
        Some(Extension(caller)) => caller.wait(starts).await.unwrap_or_else(|| {
            Err(RowFailure::of_admission(
                "the server needs the connection, on which the row waited for a free slot",
            ))
        }),
        None => starts.await,
    }
}

/// Returns the model of rollouts that are only graded, which never call it.
fn no_model() -> &'static Model {
    static NONE: OnceLock<Model> = OnceLock::new();
    NONE.get_or_init(Model::unreachable)
}

/// Starts a rollout as soon as there is room for it.
async fn start(
    gym: &NemoGym,
    model: &Model,
    (row, requested, seat): (&Arc<Row>, RequestedRollout, Option<GroupSeat>),
    charge: Charge,
    key: [u8; 32],
) -> Result<Attendance, RowFailure> {
    let inner = &gym.0;
    let facts =
        Facts { delivery: Delivery::always_posted(), row: Row { form: row.form, body: row.body.clone() } };
    // Parsed JSON and words cannot fail to serialize.
    let stored = to_raw_value(&facts).unwrap_or_else(|_| RawValue::NULL.to_owned());
    let until = Instant::now() + ADMISSION_TIME_MAX;
    let mut charge = Some(charge);
    let (rollout, host) = loop {
        let host = inner.serving.host();
        let resources = Resources {
            model: Arc::new(model.endpoint.clone()),
            secrets: model.secrets.clone(),
            charge: None,
            continuation: Some(Continuation { driver: DRIVER.into(), facts: stored.clone(), secret: None }),
            past: None,
        };
        let ended = inner.ended.notified();
        let request = RolloutRequest { group: seat.clone(), ..request(&host, model, &requested)? };
        match host.admit(request, resources) {
            Ok(rollout) => break (rollout, host),
            Err(
                AdmitError::Full { .. }
                | AdmitError::NoMemory(_)
                | AdmitError::NotKept(JournalRefused::Late(_)),
            ) if Instant::now() < until => {
                let _ = tokio::time::timeout(ADMISSION_PAUSE, ended).await;
            }
            Err(AdmitError::Quota(over)) if over.retry_after.is_some() && Instant::now() < until => {
                let pause = over.retry_after.unwrap_or(ADMISSION_PAUSE).min(ADMISSION_PAUSE);
                tokio::time::sleep(pause).await;
            }
            // The seat is that of the same row, whose connection may be broken, or of another collection.
            Err(AdmitError::Group(GroupRefused::Taken { .. } | GroupRefused::Closed { .. }))
                if Instant::now() < until =>
            {
                let _ = tokio::time::timeout(ADMISSION_PAUSE, ended).await;
                if let Some(attendance) = inner.meetings.attend(&key) {
                    return Ok(attendance);
                }
            }
            Err(AdmitError::Group(refused)) => return Err(RowFailure::of_row(refused.to_string())),
            Err(error) => return Err(RowFailure::of_admission(error.to_string())),
        }
    };
    let entry = inner.ledger.open();
    entry.begin(rollout.id().clone(), rollout.id().as_str(), Some(rollout.handle()));
    let meeting = Meeting::new(false);
    // No other request knows the meeting yet.
    let attendance = meeting.attend().ok_or_else(RowFailure::of_host)?;
    inner.meetings.add(key, meeting.clone());
    let run = EpisodeRun {
        gym: gym.clone(),
        row: row.clone(),
        id: rollout.id().clone(),
        model: model.address.name.clone(),
        tokens: Mutex::default(),
        key,
        meeting,
        _charge: charge.take(),
        budget: host.budget().clone(),
    };
    let work = (rollout.log().cloned(), rollout.traced_below(None));
    let driver = driver(&host, entry, facts.delivery, work, run);
    let ended = inner.ended.clone();
    inner.tasks.spawn(async move {
        drive(rollout, driver).await;
        ended.notify_one();
    });
    Ok(attendance)
}

fn request(host: &Host, model: &Model, requested: &RequestedRollout) -> Result<RolloutRequest, RowFailure> {
    // A re-run of a collection has the same names.
    let id = RolloutId::parse(format!("{}-{}", requested.name, &random::id()[..12]));
    let is_loop = host.form() == AgentForm::AgentLoop;
    Ok(RolloutRequest {
        id: id.map_err(|error| RowFailure::of_row(format!("its name is invalid: {error}")))?,
        caller_id: None,
        attempt: requested.attempt,
        prompt: requested.prompt.clone(),
        label: requested.label.clone(),
        metadata: requested.metadata.clone().map(RowMetadata::from),
        loop_options: LoopOptions {
            completion_params: is_loop.then(|| requested.completion_params.clone()),
            ..LoopOptions::default()
        },
        model: model.address.clone(),
        samples_max: 1,
        samples_must_ask: false,
        workflow_secs: None,
        grader_secs: None,
        trajectory_extra: Some(TrajectoryExtra {
            schema_version: SchemaVersion::V1_7,
            key: "nemo_gym".into(),
            members: TRAJECTORY_MEMBERS.into(),
            request_fields: None,
        }),
        fork: None,
        conversation: requested.conversation.clone(),
        group: None,
    })
}

/// Continues a rollout of an earlier process. Its caller repeats the request.
pub(super) fn resume(gym: &NemoGym, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    let inner = &gym.0;
    inner.ledger.start();
    let Facts { delivery, row } = serde_json::from_str(unfinished.facts.get())
        .map_err(|error| format!("cannot parse the facts of its driver: {error}"))?;
    let log = unfinished.log().clone();
    let progress = Progress::read(delivery, &unfinished.notes)
        .map_err(|error| format!("cannot parse the notes of its driver: {error}"))?;
    let tokens: Option<SampleTokens> = progress.body.and_then(|body| serde_json::from_str(body.get()).ok());
    let key = key_of(&row);
    let meeting = Meeting::new(true);
    inner.meetings.add(key, meeting.clone());
    let (id, name) = (unfinished.request.id.clone(), unfinished.request.id.as_str().to_owned());
    let run = EpisodeRun {
        gym: gym.clone(),
        id,
        model: unfinished.request.model.name.clone(),
        tokens: Mutex::new(tokens.unwrap_or_default()),
        key,
        meeting,
        _charge: Some(host.budget().charge_result(row.memory_bytes())),
        budget: host.budget().clone(),
        row: Arc::new(row),
    };
    let entry = inner.ledger.open();
    inner.continued.continue_rollout((&inner.tasks, host), unfinished, &name, Ok, |rollout| {
        let trace = rollout.map(|rollout| rollout.traced_below(None)).unwrap_or_default();
        driver(host, entry, progress.delivery, (Some(log), trace), run)
    })
}

fn driver(
    host: &Host,
    entry: LedgerEntry,
    delivery: Delivery,
    (log, trace): (Option<RolloutLog>, RolloutTrace),
    renderer: EpisodeRun,
) -> Box<Driver<EpisodeRun>> {
    Box::new(Driver {
        entry,
        log,
        is_gradable: host.grader().is_some(),
        delivery: delivery.into(),
        client: None,
        addresses: Addresses::default(),
        trace,
        renderer,
    })
}

/// The rollout of a row.
struct EpisodeRun {
    gym: NemoGym,
    row: Arc<Row>,
    id: RolloutId,
    model: String,
    tokens: Mutex<SampleTokens>,
    key: [u8; 32],
    meeting: Arc<Meeting>,
    _charge: Option<Charge>,
    budget: Budget,
}

impl Drop for EpisodeRun {
    fn drop(&mut self) {
        self.gym.0.meetings.remove(&self.key, &self.meeting);
    }
}

fn unix_secs() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

impl Renderer for EpisodeRun {
    type Form = ();

    async fn before_workflow(driver: &Driver<Self>, _rollout: &mut Rollout) -> ControlFlow<()> {
        // A rollout that is lost would repeat all its model calls, so the admission is stored first.
        if let Some(log) = &driver.log
            && let Err(error) = log.admitted().await
        {
            tracing::error!(%error, "a rollout starts although the journal cannot store it");
        }
        ControlFlow::Continue(())
    }

    fn ending(driver: &Driver<Self>, rollout: &Rollout) {
        let run = &driver.renderer;
        let tokens = rollout.sample_tokens();
        if !tokens.is_observed {
            return;
        }
        // The next process can read the outcome from the journal, but not the tokens of the replies.
        if let Ok(stored) = to_raw_value(&tokens) {
            driver.note(Some(&stored));
        }
        *run.tokens.lock().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    fn body(&self, _message: Message, source: &Source<'_>, _delivery: &Delivery) -> Bytes {
        let finished = match source {
            Source::Finished(finished) => finished,
            Source::Crashed(crashed) => return RowFailure::of(crashed).body(Some(&self.row)),
            // Nothing is sent after the workflow.
            Source::Workflow(_) => return Bytes::new(),
        };
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = Answered {
            row: &self.row,
            id: self.id.as_str(),
            model: &self.model,
            tokens: &tokens,
            at_secs: unix_secs(),
        };
        outcome::body(&answered, finished)
    }

    fn public_outcome(&self, finished: &Finished, _delivery: &Delivery) -> PublicOutcome {
        let is_scored = matches!(finished.outcome, Outcome::Scored { .. });
        PublicOutcome::of(if is_scored { "success" } else { "failure" }, &finished.outcome)
    }

    fn form(&self, _delivery: &Delivery) {}

    async fn abandoned(driver: &Driver<Self>) {
        driver.renderer.meeting.deserted().await;
        tracing::info!("the caller of this rollout has disconnected and does not repeat its request");
    }

    async fn send(
        driver: &Driver<Self>,
        _message: Message,
        body: Bytes,
    ) -> Result<Acknowledged, Undelivered> {
        let run = &driver.renderer;
        let bytes = body.len();
        run.meeting.publish(HeldResult { body, _charge: run.budget.charge_result(bytes) });
        let is_taken = tokio::select! {
            biased;
            () = run.meeting.deserted() => false,
            () = run.meeting.settled() => true,
        };
        match is_taken {
            true => Ok(Acknowledged { status: 200, attempts: 1, body: Bytes::new() }),
            false => Err(Undelivered {
                attempts: 1,
                reason: "the caller has disconnected and does not repeat its request".to_owned(),
                status: None,
                fault: Fault::Caller,
            }),
        }
    }
}
