//! JSON-RPC: the two methods of MCP for tools, and sessions over HTTP.

use serde_json::{Map, Value, json};

use super::frame::Refusal;
use super::play::{ToolError, result_of, tools};
use super::{OpenEnv, SharedSession};
use crate::dialect::sessions::{Closed, SessionsError};
use rollout_rollout::SessionError;

/// An error in JSON-RPC's form.
struct RpcError {
    code: i32,
    message: String,
    data: Value,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: Value::Null }
    }
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        Self::new(-32603, error.to_string())
    }
}

impl From<Refusal> for RpcError {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.code {
            "CAPACITY_REACHED" | "FACTORY_ERROR" => -32000,
            _ => -32603,
        };
        let data = if refusal.more.is_empty() { Value::Null } else { refusal.more.into() };
        Self { code, message: refusal.message, data }
    }
}

/// Returns the error for a request that could not be read.
pub(super) fn failed(refusal: Refusal) -> Value {
    written(Value::Null, Err(refusal.into()))
}

/// Answers a request that is text. On a socket, `own` is the socket's session, with its id.
pub(super) async fn answer_text(server: &OpenEnv, text: &[u8], own: Option<(&SharedSession, &str)>) -> Value {
    match serde_json::from_slice(text) {
        Ok(request) => answer(server, request, own).await,
        Err(error) => written(Value::Null, Err(RpcError::new(-32700, format!("Parse error: {error}")))),
    }
}

/// Answers a request. On a socket, `own` is the socket's session, with its id.
pub(super) async fn answer(server: &OpenEnv, request: Value, own: Option<(&SharedSession, &str)>) -> Value {
    match Call::parse(request) {
        Ok(Call { id, method, params }) => written(id, dispatch(server, &method, params, own).await),
        Err(reason) => written(Value::Null, Err(RpcError::new(-32600, format!("Invalid request: {reason}")))),
    }
}

fn written(id: Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(RpcError { code, message, data }) => {
            let error = json!({"code": code, "message": message, "data": data});
            json!({"jsonrpc": "2.0", "id": id, "error": error})
        }
    }
}

/// A request.
struct Call {
    id: Value,
    method: String,
    params: Map<String, Value>,
}

impl Call {
    fn parse(request: Value) -> Result<Self, String> {
        let Value::Object(mut request) = request else { return Err("it is not an object".to_owned()) };
        if request.remove("jsonrpc") != Some(json!("2.0")) {
            return Err("jsonrpc must be \"2.0\"".to_owned());
        }
        let Some(Value::String(method)) = request.remove("method") else {
            return Err("method must be a string".to_owned());
        };
        let params = match request.remove("params") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return Err("params must be an object".to_owned()),
        };
        let id = request.remove("id").unwrap_or_default();
        if !(id.is_null() || id.is_string() || id.is_i64() || id.is_u64()) {
            return Err("id must be a string, an integer or null".to_owned());
        }
        match request.into_iter().next() {
            Some((name, _)) => Err(format!("unknown member '{name}'")),
            None => Ok(Self { id, method, params }),
        }
    }
}

async fn dispatch(
    server: &OpenEnv,
    method: &str,
    mut params: Map<String, Value>,
    own: Option<(&SharedSession, &str)>,
) -> Result<Value, RpcError> {
    match method {
        "openenv/session/create" => {
            let id = match own {
                Some((_, id)) => id.to_owned(),
                None => {
                    let created = server.sessions.create().await;
                    created.map_err(|error| server.refusal(error))?.to_string()
                }
            };
            Ok(json!({"session_id": id}))
        }
        "openenv/session/close" => {
            let missing = || RpcError::new(-32602, "Invalid params - 'session_id' is required");
            let id = params.get("session_id").and_then(Value::as_str).ok_or_else(missing)?;
            match server.sessions.close(id).await {
                Closed::Now => Ok(json!({"session_id": id, "closed": true})),
                Closed::Later => Ok(json!({"session_id": id, "closed": false, "closing": true})),
                Closed::Unknown => Err(unknown(id)),
            }
        }
        "tools/list" => {
            if let Some(id) = params.get("session_id").and_then(Value::as_str)
                && !server.sessions.touch(id)
            {
                return Err(unknown(id));
            }
            let facts = server.facts().await?;
            if facts.tools.is_empty() {
                return Err(no_tools());
            }
            Ok(json!({"tools": tools(&facts, "inputSchema")}))
        }
        "tools/call" => {
            let Some(Value::String(name)) = params.remove("name") else {
                return Err(RpcError::new(-32602, "Missing 'name' in params"));
            };
            let arguments = match params.remove("arguments") {
                None | Some(Value::Null) => Map::new(),
                Some(Value::Object(arguments)) => arguments,
                Some(_) => return Err(RpcError::new(-32602, "'arguments' must be an object")),
            };
            let named = params.get("session_id").and_then(Value::as_str);
            let session = match (named, own) {
                (Some(id), _) => {
                    let turn = server.sessions.find(id).await.map_err(|error| match error {
                        SessionsError::Unknown(id) => unknown(&id),
                        SessionsError::Busy => RpcError::new(-32000, error.to_string()),
                        error => server.refusal(error).into(),
                    })?;
                    return server.complete(async move { call(&turn.session, &name, arguments).await }).await;
                }
                (None, Some((own, _))) => own.clone(),
                (None, None) => {
                    // The call has an instance of its own, as in the reference server.
                    let mut open = server.open().await?;
                    open.reset(Map::new()).await?;
                    SharedSession::new(open)
                }
            };
            call(&session, &name, arguments).await
        }
        _ => Err(RpcError::new(-32601, format!("Method not found: {method}"))),
    }
}

/// Calls a tool in a session.
async fn call(session: &SharedSession, name: &str, arguments: Map<String, Value>) -> Result<Value, RpcError> {
    let begun = session.begin().await;
    let mut open = begun.map_err(|error| RpcError::new(-32603, error.to_string()))?;
    if open.facts.tools.is_empty() {
        return Err(no_tools());
    }
    if !open.session.has_begun().await? {
        // Callers of this protocol cannot reset an environment themselves.
        open.reset(Map::new()).await?;
    }
    let observed = open.call_tool(name, arguments).await;
    drop(open);
    let observed = observed.map_err(|error| match error {
        ToolError::NotFound(reason) => RpcError::new(-32603, reason),
        ToolError::Session(error) => error.into(),
    })?;
    let (result, observation) = result_of(observed);
    let text = match &result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Ok(json!({
        "content": [{"type": "text", "text": text}],
        "structured_content": {"result": result},
        "data": result,
        "is_error": false,
        "meta": {"reward": observation.reward, "done": observation.done},
    }))
}

fn no_tools() -> RpcError {
    RpcError::new(-32603, "Environment does not support MCP")
}

fn unknown(id: &str) -> RpcError {
    RpcError::new(-32602, format!("Unknown session_id: {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_not_json_rpc_are_refused() {
        let check = |request: Value, part: &str| {
            assert!(Call::parse(request).err().unwrap_or_default().contains(part), "{part}");
        };
        check(json!([]), "not an object");
        check(json!({}), "jsonrpc");
        check(json!({"jsonrpc": "2.0"}), "method");
        check(json!({"jsonrpc": "2.0", "method": "m", "params": []}), "params");
        check(json!({"jsonrpc": "2.0", "method": "m", "id": 1.5}), "id");
        check(json!({"jsonrpc": "2.0", "method": "m", "more": 1}), "'more'");
        assert!(Call::parse(json!({"jsonrpc": "2.0", "method": "m", "id": "a"})).is_ok());
    }
}
