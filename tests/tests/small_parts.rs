//! Tests of the memory for requests and acknowledgements with many small parts: it grows by a small multiple of the
//! bytes that were sent, whatever their content.

use rollout_tests::{Answer, Controller, RolloutRequest, TestHost, until};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// Maximum memory of the host in addition to the bytes.
const BESIDES_BYTES_MAX: usize = 64 * MIB;

/// Maximum multiple of the bytes that were sent.
const FACTOR_MAX: usize = 8;

/// Returns the host's peak memory, in bytes.
fn peak(host: &TestHost) -> usize {
    let id = host.process().id().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("this is a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("it has one");
    kib * 1024
}

/// Returns a list of this many bytes with the same item.
fn list(item: &str, bytes: usize) -> String {
    format!("[{}{item}]", format!("{item},").repeat(bytes / (item.len() + 1)))
}

/// Returns the body with this text as the value of a field.
fn body_with(request: &RolloutRequest, field: &str, value: &str) -> String {
    request.clone().with(field, "@value@").body().to_string().replace("\"@value@\"", value)
}

async fn host() -> TestHost {
    // One slot, because guests also need memory for a large prompt.
    TestHost::of("conform").option("--max-concurrent", 1).option("--queue-max", 16).start().await
}

fn check(what: &str, before: usize, host: &TestHost, sent: usize) {
    let grown = peak(host).saturating_sub(before);
    let bound = FACTOR_MAX * sent + BESIDES_BYTES_MAX;
    println!("{what}: {} KiB for {} KiB", grown >> 10, sent >> 10);
    assert!(grown <= bound, "{what}: {} MiB more for {} MiB", grown / MIB, sent / MIB);
}

#[tokio::test]
async fn a_request_that_is_refused_takes_a_few_times_its_bytes() {
    let controller = Controller::start().await;
    let polled = controller.rollout("Calculate 2 + 3.");
    let init = |field: &str, value: &str| {
        let body = json!({
            "rollout_id": "r", "server_url": "http://127.0.0.1:9", "messages": [], "completion_params": {},
        });
        let mut body = body.as_object().expect("it is one").clone();
        body.insert(field.to_owned(), "@value@".into());
        Value::Object(body).to_string().replace("\"@value@\"", value)
    };
    let members: String = (0..1_000_000).map(|at| format!("\"{at}\":0,")).collect();
    let members = format!("{{{}\"last\":0}}", members);
    for (what, path, body, refused_as) in [
        ("messages", "/rollout", body_with(&polled, "initial_messages", &list("{}", 9 * MIB)), "too_long"),
        ("wrong items", "/rollout", body_with(&polled, "initial_messages", &list("0", 9 * MIB)), "dict_type"),
        ("a time", "/rollout", body_with(&polled, "agent_timeout_sec", &list("0", 12 * MIB)), "float_type"),
        ("a flag", "/rollout", body_with(&polled, "grade", &list("[]", 12 * MIB)), "bool_type"),
        ("ids", "/rollout/cancel", format!("{{\"ids\":{}}}", list("\"\"", 3 * MIB)), "too_long"),
        ("turns", "/v1/rollout/init", init("max_turns", &list("0", 12 * MIB)), "int_type"),
        (
            "metadata",
            "/v1/rollout/init",
            init("metadata", &format!("{{\"a\":{}}}", list("0", 12 * MIB))),
            "metadata is",
        ),
        ("parameters", "/v1/rollout/init", init("completion_params", &members), "parameters, more than"),
        ("other fields", "/rollout", members.clone(), "Field required"),
    ] {
        let host = host().await;
        let before = peak(&host);

        let reply = host.post_text(path, &body).await;

        assert_eq!(reply.status, 422, "{what}: {}", reply.text);
        assert!(reply.text.contains(refused_as), "{what}: {}", reply.text);
        check(what, before, &host, body.len());
    }
}

#[tokio::test]
async fn a_queued_prompt_takes_a_few_times_its_bytes() {
    let controller = Controller::start().await;
    let host = host().await;
    controller.hold();
    host.admit(&controller.rollout("Calculate 2 + 3.")).await;
    controller.chats_open(1).await;
    let before = peak(&host);
    let messages = list(r#"{"role":"a"}"#, 90_000 * 13);
    let mut sent = 0;
    let mut waiting = Vec::new();

    for _ in 0..8 {
        let request = controller.rollout("");
        let body = body_with(&request, "initial_messages", &messages);
        let reply = host.post_text("/rollout", &body).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        sent += body.len();
        waiting.push(request);
    }
    check("queued", before, &host, sent);

    for request in &waiting {
        assert_eq!(host.cancel(request.rollout_id()).await, "cancelled_queued");
    }
    check("cancelled", before, &host, sent);
}

#[tokio::test]
async fn fields_that_are_stored_for_the_trajectory_take_a_few_times_their_bytes() {
    let controller = Controller::start().await;
    let host = host().await;
    let before = peak(&host);
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    let fields = format!("{{\"a\":{}}}", list("0", 12 * MIB));
    let body = body_with(&request, "extra_fields", &fields);

    assert_eq!(host.post_text("/rollout", &body).await.status, 202);

    controller.callbacks_arrived(2).await;
    let path = host.kept().join(request.rollout_id()).join("trajectory.json");
    let is_written = async || std::fs::metadata(&path).ok().filter(|file| file.len() > 12 << 20);
    until("the trajectory", is_written).await;
    check("extra fields", before, &host, body.len());
}

#[tokio::test]
async fn an_acknowledgement_takes_a_few_times_its_bytes() {
    for (what, metrics) in [
        ("calls", list("{}", 11 * MIB)),
        ("tokens", format!("[{{\"prompt_token_ids\":{}}}]", list("0", 11 * MIB))),
    ] {
        let controller = Controller::start().await;
        let host = host().await;
        let before = peak(&host);
        let report =
            format!("{{\"trajectory\":{{\"samples\":{{\"s\":{{\"llm_call_metrics\":{metrics}}}}}}}}}");
        let sent = report.len();
        controller.answer_callbacks([Answer::Json(report)]);
        let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");

        host.ask(&request).await;

        controller.callbacks_arrived(2).await;
        let path = host.kept().join(request.rollout_id()).join("trajectory.json");
        let is_merged = async || std::fs::metadata(&path).ok().filter(|file| file.len() > 10 << 20);
        until("the report in the trajectory", is_merged).await;
        check(what, before, &host, sent);
    }
}

#[tokio::test]
async fn json_that_strict_readers_reject_is_refused_on_entry() {
    let controller = Controller::start().await;
    let host = host().await;
    let request = controller.rollout("Calculate 2 + 3.");
    for (field, value, why) in [
        ("initial_messages", r#"[{"role":"user","content":"\ud800"}]"#, "is half a character"),
        ("initial_messages", r#"[{"role":"user","n":[1e999]}]"#, "is out of the range of a double"),
        ("metadata", r#"{"a":"\udc00"}"#, "half a character"),
        ("extra_fields", r#"{"a":-1e400}"#, "out of the range"),
        ("label", r#""\ud800""#, "unable to parse raw data as a unicode string"),
    ] {
        let reply = host.post_text("/rollout", &body_with(&request, field, value)).await;
        assert_eq!(reply.status, 422, "{field}: {}", reply.text);
        assert!(reply.text.contains(why), "{field}: {}", reply.text);
    }

    // Such a reply of a model is rejected, and no part of it is passed on.
    let messages =
        [r#"{"role":"assistant","content":"5\ud800"}"#, r#"{"role":"assistant","content":"5","n":1e999}"#];
    for message in messages {
        let controller = Controller::start().await;
        let reply = format!(r#"{{"choices":[{{"message":{message},"finish_reason":"stop"}}]}}"#);
        controller.answer_chats(vec![Answer::Json(reply); 16]);
        let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;
        assert_eq!(result["err_category"], "http_error", "{message}: {result:#}");
    }
}
