//! Tests of a running mock over a socket.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MockModel, MockModelSettings, Script, StartError};

/// Deadline of every wait; missing it is a failure, not a slow machine.
const DEADLINE: Duration = Duration::from_secs(20);

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a JSON body")
    }

    fn content(&self) -> String {
        let body = self.json();
        let content = body["choices"][0]["message"]["content"].as_str();
        content.expect("a content").to_owned()
    }
}

async fn start(settings: MockModelSettings) -> MockModel {
    let address = "127.0.0.1:0".parse().expect("an address");
    MockModel::start(address, settings).await.expect("started")
}

async fn scripted(script: &str) -> MockModel {
    let script = Script::parse(script).expect("a script");
    start(MockModelSettings { script: Some(script), ..MockModelSettings::default() }).await
}

/// Sends a request and reads until the server closes the connection. HTTP/1.0 has no chunked encoding.
async fn send(mock: &MockModel, line: &str, headers: &str, body: &str) -> Option<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(mock.addr()).await.expect("connected");
        let length = body.len();
        let request = format!("{line} HTTP/1.0\r\n{headers}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut text = String::new();
        // A cut connection may be reset or closed; either way nothing was read.
        let read = stream.read_to_string(&mut text).await;
        read.ok().filter(|length| *length > 0).map(|_| text)
    };
    let text = tokio::time::timeout(DEADLINE, exchange).await.expect("an answer in time")?;
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    Some(Answer {
        status: head[9..12].parse().expect("a status"),
        head: head.to_lowercase(),
        body: body.to_owned(),
    })
}

async fn post(mock: &MockModel, rollout: &str, body: Value) -> Option<Answer> {
    let headers = format!("x-rollout-id: {rollout}\r\nx-sample-id: s\r\n");
    send(mock, "POST /v1/chat/completions", &headers, &body.to_string()).await
}

fn question(text: &str) -> Value {
    json!({"model": "any", "messages": [{"role": "user", "content": text}]})
}

fn with_calculator(mut request: Value) -> Value {
    request["tools"] = json!([{"type": "function", "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    }}]);
    request
}

#[tokio::test]
async fn a_question_is_answered_and_every_response_is_marked_as_a_mock() {
    let mock = start(MockModelSettings::default()).await;
    let body = question("What is 6 * 7?").to_string();
    for line in ["POST /v1/chat/completions", "POST /chat/completions"] {
        let answer = send(&mock, line, "", &body).await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.content(), "The result is 42.\n#### 42");
        assert_eq!(answer.json()["model"], "rollout-host-mock");
        assert_eq!(answer.json()["system_fingerprint"], "stand-in, not a model");
        assert!(answer.head.contains("x-rollout-host-mock: stand-in, not a model"));
    }
    for (line, status) in [
        ("GET /v1/models", 200),
        ("GET /health", 200),
        ("GET /nowhere", 404),
        ("GET /v1/chat/completions", 405),
    ] {
        let answer = send(&mock, line, "", "").await.expect("an answer");
        assert_eq!(answer.status, status, "{line}");
        assert!(answer.head.contains("x-rollout-host-mock: stand-in, not a model"));
        assert_eq!(answer.json()["error"].is_object(), status >= 400);
    }
    assert_eq!(mock.calls(), 2);
    assert!(mock.base_url().starts_with("http://127.0.0.1:"));
    assert!(mock.base_url().ends_with("/v1"));
}

#[tokio::test]
async fn an_offered_calculator_is_called_and_its_result_becomes_the_answer() {
    let mock = start(MockModelSettings::default()).await;
    let mut request = with_calculator(question("Calculate -( 6775 / 271 ) - 4634."));
    let answer = post(&mock, "r", request.clone()).await.expect("a call");
    let choice = answer.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")));
    assert_eq!(call["function"]["arguments"], r#"{"expression":"-( 6775 / 271 ) - 4634"}"#);
    let messages = request["messages"].as_array_mut().expect("messages");
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "-4659"}));
    let answer = post(&mock, "r", request).await.expect("an answer");
    assert_eq!(answer.content(), "The result is -4659.\n#### -4659");
}

#[tokio::test]
async fn an_invalid_request_gets_an_error_body_of_the_openai_api() {
    let mock = start(MockModelSettings::default()).await;
    let check = async |body: &str, code: &str| {
        let line = "POST /v1/chat/completions";
        let answer = send(&mock, line, "", body).await.expect("an answer");
        assert_eq!(answer.status, 400, "{body}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"], code, "{body}");
        assert!(error["message"].is_string());
    };
    check("not json", "invalid_json").await;
    check(r#"{"model": "any"}"#, "missing_required_parameter").await;
}

#[tokio::test]
async fn a_stream_ends_with_usage_and_done() {
    let mock = start(MockModelSettings::default()).await;
    let mut request = question("What is 6 * 7?");
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let answer = post(&mock, "r", request).await.expect("a stream");
    assert!(answer.head.contains("content-type: text/event-stream"));
    let events: Vec<&str> = answer
        .body
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("data"))
        .collect();
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("JSON")).collect();
    let content: String =
        chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/content")?.as_str()).collect();
    assert_eq!(content, "The result is 42.\n#### 42");
    assert!(chunks.last().expect("a chunk")["usage"].is_object());
}

/// Returns the outcomes of many rollouts that make the same two calls each.
async fn outcomes(settings: MockModelSettings, rollouts: impl Iterator<Item = u32>) -> Vec<(u32, String)> {
    let mock = start(settings).await;
    let mut outcomes = Vec::new();
    for rollout in rollouts {
        let id = format!("r{rollout}");
        for _ in 0..2 {
            let answer = post(&mock, &id, question("6 * 7")).await.expect("an answer");
            let outcome = match answer.status {
                200 => answer.content(),
                status => status.to_string(),
            };
            outcomes.push((rollout, outcome));
        }
    }
    outcomes.sort_by_key(|(rollout, _)| *rollout);
    outcomes
}

#[tokio::test]
async fn a_seed_makes_the_same_mistakes_in_any_order_of_rollouts() {
    let settings =
        |seed| MockModelSettings { error_rate: 0.5, failure_rate: 0.2, seed, ..MockModelSettings::default() };
    let first = outcomes(settings(1), 0..20).await;
    assert_eq!(first, outcomes(settings(1), (0..20).rev()).await);
    assert_ne!(first, outcomes(settings(2), 0..20).await);
    let right = |outcome: &str| outcome == "The result is 42.\n#### 42";
    let count = |wanted: &dyn Fn(&str) -> bool| {
        let found = first.iter().filter(|(_, outcome)| wanted(outcome));
        found.count()
    };
    assert!(count(&right) > 5);
    assert!(count(&|outcome| outcome == "503") > 1);
    assert!(count(&|outcome| !right(outcome) && outcome != "503") > 5);
    // Rollouts differ from each other, and so do the calls of one rollout.
    assert!(first.chunks(2).any(|calls| calls[0].1 != calls[1].1));
}

#[tokio::test]
async fn a_script_takes_precedence_over_arithmetic() {
    let mock = scripted(
        r#"{"when": {"rollout_id": "busy"}, "times": 1, "status": 503, "headers": {"retry-after": "0"}}
           {"when": {"contains": "raw"}, "body": {"odd": [1]}}
           {"when": {"contains": "text"}, "status": 201, "text_body": "not json"}
           {"when": {"call": 2, "rollout_id": "twice"}, "message": {"content": "scripted"}, "usage": {"total_tokens": 9}, "delay_ms": 1}
           {"when": {"has_tools": true}, "message": {"content": "tools"}, "finish_reason": "length"}"#,
    )
    .await;
    let answer = post(&mock, "busy", question("1 + 1")).await.expect("503");
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("retry-after: 0"));
    assert_eq!(answer.json()["error"]["type"], "server_error");
    let answer = post(&mock, "busy", question("1 + 1")).await.expect("200");
    assert_eq!(answer.content(), "The result is 2.\n#### 2");
    let answer = post(&mock, "r", question("raw")).await.expect("a body");
    assert_eq!(answer.body, r#"{"odd": [1]}"#);
    let answer = post(&mock, "r", question("text")).await.expect("a text");
    assert_eq!((answer.status, &*answer.body), (201, "not json"));
    for expected in ["The result is 2.\n#### 2", "scripted", "The result is 2.\n#### 2"] {
        let answer = post(&mock, "twice", question("1 + 1")).await.expect("200");
        assert_eq!(answer.content(), expected);
    }
    let request = with_calculator(question("1 + 1"));
    let answer = post(&mock, "r", request).await.expect("200");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert!(answer.head.contains("x-rollout-host-mock"));
}

#[tokio::test]
async fn a_scripted_disconnect_sends_nothing_and_the_server_keeps_serving() {
    let mock = scripted(r#"{"times": 1, "disconnect": true}"#).await;
    assert!(post(&mock, "r", question("1 + 1")).await.is_none());
    let answer = post(&mock, "r", question("1 + 1")).await.expect("200");
    assert_eq!(answer.content(), "The result is 2.\n#### 2");
}

#[tokio::test]
async fn a_call_that_hangs_is_aborted_when_the_server_stops() {
    let mock = scripted(r#"{"hang": true}"#).await;
    let mut stream = TcpStream::connect(mock.addr()).await.expect("connected");
    let body = question("1 + 1").to_string();
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).await.expect("sent");
    let taken = async {
        while mock.calls() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, taken).await.expect("taken");
    let ended = tokio::time::timeout(DEADLINE, mock.run_until(async {}));
    ended.await.expect("ended");
    let mut rest = Vec::new();
    // The connection is reset or closed without an answer.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn dropping_the_mock_frees_its_port() {
    let mock = start(MockModelSettings::default()).await;
    let address = mock.addr();
    drop(mock);
    let again = async {
        while MockModel::start(address, MockModelSettings::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, again).await.expect("started again");
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let mock = start(MockModelSettings::default()).await;
    let taken = MockModel::start(mock.addr(), MockModelSettings::default()).await;
    assert!(matches!(taken, Err(StartError::Listen { .. })));
    for error_rate in [-0.1, 1.1, f64::NAN] {
        let settings = MockModelSettings { error_rate, ..MockModelSettings::default() };
        let address = "127.0.0.1:0".parse().expect("an address");
        let refused = MockModel::start(address, settings).await;
        assert!(matches!(refused, Err(StartError::Rate { .. })));
    }
}
