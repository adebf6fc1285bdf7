//! Frames of a session's socket: requests, and the answers to them.

use serde_json::{Map, Value, json};

use rollout_rollout::{OpenSessionError, SessionError};

/// A request of a client.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    /// Begins an episode. Has the arguments of the reset.
    Reset(Map<String, Value>),
    /// Takes an action.
    Step(Map<String, Value>),
    /// Requests the state.
    State,
    /// Ends the session.
    Close,
    /// Carries a JSON-RPC request.
    Mcp(Value),
}

/// A refused or failed request, in the protocol's words.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// The protocol's code.
    pub code: &'static str,
    /// The message, which clients show.
    pub message: String,
    /// Further members.
    pub more: Map<String, Value>,
}

impl Refusal {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), more: Map::new() }
    }

    /// Creates the refusal of an invalid request. Clients show only the message, so it contains the reason.
    pub(super) fn invalid(kind: &str, place: &[&str], reason: &str, input: Value) -> Self {
        let message = format!("Invalid message: {}: {reason}", place.join("."));
        let error = json!({"type": kind, "loc": place, "msg": reason, "input": input});
        let more = Map::from_iter([("errors".to_owned(), json!([error]))]);
        Self { more, ..Self::new("VALIDATION_ERROR", message) }
    }

    /// Creates the failure of an environment. The session continues.
    pub(super) fn execution(reason: impl Into<String>) -> Self {
        Self::new("EXECUTION_ERROR", reason)
    }

    /// Creates the failure of a session, which ends.
    pub(super) fn session(reason: impl Into<String>) -> Self {
        Self::new("SESSION_ERROR", reason)
    }

    /// Creates the failure of an environment that cannot be created.
    pub(super) fn factory(reason: impl Into<String>, name: &str) -> Self {
        let more = Map::from_iter([("factory_name".to_owned(), name.into())]);
        Self { more, ..Self::new("FACTORY_ERROR", reason) }
    }

    /// Returns whether the session ends.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self.code, "SESSION_ERROR" | "FACTORY_ERROR" | "CAPACITY_REACHED")
    }

    /// Returns the frame.
    pub(super) fn frame(&self) -> String {
        let mut data = self.more.clone();
        data.insert("message".to_owned(), self.message.as_str().into());
        data.insert("code".to_owned(), self.code.into());
        json!({"type": "error", "data": data}).to_string()
    }
}

impl From<OpenSessionError> for Refusal {
    fn from(error: OpenSessionError) -> Self {
        let message = error.to_string();
        match error {
            OpenSessionError::AtCapacity { active, max } => {
                let numbers = [("active_sessions", active), ("max_sessions", max)];
                let more = numbers.map(|(name, number)| (name.to_owned(), number.into()));
                Self { more: Map::from_iter(more), ..Self::new("CAPACITY_REACHED", message) }
            }
            OpenSessionError::NoEnvironment => Self::factory(message, "environment"),
            _ => Self::session(message),
        }
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Invalid(reason) => Self::invalid("value_error", &["data"], &reason, Value::Null),
            SessionError::SessionOver(reason) => Self::session(reason),
            error => Self::execution(error.to_string()),
        }
    }
}

impl Request {
    /// Parses a frame.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Refusal::new("INVALID_JSON", format!("Invalid JSON: {error}")))?;
        let Value::Object(mut frame) = value else {
            return Err(Refusal::session("a frame must be a JSON object"));
        };
        let kind = match frame.remove("type") {
            Some(Value::String(kind)) => kind,
            other => {
                let shown = other.unwrap_or(Value::Null);
                return Err(Refusal::new("UNKNOWN_TYPE", format!("Unknown message type: {shown}")));
            }
        };
        let takes_data = matches!(&*kind, "reset" | "step" | "mcp");
        let data = if takes_data { frame.remove("data") } else { None };
        let request = match (&*kind, data) {
            ("reset", None) => Self::Reset(Map::new()),
            ("reset", Some(Value::Object(data))) => Self::Reset(data),
            ("step", Some(Value::Object(data))) => Self::Step(data),
            ("mcp", Some(data)) => Self::Mcp(data),
            ("state", _) => Self::State,
            ("close", _) => Self::Close,
            ("step" | "mcp", None) => {
                return Err(Refusal::invalid("missing", &["data"], "Field required", frame.into()));
            }
            ("reset" | "step", Some(other)) => {
                let reason = "Input should be a valid dictionary";
                return Err(Refusal::invalid("dict_type", &["data"], reason, other));
            }
            (other, _) => return Err(Refusal::new("UNKNOWN_TYPE", format!("Unknown message type: {other}"))),
        };
        match frame.into_iter().next() {
            Some((name, value)) => {
                let reason = "Extra inputs are not permitted";
                Err(Refusal::invalid("extra_forbidden", &[&name], reason, value))
            }
            None => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_the_reference_server_reads_them() {
        let check =
            |text: &str, expected: Request| assert_eq!(Request::parse(text).unwrap(), expected, "{text}");
        check(r#"{"type":"reset"}"#, Request::Reset(Map::new()));
        let seed = Map::from_iter([("seed".to_owned(), json!(7))]);
        check(r#"{"type":"reset","data":{"seed":7}}"#, Request::Reset(seed.clone()));
        check(r#"{"type":"step","data":{"seed":7}}"#, Request::Step(seed));
        check(r#"{"type":"state"}"#, Request::State);
        check(r#"{"type":"close"}"#, Request::Close);
        check(r#"{"type":"mcp","data":{}}"#, Request::Mcp(json!({})));
    }

    #[test]
    fn wrong_frames_are_refused_with_the_codes_of_the_protocol() {
        let check = |text: &str, code: &str, message: &str| {
            let refusal = Request::parse(text).unwrap_err();
            assert_eq!(refusal.code, code, "{text}");
            assert!(refusal.message.contains(message), "{text}: {}", refusal.message);
        };
        check("{", "INVALID_JSON", "Invalid JSON: ");
        check("[]", "SESSION_ERROR", "must be a JSON object");
        check("{}", "UNKNOWN_TYPE", "Unknown message type: null");
        check(r#"{"type":"jump"}"#, "UNKNOWN_TYPE", "Unknown message type: jump");
        check(r#"{"type":"step"}"#, "VALIDATION_ERROR", "data: Field required");
        check(r#"{"type":"step","data":[]}"#, "VALIDATION_ERROR", "valid dictionary");
        check(r#"{"type":"state","data":{}}"#, "VALIDATION_ERROR", "data: Extra inputs are not permitted");
        check(r#"{"type":"close","data":{}}"#, "VALIDATION_ERROR", "Extra inputs are not permitted");
        check(r#"{"type":"reset","seed":7}"#, "VALIDATION_ERROR", "seed: Extra inputs are not permitted");
    }
}
