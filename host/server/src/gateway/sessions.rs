//! The worker that has the session of a request.
//!
//! Workers name their log in the ids of the sessions that they open, as in leases. A session whose caller chose the id begins at
//! the worker that the id prefers, and at no other: another one would begin a second session. If workers that joined later
//! precede it in the order of the id, they answer that they do not know the session, and the next one is asked.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::Query};
use serde::Deserialize;
use serde_json::json;

use super::forward::{Forwarded, SendError, pass_on};
use super::target::below;
use super::workers::{LogPlace, Worker};
use super::{Gateway, decoded, member, not_known, placement};
use crate::dialect::{nemo_gym, open_env, ors};
use crate::error::RequestRefused;
use crate::worker::{log_of, log_of_session};

/// Maximum number of workers that are asked for a session whose caller chose the id. Workers that joined after it began may
/// precede its own in the order of the id.
const SOUGHT_MAX: usize = 4;

/// Paths that end a session of ORS or NeMo Gym.
const ENDS: [&str; 3] = ["/delete", "/delete_session", "/close_session"];

/// The name of a session in a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionName {
    /// The session is at the worker that serves this log.
    Log(String),
    /// The caller chose this id.
    Chosen(String),
}

impl SessionName {
    fn of_id(id: &str) -> Self {
        log_of_session(id).map_or_else(|| Self::Chosen(id.to_owned()), |log| Self::Log(log.to_owned()))
    }

    /// Reads the name of the session from a request. Returns `None` if the request belongs to no session. The path is
    /// relative to a tenant's plugin.
    pub(super) fn of(path: &str, request: &Forwarded) -> Option<Self> {
        if ors::has_path(path)
            && let Some(id) = ors::session_of(request.headers())
        {
            return Some(Self::of_id(id));
        }
        if let Some(below) = path.strip_prefix(open_env::PREFIX) {
            return Self::of_open_env(below, request);
        }
        // An id in the body names one session, even if the caller also sends the cookie of another one.
        let chosen = nemo_gym::chosen_session_in(path).and_then(|name| member(request.body(), name));
        if let Some(id) = chosen.and_then(|id| serde_json::from_str(id.get()).ok()) {
            return Some(Self::Chosen(id));
        }
        let cookie = nemo_gym::session_of(path, request.headers())?;
        log_of(&cookie).map(|log| Self::Log(log.to_owned()))
    }

    fn of_open_env(below: &str, request: &Forwarded) -> Option<Self> {
        #[derive(Deserialize)]
        struct InSession {
            session_id: String,
        }
        if let Some((name, _)) = below.strip_prefix("sessions/").and_then(|rest| rest.split_once('/')) {
            return Some(Self::of_id(&decoded(name)));
        }
        let in_session: InSession = match below {
            "ws" => Query::try_from_uri(&request.uri()?).ok()?.0,
            "mcp" => serde_json::from_str(member(request.body(), "params")?.get()).ok()?,
            _ => return None,
        };
        Some(Self::of_id(&in_session.session_id))
    }
}

impl Gateway {
    /// Passes a request to the worker that has its session.
    pub(super) async fn in_session(&self, name: SessionName, mut request: Forwarded) -> Response {
        let id = match name {
            SessionName::Log(log) => {
                return match self.0.workers.find(&log) {
                    LogPlace::At(worker) => self.send_in_session(&worker, &mut request).await,
                    LogPlace::Nowhere { since } => self.session_away(&log, since),
                };
            }
            SessionName::Chosen(id) => id,
        };
        let order = placement::order(&id, self.0.workers.candidates(None));
        let ends = ENDS.contains(&below(request.path()));
        let mut first_answer: Option<Response> = None;
        for candidate in order.into_iter().take(SOUGHT_MAX) {
            let answer = self.send_in_session(&candidate.worker, &mut request).await;
            if answer.status() != StatusCode::NOT_FOUND && !ends {
                return answer;
            }
            // The end of a session that a worker does not know is no error there, so errors of others count.
            if first_answer.is_none() || (ends && answer.status().is_server_error()) {
                first_answer = Some(answer);
            }
        }
        match first_answer {
            // A worker that is away may have the session.
            Some(answer) if ends || !self.0.workers.may_return(self.0.settings.lost_after) => answer,
            _ => self.not_all("the session may be there"),
        }
    }

    async fn send_in_session(&self, worker: &Arc<Worker>, request: &mut Forwarded) -> Response {
        match self.send_while_up(request, worker).await {
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => pass_on(answer, None),
            Ok(answer) => pass_on(answer, request.upgrade.take()),
            Err(SendError::NotSent(why)) => RequestRefused::NoRoom(format!(
                "the worker {} of this session cannot be reached ({why}); retry later",
                worker.name()
            ))
            .into_response(),
            Err(SendError::NoAnswer(why)) => not_known(&worker.name(), &why),
        }
    }

    /// Refuses a request for a session whose log no worker serves.
    fn session_away(&self, log: &str, since: std::time::Duration) -> Response {
        if self.0.settings.lost_after.is_some_and(|lost_after| since >= lost_after) {
            let detail =
                format!("the session was lost with the log {log} of its worker; open another session");
            return (StatusCode::NOT_FOUND, Json(json!({ "detail": detail }))).into_response();
        }
        RequestRefused::NoRoom(format!(
            "no worker serves the log {log} of this session at present; retry later, or open another session if its \
             worker was started again without a journal"
        ))
        .into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::http::Request;

    #[test]
    fn a_request_names_its_session_in_the_way_of_its_protocol() {
        let check = |path: &str, header: (&str, &str), body: &str, expected: Option<SessionName>| {
            let request = Request::builder().uri(path).header(header.0, header.1).body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            let request = Forwarded::new(&mut parts, Bytes::from(body.to_owned()), None);
            assert_eq!(SessionName::of(request.path(), &request), expected, "{path} {header:?} {body}");
        };
        let (none, uuid) = (("x-other", "1"), "3f2b8c1e-9f60-4a7e-8a55-0123456789ab");
        let id = format!("{uuid}@w0-a");
        let log = || Some(SessionName::Log("w0-a".to_owned()));
        let chosen = |id: &str| Some(SessionName::Chosen(id.to_owned()));
        // ORS
        check("/create_session", none, "", None);
        check("/create", ("x-session-id", &id), "", log());
        check("/hunt/call", ("x-session-id", &format!("hunt.{id}")), "", log());
        check("/call", ("x-session-id", uuid), "", chosen(uuid));
        check("/call", ("x-session-id", "me@home"), "", chosen("me@home"));
        check("/rollout", ("x-session-id", &id), "", None);
        // OpenEnv
        let call = format!(r#"{{"method": "tools/call", "params": {{"name": "x", "session_id": "{id}"}}}}"#);
        check("/openenv/mcp", none, &call, log());
        check("/openenv/mcp", none, r#"{"method": "openenv/session/create"}"#, None);
        check(&format!("/openenv/ws?session_id={uuid}%40w0-a"), none, "", log());
        check("/openenv/ws", none, "", None);
        check("/openenv/sessions/a%20b/ws", none, "", chosen("a b"));
        check(&format!("/openenv/sessions/{uuid}%40w0-a/ws"), none, "", log());
        check("/openenv/reset", none, "{}", None);
        // NeMo Gym
        let cookie = ("cookie", "other=1; rollout_host_session=w0-a.123");
        check("/step", cookie, "{}", log());
        check("/verify", cookie, "{}", log());
        check("/close_session", cookie, "{}", log());
        check("/verify", ("cookie", "rollout_host_session=123"), "{}", None);
        check("/run", cookie, "{}", None);
        check("/seed_session", cookie, "{}", None);
        let seed = r#"{"resources_session_id": "s1"}"#;
        check("/seed_session", cookie, seed, chosen("s1"));
        check("/close_session", none, seed, chosen("s1"));
        check("/close_session", cookie, seed, chosen("s1"));
        check("/verify", none, seed, None);
    }
}
