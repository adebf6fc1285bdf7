//! Tests that keys are in clear text only in the requests that carry them: not in the journal, files of rollouts, logs,
//! traces, metrics, results or callbacks, even if servers repeat them.

use std::path::Path;

use rollout_tests::{
    Answer, Collector, Controller, InitRequest, KEY_OF_B, Serve, Start, TestHost, in_time, rollout_host,
    until,
};
use serde_json::json;

const MODEL_KEY: &str = "mark-of-the-model-3f9a61c07d";
const CALLBACK_KEY: &str = "mark-of-the-callback-b8120e5f44";
const SERVER_KEY: &str = "mark-of-the-server-d06c7713aa";
const JUDGE_KEY: &str = "mark-of-the-judge-90be24f6c1";
const TOOL_KEY: &str = "mark-of-the-tool-7ad3518e02";
const TOOL_URL_KEY: &str = "mark-of-the-tools-url-c4f02e6b95";
const URL_KEY: &str = "mark-of-the-models-url-5e77d2a018";
const KEY_OF_A: &str = "mark-of-the-trainer-of-a-e1b64490cf";

/// All keys of these tests.
const KEYS: [&str; 9] =
    [MODEL_KEY, CALLBACK_KEY, SERVER_KEY, JUDGE_KEY, TOOL_KEY, TOOL_URL_KEY, URL_KEY, KEY_OF_A, KEY_OF_B];

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns the part of a key's base64 that does not depend on what follows, if the key begins `offset` bytes into the
/// encoded text.
fn base64(key: &str, offset: usize) -> String {
    let bytes: Vec<u8> = std::iter::repeat_n(0, offset).chain(key.bytes()).collect();
    let groups = bytes.chunks_exact(3).skip(usize::from(offset > 0));
    let digits = groups.flat_map(|group| {
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        [18, 12, 6, 0].map(|shift| char::from(BASE64[(bits >> shift) as usize & 63]))
    });
    digits.collect()
}

/// Returns a key in the forms in which it could be stored.
fn forms(key: &str) -> Vec<String> {
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    let encoded = (0..3).map(|offset| base64(key, offset));
    [key.to_owned(), hex].into_iter().chain(encoded).collect()
}

fn check(bytes: &[u8], what: &str) {
    let forms: Vec<(&str, String)> =
        KEYS.iter().flat_map(|key| forms(key).into_iter().map(|form| (*key, form))).collect();
    // Most of a journal's segments is unused space.
    for part in bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty()) {
        let text = String::from_utf8_lossy(part);
        for (key, form) in &forms {
            assert!(!text.contains(form.as_str()), "{what} has {key} as {form}");
        }
    }
}

/// Checks every file below a folder; gives their number and bytes.
fn check_folder(folder: &Path) -> (usize, usize) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        check(path.as_os_str().as_encoded_bytes(), "a file's name");
        if path.is_dir() {
            let (more, their) = check_folder(&path);
            (files, bytes) = (files + more, bytes + their);
        } else {
            let content = std::fs::read(&path).unwrap();
            check(&content, &path.display().to_string());
            (files, bytes) = (files + 1, bytes + content.len());
        }
    }
    (files, bytes)
}

#[test]
fn a_key_is_recognized_in_every_form() {
    // The values are from coreutils' `base64`, of the key and of `Bearer ` followed by the key.
    assert_eq!(base64("mark-of-the-model", 0), "bWFyay1vZi10aGUtbW9k");
    let encoded = "QmVhcmVyIG1hcmstb2YtdGhlLW1vZGVsLTNmOWE2MWMwN2Q=";
    assert!(forms(MODEL_KEY).iter().any(|form| encoded.contains(form.as_str())));
    assert_eq!(forms("ab")[1], "6162");
    for found in [MODEL_KEY.to_owned(), encoded.to_owned(), forms(TOOL_KEY)[1].clone()] {
        let bytes = format!("\0\0{found}\0").into_bytes();
        assert!(std::panic::catch_unwind(|| check(&bytes, "a text")).is_err(), "{found}");
    }
    check(b"\0 mark-of-the-nobody \xff", "a text");
}

/// Sets options of a host that writes everything: a journal, files, events, traces, and a debug log.
fn telling(serve: Serve, collector: &Collector) -> Serve {
    serve
        .variable("ROLLOUT_HOST_LOG", "debug")
        .variable("SERVER_KEY", SERVER_KEY)
        .option("--server-key-env", "SERVER_KEY")
        .option("--journal", "journal")
        .option("--trajectories", "files")
        .option("--log", "events")
        .option("--otlp", collector.url())
        .config("[callback]\nattempts-max = 2\ndelay-base-secs = 0.01\n")
}

const MODEL_AND_JUDGE: &str = "[model]\nattempts-max = 2\ndelay-base-secs = 0.01\n[judge]\nmodel = 'j'\napi-key-env = 'JUDGE_KEY'\n\
    attempts-max = 2\n";

/// Returns answers of a model that repeat its key, as a reply and as errors.
fn repeating(key: &'static str) -> [Answer; 4] {
    let refusal = json!({"error": {"message": format!("wrong key {key}")}});
    let reply = json!({"choices": [{"message": {"role": "assistant", "content": format!("{key} #### 5")}, "finish_reason": "stop"}]});
    [
        Answer::Json(reply.to_string()),
        Answer::Status(401, refusal.clone()),
        Answer::Status(503, refusal.clone()),
        Answer::Status(503, refusal),
    ]
}

#[tokio::test]
async fn no_key_of_a_rollout_is_in_clear_text_in_any_generation() {
    let (controller, judge, collector) =
        (Controller::start().await, Controller::start().await, Collector::start().await);
    let config = format!("{MODEL_AND_JUDGE}url = '{}'\n", judge.model_url());
    let serve = TestHost::of("judged").config(&config).variable("JUDGE_KEY", JUDGE_KEY);
    let serve = telling(serve, &collector);
    let host = serve.clone().start().await.with_key(SERVER_KEY);
    judge.answer_chats(repeating(JUDGE_KEY));
    judge.answer_chats(repeating(JUDGE_KEY));
    // Three rollouts each: with a reply, a refusal, and an unavailable server.
    let mut seen = Vec::new();
    let request = || controller.rollout("1 + 4").label("5");
    controller.answer_chats(repeating(MODEL_KEY));
    for _ in 0..3 {
        seen.push(host.run(&request().with("llm_api_key", MODEL_KEY)).await.to_string());
    }
    let with_user = controller.model_url().replace("http://", &format!("http://user:{URL_KEY}@"));
    for url in [with_user.clone(), format!("{}?key={URL_KEY}", controller.model_url())] {
        controller.answer_chats([Answer::Status(400, json!({"error": format!("not {URL_KEY}")}))]);
        seen.push(host.run(&request().with("chat_completions_url", url)).await.to_string());
    }
    for (key, by) in [(MODEL_KEY, "c"), (KEY_OF_B, "b")] {
        controller.answer_chats(repeating(key));
        // The caller repeats its key, too, and accepts the result on the second attempt.
        controller.answer_callbacks([Answer::Status(503, json!({"detail": [CALLBACK_KEY, KEY_OF_B]}))]);
        for _ in 0..3 {
            let request = match by {
                "c" => request().with_callbacks(CALLBACK_KEY).with("llm_api_key", MODEL_KEY),
                _ => request().as_b(),
            };
            assert!([200, 202].contains(&host.ask(&request).await.status), "{by}");
            host.idle().await;
        }
    }
    controller.answer_chats(repeating(KEY_OF_A));
    for _ in 0..3 {
        let init = InitRequest::new(&controller, "1 + 4").with("api_key", KEY_OF_A);
        let reply = host.post("/v1/rollout/init", &init.body()).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        seen.push(reply.text);
        host.idle().await;
    }
    // An invalid request is refused with the reason, which only its sender receives.
    for (key, name) in [(SERVER_KEY, "SERVER_KEY"), (MODEL_KEY, "llm_api_key")] {
        let reply = host.post("/rollout", &json!({"rollout_id": 7, name: [key]})).await;
        assert_eq!(reply.status, 422);
    }

    // One rollout runs when the process dies, so that its keys are in the journal for the next process.
    controller.hold();
    let alive = request().with_callbacks(CALLBACK_KEY).with("llm_api_key", MODEL_KEY);
    let alive = alive.with("chat_completions_url", with_user);
    assert_eq!(host.ask(&alive).await.status, 202);
    controller.chats_open(1).await;
    seen.push(host.health().await.to_string());
    seen.push(host.get("/metrics").await.text);
    seen.push(host.process().stderr());
    let (files, bytes) = check_folder(host.dir());
    assert!(files >= 20 && bytes > 100_000, "{files} files of {bytes} bytes were looked through");
    let calls = controller.chats().len();
    let host = host.killed(&serve).await.with_key(SERVER_KEY);
    let again = async || (controller.chats().len() > calls).then_some(());
    until("the rollout to go on", again).await;
    controller.release();
    host.idle().await;
    let resumed = controller.chats().pop().unwrap();
    assert_eq!(resumed.header("authorization"), Some(&*format!("Bearer {MODEL_KEY}")), "it had its key");

    let saved = host.dir().join("saved.rollout");
    let mut saving = rollout_host(["replay", alive.rollout_id(), "--journal", "journal", "--save"]);
    let ran = saving.arg(&saved).current_dir(host.dir()).start().ended().await;
    assert!(saved.exists(), "{ran:?}");
    seen.extend([ran.stdout, ran.stderr]);
    for callback in controller.callbacks() {
        seen.push(callback.body.to_string());
    }
    let spans = in_time("spans", collector.arrived(40)).await;
    seen.push(format!("{spans:?}"));
    check_folder(host.dir());
    let ran = host.stop().await;
    seen.extend([ran.stdout, ran.stderr]);
    let all: String = seen.join("\n");
    check(all.as_bytes(), "the host's output");
    assert!(all.contains("(secret)"), "servers repeated keys, and they were cut out");
    assert!(!judge.chats().is_empty(), "the judge was called");
}

#[tokio::test]
async fn no_key_of_a_tool_is_in_clear_text() {
    let (tools, collector) = (Controller::start().await, Collector::start().await);
    // The mock answers repeat the keys, as a success and as a refusal.
    let echo = json!({"keys": [TOOL_KEY, TOOL_URL_KEY]});
    tools.answer_chats([Answer::Status(200, echo.clone()), Answer::Status(400, echo)]);
    let config = format!(
        "[[tools.http]]\nname = 'ask'\ndescription = 'Asks.'\nmethod = 'POST'\nprivate-addresses = true\n\
         url = '{}/chat/completions?key=${{TOOL_URL_KEY}}'\nheaders = {{ authorization = 'Bearer ${{TOOL_KEY}}' }}\n",
        tools.model_url()
    );
    let serve = rollout_tests::providing(&config);
    let serve = serve.variable("TOOL_KEY", TOOL_KEY).variable("TOOL_URL_KEY", TOOL_URL_KEY);
    let host = telling(serve, &collector).start().await.with_key(SERVER_KEY);

    let called = rollout_tests::call(&host, json!([["ask", {}], ["ask", {}]])).await;

    let results = format!("{called:?}");
    assert_eq!(tools.chats().len(), 2, "the tool was called: {results}");
    assert!(results.contains("(secret)"), "{results}");
    check(results.as_bytes(), "the guest's results");
    let (files, _) = check_folder(host.dir());
    assert!(files > 4, "{files} files were looked through");
    let ran = host.stop().await;
    check(ran.stderr.as_bytes(), "the log");
    check(ran.stdout.as_bytes(), "standard output");
}
