//! Generation A: the response to a request contains the rollout's tools. The caller's own server has the model and receives
//! the result.

mod request;
mod tools;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use super::journaled::{self, Facts};
use super::{BODY_BYTES_MAX, Osmosis};
use crate::connection::Caller;
use crate::dialect::body::{Body, BodyRefused};
use crate::dialect::delivery::{Delivery, Message};
use crate::dialect::driver::{Addresses, Driver, Renderer, Source};
use crate::dialect::ledger::{AnswerSender, LedgerEntry, NoAnswer, PublicOutcome, Role};
use request::Init;
use rollout_assembly::config::OsmosisInit;
use rollout_outbound::{CallbackClient, ModelEndpoint, Secret};
use rollout_rollout::{
    AgentForm, FailureKind, Finished, Host, LoopReport, Outcome, Rollout, RolloutRequest, Stage,
    UnfinishedRollout, drive,
};
use rollout_wire::messages::Messages;
use tools::WireTool;

/// Additional parts of this generation.
pub struct GenerationASettings {
    /// Times and limits.
    pub init: OsmosisInit,
    /// The client that posts results.
    pub completions: CallbackClient,
}

/// This generation's part of the dialect.
pub(super) struct Server {
    settings: OsmosisInit,
    completions: Arc<CallbackClient>,
}

impl Server {
    pub(crate) fn new(settings: GenerationASettings) -> Self {
        let GenerationASettings { init, completions } = settings;
        Self { settings: init, completions: Arc::new(completions) }
    }

    /// Returns whether the server serves only this generation.
    pub(crate) fn is_only_generation(&self) -> bool {
        self.settings.alone
    }
}

/// Returns the reason why this host cannot serve callers of this generation, if there is one: the protocol cannot describe
/// its tools. Tools that depend on a request are checked when the request arrives.
pub async fn incompatibility(host: &Host) -> Option<String> {
    let tools = host.usual_tools().await.ok()?;
    let tools: Vec<Box<RawValue>> =
        tools.iter().filter_map(|text| Some(rollout_wire::object(text).ok()?.to_owned())).collect();
    tools::typed(&tools).err()
}

/// Returns a model with the request profile of this generation's callers, or `None` if there is no profile for the
/// rollout's id.
pub fn with_caller_profile(
    model: ModelEndpoint,
    request: &RolloutRequest,
    settings: &OsmosisInit,
    form: AgentForm,
) -> Option<ModelEndpoint> {
    let id = request.caller_id.as_deref().unwrap_or_else(|| request.id.as_str());
    Some(model.with_profile(request::profile(id, settings, form)?))
}

/// Returns the routes of this generation, whose key is passed in its own way.
pub(super) fn router() -> Router<Osmosis> {
    Router::new().route(INIT_PATH, post(init)).route(HEALTH_PATH, get(platform_health))
}

/// Returns whether a request has the server's key: after the word `Bearer` in any case, or alone.
pub(crate) fn is_authorised(key: &Secret, headers: &HeaderMap) -> bool {
    given_key(headers).ct_eq(key.expose().as_bytes()).into()
}

/// Returns the key that a request passes in this generation's way.
pub(crate) fn given_key(headers: &HeaderMap) -> &[u8] {
    let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes()).trim_ascii();
    match given.iter().position(u8::is_ascii_whitespace) {
        Some(end) if given[..end].eq_ignore_ascii_case(b"bearer") => given[end..].trim_ascii(),
        _ => given,
    }
}

/// Returns whether a path belongs to this generation.
pub(crate) fn has_path(path: &str) -> bool {
    [INIT_PATH, HEALTH_PATH].contains(&path)
}

const INIT_PATH: &str = "/v1/rollout/init";
const HEALTH_PATH: &str = "/platform/health";

/// The response to a request without the key.
pub(crate) const KEY_REFUSAL: &str = "Invalid or missing API key";

/// Returns the same as `/health`, for platforms that check their key.
async fn platform_health(State(osmosis): State<Osmosis>) -> Result<Json<Map<String, Value>>, ApiError> {
    if !osmosis.0.is_keyed {
        return Err(ApiError::NoRoute);
    }
    Ok(Json(osmosis.rollout_health()))
}

/// Admits a rollout and responds with its tools. A repeated request gets the first response.
async fn init(
    State(osmosis): State<Osmosis>,
    caller: Option<Extension<Caller>>,
    headers: HeaderMap,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Result<Response, ApiError> {
    osmosis.start_sweeping();
    let inner = &osmosis.0;
    let host = inner.serving.host();
    let rules = inner.init.completions.rules();
    let read = |bytes: &[u8]| request::read(&headers, bytes, &inner.init.settings, host.form(), &rules);
    let request = osmosis.read_for_rollout(body, read)?;
    let answer = match inner.ledger.join(&request.key) {
        Role::Follower(following) => following,
        Role::Leader(entry, sender) => {
            let following = sender.following();
            // The rollout continues if its caller disconnects.
            inner.tasks.spawn(lead(osmosis.clone(), host, request, (entry, sender)));
            following
        }
    };
    // The caller of a request that is answered early repeats it, and then finds the rollout.
    let answer = match &caller {
        Some(Extension(caller)) => caller.wait(answer.answer()).await.ok_or(ApiError::Crowded)??,
        None => answer.answer().await?,
    };
    let body = answer.body.clone();
    Ok((StatusCode::ACCEPTED, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The immediate response to a caller.
#[derive(Serialize)]
struct Accepted<'a> {
    rollout_id: &'a str,
    tools: Vec<WireTool>,
}

/// Continues a rollout whose request an earlier process answered, or delivers its completion.
pub(super) fn resume(
    (osmosis, host): (&Osmosis, &Host),
    unfinished: UnfinishedRollout,
    facts: Facts,
    (addresses, answer): (Addresses, Option<Box<RawValue>>),
) -> Result<(), String> {
    let inner = &osmosis.0;
    let journaled::Form::Init { id, key } = &facts.form else {
        return Err("it was not started by a request of generation A".to_owned());
    };
    let Some(answer) = answer else {
        // The caller received no response and sends the request again.
        unfinished.log().end();
        return Ok(());
    };
    let Role::Leader(entry, sender) = inner.ledger.join(key) else {
        return Err("its key is taken".to_owned());
    };
    let log = unfinished.log().clone();
    entry.answer(sender, bytes(answer), Some(log.clone()));
    if matches!(facts.delivery, Delivery::OnePost { is_closed: true, .. }) {
        // Its first response stays, for repeated requests.
        return Ok(());
    }
    let with_profile = |model: ModelEndpoint| {
        let profile = request::profile(id, &inner.init.settings, host.form());
        Ok(model.with_profile(profile.ok_or("its id has no request profile")?))
    };
    let renderer = Call { id: id.clone(), answer: Mutex::new(Some(Answer::Given)) };
    let client = (&inner.init.completions, addresses);
    journaled::continue_rollout((osmosis, host), unfinished, id, with_profile, |_| {
        journaled::driver(host, entry, &facts, client, (Some(log), Default::default()), renderer)
    })
}

/// Answers a request and runs its rollout.
async fn lead(osmosis: Osmosis, host: Host, request: Init, (entry, sender): (LedgerEntry, AnswerSender)) {
    let Init { rollout, resources, id, completed_url, api_key, gradable, key } = request;
    let form = journaled::Form::Init { id: id.clone(), key };
    let facts = Facts { delivery: Delivery::one_post(), gradable, form };
    let addresses = Addresses { completion: None, result: Some(completed_url), key: api_key };
    let rollout = match journaled::admit(&host, (rollout, resources), &facts, &addresses) {
        Ok(rollout) => rollout,
        Err(error) => {
            drop(entry);
            return sender.fail(NoAnswer::Admit(error));
        }
    };
    entry.begin(rollout.id().clone(), &id, Some(rollout.handle()));
    let work = (rollout.log().cloned(), Default::default());
    let renderer = Call { id, answer: Mutex::new(Some(Answer::Due(sender))) };
    let client = (&osmosis.0.init.completions, addresses);
    drive(rollout, journaled::driver(&host, entry, &facts, client, work, renderer)).await;
}

/// A rollout whose caller gets its tools as the response and a notification of its end.
struct Call {
    id: String,
    answer: Mutex<Option<Answer>>,
}

/// The response to a request.
enum Answer {
    /// The response is due. Dropping it reports that the work was aborted.
    Due(AnswerSender),
    /// The tools cannot be listed, for this reason. The response follows at the end of the rollout.
    NoTools(AnswerSender, String),
    /// The response was sent.
    Given,
}

impl Renderer for Call {
    type Form = ();

    async fn before_workflow(driver: &Driver<Self>, rollout: &mut Rollout) -> ControlFlow<()> {
        let call = &driver.renderer;
        if let Some(Answer::Given) = *call.answer() {
            return ControlFlow::Continue(());
        }
        let tools = call.tools(driver, rollout).await;
        let mut answer = call.answer();
        let (next, after) = match (answer.take(), tools) {
            (Some(Answer::Due(sender)), Ok(body)) => {
                driver.entry.answer(sender, body, driver.log.clone());
                (ControlFlow::Continue(()), Some(Answer::Given))
            }
            (Some(Answer::Due(sender)), Err(why)) => {
                (ControlFlow::Break(()), Some(Answer::NoTools(sender, why)))
            }
            (other, _) => (ControlFlow::Break(()), other),
        };
        *answer = after;
        next
    }

    fn is_known(&self) -> bool {
        matches!(*self.answer(), Some(Answer::Given))
    }

    fn refuse(self, entry: LedgerEntry) {
        let answer = self.answer().take();
        // The key is released before the waiting requests read that there is no response.
        match answer {
            Some(Answer::NoTools(sender, why)) => {
                entry.settle();
                drop(entry);
                sender.fail(NoAnswer::Failed(why));
            }
            other => {
                drop(entry);
                drop(other);
            }
        }
    }

    fn body(&self, _message: Message, source: &Source<'_>, _delivery: &Delivery) -> Bytes {
        let completed = match source {
            Source::Finished(finished) => self.completed(finished),
            Source::Crashed(crashed) => Completed::failed(&self.id, &crashed.reason, Metrics::default()),
            // Nothing is posted at the end of the workflow.
            Source::Workflow(_) => return Bytes::new(),
        };
        // Text, checked numbers and parsed JSON cannot fail to serialize.
        serde_json::to_vec(&completed).map(Bytes::from).unwrap_or_default()
    }

    fn public_outcome(&self, finished: &Finished, _delivery: &Delivery) -> PublicOutcome {
        let is_completed = match &finished.outcome {
            Outcome::Scored { .. } => true,
            Outcome::Unscored(failure) => {
                failure.kind == FailureKind::NotGraded && !finished.samples.is_empty()
            }
        };
        PublicOutcome::of(if is_completed { "success" } else { "failure" }, &finished.outcome)
    }

    fn form(&self, _delivery: &Delivery) {}
}

fn bytes(json: Box<RawValue>) -> Bytes {
    String::from(Box::<str>::from(json)).into()
}

impl Call {
    /// Creates the response to a request, which is stored before its caller reads it.
    async fn tools(&self, driver: &Driver<Self>, rollout: &mut Rollout) -> Result<Bytes, String> {
        let tools = Box::pin(rollout.tools(|tools| tools::typed(&tools))).await;
        let tools = tools.map_err(|failure| failure.reason)?;
        // Text and JSON of checked parts cannot fail to serialize.
        let body =
            to_raw_value(&Accepted { rollout_id: &self.id, tools }).map_err(|error| error.to_string())?;
        driver.note(Some(&body));
        if let Some(log) = &driver.log {
            log.admitted().await.map_err(|error| error.to_string())?;
        }
        Ok(bytes(body))
    }

    fn answer(&self) -> MutexGuard<'_, Option<Answer>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the completion of a finished rollout.
    fn completed<'a>(&'a self, finished: &'a Finished) -> Completed<'a> {
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
        match &finished.outcome {
            Outcome::Scored { reward } => done(Some(*reward)),
            Outcome::Unscored(failure) if failure.kind == FailureKind::NotGraded => {
                match finished.samples.is_empty() {
                    false => done(None),
                    true => Completed::failed(&self.id, "the workflow registered no sample", metrics),
                }
            }
            Outcome::Unscored(failure) => match (&finished.loop_report, failure.stage) {
                // The agent finished, whether or not the grader did: its messages are reported.
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
                    Completed::failed(&self.id, &failure.reason, metrics.without_tools())
                }
            },
        }
    }
}

/// The body that is posted at the end of a rollout. Absent values are omitted.
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

/// Usage of a rollout. All fields are always present.
#[derive(Clone, Copy, Default, Serialize)]
struct Metrics {
    total_latency_ms: f64,
    llm_latency_ms: f64,
    tool_latency_ms: f64,
    num_llm_calls: u64,
    num_tool_calls: u32,
    prompt_tokens: u64,
    response_tokens: u64,
    /// Always zero; the protocol requires the field.
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

    /// Returns the usage of an aborted agent, which is that of its model calls.
    fn without_tools(self) -> Self {
        Self { total_latency_ms: 0.0, tool_latency_ms: 0.0, num_tool_calls: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_read_after_bearer_in_any_case_or_alone() {
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
