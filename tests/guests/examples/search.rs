//! Searches everything that a workflow can see for a secret: the results of each import, the environment through the
//! standard library, and finally its own memory byte by byte, including memory that it never wrote. The row's metadata
//! has the secret's two halves separately, so that the search itself does not create a copy; and a text that is planted
//! in the prompt, which the search must find.

use std::fs;
use std::io::Read;
use std::time::{Instant, SystemTime};

use rollout_sdk::{GradeContext, Grader, Message, Result, Value, Verdicts, json};
use rollout_test_guests::random_bytes;
use rollout_test_guests::raw_workflow::chat::{self, Request};
use rollout_test_guests::raw_workflow::samples::{self, Sample};
use rollout_test_guests::raw_workflow::types::ToolCall;
use rollout_test_guests::raw_workflow::{
    Failure, Guest, artifacts, calls, context, log, observations, tools,
};

struct Search;

/// A text in two halves, which are never joined.
struct Needle {
    first: String,
    second: String,
}

impl Needle {
    fn of(value: &Value) -> Self {
        let half = |at: usize| value[at].as_str().unwrap_or_default().to_owned();
        Self { first: half(0), second: half(1) }
    }

    fn is_in(&self, text: &[u8]) -> bool {
        let length = self.first.len() + self.second.len();
        text.windows(length).any(|part| {
            part.starts_with(self.first.as_bytes()) && part[self.first.len()..] == *self.second.as_bytes()
        })
    }
}

/// The places that were searched, and those where a needle was found.
struct Found {
    secret: Needle,
    planted: Needle,
    places: Vec<String>,
    secret_in: Vec<String>,
    planted_in: Vec<String>,
}

impl Found {
    fn look(&mut self, place: &str, seen: impl std::fmt::Debug) {
        self.bytes(place, format!("{seen:?}").as_bytes());
    }

    fn bytes(&mut self, place: &str, seen: &[u8]) {
        self.places.push(place.to_owned());
        if self.secret.is_in(seen) {
            self.secret_in.push(place.to_owned());
        }
        if self.planted.is_in(seen) {
            self.planted_in.push(place.to_owned());
        }
    }
}

impl Guest for Search {
    fn run(mut prompt: Vec<String>) -> std::result::Result<Option<Vec<String>>, Failure> {
        let metadata: Value = context::metadata().and_then(|text| text.parse().ok()).unwrap_or_default();
        let mut found = Found {
            secret: Needle::of(&metadata["secret"]),
            planted: Needle::of(&metadata["planted"]),
            places: Vec::new(),
            secret_in: Vec::new(),
            planted_in: Vec::new(),
        };
        if metadata["then"] == "observe" {
            found.look("observations", observations::exchanges("main"));
            return Err(Failure::Failed("a workflow received a grader's input".to_owned()));
        }
        found.look("prompt", &prompt);
        what_imports_give(&mut found);
        surroundings(&mut found);
        let scanned = memory(&mut found);
        let reply = json!({
            "places": found.places,
            "secret": found.secret_in,
            "planted": found.planted_in,
            "scanned_bytes": scanned,
        });
        let message = Message::assistant(reply.to_string());
        prompt.push(json!({"role": "assistant", "content": message.text()}).to_string());
        Ok(Some(prompt))
    }
}

fn what_imports_give(found: &mut Found) {
    found.look("rollout id", context::rollout_id());
    found.look("attempt", context::attempt());
    found.look("config", context::config());
    found.look("metadata", context::metadata());
    found.look("time left", context::time_left_ms());
    found.look("samples limit", samples::limit());
    let sample = Sample::open(None).expect("a sample can be opened");
    found.look("sample id", sample.id());
    if samples::limit() == 1 {
        found.look("a second sample", Sample::open(Some("second")).map(|sample| sample.id()));
    }
    found.look("a bad sample name", Sample::open(Some("\n")).map(|sample| sample.id()));
    found.look("a bad message", sample.push(&["no json".to_owned()]));
    found.look("a bad metric", sample.set_metric("", f64::NAN));
    found.look("a bad field", sample.set_field("field", "{"));
    let request = |params: Option<&str>| Request {
        messages: vec![r#"{"role":"user","content":"Calculate 2 + 3."}"#.to_owned()],
        tools: Vec::new(),
        params: params.map(str::to_owned),
    };
    found.look("a reply", chat::complete(&sample, &request(None)));
    found.look("a refused reply", chat::complete(&sample, &request(Some(r#"{"model":"x"}"#))));
    if let Ok(call) = chat::start(&sample, &request(None)) {
        found.look("ready calls", calls::wait(&[&call], None));
        found.look("a finished reply", chat::finish(call));
    }
    let call = ToolCall { id: "1".into(), name: "label".into(), arguments: "{}".into() };
    found.look("host-provided tools", tools::available());
    found.look("tool results", tools::execute(std::slice::from_ref(&call)));
    found.look("a tool result", tools::finish(tools::start(&call)));
    for name in ["label", "trajectory.json", "log.jsonl", "../trajectory.json", "/etc/passwd"] {
        found.look(&format!("artifact {name}"), artifacts::read(name));
    }
    found.look("an artifact written", artifacts::write("seen.txt", b"seen"));
    found.look("an artifact refused", artifacts::write("../seen.txt", b"seen"));
    found.look("artifact names", artifacts::names());
    found.look("an artifact read back", artifacts::read("seen.txt"));
    log::line(log::Level::Info, "searching");
    log::event("searching", "{}");
    found.look("random bytes", random_bytes(1024));
}

fn surroundings(found: &mut Found) {
    found.look("environment", std::env::vars_os().collect::<Vec<_>>());
    found.look("arguments", std::env::args_os().collect::<Vec<_>>());
    found.look("working directory", std::env::current_dir());
    for path in ["/", ".", ".."] {
        let entries = fs::read_dir(path).map(|entries| entries.flatten().collect::<Vec<_>>());
        found.look(&format!("directory {path}"), entries);
    }
    let mut input = Vec::new();
    found.look("standard input", std::io::stdin().read_to_end(&mut input));
    found.bytes("standard input", &input);
    found.look("wall clock", SystemTime::now());
    found.look("monotonic clock", Instant::now());
}

/// Searches the instance's memory from the first byte to the last, including new pages. Returns the number of bytes.
#[cfg(target_family = "wasm")]
fn memory(found: &mut Found) -> usize {
    use core::arch::wasm32::{memory_grow, memory_size};
    const PAGE_BYTES: usize = 65_536;
    const NEW_PAGES: usize = 64;
    memory_grow::<0>(NEW_PAGES);
    let length = memory_size::<0>() * PAGE_BYTES;
    // SAFETY: this reads memory that no pointer refers to, on purpose. All of it is mapped, and no other code runs. A
    // slice must not begin at address 0, so it begins at the dangling pointer, 1.
    let all = unsafe { std::slice::from_raw_parts(std::hint::black_box(std::ptr::dangling()), length - 1) };
    found.bytes("memory", all);
    length
}

/// Does nothing outside wasm.
#[cfg(not(target_family = "wasm"))]
fn memory(_found: &mut Found) -> usize {
    0
}

/// Returns the label's length as the reward, which proves that it received the label, and leaves many copies of the
/// label in its memory, which a later instance could find if memory were reused.
struct LeaveCopies;

impl Grader for LeaveCopies {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = ctx.require_label()?;
        std::hint::black_box(vec![label.to_owned(); 20_000]);
        Ok((label.len() as f64).into())
    }
}

rollout_sdk::export!(grader = LeaveCopies);
rollout_test_guests::export_raw_half!(Search, raw_workflow);
