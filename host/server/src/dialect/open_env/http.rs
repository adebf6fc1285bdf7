//! The HTTP routes. Each request has an environment of its own, unless it names a session.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::frame::Refusal;
use super::{OpenEnv, rpc};
use crate::dialect::tasks::{TasksError, count_of, in_slice, task_of, tasks_of};
use rollout_rollout::{DescribeError, EnvironmentFacts, SplitKind};

/// Error of a request.
pub(super) enum HttpError {
    Refused(Refusal),
    /// The body is invalid.
    Invalid(Value),
    /// Another status with its detail.
    Status(StatusCode, String),
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let (status, detail) = match self {
            Self::Invalid(errors) => (StatusCode::UNPROCESSABLE_ENTITY, errors),
            Self::Status(status, detail) => (status, detail.into()),
            Self::Refused(Refusal { code, message, mut more }) => match code {
                "VALIDATION_ERROR" => {
                    let errors = more.remove("errors").unwrap_or_else(|| message.into());
                    (StatusCode::UNPROCESSABLE_ENTITY, errors)
                }
                "CAPACITY_REACHED" => (StatusCode::SERVICE_UNAVAILABLE, message.into()),
                "FACTORY_ERROR" => (StatusCode::NOT_IMPLEMENTED, message.into()),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, message.into()),
            },
        };
        (status, Json(json!({ "detail": detail }))).into_response()
    }
}

type Answer = Result<Json<Value>, HttpError>;

/// Answers `GET /health`. The protocol's checkers want exactly this status.
pub(super) async fn health(State(server): State<OpenEnv>) -> Answer {
    server.facts().await?;
    Ok(Json(json!({"status": "healthy"})))
}

/// Answers `GET /metadata`.
pub(super) async fn metadata(State(server): State<OpenEnv>) -> Answer {
    let facts = server.facts().await?;
    Ok(Json(json!({
        "name": facts.name,
        "description": facts.description,
        "readme_content": null,
        "version": facts.version,
        "author": null,
        "documentation_url": null,
    })))
}

/// Answers `GET /schema`.
pub(super) async fn schema(State(server): State<OpenEnv>) -> Answer {
    Ok(Json(schemas(&*server.facts().await?)))
}

/// Returns the schemas in the form of the reference server: an observation also has `done`, `reward` and `metadata`, and a
/// state has the host's members.
fn schemas(facts: &EnvironmentFacts) -> Value {
    let action = facts.action.clone().map_or_else(tool_action, Value::Object);
    let mut observation = facts.observation.clone();
    add_property(&mut observation, "done", json!({"type": "boolean", "default": false}));
    let number = json!({"anyOf": [{"type": "number"}, {"type": "null"}], "default": null});
    add_property(&mut observation, "reward", number);
    add_property(&mut observation, "metadata", json!({"type": "object", "additionalProperties": true}));
    let mut state = facts.state.clone().unwrap_or_else(|| {
        Map::from_iter([
            ("title".to_owned(), "State".into()),
            ("type".to_owned(), "object".into()),
            ("additionalProperties".to_owned(), true.into()),
        ])
    });
    let text = json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null});
    add_property(&mut state, "episode_id", text);
    add_property(&mut state, "step_count", json!({"type": "integer", "minimum": 0, "default": 0}));
    json!({
        "action": action,
        "observation": observation.clone(),
        "state": state,
        "reset_observation": observation,
    })
}

/// Returns the schema of the actions of an environment that has tools instead of actions. Clients recognize it by its title.
fn tool_action() -> Value {
    json!({
        "title": "CallToolAction",
        "type": "object",
        "properties": {
            "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
            "tool_name": {"type": "string"},
            "arguments": {"type": "object", "additionalProperties": true},
            "metadata": {"type": "object", "additionalProperties": true},
        },
        "required": ["tool_name"],
        "additionalProperties": false,
    })
}

fn add_property(schema: &mut Map<String, Value>, name: &str, property: Value) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.entry(name).or_insert(property);
    }
}

/// Answers `POST /reset`, in an environment of its own.
pub(super) async fn reset(State(server): State<OpenEnv>, body: Body) -> Answer {
    let bytes = bytes(&server, body).await?;
    let _charge = server.charge(bytes.len())?;
    let data = if bytes.is_empty() { Map::new() } else { object(&bytes)? };
    let mut open = server.open().await?;
    Ok(Json(open.reset(data).await?.body()))
}

/// Answers `POST /step`, in an environment of its own, which is reset without arguments.
pub(super) async fn step(State(server): State<OpenEnv>, body: Body) -> Answer {
    let bytes = bytes(&server, body).await?;
    let _charge = server.charge(bytes.len())?;
    let mut body = object(&bytes)?;
    let action = match body.remove("action") {
        Some(Value::Object(action)) => action,
        Some(other) => {
            let reason = "Input should be a valid dictionary";
            return Err(Refusal::invalid("dict_type", &["body", "action"], reason, other).into());
        }
        None => {
            return Err(
                Refusal::invalid("missing", &["body", "action"], "Field required", body.into()).into()
            );
        }
    };
    let mut open = server.open().await?;
    open.reset(Map::new()).await?;
    Ok(Json(open.step(action).await?.body()))
}

/// Answers `GET /state`, of an environment of its own.
pub(super) async fn state(State(server): State<OpenEnv>) -> Answer {
    let mut open = server.open().await?;
    Ok(Json(open.state().await?.into()))
}

/// Answers `POST /mcp`. The status is always 200.
pub(super) async fn mcp(State(server): State<OpenEnv>, body: Body) -> Answer {
    let bytes = bytes(&server, body).await?;
    let _charge = server.charge(bytes.len())?;
    Ok(Json(rpc::answer_text(&server, &bytes, None).await))
}

/// Answers `GET /list_environments`.
pub(super) async fn list_environments(State(server): State<OpenEnv>) -> Answer {
    Ok(Json(json!([server.facts().await?.name])))
}

/// Answers `GET /NAME/splits`.
pub(super) async fn splits(State(server): State<OpenEnv>, Path(name): Path<String>) -> Answer {
    let facts = with_tasks(&server, &name, "list_splits").await?;
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

/// Answers `POST /NAME/num_tasks`.
pub(super) async fn num_tasks(State(server): State<OpenEnv>, Path(name): Path<String>, body: Body) -> Answer {
    let facts = with_tasks(&server, &name, "num_tasks").await?;
    let (_, count) = split_in(&facts, &object(&bytes(&server, body).await?)?)?;
    Ok(Json(json!({"num_tasks": count})))
}

/// Answers `POST /NAME/task`.
pub(super) async fn task(State(server): State<OpenEnv>, Path(name): Path<String>, body: Body) -> Answer {
    let facts = with_tasks(&server, &name, "get_task").await?;
    let body = object(&bytes(&server, body).await?)?;
    let (split, count) = split_in(&facts, &body)?;
    let index = body.get("index").and_then(Value::as_i64);
    let index = index.ok_or_else(|| {
        let input = body.get("index").cloned().unwrap_or_default();
        HttpError::from(Refusal::invalid("int_type", &["body", "index"], "Input should be an integer", input))
    })?;
    let index = u64::try_from(index).ok().filter(|index| *index < count);
    let index =
        index.ok_or_else(|| HttpError::Status(StatusCode::BAD_REQUEST, "Invalid task index".to_owned()))?;
    Ok(Json(json!({"task": task_of(&server.sessions.serving().host(), &split, index).await?})))
}

/// Answers `POST /NAME/task_range`.
pub(super) async fn task_range(
    State(server): State<OpenEnv>,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let facts = with_tasks(&server, &name, "get_task_range").await?;
    let body = object(&bytes(&server, body).await?)?;
    let (split, count) = split_in(&facts, &body)?;
    let bound = |name: &str, default: u64| match body.get(name).filter(|value| !value.is_null()) {
        None => Ok(default),
        Some(value) => value.as_i64().map(|bound| in_slice(bound, count)).ok_or_else(|| {
            let reason = "Input should be an integer";
            HttpError::from(Refusal::invalid("int_type", &["body", name], reason, value.clone()))
        }),
    };
    Ok(Json(json!({"tasks": listed(&server, &split, bound("start", 0)?, bound("stop", count)?).await?})))
}

/// Answers `POST /NAME/tasks`.
pub(super) async fn tasks(State(server): State<OpenEnv>, Path(name): Path<String>, body: Body) -> Answer {
    let facts = with_tasks(&server, &name, "list_tasks").await?;
    let (split, count) = split_in(&facts, &object(&bytes(&server, body).await?)?)?;
    Ok(Json(json!({"tasks": listed(&server, &split, 0, count).await?, "env_name": facts.name})))
}

async fn listed(server: &OpenEnv, split: &str, from: u64, to: u64) -> Result<Vec<Value>, HttpError> {
    Ok(tasks_of(&server.sessions.serving().host(), split, from, to).await?)
}

impl From<TasksError> for HttpError {
    fn from(error: TasksError) -> Self {
        let status = match &error {
            TasksError::NoSplit { .. } | TasksError::TooMany(_) => StatusCode::BAD_REQUEST,
            TasksError::Describe(DescribeError::Closed) => StatusCode::SERVICE_UNAVAILABLE,
            TasksError::Describe(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::Status(status, error.to_string())
    }
}

/// Returns the description of an environment with this name and with tasks.
async fn with_tasks(
    server: &OpenEnv,
    name: &str,
    operation: &str,
) -> Result<std::sync::Arc<EnvironmentFacts>, HttpError> {
    let facts = server.facts().await?;
    if !facts.name.eq_ignore_ascii_case(name) {
        let detail = format!("unknown environment '{name}'");
        return Err(HttpError::Status(StatusCode::NOT_FOUND, detail));
    }
    if facts.splits.is_empty() {
        let detail = format!("{operation} is not supported for this environment");
        return Err(HttpError::Status(StatusCode::NOT_IMPLEMENTED, detail));
    }
    Ok(facts)
}

/// Returns the name of the split in a body, and the number of its tasks.
fn split_in(facts: &EnvironmentFacts, body: &Map<String, Value>) -> Result<(String, u64), HttpError> {
    let Some(name) = body.get("split").and_then(Value::as_str) else {
        let input = body.get("split").cloned().unwrap_or_default();
        return Err(
            Refusal::invalid("string_type", &["body", "split"], "Input should be a string", input).into()
        );
    };
    Ok((name.to_owned(), count_of(facts, name)?))
}

/// Reads a body within the limit.
async fn bytes(server: &OpenEnv, body: Body) -> Result<Bytes, HttpError> {
    let max = server.sessions.limits().message_bytes_max;
    axum::body::to_bytes(body, max).await.map_err(|error| {
        let detail = format!("the body has more than {max} bytes or is incomplete: {error}");
        HttpError::Status(StatusCode::PAYLOAD_TOO_LARGE, detail)
    })
}

/// Parses a body, which must be an object.
fn object(bytes: &[u8]) -> Result<Map<String, Value>, HttpError> {
    let reason = match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => return Ok(object),
        Ok(_) => "Input should be a valid dictionary".to_owned(),
        Err(error) => format!("JSON decode error: {error}"),
    };
    Err(HttpError::Invalid(json!([{"type": "json_invalid", "loc": ["body"], "msg": reason, "input": {}}])))
}
