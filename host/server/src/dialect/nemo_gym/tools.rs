//! `POST /{tool}` of the resources server: a step of an environment, or, for a plugin without one, a call of a tool that the
//! operator provides to it.
//!
//! Such a call belongs to no rollout, so it is not in a transcript, and `calls-max` does not apply. The other limits of the tool do,
//! and its memory is charged to the budget of the server.

use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::episode::{TOOL_BYTES_MAX, arguments_in};
use super::{NemoGym, episode, no_route, refused};
use crate::connection::WhenWritten;
use crate::dialect::body::Body;
use crate::random;
use rollout_guest::imports::ToolRequest;

/// Takes a step in the caller's episode, or calls a tool.
pub(super) async fn tool(State(gym): State<NemoGym>, Path(name): Path<String>, request: Request) -> Response {
    if gym.0.serving.host().has_environment() {
        episode::tool(&gym, name, request).await
    } else {
        call(&gym, &name, request).await
    }
}

/// Calls the tool with this name. The model reads the text of the answer, so a mistake in a call is reported as text, too.
async fn call(gym: &NemoGym, name: &str, request: Request) -> Response {
    let Some(tools) = gym.0.serving.host().tools() else { return no_route() };
    let Some(tool) = tools.find(name) else { return no_route() };
    let body = match Body::<TOOL_BYTES_MAX>::from_request(request, gym).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    let arguments = match arguments_in(body.bytes()) {
        Ok(arguments) => arguments,
        Err(why) => return refused(StatusCode::UNPROCESSABLE_ENTITY, why),
    };
    let end = CancellationToken::new();
    let holder = Some(gym.0.budget.holder(end.clone()));
    let request = ToolRequest { place: tool.place, arguments, seed: random::id(), holder };
    let answer = tokio::select! {
        answer = tools.call(request) => answer,
        () = end.cancelled() => {
            let why = "the server's memory budget is used up, and this call held most of it; call again later";
            return refused(StatusCode::SERVICE_UNAVAILABLE, why);
        }
    };
    let charge = gym.0.budget.charge_result(answer.content.len());
    drop(body);
    let mut response = answer.content.into_response();
    // Charged until the answer is written.
    response.extensions_mut().insert(WhenWritten::new(move || {
        let _written = &charge;
    }));
    response
}
