//! Uses the imports in ways that the SDK prevents: with values that are too large or too many, with invalid text, JSON
//! or handles. The prompt selects the case, and the last returned message has the errors.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::mem::forget;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rollout_sdk::{Message, Value, json};
use rollout_test_guests::raw_workflow::calls::wait;
use rollout_test_guests::raw_workflow::chat::{self, Request};
use rollout_test_guests::raw_workflow::log::{self, Level};
use rollout_test_guests::raw_workflow::samples::Sample;
use rollout_test_guests::raw_workflow::types::ToolCall;
use rollout_test_guests::raw_workflow::{Failure, Guest, artifacts, tools};
use rollout_test_guests::{export_raw_workflow, spin};

struct Misuse;

const LARGE: usize = 2 << 20;
const MANY: usize = 1_000_000;
const MESSAGE: &str = r#"{"role":"user","content":"Calculate 2 + 3."}"#;

impl Guest for Misuse {
    fn run(mut prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        let last: Value = serde_of(prompt.last());
        let report = match last["content"].as_str().unwrap_or_default().split_once(": ") {
            Some(("large", what)) => large(what),
            Some(("many", what)) => many(what),
            Some(("no json", _)) => no_json(),
            Some(("no text", what)) => no_text(what),
            Some(("handle", what)) => handle(what),
            Some(("other", what)) => other(what),
            _ => ask(&open(), request()).map_or_else(|error| error.into(), Value::from),
        };
        let text = report.as_str().map_or_else(|| report.to_string(), str::to_owned);
        let reply = Message::assistant(text);
        prompt.push(json!({"role": "assistant", "content": reply.text()}).to_string());
        Ok(Some(prompt))
    }
}

fn serde_of(text: Option<&String>) -> Value {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn open() -> Sample {
    Sample::open(None).expect("a sample can be opened")
}

fn request() -> Request {
    Request { messages: vec![MESSAGE.to_owned()], tools: Vec::new(), params: None }
}

fn ask(sample: &Sample, request: Request) -> Result<String, String> {
    chat::complete(sample, &request).map(|reply| reply.text).map_err(|error| error.to_string())
}

fn outcome<T, E: std::fmt::Display>(answer: Result<T, E>) -> Value {
    answer.map_or_else(|error| error.to_string(), |_| "taken".to_owned()).into()
}

/// Passes one large text to the import that the test names.
fn large(what: &str) -> Value {
    let text = "x".repeat(LARGE);
    let message = format!(r#"{{"role":"user","content":"{text}"}}"#);
    let sample = open();
    match what {
        "line" => log::line(Level::Info, &text),
        "event name" => log::event(&text, "1"),
        "event" => log::event("large", &text),
        "artifact name" => return outcome(artifacts::write(&text, b"x")),
        "artifact" => return outcome(artifacts::write("large", text.as_bytes())),
        "sample name" => return outcome(Sample::open(Some(&text))),
        "metric name" => return outcome(sample.set_metric(&text, 1.0)),
        "field name" => return outcome(sample.set_field(&text, "1")),
        "field" => return outcome(sample.set_field("large", &message)),
        "message" => return outcome(sample.push(&[message])),
        "request" => return outcome(ask(&sample, Request { messages: vec![message], ..request() })),
        "tool" => return outcome(ask(&sample, Request { tools: vec![message], ..request() })),
        "params" => return outcome(ask(&sample, Request { params: Some(message), ..request() })),
        "tool call" => {
            let call = ToolCall { id: text.clone(), name: text, arguments: message };
            return tools::execute(&[call]).len().into();
        }
        "return" => return text.into(),
        "failure" => panic!("{text}"),
        _ => panic!("unknown case for large values: {what}"),
    }
    "taken".into()
}

/// Passes a list of a million entries, or calls the host forever.
fn many(what: &str) -> Value {
    let sample = open();
    match what {
        "waits" => {
            let call = chat::start(&sample, &request()).expect("a call can be started");
            wait(&vec![&call; MANY], None).len().into()
        }
        "messages" => outcome(sample.push(&vec!["{}".to_owned(); MANY])),
        "chat messages" => {
            outcome(ask(&sample, Request { messages: vec!["{}".to_owned(); MANY], ..request() }))
        }
        "host calls" => loop {
            log::line(Level::Debug, "again");
        },
        _ => panic!("unknown case for many values: {what}"),
    }
}

/// Passes invalid JSON to each parameter that must be JSON.
fn no_json() -> Value {
    let sample = open();
    let bad = || "{no json".to_owned();
    log::event("no json", &bad());
    json!({
        "message": outcome(sample.push(&[MESSAGE.to_owned(), bad()])),
        "replaced": outcome(sample.replace(&[bad()])),
        "field": outcome(sample.set_field("field", &bad())),
        "metric": outcome(sample.set_metric("metric", f64::NAN)),
        "request": outcome(ask(&sample, Request { messages: vec![bad()], ..request() })),
        "tool": outcome(ask(&sample, Request { tools: vec![bad()], ..request() })),
        "params": outcome(ask(&sample, Request { params: Some(bad()), ..request() })),
        "list of params": outcome(ask(&sample, Request { params: Some("[1]".to_owned()), ..request() })),
    })
}

/// Passes invalid UTF-8 as text.
fn no_text(what: &str) -> Value {
    // SAFETY: this is unsound on purpose; the guest itself never reads the text.
    let text = unsafe { String::from_utf8_unchecked(vec![b'x', 0xff, 0xfe]) };
    match what {
        "line" => log::line(Level::Info, &text),
        "sample name" => return outcome(Sample::open(Some(&text))),
        "message" => return outcome(open().push(&[text])),
        "artifact name" => return outcome(artifacts::write(&text, b"x")),
        "request" => return outcome(ask(&open(), Request { messages: vec![text], ..request() })),
        _ => panic!("unknown case for invalid text: {what}"),
    }
    "taken".into()
}

/// Leaks handles, invents handles or uses them twice.
fn handle(what: &str) -> Value {
    let sample = open();
    // SAFETY: invalid handles are the purpose of this test; the host must reject them.
    let made_up = |number| unsafe { Sample::from_handle(number) };
    match what {
        "forgotten chat calls" => loop {
            match chat::start(&sample, &request()) {
                Ok(call) => forget(call),
                Err(error) => return error.to_string().into(),
            }
        },
        "forgotten tool calls" => loop {
            let call = ToolCall { id: "1".into(), name: "none".into(), arguments: "{}".into() };
            forget(tools::start(&call));
        },
        "forgotten samples" => loop {
            match Sample::open(None) {
                Ok(sample) => forget(sample),
                Err(error) => return error.to_string().into(),
            }
        },
        "made up" => made_up(4711).id().into(),
        "zero" => made_up(0).id().into(),
        "largest" => made_up(u32::MAX - 1).id().into(),
        "of another kind" => {
            let call = chat::start(&sample, &request()).expect("a call can be started");
            made_up(call.handle()).id().into()
        }
        "dropped" => {
            let number = sample.handle();
            drop(sample);
            let again = made_up(number);
            let id = again.id();
            forget(again);
            id.into()
        }
        "dropped twice" => {
            drop(made_up(sample.handle()));
            drop(sample);
            "dropped twice".into()
        }
        _ => panic!("unknown case for handles: {what}"),
    }
}

fn other(what: &str) -> Value {
    match what {
        "clocks" => {
            let started = Instant::now();
            let today = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
            let mut sum = 0_u64;
            for number in 0..20_000_000 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
            json!({
                "today": today.as_nanos().to_string(),
                "elapsed": started.elapsed().as_nanos().to_string(),
                "random": format!("{:016x}", RandomState::new().hash_one(sum)),
                "sample": open().id(),
            })
        }
        "spin when dropped" => {
            struct SpinWhenDropped;
            impl Drop for SpinWhenDropped {
                fn drop(&mut self) {
                    spin();
                }
            }
            drop(SpinWhenDropped);
            "dropped".into()
        }
        "same name twice" => {
            let _first = Sample::open(Some("twin"));
            outcome(Sample::open(Some("twin")))
        }
        "deep field" => {
            let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
            let sample = open();
            json!({
                "deepest": outcome(sample.set_field("deep", &deep(100))),
                "deeper": outcome(sample.set_field("deep", &deep(101))),
                "deep": outcome(sample.set_field("deep", &deep(100_000))),
            })
        }
        "random bytes" => rollout_test_guests::random_bytes(LARGE as u64).into(),
        "trap" => panic!("this guest traps"),
        "exit" => std::process::exit(0),
        _ => panic!("unknown case: {what}"),
    }
}

export_raw_workflow!(Misuse);
