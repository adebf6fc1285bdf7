//! Passes JSON with very many tiny parts to the import that the prompt names, and uses sample names and ids that are
//! hard to store.

use rollout_sdk::Value;
use rollout_test_guests::export_raw_workflow;
use rollout_test_guests::raw_workflow::chat::{self, Request};
use rollout_test_guests::raw_workflow::log;
use rollout_test_guests::raw_workflow::samples::Sample;
use rollout_test_guests::raw_workflow::{Failure, Guest};

struct SmallJson;

/// As many parts as an outside tester used.
const MANY: usize = 500_000;

impl Guest for SmallJson {
    fn run(prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        let last: Value = prompt.last().and_then(|text| text.parse().ok()).unwrap_or_default();
        match last["content"].as_str().unwrap_or_default() {
            "push" => push(),
            "return" => return Ok(Some(vec!["{}".to_owned(); MANY])),
            "calls" => return Ok(Some(vec![calls()])),
            "field" => field(),
            "ask" => return Ok(Some(vec![ask(prompt)])),
            "params" => return Ok(Some(vec![params(prompt)])),
            "for ever" => push_forever(),
            "names" => names(),
            "event" => event(),
            "tools" => return Ok(Some(own_tools(prompt))),
            _ => {
                let reply = ask(prompt.clone());
                return Ok(Some(prompt.into_iter().chain([reply]).collect()));
            }
        }
        Ok(None)
    }
}

fn open() -> Sample {
    Sample::open(None).expect("a sample can be opened")
}

/// Pushes half a million messages in five calls, so that no call is too large for the host.
fn push() {
    let sample = open();
    let part = vec!["{}".to_owned(); MANY / 5];
    for _ in 0..5 {
        sample.push(&part).expect("the record has room");
    }
}

/// Returns an assistant message with half a million empty calls.
fn calls() -> String {
    format!(r#"{{"role":"assistant","content":"","tool_calls":[{}]}}"#, vec!["{}"; MANY].join(","))
}

/// Sets a field to a list with very many parts.
fn field() {
    let sample = open();
    sample.push(&[r#"{"role":"user","content":"x"}"#.to_owned()]).expect("it is a message");
    sample
        .set_field("field", &format!("[{}]", vec!["{}"; 4_000_000].join(",")))
        .expect("the record has room");
}

fn ask(messages: Vec<String>) -> String {
    let request = Request { messages, tools: Vec::new(), params: None };
    let error = match chat::complete(&open(), &request) {
        Ok(reply) => return reply.message,
        Err(error) => error.to_string(),
    };
    user_message(&error)
}

fn params(messages: Vec<String>) -> String {
    let many: Vec<String> = (0..MANY).map(|at| format!("\"{at:x}\":1")).collect();
    let params = Some(format!("{{{}}}", many.join(",")));
    let request = Request { messages, tools: Vec::new(), params };
    let answer = chat::complete(&open(), &request).map(|reply| reply.text).map_err(|error| error.to_string());
    user_message(&answer.unwrap_or_else(|error| error))
}

fn user_message(text: &str) -> String {
    rollout_sdk::json!({"role": "user", "content": text}).to_string()
}

/// Pushes forever, so that the host stops it within a call.
fn push_forever() -> ! {
    let sample = open();
    let large = vec![format!(r#"{{"content":"{}"}}"#, "\\u0041".repeat(1 << 20)); 8];
    loop {
        sample.replace(&large).expect("the record has room");
    }
}

/// Opens samples whose names differ only in characters that file names cannot have.
fn names() {
    for name in ["a_b", "a/b", "a%2Fb", "A_B", "..", "%2E."] {
        let sample = Sample::open(Some(name)).expect("it is a name");
        sample.push(&[format!(r#"{{"role":"user","content":"{name}"}}"#)]).expect("it is a message");
    }
}

/// Logs an event that claims to belong to another rollout.
fn event() {
    log::event("forged", r#"{"rollout_id":"other","event":"real","rollout\u005fid":"third","x":1}"#);
    open().push(&["{}".to_owned()]).expect("it is a message");
}

/// Returns a conversation with two calls of the agent's own tools.
fn own_tools(mut prompt: Vec<String>) -> Vec<String> {
    prompt.extend(
        [
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"a","content":"1"}"#,
            r#"{"role":"tool","tool_call_id":"b","content":"2"}"#,
            r#"{"role":"assistant","content":"3"}"#,
        ]
        .map(str::to_owned),
    );
    prompt
}

export_raw_workflow!(SmallJson);
