//! Runs one table of behaviours with guests in Rust, Python and TypeScript, on the same host and model, and compares the
//! outcomes.

use std::path::{Path, PathBuf};

use rollout_tests::{
    Answer, Controller, Start, example, guest, has_javascript, javascript_guest, project_root, python_guest,
    rollout_host,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A behaviour: the prompt that requests it, the label, and the model's answers. Without answers, the model replies
/// with the sum of the numbers in the last message.
struct Behaviour {
    prompt: &'static str,
    label: Option<&'static str>,
    answers: fn() -> Vec<Answer>,
}

const fn one(prompt: &'static str, label: Option<&'static str>) -> Behaviour {
    Behaviour { prompt, label, answers: Vec::new }
}

const BEHAVIOURS: &[Behaviour] = &[
    one("Calculate 2 + 3.", Some("5")),
    one("Calculate 2 + 3.", Some("6")),
    one("Calculate 2 + 3.", None),
    one("messages", None),
    one("push", Some("metric")),
    one("names", Some("withdraw")),
    one("parallel", Some("observe")),
    Behaviour { answers: refusal, ..one("refused", Some("observe")) },
    Behaviour { answers: refusal, ..one("unhandled", None) },
    one("reserved", None),
    one("budget", Some("observe")),
    one("artifacts", Some("artifact")),
    one("config", None),
    one("context", None),
    Behaviour { answers: tool_calls, ..one("tools", Some("observe")) },
    one("log", Some("none")),
    one("fail", None),
    one("refuse", None),
    one("time out", None),
    one("nothing", None),
    one("messages", Some("fail")),
    one("messages", Some("infinite")),
    one("messages", Some("artifact")),
];

fn refusal() -> Vec<Answer> {
    vec![Answer::Status(400, json!({"error": {"message": "no such thing"}}))]
}

/// Returns a valid call, three invalid ones, and an answer.
fn tool_calls() -> Vec<Answer> {
    let calls = [
        ("join", r#"{"words": ["a", "b"], "loud": true, "between": "-"}"#),
        ("join", r#"{"words": [], "loud": false}"#),
        ("join", r#"{"words": ["a"]}"#),
        ("join", "[1]"),
        ("joins", "{}"),
    ];
    let calls: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(place, (name, arguments))| {
            json!({"id": format!("call-{place}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let message = json!({"role": "assistant", "content": null, "tool_calls": calls, "kept": {"as": "it is"}});
    let completion = json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
    });
    vec![Answer::Status(200, completion), Answer::Say("#### done")]
}

/// The results of every behaviour in one language.
struct Seen {
    results: Vec<Value>,
    trajectories: Vec<Value>,
    artifacts: Vec<Vec<(PathBuf, Vec<u8>)>>,
    requests: Vec<Value>,
}

async fn run(component: &Path) -> Seen {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let controller = Controller::start().await;
    for behaviour in BEHAVIOURS {
        controller.answer_chats(answers_of(behaviour));
    }
    let rows: Vec<String> = BEHAVIOURS.iter().map(|behaviour| row(behaviour).to_string()).collect();
    write(&dir, "rows.jsonl", &rows.join("\n"));
    write(&dir, "config.toml", "[plugin]\ngreeting = \"Good day.\"\n");

    let ran = rollout_host(["eval"])
        .arg(component)
        .args(["--data", "rows.jsonl", "--config", "config.toml", "--out", "out", "--model", "a-model"])
        // One after another, so that each gets its own answers of the model.
        .args(["--concurrency", "1", "--limit-chat-calls-max", "3"])
        .args(["--base-url", &controller.model_url()])
        .current_dir(dir.path())
        .start()
        .ended()
        .await;

    let results = std::fs::read_to_string(dir.path().join("out/results.jsonl"));
    let results = results.unwrap_or_else(|error| panic!("no results: {error}\n{}", ran.stderr));
    let mut results: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    results.sort_by_key(|line| line["row"].as_u64());
    assert_eq!(results.len(), BEHAVIOURS.len(), "{}", ran.stderr);
    let kept = |line: &Value| dir.path().join("out/rollouts").join(line["rollout_id"].as_str().unwrap());
    Seen {
        trajectories: results.iter().map(|line| trajectories(&kept(line))).collect(),
        artifacts: results.iter().map(|line| artifacts(&kept(line))).collect(),
        requests: controller.chats().into_iter().map(|chat| chat.body).collect(),
        results,
    }
}

/// Returns the model's answers to a behaviour, with sums if none are set.
fn answers_of(behaviour: &Behaviour) -> Vec<Answer> {
    let answers = (behaviour.answers)();
    match (answers.is_empty(), behaviour.prompt) {
        (false, _) => answers,
        (true, "parallel") => vec![Answer::Say("#### 1"), Answer::Say("#### 1"), Answer::Say("#### 1")],
        (true, "budget") => vec![Answer::Say("#### 2"), Answer::Say("#### 4"), Answer::Say("#### 6")],
        (true, prompt) if prompt.starts_with("Calculate") => vec![Answer::Say("It is so.\n#### 5")],
        _ => Vec::new(),
    }
}

fn row(behaviour: &Behaviour) -> Value {
    let mut row = json!({"user_prompt": behaviour.prompt, "metadata": {"id": 7, "tags": ["a", null]}});
    if let Some(label) = behaviour.label {
        row["ground_truth"] = label.into();
    }
    row
}

fn write(dir: &TempDir, name: &str, text: &str) {
    std::fs::write(dir.path().join(name), text).expect("it can be written");
}

/// Returns the trajectories of a rollout, one for each sample, sorted by file name.
fn trajectories(dir: &Path) -> Value {
    let files = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir:?}: {error}"));
    let mut files: Vec<PathBuf> =
        files.map(|entry| entry.unwrap().path()).filter(|path| is_trajectory(path)).collect();
    files.sort();
    files.iter().map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap()).collect()
}

fn is_trajectory(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trajectory"))
}

/// Returns the files of a rollout except its trajectory, sorted.
fn artifacts(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_owned();
            match path.is_dir() {
                true => dirs.push(path),
                false if is_trajectory(&path) => {}
                false => found.push((name, std::fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

/// Returns the value without parts that differ between two runs: times, sizes, the plugin's digest, the numbers of host
/// calls and the use of limits; and without the location that Python and JavaScript append to a reason, and the sign of
/// a zero, which JavaScript does not write.
fn comparable(value: &Value) -> Value {
    const DIFFERENT: [&str; 13] = [
        "guest_cpu_ms",
        "memory_bytes_peak",
        "duration_ms",
        "queued_ms",
        "waited_ms",
        "limits",
        "model_ms",
        "host_calls",
        "plugin_digest",
        "grader_digest",
        "started_at_unix_ms",
        "timestamp",
        "latency_ms",
    ];
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !DIFFERENT.contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), comparable(value))).collect()
        }
        Value::Array(items) => items.iter().map(comparable).collect(),
        Value::String(text) => match text.find(" (parity.py:").or_else(|| text.find(" (src/parity.ts:")) {
            Some(end) => text[..end].into(),
            None => value.clone(),
        },
        Value::Number(number) if number.as_f64() == Some(0.0) => 0.into(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn a_guest_in_python_behaves_like_the_same_guest_in_rust() {
    let (rust, python) =
        (run(&guest("parity")).await, run(&python_guest("tests/guests/python/parity")).await);

    assert_same(&rust, &python);
    // The table has every kind of outcome.
    let outcomes: Vec<&str> = python.results.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert!(outcomes.contains(&"scored") && outcomes.contains(&"unscored"), "{outcomes:?}");
}

#[tokio::test]
async fn a_guest_in_typescript_behaves_like_the_same_guest_in_rust() {
    if !has_javascript() {
        return;
    }
    let (rust, typescript) =
        (run(&guest("parity")).await, run(&javascript_guest("tests/guests/js/parity")).await);

    assert_same(&rust, &typescript);
}

/// Asserts that two guests have the same outcomes.
fn assert_same(one: &Seen, other: &Seen) {
    let both = [one, other];
    for (place, Behaviour { prompt, label, .. }) in BEHAVIOURS.iter().enumerate() {
        let about = format!("{prompt} {label:?}");
        let [a, b] = both.map(|seen| comparable(&seen.results[place]));
        assert_eq!(a, b, "{about}");
        let [a, b] = both.map(|seen| comparable(&seen.trajectories[place]));
        assert_eq!(a, b, "{about}");
        let [a, b] = both.map(|seen| artifact_texts(&seen.artifacts[place]));
        assert_eq!(a, b, "{about}");
    }
    // Concurrent requests arrive in any order.
    let [mut a, mut b] = both.map(|seen| seen.requests.iter().map(Value::to_string).collect::<Vec<_>>());
    a.sort();
    b.sort();
    assert_eq!(a, b);
}

/// Returns files as text, without the lines of a traceback, which only Python has.
fn artifact_texts(files: &[(PathBuf, Vec<u8>)]) -> Vec<(PathBuf, String)> {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !is_traceback(line)).collect();
        lines.join("\n")
    };
    let texts = files.iter().map(|(name, bytes)| (name.clone(), text(bytes)));
    texts.filter(|(name, text)| !(name.ends_with("log.jsonl") && text.is_empty())).collect()
}

fn is_traceback(line: &str) -> bool {
    let entry: Value = serde_json::from_str(line).unwrap_or_default();
    let text = entry["text"].as_str().unwrap_or_default();
    entry["level"] == "error"
        && (text.starts_with("Traceback") || text.starts_with("  ") || text.starts_with("rollout_sdk."))
}

/// Lines by which a person plays the first task of an example, and the scripted replies of a model that plays the split
/// `test`.
struct Game {
    example: &'static str,
    lines: &'static str,
    replies: fn() -> String,
}

const GAMES: [Game; 2] = [
    Game {
        example: "number-hunt",
        lines: "/state\n0.5\nnumber=-4000.5\n/state\n/reset\n/state\n/wat\n{\"number\": -4659}\n",
        replies: guesses,
    },
    Game {
        example: "word-walk",
        lines: "/state\ngo 2\nspell\nnote 1\n/state\nnote 2\nsum\ngo 9\ngo place=8\nwalk\n/reset\nsum\n/state\nanswer 2\n",
        replies: || std::fs::read_to_string(project_root().join("examples/word-walk/replies.jsonl")).unwrap(),
    },
];

/// Returns the replies of a model that guesses the result of each task, one after the other, and makes mistakes.
fn guesses() -> String {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let step = |id: &str, number: f64| call(id, "step", &json!({ "number": number }).to_string());
    let replies = [
        json!({"tool_calls": [step("a", 0.5), call("b", "fly", "{}"), call("c", "step", "[1")]}),
        json!({"content": "Let me think."}),
        json!({"tool_calls": [step("d", 15.0), step("e", -1.0)]}),
        json!({"tool_calls": [step("f", 60.0)]}),
        json!({"tool_calls": [step("g", -4351.0)]}),
    ];
    let numbered = (1..).zip(replies);
    numbered
        .map(|(call, message)| format!("{}\n", json!({"when": {"call": call}, "message": message})))
        .collect()
}

/// Returns the output of a game that is played by lines, without the places that Python and JavaScript append to errors.
async fn played(component: &Path, lines: &str, dir: &TempDir) -> Vec<String> {
    write(dir, "lines.txt", lines);
    let input = std::fs::File::open(dir.path().join("lines.txt")).unwrap();
    let mut test = rollout_host(["test"]);
    test.arg(component).args(["--split", "train", "--interactive"]);

    let ran = test.start_with(input.into()).ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let is_error = |line: &str| line.starts_with("error");
    let comparable = |line: &str| match line.rfind(" (").filter(|_| is_error(line) && line.ends_with(')')) {
        Some(end) => line[..end].to_owned(),
        None => line.to_owned(),
    };
    ran.stdout.lines().map(comparable).collect()
}

/// Returns the results and trajectories of a model that plays by a script.
async fn evaluated(component: &Path, replies: &str, dir: &TempDir) -> Vec<Value> {
    write(dir, "replies.jsonl", replies);
    let mut eval = rollout_host(["eval"]);
    eval.arg(component)
        .args(["--split", "test", "--model", "mock", "--mock-script", "replies.jsonl", "--out", "out"])
        .current_dir(dir.path());

    let ran = eval.start().ended().await;

    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let results = std::fs::read_to_string(dir.path().join("out/results.jsonl")).unwrap();
    let mut results: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    results.sort_by_key(|line| line["row"].as_u64());
    let kept = |line: &Value| dir.path().join("out/rollouts").join(line["rollout_id"].as_str().unwrap());
    let row = |line: &Value| without_schemas(&comparable(&json!([line, trajectories(&kept(line))])));
    results.iter().map(row).collect()
}

/// Returns the value without the schemas of tools, which each language makes in its own words, and without the names and
/// times of the model's replies.
fn without_schemas(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter(|(name, _)| !["tools", "tool_definitions", "created"].contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), without_schemas(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_schemas).collect(),
        Value::String(text) if text.starts_with("chatcmpl-mock-") => "chatcmpl-mock".into(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn environments_in_all_languages_play_the_same_episodes() {
    for Game { example: name, lines, replies } in GAMES {
        let mut others = vec![python_guest(&format!("examples/{name}/python"))];
        if has_javascript() {
            others.push(javascript_guest(&format!("examples/{name}/js")));
        }
        let dir = tempfile::tempdir().unwrap();
        let rust = example(&format!("example-{name}"));
        let by_lines = played(&rust, lines, &dir).await;
        let by_model = evaluated(&rust, &replies(), &dir).await;
        // The script has errors, a second episode, and rewards.
        assert!(by_lines.iter().any(|line| line.starts_with("error")), "{by_lines:#?}");
        assert!(by_lines.iter().any(|line| line.contains("with the reward 1")), "{by_lines:#?}");
        assert!(
            by_model.iter().any(|row| row[0]["reward"] == 1.0 || row[0]["reward"] == 0.5),
            "{by_model:#?}"
        );

        for other in others {
            let dir = tempfile::tempdir().unwrap();
            assert_eq!(played(&other, lines, &dir).await, by_lines, "{name} {other:?}");
            let rows = evaluated(&other, &replies(), &dir).await;
            assert_eq!(rows.len(), by_model.len(), "{name} {other:?}");
            for (row, expected) in rows.iter().zip(&by_model) {
                assert_eq!(row, expected, "{name} {other:?}");
            }
        }
    }
}
