//! The OpenAPI document, in which the protocol's checker finds the routes and the version.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::OpenEnv;
use super::http::HttpError;

/// The documented routes, with the summary of each.
const ROUTES: [(&str, &str, &str); 13] = [
    ("/health", "get", "Whether the environment can be used."),
    ("/metadata", "get", "The environment's name and description."),
    ("/schema", "get", "JSON Schemas of actions, observations and the state."),
    ("/reset", "post", "Resets an environment of its own."),
    ("/step", "post", "Takes an action in an environment of its own."),
    ("/state", "get", "The state of an environment of its own."),
    ("/mcp", "post", "Lists and calls tools by JSON-RPC."),
    ("/list_environments", "get", "The name of the environment."),
    ("/{env}/splits", "get", "The splits of the tasks."),
    ("/{env}/tasks", "post", "The tasks of a split."),
    ("/{env}/num_tasks", "post", "The number of tasks of a split."),
    ("/{env}/task", "post", "A task."),
    ("/{env}/task_range", "post", "A range of the tasks of a split."),
];

/// Answers `GET /openapi.json`.
pub(super) async fn document(State(server): State<OpenEnv>) -> Result<Json<Value>, HttpError> {
    let facts = server.facts().await?;
    let paths = ROUTES.map(|(path, method, summary)| {
        let answer = json!({"200": {"description": "Success"}});
        (path.to_owned(), json!({method: {"summary": summary, "responses": answer}}))
    });
    Ok(Json(json!({
        "openapi": "3.1.0",
        "info": {"title": facts.name, "description": facts.description, "version": "1.0.0"},
        "paths": Map::from_iter(paths),
    })))
}
