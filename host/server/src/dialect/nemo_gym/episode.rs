//! The resources server for environments: a session is an episode, `POST /{tool}` takes a step in it, and `/verify` reads its
//! reward.
//!
//! The cookie of its session identifies an episode. Each episode holds a slot, which limits their number. It ends when it is
//! verified or closed, after a while without a request, or with the server.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::outcome::RowFailure;
use super::row::Row;
use super::{ADMISSION_PAUSE, ADMISSION_TIME_MAX, NemoGym, outcome, refused};
use crate::connection::WhenWritten;
use crate::dialect::body::Body;
use crate::random;
use crate::worker;
use rollout_core::budget::Charge;
use rollout_core::limits::SessionLimits;
use rollout_rollout::{
    AdmitError, EnvironmentFacts, EpisodeAction, OpenSessionError, Reset, Session, SessionError,
};
use rollout_wire as wire;
use rollout_wire::digest::sha256_parts;
use rollout_wire::id::RolloutId;

/// Name of the cookie of a session.
pub(super) const COOKIE: &str = "rollout_host_session";

/// Maximum size of a tool's arguments in bytes.
pub(super) const TOOL_BYTES_MAX: usize = 4 << 20;

/// Name of the tool that takes an action which is a value.
const ACTION_TOOL: &str = "step";

/// Maximum number of rewards of verified episodes that are stored for repeated verifications.
const VERIFIED_MAX: usize = 1024;

/// Maximum size in bytes of a session id that the caller chose.
const ID_BYTES_MAX: usize = 255;

/// Maximum number of calls of one episode in progress. They run one after the other.
const CALLS_MAX: usize = 16;

/// The episodes of a server.
pub(super) struct Episodes {
    limits: SessionLimits,
    closing: CancellationToken,
    state: Mutex<EpisodesState>,
}

#[derive(Default)]
struct EpisodesState {
    /// The episodes, by the cookie of their session.
    open: HashMap<String, Named>,
    /// Cookies of sessions, by the id that the caller chose.
    given: HashMap<String, String>,
    /// Ids of sessions whose seed is in progress. A further one of the same id waits.
    seeding: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Cookies and rewards of the last verified episodes, the oldest first.
    verified: VecDeque<(String, f64)>,
}

struct Named {
    episode: SharedEpisode,
    given: Option<String>,
    used_at: Instant,
    /// Wakes the task that watches the episode.
    _gone: DropGuard,
}

/// An episode that requests use one after the other.
type SharedEpisode = Arc<tokio::sync::Mutex<OpenEpisode>>;

struct OpenEpisode {
    session: Session,
    facts: Arc<EnvironmentFacts>,
    /// Sum of the rewards, if there were any.
    reward: Option<f64>,
    /// Reason why the episode ended without a result.
    failure: Option<String>,
    /// The last step, whose answer its caller may not have received.
    last: Option<LastStep>,
}

/// A step that was taken.
struct LastStep {
    /// Digest of the request, by which a repeated one is recognized.
    request: [u8; 32],
    delivery: Arc<StepDelivery>,
}

/// The delivery of a step's answer. Gym's client posts a request again when its connection breaks.
#[derive(Default)]
struct StepDelivery {
    /// Whether the caller hung up before the answer was written.
    is_lost: AtomicBool,
    /// The answer, until it is written.
    answer: Mutex<Option<(StatusCode, String, Charge)>>,
}

impl StepDelivery {
    fn answer(&self) -> MutexGuard<'_, Option<(StatusCode, String, Charge)>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller of a step. Dropping it before the answer is written records that the caller hung up.
struct Receiver {
    delivery: Arc<StepDelivery>,
    is_written: AtomicBool,
}

impl Receiver {
    fn written(&self) {
        self.is_written.store(true, Ordering::Release);
        drop(self.delivery.answer().take());
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if !self.is_written.load(Ordering::Acquire) {
            self.delivery.is_lost.store(true, Ordering::Release);
        }
    }
}

/// A seed that is in progress, or waits for another one of the same id. It exists before it waits, so that a seed whose
/// caller hangs up meanwhile leaves no entry behind.
struct Seeding<'a> {
    episodes: &'a Episodes,
    id: String,
    turn: Option<Arc<tokio::sync::Mutex<()>>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Seeding<'_> {
    fn drop(&mut self) {
        let mut state = self.episodes.lock();
        // Under the lock, so that the last of several seeds sees that it is the last.
        drop((self.guard.take(), self.turn.take()));
        if state.seeding.get(&self.id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            state.seeding.remove(&self.id);
        }
    }
}

impl Episodes {
    pub(super) fn new(limits: SessionLimits) -> Self {
        Self { limits, closing: CancellationToken::new(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, EpisodesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other seed of this id is in progress.
    async fn seed(&self, id: &str) -> Seeding<'_> {
        let turn = self.lock().seeding.entry(id.to_owned()).or_default().clone();
        let mut seeding =
            Seeding { episodes: self, id: id.to_owned(), turn: Some(turn.clone()), guard: None };
        seeding.guard = Some(turn.lock_owned().await);
        seeding
    }

    /// Ends all episodes, because the server stops.
    pub(super) fn close_all(&self) {
        self.closing.cancel();
    }

    fn find(&self, cookie: &str) -> Option<SharedEpisode> {
        let mut state = self.lock();
        let named = state.open.get_mut(cookie)?;
        named.used_at = Instant::now();
        Some(named.episode.clone())
    }

    /// Returns the cookie of the session for which the caller chose this id.
    fn given(&self, id: &str) -> Option<String> {
        self.lock().given.get(id).cloned()
    }

    /// Ends an episode. Its instance is dropped outside the lock.
    fn end(&self, cookie: &str) {
        let ended = {
            let mut state = self.lock();
            let ended = state.open.remove(cookie);
            if let Some(id) = ended.as_ref().and_then(|named| named.given.as_ref()) {
                state.given.remove(id);
            }
            ended
        };
        drop(ended);
    }

    /// Ends the episode of a session, identified by the id that the caller chose, or else by its cookie. The cookie may be that of
    /// another session of the caller.
    pub(super) fn close(&self, headers: &HeaderMap, id: Option<&str>) {
        let cookie = id.map_or_else(|| cookie_of(headers), |id| self.given(id));
        if let Some(cookie) = cookie {
            self.end(&cookie);
        }
    }

    fn used_at(&self, cookie: &str) -> Option<Instant> {
        self.lock().open.get(cookie).map(|named| named.used_at)
    }

    fn store_reward(&self, cookie: String, reward: f64) {
        let mut state = self.lock();
        if state.verified.len() == VERIFIED_MAX {
            state.verified.pop_front();
        }
        state.verified.push_back((cookie, reward));
    }

    fn stored_reward(&self, cookie: &str) -> Option<f64> {
        let state = self.lock();
        state.verified.iter().find(|(verified, _)| verified == cookie).map(|(_, reward)| *reward)
    }
}

/// Returns the cookie of this server's session. Callers also send the cookies of other servers.
pub(super) fn cookie_of(headers: &HeaderMap) -> Option<String> {
    let given = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = given.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value.to_owned())
}

/// Begins an episode and returns the cookie of its session. A repeated seed with an id that the caller chose returns the same
/// cookie.
pub(super) async fn begin(gym: &NemoGym, given: Option<&str>, reset: Reset) -> Result<String, Response> {
    let inner = &gym.0;
    if given.is_some_and(|id| id.len() > ID_BYTES_MAX) {
        let why = format!("resources_session_id is longer than {ID_BYTES_MAX} bytes");
        return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    let _seeding = match given {
        Some(id) => Some(inner.episodes.seed(id).await),
        None => None,
    };
    if let Some(cookie) = given.and_then(|id| inner.episodes.given(id)) {
        return Ok(cookie);
    }
    let mut session = open(gym).await.map_err(|why| refused(StatusCode::SERVICE_UNAVAILABLE, why))?;
    let facts = inner.serving.host().environment().await;
    let facts = facts.map_err(|error| refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let first = session.reset(reset).await.map_err(|error| {
        let status = match error {
            SessionError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        refused(status, format!("the reset failed: {error}"))
    })?;
    let id = random::id();
    let cookie = inner.log.as_deref().map_or_else(|| id.clone(), |log| worker::lease(log, &id));
    let (gone, cancelled) = (CancellationToken::new(), session.cancelled());
    let episode = OpenEpisode { session, facts, reward: first.reward, failure: None, last: None };
    let named = Named {
        episode: Arc::new(tokio::sync::Mutex::new(episode)),
        given: given.map(str::to_owned),
        used_at: Instant::now(),
        _gone: gone.clone().drop_guard(),
    };
    {
        let mut state = inner.episodes.lock();
        state.open.insert(cookie.clone(), named);
        if let Some(id) = given {
            state.given.insert(id.to_owned(), cookie.clone());
        }
    }
    let (watcher, watched) = (gym.clone(), cookie.clone());
    inner.tasks.spawn(async move {
        let episodes = &watcher.0.episodes;
        while let Some(used_at) = episodes.used_at(&watched) {
            let ends_at = used_at + episodes.limits.idle_time_max;
            if Instant::now() >= ends_at || cancelled.is_cancelled() || episodes.closing.is_cancelled() {
                episodes.end(&watched);
                break;
            }
            tokio::select! {
                () = sleep_until(ends_at) => {}
                () = gone.cancelled() => {}
                () = cancelled.cancelled() => {}
                () = episodes.closing.cancelled() => {}
            }
        }
        watcher.0.ended.notify_one();
    });
    Ok(cookie)
}

/// Opens a session as soon as there is room for it. The protocol has no answer that makes its caller wait.
async fn open(gym: &NemoGym) -> Result<Session, String> {
    let inner = &gym.0;
    let until = Instant::now() + ADMISSION_TIME_MAX;
    loop {
        if inner.episodes.closing.is_cancelled() {
            return Err("the server is shutting down".to_owned());
        }
        let ended = inner.ended.notified();
        let id = RolloutId::parse(random::uuid4()).map_err(|error| error.to_string())?;
        match inner.serving.host().open_session(id, inner.episodes.limits).await {
            // A verification has the grader rate the conversation.
            Ok(session) => return Ok(session.without_grader()),
            Err(
                OpenSessionError::AtCapacity { .. }
                | OpenSessionError::Refused(AdmitError::Full { .. } | AdmitError::NoMemory(_)),
            ) if Instant::now() < until => {
                let _ = tokio::time::timeout(ADMISSION_PAUSE, ended).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Takes a step in the caller's episode. The model reads the text of the answer, so a mistake in a call is reported as text,
/// too.
pub(super) async fn tool(gym: &NemoGym, name: String, request: Request) -> Response {
    let headers = request.headers().clone();
    let body = match Body::<TOOL_BYTES_MAX>::from_request(request, gym).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    let Some(cookie) = cookie_of(&headers) else {
        let why = "the request has no session; post /seed_session first, and send its cookie";
        return refused(StatusCode::NOT_FOUND, why);
    };
    let Some(episode) = gym.0.episodes.find(&cookie) else {
        let idle = gym.0.episodes.limits.idle_time_max.as_secs();
        let why = format!(
            "there is no such session; one ends with its verification, after {idle} s without a request, and with the \
             server"
        );
        return refused(StatusCode::NOT_FOUND, why);
    };
    let arguments = match arguments_in(body.bytes()) {
        Ok(arguments) => arguments,
        Err(why) => return refused(StatusCode::UNPROCESSABLE_ENTITY, why),
    };
    // The table has a reference, and so has each call in progress.
    if Arc::strong_count(&episode) > 1 + CALLS_MAX {
        let why = format!("{CALLS_MAX} calls of this session are in progress; send one after the other");
        return refused(StatusCode::TOO_MANY_REQUESTS, why);
    }
    let request = sha256_parts(&[name.as_bytes(), b"\0", body.bytes()]);
    let budget = gym.0.budget.clone();
    let delivery = Arc::new(StepDelivery::default());
    let receiver = Receiver { delivery: delivery.clone(), is_written: AtomicBool::new(false) };
    // A step whose caller hangs up is completed, so that its reward counts. The body is charged until then.
    let step = gym.0.tasks.spawn(async move {
        let mut episode = episode.lock().await;
        let lost = episode.last.take().filter(|last| last.request == request).and_then(|last| {
            let is_lost = last.delivery.is_lost.load(Ordering::Acquire);
            if is_lost { last.delivery.answer().take() } else { None }
        });
        // A repeated request is the same step.
        let answer = match lost {
            Some(answer) => answer,
            None => {
                let (status, text) = take_step(&mut episode, name, arguments).await;
                let charge = budget.charge_result(text.len());
                (status, text, charge)
            }
        };
        drop(body);
        let (status, text) = (answer.0, answer.1.clone());
        *delivery.answer() = Some(answer);
        episode.last = Some(LastStep { request, delivery });
        (status, text)
    });
    let Ok((status, text)) = step.await else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the step was ended by the server");
    };
    let mut response = match status {
        StatusCode::OK => text.into_response(),
        status => refused(status, text),
    };
    let written = WhenWritten::new(move || receiver.written());
    response.extensions_mut().insert(written);
    response
}

/// Takes one step of an episode and returns the answer for the model, or the reason of a refusal.
async fn take_step(episode: &mut OpenEpisode, name: String, arguments: String) -> (StatusCode, String) {
    let mut names: Vec<&str> = Vec::new();
    names.extend(episode.facts.tools.iter().filter_map(|tool| tool.get("name")?.as_str()));
    let is_tool = names.contains(&&*name);
    let has_action = episode.facts.action.is_some();
    let action = match (is_tool, has_action && name == ACTION_TOOL) {
        (true, _) => EpisodeAction::Call { name, arguments },
        (false, true) => EpisodeAction::Value(arguments),
        (false, false) => {
            names.extend(has_action.then_some(ACTION_TOOL));
            let why = format!("Not Found: there is no tool '{name}'; there are: {}", names.join(", "));
            return (StatusCode::NOT_FOUND, why);
        }
    };
    match episode.session.step(action).await {
        Ok(observed) => {
            if let Some(reward) = observed.reward {
                episode.reward = Some(episode.reward.unwrap_or_default() + reward);
            }
            (StatusCode::OK, observed.text())
        }
        Err(error) => {
            if let SessionError::EpisodeOver { .. } | SessionError::SessionOver(_) = error {
                episode.failure = Some(error.to_string());
            }
            (StatusCode::OK, format!("error: {error}"))
        }
    }
}

/// Returns the arguments of a call, a JSON object.
pub(super) fn arguments_in(body: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the arguments are not UTF-8".to_owned())?;
    let object = wire::object(text).map_err(|wrong| format!("the arguments are {wrong}"))?;
    Ok(object.get().to_owned())
}

/// Answers the verification of an episode that its environment rates itself, and ends the episode.
pub(super) async fn verified(gym: &NemoGym, headers: &HeaderMap, row: &Row) -> Bytes {
    match reward(gym, headers).await {
        Ok(reward) => outcome::rated_by_environment(row, reward),
        Err(failure) => failure.body(Some(row)),
    }
}

/// Returns the reward of the caller's episode, and ends it.
async fn reward(gym: &NemoGym, headers: &HeaderMap) -> Result<f64, RowFailure> {
    let episodes = &gym.0.episodes;
    let cookie = cookie_of(headers).ok_or_else(|| {
        let why = "the verification has no session; this plugin has no grader, so the reward is that of an episode; \
                   post /seed_session first, and send its cookie";
        RowFailure::of_session(why)
    })?;
    let Some(episode) = episodes.find(&cookie) else {
        return episodes.stored_reward(&cookie).ok_or_else(|| {
            RowFailure::of_session("the session has ended, and its reward is not stored any more")
        });
    };
    let episode = episode.lock().await;
    let result = match (&episode.failure, episode.reward) {
        (Some(reason), _) => Err(RowFailure::of_session(reason.clone())),
        (None, Some(reward)) => Ok(reward),
        (None, None) => Err(RowFailure::of_session("the environment gave the episode no reward")),
    };
    drop(episode);
    if let Ok(reward) = result {
        episodes.store_reward(cookie.clone(), reward);
    }
    episodes.end(&cookie);
    result
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_cookie_is_found_beside_those_of_other_servers() {
        let check = |lines: &[&'static str], expected: Option<&str>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, HeaderValue::from_static(line));
            }
            assert_eq!(cookie_of(&headers).as_deref(), expected, "{lines:?}");
        };
        check(&[], None);
        check(&["other=1; my_rollout_host_session=2"], None);
        check(&["other=1; rollout_host_session=abc; more=2"], Some("abc"));
        check(&["other=1", "rollout_host_session=abc"], Some("abc"));
    }

    #[tokio::test]
    async fn a_seed_that_is_dropped_while_it_waits_leaves_nothing_behind() {
        let episodes = Episodes::new(SessionLimits::default());
        let first = episodes.seed("a").await;
        let mut second = Box::pin(episodes.seed("a"));
        let mut third = Box::pin(episodes.seed("a"));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(second);
        assert!((&mut third).now_or_never().is_none(), "the first is in progress");
        drop(first);
        assert_eq!(episodes.lock().seeding.len(), 1, "the third waits");
        drop(third);
        assert!(episodes.lock().seeding.is_empty());
        drop(episodes.seed("a").await);
        assert!(episodes.lock().seeding.is_empty());
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments_in(br#" {"a": 1} "#).unwrap(), r#"{"a": 1}"#);
        for (body, expected) in [(&b"[1]"[..], "not a JSON object"), (b"\xff", "not UTF-8"), (b"", "")] {
            let error = arguments_in(body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn rewards_of_the_last_verified_episodes_are_stored() {
        let episodes = Episodes::new(SessionLimits::default());
        for number in 0..=VERIFIED_MAX {
            episodes.store_reward(number.to_string(), 0.5);
        }
        assert_eq!((episodes.stored_reward("0"), episodes.stored_reward("1")), (None, Some(0.5)));
        assert_eq!(episodes.lock().verified.len(), VERIFIED_MAX);
    }
}
