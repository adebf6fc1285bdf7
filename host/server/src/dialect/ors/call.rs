//! Tool calls, answered by streams of events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Ors;
use super::error::OrsError;
use super::routes::{EnvName, blocks, named, read};
use crate::dialect::sessions::{OpenSession, Turn};
use crate::random;
use rollout_core::budget::Charge;
use rollout_rollout::{Moves, Observed, SessionError};

/// Interval of the comments that tell the client that the server is alive. The client waits for 30 seconds.
const BEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of characters of an event's data. The client reads lines of at most 128 KiB.
const CHUNK_CHARS: usize = 4096;

/// The body of a call.
#[derive(Deserialize)]
pub(super) struct ToolCall {
    name: String,
    #[serde(default)]
    input: Map<String, Value>,
    /// Name of an earlier call, which is repeated.
    task_id: Option<String>,
}

/// Result of a call: the data of the last event, or of an error event, which ends the client's session.
type Outcome = Result<Value, String>;

/// Answers `POST /call`.
pub(super) async fn call(
    State(ors): State<Ors>,
    name: EnvName,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OrsError> {
    ors.facts_of(named(&name)).await?;
    let turn = ors.turn_of(&headers).await?;
    let (call, charge): (ToolCall, _) = read(&ors, body).await?;
    let id = call.task_id.clone().unwrap_or_else(random::id);
    // The call is completed even if the caller's connection breaks.
    let running = ors.sessions.tasks().spawn(run(turn, id.clone(), call, charge));
    let first = event("task_id", &id);
    let rest = stream::unfold(Some(running), |running| async move {
        let mut running: JoinHandle<Outcome> = running?;
        let Ok(ended) = timeout(BEAT_INTERVAL, &mut running).await else {
            return Some((":\n\n".to_owned(), Some(running)));
        };
        let outcome = ended.unwrap_or_else(|_| Err("the server failed in this call".to_owned()));
        Some((ending(outcome), None))
    });
    let parts = stream::iter([first]).chain(rest).map(|part| Ok::<_, Infallible>(Bytes::from(part)));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// Makes a call in a session, or returns the answer of the earlier call with this name.
async fn run(turn: Turn, id: String, call: ToolCall, _charge: Charge) -> Outcome {
    let mut open = turn.session.begin().await.map_err(|error| error.to_string())?;
    let OpenSession { session, facts } = &mut *open;
    let ToolCall { name, input, task_id } = call;
    let call_is_repeated = task_id.is_some();
    let moves = Moves::new(facts);
    if !moves.has(&name) {
        let error = format!("'{name}' is not a valid tool; there are: {}", moves.names());
        return Ok(refused(&error, "not_found"));
    }
    let action = match moves.action(&name, &Value::Object(input).to_string()) {
        Ok(action) => action,
        Err(wrong) => return Ok(refused(&wrong, "bad_input_shape")),
    };
    let repeated = match call_is_repeated {
        true => session.answer_of(&id).await.map_err(|error| error.to_string())?,
        false => None,
    };
    let answer = match repeated {
        Some(answer) => answer,
        None => session.step_named(&id, action).await,
    };
    match answer {
        Ok(observed) => Ok(output(&observed)),
        Err(SessionError::Invalid(reason)) => {
            Ok(refused(&format!("Tool input validation error: {reason}"), "input_validation"))
        }
        Err(SessionError::NoEpisode(reason)) => {
            let error = format!("'{name}' was not run: {reason}; create another session for another episode");
            Ok(refused(&error, "episode_finished"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn refused(error: &str, reason: &str) -> Value {
    json!({"ok": false, "error": error, "reason": reason})
}

fn output(observed: &Observed) -> Value {
    let metadata = observed.metadata.as_ref().and_then(|metadata| serde_json::from_str(metadata.get()).ok());
    let metadata: Value = metadata.unwrap_or_default();
    json!({
        "ok": true,
        "output": {
            "blocks": blocks(&observed.text()),
            "metadata": metadata,
            "reward": observed.reward,
            "finished": observed.done,
        },
    })
}

/// Returns the events at the end of a stream.
fn ending(outcome: Outcome) -> String {
    match outcome {
        // An event's data is one line.
        Err(error) => event("error", &error.replace(['\r', '\n'], " ")),
        Ok(value) => {
            let chunks = chunks(&value.to_string());
            let last = chunks.len() - 1;
            let name = |at| if at == last { "end" } else { "chunk" };
            chunks.iter().enumerate().map(|(at, chunk)| event(name(at), chunk)).collect()
        }
    }
}

fn event(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// Splits JSON, which must have no white space outside of texts, into one or more parts. The client drops white space at the
/// beginning of a part, so it is escaped there.
fn chunks(text: &str) -> Vec<String> {
    let mut chunks = vec![String::new()];
    for (number, character) in text.chars().enumerate() {
        let is_first = number > 0 && number % CHUNK_CHARS == 0;
        if is_first {
            chunks.push(String::new());
        }
        let Some(chunk) = chunks.last_mut() else { continue };
        if is_first && character.is_whitespace() {
            // No white space is outside of the basic plane.
            chunk.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            chunk.push(character);
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_the_same_after_the_client_has_stripped_its_parts() {
        for text in ["", "short", &" ".repeat(10_000), &"ä\u{a0}\u{3000} \n".repeat(5_000)] {
            let value = json!({"text": text});
            let parts = chunks(&value.to_string());
            assert!(parts.iter().all(|part| part.chars().count() <= CHUNK_CHARS + 5));
            let stripped: String = parts.iter().map(|part| part.trim_start()).collect();
            assert_eq!(serde_json::from_str::<Value>(&stripped).unwrap(), value);
            let events = ending(Ok(value));
            assert_eq!(events.matches("event: end\n").count(), 1);
            assert_eq!(events.matches("event: ").count(), parts.len());
        }
        assert_eq!(ending(Err("two\nlines".to_owned())), "event: error\ndata: two lines\n\n");
    }
}
