//! Generation A: a rollout is asked for with its tools as the answer, its model and the
//! place for its result are at the caller's own server.

mod records;
mod request;
mod tools;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::body::Body;
use super::error::ApiError;
use super::reports::Due;
use super::statuses::{CountedBy, Known, Over, Statuses};
use super::{BODY_BYTES_MAX, Osmosis, kept};
use crate::connection::Caller;
use crate::dialect::delivery::{Action, Delivery, Event};
use records::{Leading, Part, Records, StoredRecord};
use request::Init;
use rollout_assembly::config::OsmosisInit;
use rollout_core::budget::Budget;
use rollout_core::outbound::{CallbackClient, ModelEndpoint, Secret};
use rollout_core::rollout::{
    AdmitError, AfterWorkflow, AgentForm, Ended, Failure, FailureKind, Finished, Host, LoopReport, Next,
    Outcome, Rollout, RolloutLog, RolloutRequest, Stage, Steps, UnfinishedRollout, drive,
};
use rollout_core::wire::messages::Messages;
use tools::WireTool;

/// What this generation needs besides what all need.
pub struct Settings {
    /// Times and bounds.
    pub init: OsmosisInit,
    /// Who posts results.
    pub completions: CallbackClient,
}

/// This generation's part of the server.
pub(super) struct Server {
    settings: OsmosisInit,
    completions: CallbackClient,
    records: Arc<Records>,
}

impl Server {
    pub(crate) fn new(settings: Settings, budget: Budget) -> Self {
        let Settings { init, completions } = settings;
        let records = Arc::new(Records::new(init.record_ttl, init.cleanup_interval, budget));
        Self { settings: init, completions, records }
    }

    /// Forgets what is due, and more where room is needed.
    pub(crate) fn sweep(&self) {
        self.records.sweep();
    }

    /// Whether no other generation is served.
    pub(crate) fn is_alone(&self) -> bool {
        self.settings.alone
    }

    /// Whether nothing is under way or remembered.
    pub(crate) fn is_idle(&self) -> bool {
        self.records.counts(Instant::now()) == (0, 0)
    }

    /// What is reported of a host's health to callers of this generation. The rollouts of all
    /// generations count.
    pub(crate) fn health(&self, agent_name: &str, others: &Statuses) -> Map<String, Value> {
        let now = Instant::now();
        let ((active, completed), (others_active, others_completed)) =
            (self.records.counts(now), others.counts(now));
        let (active, completed) = (active + others_active, completed as u64 + others_completed);
        let fields: [(&str, Value); 4] = [
            ("status", "healthy".into()),
            ("agent_loop", agent_name.into()),
            ("active_rollouts", active.into()),
            ("completed_rollouts", completed.into()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Why callers of this generation cannot be served by this host, if they cannot: tools
/// that its form has no place for. Tools that depend on the request are known when it
/// comes, and so are those of a loop that says none without one.
pub async fn cannot_carry(host: &Host) -> Option<String> {
    let tools = host.usual_tools().await.ok()?;
    let tools: Vec<Box<RawValue>> =
        tools.iter().filter_map(|text| Some(rollout_core::wire::object(text).ok()?.to_owned())).collect();
    tools::typed(&tools).err()
}

/// A model that is asked as callers of this generation want theirs asked, for a rollout of one.
pub fn asked_by(
    model: ModelEndpoint,
    request: &RolloutRequest,
    settings: &OsmosisInit,
    form: AgentForm,
) -> Option<ModelEndpoint> {
    let id = request.caller_id.as_deref().unwrap_or_else(|| request.id.as_str());
    Some(model.asked(request::profile(id, settings, form)?))
}

/// Its routes. Their key is asked for in this generation's way.
pub(super) fn router() -> Router<Osmosis> {
    Router::new().route(INIT_PATH, post(init)).route(HEALTH_PATH, get(platform_health))
}

/// Why there is no answer to a request.
#[derive(Clone, Debug)]
pub(super) enum Refused {
    /// It was not admitted.
    Admit(AdmitError),
    /// Its tools cannot be reported: why.
    Tools(String),
    /// The work for it broke off.
    Crashed,
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Admit(error) => error.into(),
            Refused::Tools(why) => Self::Internal(why),
            Refused::Crashed => Self::Internal("Internal Server Error".to_owned()),
        }
    }
}

/// Whether a request carries the server's key: after the word `Bearer` in any case, or
/// as it is.
pub(super) fn is_authorised(key: &Secret, headers: &HeaderMap) -> bool {
    given_key(headers).ct_eq(key.expose().as_bytes()).into()
}

/// The key that a request carries in this generation's way.
pub(crate) fn given_key(headers: &HeaderMap) -> &[u8] {
    let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes()).trim_ascii();
    match given.iter().position(u8::is_ascii_whitespace) {
        Some(end) if given[..end].eq_ignore_ascii_case(b"bearer") => given[end..].trim_ascii(),
        _ => given,
    }
}

/// Whether a path is one of this generation's.
pub(crate) fn has_path(path: &str) -> bool {
    [INIT_PATH, HEALTH_PATH].contains(&path)
}

const INIT_PATH: &str = "/v1/rollout/init";
const HEALTH_PATH: &str = "/platform/health";

/// What is said where the key is missing.
pub(crate) const KEY_REFUSAL: &str = "Invalid or missing API key";

/// The same as `/health`, for a platform that wants to know whether its key is right.
async fn platform_health(State(osmosis): State<Osmosis>) -> Result<Json<Map<String, Value>>, ApiError> {
    if !osmosis.0.is_keyed {
        return Err(ApiError::NoRoute);
    }
    Ok(Json(osmosis.rollout_health()))
}

/// Admits a rollout and answers with its tools. A request that came before has the
/// answer that it had.
async fn init(
    State(osmosis): State<Osmosis>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, ApiError>,
) -> Result<Response, ApiError> {
    osmosis.keep_swept();
    let inner = &osmosis.0;
    let host = inner.serving.host();
    let rules = inner.init.completions.rules();
    let read = |bytes: &[u8]| request::read(&headers, bytes, &inner.init.settings, host.form(), &rules);
    let request = osmosis.read_for_rollout(body, read)?;
    let answer = match inner.init.records.join(&request.key, Instant::now()) {
        Part::Follower(following) => following,
        Part::Leader(leading) => {
            let following = leading.following();
            // A caller that goes away does not take the rollout with it.
            inner.tasks.spawn(lead(osmosis.clone(), host, request, leading));
            following
        }
    };
    // One that is answered early comes again, and finds the rollout.
    let body = match &caller {
        Some(Extension(caller)) => caller.wait(answer.answer()).await.ok_or(ApiError::Crowded)??,
        None => answer.answer().await?,
    };
    Ok((StatusCode::ACCEPTED, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// What a caller is answered at once.
#[derive(Serialize)]
struct Accepted<'a> {
    rollout_id: &'a str,
    tools: Vec<WireTool>,
}

/// What is kept of such a rollout, so that its caller has its result.
#[derive(Serialize, Deserialize)]
struct Facts<'a> {
    /// What its caller calls it.
    #[serde(borrow)]
    id: Cow<'a, str>,
    /// By which a request that comes again is known.
    #[serde(borrow)]
    key: Cow<'a, str>,
    gradable: bool,
}

/// What of it nobody may read on disk.
#[derive(Serialize, Deserialize)]
struct SecretFacts<'a> {
    #[serde(borrow)]
    completed_url: Cow<'a, str>,
    #[serde(borrow)]
    api_key: Option<Cow<'a, str>>,
}

/// What happened to it since.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note<'a> {
    /// Its request was answered with this.
    Answered(#[serde(borrow)] &'a RawValue),
    /// Its completion was taken.
    Completed,
}

/// Goes on with a rollout that a process before answered, or with its completion.
pub(super) fn resume(osmosis: &Osmosis, host: &Host, unfinished: UnfinishedRollout) -> Result<(), String> {
    let inner = &osmosis.0;
    let notes = unfinished.notes.iter().map(|note| serde_json::from_str(note.get()));
    let notes = notes.collect::<Result<Vec<Note<'_>>, _>>().map_err(|error| error.to_string())?;
    let answer = notes.iter().find_map(|note| match note {
        Note::Answered(answer) => Some(Bytes::copy_from_slice(answer.get().as_bytes())),
        Note::Completed => None,
    });
    let is_completed = notes.iter().any(|note| matches!(note, Note::Completed));
    let Some(answer) = answer else {
        // Nobody was told that it is there, and whoever asks again begins anew.
        unfinished.log().end();
        return Ok(());
    };
    let Facts { id, key, gradable } = kept::facts(&unfinished)?;
    let SecretFacts { completed_url, api_key } = kept::secret(&unfinished)?;
    let Part::Leader(leading) = inner.init.records.join(&key, Instant::now()) else {
        return Err("its key is taken".to_owned());
    };
    let log = unfinished.log().clone();
    let stored = leading.answer(answer).kept_in(Some(log.clone()));
    if is_completed {
        // What is left of it is its answer, for requests that come again.
        return Ok(());
    }
    let (id, completed_url) = (id.into_owned(), completed_url.into_owned());
    let api_key = api_key.map(Secret::new);
    let of_id = id.clone();
    let asked = |model: ModelEndpoint| {
        let profile = request::profile(&of_id, &inner.init.settings, host.form());
        Ok(model.asked(profile.ok_or("its id makes no request")?))
    };
    kept::go_on((osmosis, host), unfinished, CountedBy::Records, asked, |known, _| Call {
        due: inner.reports.promise(&id),
        known,
        grade: gradable && host.grader().is_some(),
        answer: Mutex::new(Some(Answer::Given(stored))),
        osmosis: osmosis.clone(),
        id,
        completed_url,
        api_key,
        log: Some(log),
    })
}

/// Answers a request and runs its rollout.
async fn lead(osmosis: Osmosis, host: Host, request: Init, leading: Leading) {
    let Init { rollout, mut resources, id, completed_url, api_key, gradable, key } = request;
    let facts = Facts { id: id.as_str().into(), key: key.as_str().into(), gradable };
    let secret = SecretFacts {
        completed_url: completed_url.as_str().into(),
        api_key: api_key.as_ref().map(|key| key.expose().into()),
    };
    resources.continuation = Some(kept::continuation(kept::INIT, &facts, Some(&secret)));
    let rollout = match host.admit(rollout, resources) {
        Ok(rollout) => rollout,
        Err(error) => return leading.fail(Refused::Admit(error)),
    };
    let call = Box::new(Call {
        due: osmosis.0.reports.promise(&id),
        known: osmosis.0.statuses.begins(rollout.id().clone(), rollout.handle(), CountedBy::Records),
        grade: gradable && host.grader().is_some(),
        answer: Mutex::new(Some(Answer::Due(leading))),
        osmosis,
        id,
        completed_url,
        api_key,
        log: rollout.log().cloned(),
    });
    drive(rollout, call).await;
}

/// A rollout whose caller is answered with its tools and notified of its end.
struct Call {
    osmosis: Osmosis,
    id: String,
    completed_url: String,
    api_key: Option<Secret>,
    grade: bool,
    known: Known,
    due: Due,
    answer: Mutex<Option<Answer>>,
    /// Where it is kept, if it is.
    log: Option<RolloutLog>,
}

/// How far the answer to a request is.
enum Answer {
    /// It is not answered. Whoever drops this answers that the work broke off.
    Due(Leading),
    /// There are no tools to answer with: why. It is answered when the rollout is over.
    NoTools(Leading, String),
    /// It was answered.
    Given(StoredRecord),
}

impl Answer {
    /// Answers with the tools, where there are some.
    fn with(self, answer: Result<Bytes, String>, log: Option<&RolloutLog>) -> Self {
        match (self, answer) {
            (Self::Due(leading), Ok(body)) => Self::Given(leading.answer(body).kept_in(log.cloned())),
            (Self::Due(leading), Err(why)) => Self::NoTools(leading, why),
            (other, _) => other,
        }
    }
}

impl Steps for Call {
    type End = ();

    async fn before_workflow(&self, rollout: &mut Rollout) -> ControlFlow<()> {
        if let Some(Answer::Given(_)) = *self.answer() {
            return ControlFlow::Continue(());
        }
        let body = self.tools(rollout).await;
        let next = if body.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let mut answer = self.answer();
        *answer = answer.take().map(|answer| answer.with(body, self.log.as_ref()));
        next
    }

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::graded(self.grade))
    }

    /// Posts the one completion.
    async fn finished(self: Box<Self>, ended: Ended) {
        if !kept::may_be_reported(self.log.as_ref()).await {
            return;
        }
        // Its record is kept from the time at which the caller has heard all.
        let _kept = match self.answer().take() {
            Some(Answer::Given(kept)) => kept,
            Some(Answer::NoTools(leading, why)) => {
                self.due.kept();
                self.is_over();
                return leading.fail(Refused::Tools(why));
            }
            Some(Answer::Due(_)) | None => return self.is_over(),
        };
        let (event, body) = match ended {
            Ended::Cancelled(_) => {
                self.known.ends(Over::word("cancelled"));
                (Event::Cancelled { by_server: self.due.cancelled() }, Bytes::new())
            }
            Ended::Finished(finished) => {
                let is_scored = matches!(finished.outcome, Outcome::Scored { .. });
                (Event::Finished { is_scored }, self.completed(&finished))
            }
            Ended::Crashed(crashed) => {
                self.known.ends(Over::word("failure"));
                let body = encoded(&Completed::failed(&self.id, &crashed.reason, Metrics::default()));
                (Event::Crashed, body)
            }
        };
        let mut delivery = Delivery::OnePost { is_acknowledged: false };
        let mut action = delivery.advance(event);
        while let Action::Post(_) = action {
            action = delivery.advance(self.post(body.clone()).await);
        }
        if delivery.is_acknowledged() {
            self.due.kept();
        }
        self.is_completed();
    }
}

impl Call {
    /// Posts the completion, and returns whether the caller took it.
    async fn post(&self, body: Bytes) -> Event {
        let completions = &self.osmosis.0.init.completions;
        match completions.post(&self.completed_url, self.api_key.as_ref(), body).await {
            Ok(_) => Event::Acknowledged,
            Err(undelivered) => {
                tracing::warn!(%undelivered, "completion not delivered");
                Event::Undelivered
            }
        }
    }

    /// What a request is answered, which is kept before anybody hears of it.
    async fn tools(&self, rollout: &mut Rollout) -> Result<Bytes, String> {
        let tools = Box::pin(rollout.tools(|tools| tools::typed(&tools))).await;
        let tools = tools.map_err(|failure| failure.reason)?;
        // Text, and JSON that was made of checked parts.
        let body =
            to_raw_value(&Accepted { rollout_id: &self.id, tools }).map_err(|error| error.to_string())?;
        if let Some(log) = &self.log {
            log.note(&Note::Answered(&body));
            log.admitted().await.map_err(|error| error.to_string())?;
        }
        Ok(String::from(Box::<str>::from(body)).into())
    }

    /// Nothing is left to be posted.
    fn is_completed(&self) {
        if let Some(log) = &self.log {
            log.note(&Note::Completed);
        }
    }

    /// Nobody knows of it.
    fn is_over(&self) {
        if let Some(log) = &self.log {
            log.end();
        }
    }

    fn answer(&self) -> MutexGuard<'_, Option<Answer>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The completion, with what anybody may know of it.
    fn completed(&self, finished: &Finished) -> Bytes {
        let messages =
            finished.samples.first().map(|sample| sample.record.messages.clone()).unwrap_or_default();
        let metrics = Metrics::of(finished);
        let done = |reward| Completed {
            rollout_id: &self.id,
            status: "COMPLETED",
            final_messages: messages.clone(),
            finish_reason: finished.loop_report.as_ref().map_or("stop", |report| &report.finish_reason),
            error_message: None,
            reward,
            metrics,
            extra_fields: json!({}),
        };
        let completed = match &finished.outcome {
            Outcome::Scored { reward } => done(Some(*reward)),
            Outcome::Unscored(failure) if failure.kind == FailureKind::NotGraded => {
                match finished.samples.is_empty() {
                    false => done(None),
                    true => Completed::failed(&self.id, "the workflow registered no sample", metrics),
                }
            }
            Outcome::Unscored(failure) => match (&finished.loop_report, failure.stage) {
                // The agent came to an end, by its own account or with a grader that did
                // not: what it said is reported.
                (Some(report), Stage::Workflow) => Completed {
                    finish_reason: &report.finish_reason,
                    final_messages: messages.clone(),
                    ..Completed::failed(&self.id, &failure.reason, metrics)
                },
                (_, Stage::Grader) => Completed {
                    final_messages: messages.clone(),
                    ..Completed::failed(&self.id, &failure.reason, metrics)
                },
                (None, Stage::Queue | Stage::Workflow) | (Some(_), Stage::Queue) => {
                    Completed::failed(&self.id, &failure.reason, metrics.of_the_model())
                }
            },
        };
        let status = if completed.status == "COMPLETED" { "success" } else { "failure" };
        self.known.ends(Over::of(status, &finished.outcome));
        encoded(&completed)
    }
}

/// Posted when a rollout is over. What there is not is left out.
#[derive(Serialize)]
struct Completed<'a> {
    rollout_id: &'a str,
    status: &'static str,
    final_messages: Messages,
    finish_reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reward: Option<f64>,
    metrics: Metrics,
    extra_fields: Value,
}

impl<'a> Completed<'a> {
    fn failed(rollout_id: &'a str, reason: &'a str, metrics: Metrics) -> Self {
        Self {
            rollout_id,
            status: "ERROR",
            final_messages: Messages::default(),
            finish_reason: "error",
            error_message: Some(reason),
            reward: None,
            metrics,
            extra_fields: json!({}),
        }
    }
}

fn encoded(completed: &Completed<'_>) -> Bytes {
    // Text, numbers that were checked, and JSON that was parsed before.
    serde_json::to_vec(completed).map(Bytes::from).unwrap_or_default()
}

/// What a rollout took. All of it is always there.
#[derive(Clone, Copy, Default, Serialize)]
struct Metrics {
    total_latency_ms: f64,
    llm_latency_ms: f64,
    tool_latency_ms: f64,
    num_llm_calls: u64,
    num_tool_calls: u32,
    prompt_tokens: u64,
    response_tokens: u64,
    /// Nobody counts it; it is part of the form.
    max_context_tokens: u64,
}

impl Metrics {
    fn of(finished: &Finished) -> Self {
        let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let usage = &finished.usage;
        let (tool_time, tool_calls) = match &finished.loop_report {
            Some(LoopReport { tool_calls, tool_time, .. }) => (*tool_time, *tool_calls),
            None => (std::time::Duration::ZERO, u32::try_from(usage.tool_calls).unwrap_or(u32::MAX)),
        };
        Self {
            total_latency_ms: millis(finished.duration),
            llm_latency_ms: millis(usage.chat_time),
            tool_latency_ms: millis(tool_time),
            num_llm_calls: usage.chat_replies,
            num_tool_calls: tool_calls,
            prompt_tokens: usage.prompt_tokens,
            response_tokens: usage.completion_tokens,
            max_context_tokens: 0,
        }
    }

    /// Where the agent broke off, what is known is what its calls of the model took.
    fn of_the_model(self) -> Self {
        Self { total_latency_ms: 0.0, tool_latency_ms: 0.0, num_tool_calls: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_taken_after_the_word_in_any_case_and_as_it_is() {
        let key = Secret::new("osm_rollout_x");
        let check = |given: Option<&'static str>, expected: bool| {
            let mut headers = HeaderMap::new();
            if let Some(given) = given {
                headers.insert(header::AUTHORIZATION, HeaderValue::from_static(given));
            }
            assert_eq!(is_authorised(&key, &headers), expected, "{given:?}");
        };
        check(Some("Bearer osm_rollout_x"), true);
        check(Some("bEARER  osm_rollout_x"), true);
        check(Some("osm_rollout_x"), true);
        check(Some("Bearer osm_rollout_y"), false);
        check(Some("Basic osm_rollout_x"), false);
        check(Some("Bearer"), false);
        check(Some(""), false);
        check(None, false);
    }
}
