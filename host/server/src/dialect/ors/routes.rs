//! All routes except that of calls.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::OrsError;
use super::{Ors, session_of};
use crate::connection::Below;
use crate::dialect::sessions::Turn;
use crate::dialect::tasks::{count_of, in_slice, task_of, tasks_of};
use rollout_core::budget::{Charge, Use};
use rollout_rollout::{EnvironmentFacts, Moves, Reset, SplitKind};

/// Memory of a parsed request, in multiples of its bytes: a value takes up to 32 bytes and has at least two of text.
const PARSED_BYTES_PER_BYTE: usize = 16;

/// Maximum length of a session's id.
const SESSION_ID_CHARS_MAX: usize = 255;

pub(super) type Answer = Result<Json<Value>, OrsError>;

/// The name of the environment in the path, if there is one.
pub(super) type EnvName = Option<Path<String>>;

impl Ors {
    /// Returns the description of the environment. Fails if the path has another name.
    pub(super) async fn facts_of(
        &self,
        name: Option<&str>,
    ) -> Result<std::sync::Arc<EnvironmentFacts>, OrsError> {
        let facts = self.sessions.facts().await?;
        match name.filter(|name| !facts.name.eq_ignore_ascii_case(name)) {
            Some(name) => {
                let detail = format!("unknown environment '{name}'; this plugin has '{}'", facts.name);
                Err(OrsError::new(StatusCode::NOT_FOUND, detail))
            }
            None => Ok(facts),
        }
    }

    /// Returns a permit for the session that a request names.
    pub(super) async fn turn_of(&self, headers: &HeaderMap) -> Result<Turn, OrsError> {
        Ok(self.sessions.find(session_id(headers)?).await?)
    }
}

/// Returns the id of the session that a request names.
fn session_id(headers: &HeaderMap) -> Result<&str, OrsError> {
    let id = session_of(headers).ok_or_else(|| OrsError::invalid("X-Session-ID header is required"))?;
    if id.chars().count() > SESSION_ID_CHARS_MAX {
        let detail = format!("X-Session-ID has more than {SESSION_ID_CHARS_MAX} characters");
        return Err(OrsError::invalid(detail));
    }
    Ok(id)
}

/// Reads a body as JSON, within the limit and charged.
pub(super) async fn read<T: for<'a> Deserialize<'a>>(ors: &Ors, body: Body) -> Result<(T, Charge), OrsError> {
    let max = ors.sessions.limits().message_bytes_max;
    let bytes: Bytes = axum::body::to_bytes(body, max).await.map_err(|error| {
        let detail = format!("the body has more than {max} bytes or is incomplete: {error}");
        OrsError::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    })?;
    let host = ors.sessions.serving().host();
    let charge = host.budget().charge(Use::Request, bytes.len() * PARSED_BYTES_PER_BYTE);
    let charge = charge.map_err(|over| OrsError::new(StatusCode::SERVICE_UNAVAILABLE, over.to_string()))?;
    let read = serde_json::from_slice(&bytes).map_err(|error| {
        OrsError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the body is invalid: {error}"))
    })?;
    Ok((read, charge))
}

/// Answers `POST /create_session` with a new id. The session begins with `POST /create`.
pub(super) async fn create_session(State(ors): State<Ors>, below: Option<Extension<Below>>) -> Response {
    let id = ors.sessions.new_name();
    // On a server with tenants the id names the plugin, because not every request of the client does.
    let plugin =
        below.and_then(|Extension(Below(path))| path.rsplit_once('/').map(|(_, name)| name.to_owned()));
    let id = plugin.map_or_else(|| id.clone(), |plugin| format!("{plugin}.{id}"));
    let text = format!("event: task_id\ndata: {id}\n\nevent: end\ndata: \n\n");
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")], text).into_response()
}

/// The body of `POST /create`.
#[derive(Deserialize)]
pub(super) struct Create {
    env_name: Option<String>,
    split: Option<String>,
    index: Option<i64>,
    task_spec: Option<Map<String, Value>>,
    toolset_name: Option<String>,
}

/// Answers `POST /create`: opens the session and begins its episode.
pub(super) async fn create(State(ors): State<Ors>, headers: HeaderMap, body: Body) -> Answer {
    let id = session_id(&headers)?.to_owned();
    let (create, charge): (Create, _) = read(&ors, body).await?;
    let facts = ors.facts_of(create.env_name.as_deref()).await?;
    if create.toolset_name.is_some() {
        return Err(OrsError::invalid(
            "toolset_name is not supported; the environment has the tools of its plugin",
        ));
    }
    let arguments = match (create.task_spec, create.split, create.index) {
        (Some(task), _, _) => task,
        (None, Some(split), Some(index)) => {
            let count = count_of(&facts, &split)?;
            let index = u64::try_from(index).ok().filter(|index| *index < count);
            let index = index.ok_or_else(|| OrsError::invalid("Invalid index"))?;
            task_of(&ors.sessions.serving().host(), &split, index).await?
        }
        _ => return Err(OrsError::invalid("give task_spec, or split and index")),
    };
    let (server, name) = (ors.clone(), id.clone());
    // Completed even if the caller's connection breaks, so that the session has no call without an answer.
    let work = async move {
        let _charge = charge;
        let turn = server.sessions.find_or_open(&name).await?;
        let mut open = turn.session.begin().await?;
        let reset = Reset { arguments, ..Reset::default() };
        if open.session.has_begun().await? {
            // A caller that did not receive the answer repeats its request.
            if open.session.is_begun_by(reset).await? {
                return Ok(Json(json!({"sid": name})));
            }
            return Err(OrsError::invalid("Session already exists"));
        }
        let begun = open.session.reset(reset).await;
        drop(open);
        drop(turn);
        if let Err(error) = begun {
            server.sessions.close(&name).await;
            return Err(error.into());
        }
        Ok(Json(json!({"sid": name})))
    };
    ors.sessions.tasks().spawn(work).await.unwrap_or_else(|_| Err(failed()))
}

/// Returns the error of a request in which the host panicked.
pub(super) fn failed() -> OrsError {
    OrsError::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed in this request")
}

/// Answers `POST /ping`, which keeps a session alive.
pub(super) async fn ping(State(ors): State<Ors>, headers: HeaderMap) -> Answer {
    if ors.sessions.touch(session_id(&headers)?) {
        return Ok(Json(json!({"status": "ok"})));
    }
    Err(OrsError::new(StatusCode::NOT_FOUND, "Active environment not found"))
}

/// Answers `POST /delete` and `POST /delete_session`. A session that no longer exists is no error.
pub(super) async fn delete(State(ors): State<Ors>, headers: HeaderMap) -> Answer {
    let id = session_id(&headers)?;
    ors.sessions.close(id).await;
    Ok(Json(json!({"sid": id})))
}

/// Answers `GET /list_environments`.
pub(super) async fn list_environments(State(ors): State<Ors>) -> Answer {
    Ok(Json(json!([ors.sessions.facts().await?.name])))
}

/// Answers `GET /version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "build_sha": null}))
}

/// Answers `GET /tools`.
pub(super) async fn tools(State(ors): State<Ors>, name: EnvName) -> Answer {
    Ok(Json(tools_of(&*ors.facts_of(named(&name)).await?)))
}

/// Answers `GET /task_tools` with the tools of the environment, which are the same for every task.
pub(super) async fn task_tools(State(ors): State<Ors>, name: EnvName, headers: HeaderMap) -> Answer {
    ors.facts_of(named(&name)).await?;
    let turn = ors.turn_of(&headers).await?;
    let open = turn.session.begin().await?;
    Ok(Json(tools_of(&open.facts)))
}

fn tools_of(facts: &EnvironmentFacts) -> Value {
    let moves = Moves::new(facts);
    let tool = |function: &Map<String, Value>| {
        let of = |name: &str, default: Value| function.get(name).cloned().unwrap_or(default);
        json!({
            "name": of("name", Value::Null),
            "description": of("description", "".into()),
            "input_schema": of("parameters", json!({"type": "object", "properties": {}})),
        })
    };
    json!({
        "tools": moves.functions().iter().map(tool).collect::<Vec<_>>(),
        "terminal_tool": null,
        "supports_score_group": false,
        "message_block_types": ["text"],
    })
}

/// Answers `GET /splits`.
pub(super) async fn splits(State(ors): State<Ors>, name: EnvName) -> Answer {
    let facts = ors.facts_of(named(&name)).await?;
    let splits = facts.splits.iter().map(|split| {
        let kind = match split.kind {
            SplitKind::Train => "train",
            SplitKind::Validation => "validation",
            SplitKind::Test => "test",
        };
        json!({"name": split.name, "type": kind})
    });
    Ok(Json(splits.collect()))
}

/// The body of a request for tasks.
#[derive(Deserialize)]
pub(super) struct TasksRequest {
    split: String,
    index: Option<i64>,
    start: Option<i64>,
    stop: Option<i64>,
}

/// Reads a request for tasks. Returns it with the environment's description and the number of the split's tasks.
async fn request_of(
    ors: &Ors,
    name: &EnvName,
    body: Body,
) -> Result<(TasksRequest, std::sync::Arc<EnvironmentFacts>, u64), OrsError> {
    let facts = ors.facts_of(named(name)).await?;
    let (request, _charge): (TasksRequest, _) = read(ors, body).await?;
    let count = count_of(&facts, &request.split)?;
    Ok((request, facts, count))
}

/// Answers `POST /num_tasks`.
pub(super) async fn num_tasks(State(ors): State<Ors>, name: EnvName, body: Body) -> Answer {
    let (_, _, count) = request_of(&ors, &name, body).await?;
    Ok(Json(json!({"num_tasks": count})))
}

/// Answers `POST /task`.
pub(super) async fn task(State(ors): State<Ors>, name: EnvName, body: Body) -> Answer {
    let (request, facts, count) = request_of(&ors, &name, body).await?;
    let index = request.index.and_then(|index| u64::try_from(index).ok()).filter(|index| *index < count);
    let index = index.ok_or_else(|| OrsError::invalid("Invalid index"))?;
    let task = task_of(&ors.sessions.serving().host(), &request.split, index).await?;
    Ok(Json(json!({"task": task, "env_name": facts.name})))
}

/// Answers `POST /tasks`.
pub(super) async fn tasks(State(ors): State<Ors>, name: EnvName, body: Body) -> Answer {
    let (request, facts, count) = request_of(&ors, &name, body).await?;
    let tasks = tasks_of(&ors.sessions.serving().host(), &request.split, 0, count).await?;
    Ok(Json(json!({"tasks": tasks, "env_name": facts.name})))
}

/// Answers `POST /task_range`.
pub(super) async fn task_range(State(ors): State<Ors>, name: EnvName, body: Body) -> Answer {
    let (request, facts, count) = request_of(&ors, &name, body).await?;
    let from = request.start.map_or(0, |bound| in_slice(bound, count));
    let to = request.stop.map_or(count, |bound| in_slice(bound, count));
    let tasks = tasks_of(&ors.sessions.serving().host(), &request.split, from, to).await?;
    Ok(Json(json!({"tasks": tasks, "env_name": facts.name})))
}

/// Answers `GET /prompt` with the observation of the reset.
pub(super) async fn prompt(State(ors): State<Ors>, name: EnvName, headers: HeaderMap) -> Answer {
    Ok(Json(blocks(&first_text(&ors, &name, &headers).await?)))
}

/// Answers `GET /messages` with the observation of the reset as a message of the user.
pub(super) async fn messages(State(ors): State<Ors>, name: EnvName, headers: HeaderMap) -> Answer {
    let blocks = blocks(&first_text(&ors, &name, &headers).await?);
    Ok(Json(json!([{"role": "user", "blocks": blocks, "detail": null}])))
}

async fn first_text(ors: &Ors, name: &EnvName, headers: &HeaderMap) -> Result<String, OrsError> {
    ors.facts_of(named(name)).await?;
    let turn = ors.turn_of(headers).await?;
    // Completed even if the caller's connection breaks, because the session may have to repeat its episode first.
    let reading = ors.sessions.tasks().spawn(async move {
        let mut open = turn.session.begin().await?;
        Ok::<_, OrsError>(open.session.first_observation().await?.map(|first| first.text()))
    });
    let first = reading.await.unwrap_or_else(|_| Err(failed()))?;
    first.ok_or_else(|| {
        OrsError::new(StatusCode::NOT_FOUND, "Active environment not found: it has no episode")
    })
}

/// Returns a text in the protocol's form.
pub(super) fn blocks(text: &str) -> Value {
    json!([{"text": text, "detail": null, "type": "text"}])
}

pub(super) fn named(name: &EnvName) -> Option<&str> {
    name.as_ref().map(|Path(name)| name.as_str())
}
