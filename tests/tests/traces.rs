//! Tests of traces as a collector receives them.

use rollout_tests::{
    Answer, Collector, Controller, Start, TestHost, TracedSpan, call, guest, providing, rollout_host,
};
use serde_json::json;

fn named<'a>(spans: &'a [TracedSpan], name: &str) -> Vec<&'a TracedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn only<'a>(spans: &'a [TracedSpan], name: &str) -> &'a TracedSpan {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name} in {spans:#?}");
    found[0]
}

/// Checks that the spans of a rollout form one trace, and that each lies within the time of its parent.
fn check_tree(spans: &[TracedSpan]) {
    let root = only(spans, "rollout");
    for span in spans {
        assert_eq!(span.trace, root.trace, "{span:#?}");
        assert!(span.started <= span.ended, "{span:#?}");
        if span.id != root.id {
            let above = spans.iter().find(|above| above.id == span.parent);
            let above = above.unwrap_or_else(|| panic!("nothing is above {span:#?}"));
            assert!(above.started <= span.started, "{above:#?} begins after {span:#?}");
        }
    }
}

#[tokio::test]
async fn a_rollout_is_a_trace_with_a_span_for_each_phase() {
    let (controller, collector) = (Controller::start().await, Collector::start().await);
    let host = TestHost::of("conform").option("--otlp", collector.url()).start().await;
    controller.answer_chats([Answer::Soon(503)]);
    let request = controller.rollout("Calculate 2 + 3.").label("5");

    host.run(&request).await;

    let spans = collector.arrived(8).await;
    check_tree(&spans);
    let root = only(&spans, "rollout");
    assert_eq!(root.parent, "", "the caller sent no trace");
    assert_eq!(root.attribute("rollout.id"), request.rollout_id());
    assert_eq!(root.attribute("rollout.outcome"), "scored");
    assert_eq!(root.attribute("rollout.reward"), 1.0);
    assert_eq!(root.attribute("gen_ai.usage.input_tokens"), 7);
    assert_eq!(root.attribute("gen_ai.usage.output_tokens"), 3);
    assert_eq!(root.error, None);
    for phase in ["queue", "workflow", "grader", "trajectory_write"] {
        assert_eq!(only(&spans, phase).parent, root.id, "{phase}");
    }
    let (workflow, grader) = (only(&spans, "workflow"), only(&spans, "grader"));
    assert!(only(&spans, "queue").started >= root.started);
    let chat = only(&spans, "chat");
    assert_eq!(chat.parent, workflow.id);
    assert_eq!(chat.attribute("http.response.status_code"), 200);
    assert_eq!(chat.attribute("http.request.resend_count"), 1);
    assert_eq!(chat.attribute("gen_ai.usage.input_tokens"), 7);
    assert_eq!(chat.attribute("gen_ai.response.finish_reasons"), &json!(["stop"]));
    let starts: Vec<&str> = named(&spans, "instance_start").iter().map(|span| span.parent.as_str()).collect();
    assert_eq!(starts, [&workflow.id, &grader.id]);
    assert_eq!(collector.services(), ["rollout-host"]);
    let text = format!("{spans:?}");
    assert!(!text.contains("Calculate") && !text.contains("127.0.0.1"), "no prompt and no address: {text}");
}

#[tokio::test]
async fn a_call_of_a_host_provided_tool_has_a_span_below_its_phase() {
    let collector = Collector::start().await;
    let kit = guest("tool_kit");
    let host = providing(&format!("[[tools.component]]\npath = {kit:?}\n"))
        .option("--otlp", collector.url())
        .start()
        .await;

    call(&host, json!([["upper", {"text": "quiet please"}], ["refuse", {}]])).await;

    let spans = collector.arrived(9).await;
    check_tree(&spans);
    let calls = named(&spans, "execute_tool");
    let of = |name: &str| *calls.iter().find(|span| span.attribute("gen_ai.tool.name") == name).unwrap();
    let (upper, refuse) = (of("upper"), of("refuse"));
    for span in calls.iter().copied() {
        assert_eq!(span.parent, only(&spans, "workflow").id);
        assert_eq!(span.attribute("gen_ai.operation.name"), "execute_tool");
    }
    assert_eq!(upper.attribute("gen_ai.tool.call.id"), "call_0");
    assert_eq!((upper.error.as_deref(), refuse.error.as_deref()), (None, Some("the tool's call failed")));
    assert!(
        !format!("{spans:?}").to_lowercase().contains("quiet"),
        "no arguments and no results: {spans:#?}"
    );
}

#[tokio::test]
async fn a_call_of_the_judge_has_a_span_below_the_graders() {
    let (controller, judge, collector) =
        (Controller::start().await, Controller::start().await, Collector::start().await);
    judge.answer_chats([Answer::Say(r#"{"score": 8, "explanation": "Nearly."}"#)]);
    let host = TestHost::of("judged")
        .config(&format!("[judge]\nurl = '{}'\nmodel = 'a-judge'\n", judge.model_url()))
        .option("--otlp", collector.url())
        .start()
        .await;

    host.run(&controller.rollout("1 + 2").label("3")).await;

    let spans = collector.arrived(9).await;
    check_tree(&spans);
    let judged = only(&spans, "judge");
    assert_eq!(judged.parent, only(&spans, "grader").id);
    assert_eq!(judged.attribute("gen_ai.request.model"), "a-judge");
    assert_eq!(judged.attribute("gen_ai.usage.input_tokens"), 7);
    assert_eq!(only(&spans, "chat").parent, only(&spans, "workflow").id);
}

#[tokio::test]
async fn a_rollout_belongs_to_the_trace_of_its_caller() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let (controller, collector) = (Controller::start().await, Collector::start().await);
    let host = TestHost::of("give_up").option("--otlp", collector.url()).start().await;
    let ask = async |text: &str, flags: &str| {
        let client = reqwest::Client::new();
        let request = controller.rollout(text).label("5").with_callbacks("key");
        let sent = client
            .post(format!("{}/rollout", host.url()))
            .header("content-type", "application/json")
            .header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-{flags}"))
            .body(request.body().to_string());
        assert_eq!(sent.send().await.expect("the host answers").status(), 202);
    };

    ask("Calculate 2 + 3.", "00").await;
    controller.callbacks_arrived(2).await;
    controller.answer_callbacks([Answer::Soon(503)]);
    ask("misbehave", "01").await;
    controller.callbacks_arrived(5).await;
    host.idle().await;

    let ran = host.stop().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // The host has ended, so there will be no more spans.
    let spans = collector.spans();
    check_tree(&spans);
    let root = only(&spans, "rollout");
    assert_eq!((root.trace.as_str(), root.parent.as_str()), (TRACE, "b7ad6b7169203331"));
    assert_eq!(root.attribute("error.type"), "error");
    assert_eq!(root.attribute("rollout.stage"), "workflow");
    assert!(root.error.is_some() && only(&spans, "workflow").error.is_some(), "{spans:#?}");
    let callbacks = named(&spans, "callback");
    assert_eq!(callbacks.len(), 2, "{spans:#?}");
    assert_eq!(callbacks[0].attribute("http.request.resend_count"), 1);
    assert!(callbacks.iter().all(|span| span.attribute("http.response.status_code") == 200));
    assert!(callbacks.iter().all(|span| span.ended <= root.ended), "the trace ends with the last callback");
}

#[tokio::test]
async fn an_evaluation_sends_all_of_its_traces_before_it_ends() {
    let collector = Collector::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let rows: String = (0..50)
        .map(|number| {
            format!("{}\n", json!({"user_prompt": format!("Calculate {number} + 3."), "ground_truth": "5"}))
        })
        .collect();
    std::fs::write(dir.path().join("rows.jsonl"), rows).expect("it can be written");
    let mut command = rollout_host(["eval"]);
    command.arg(guest("conform")).args(["--data", "rows.jsonl", "--out", "out", "--model", "mock"]);
    command.args(["--otlp", collector.url(), "--n", "4"]).current_dir(dir.path());

    let ran = command.start().ended().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let spans = collector.spans();
    assert_eq!(named(&spans, "rollout").len(), 200);
    assert_eq!(named(&spans, "chat").len(), 200);
}

#[tokio::test]
async fn a_collector_that_accepts_nothing_delays_no_rollout_and_is_counted() {
    let controller = Controller::start().await;
    let host = TestHost::of("conform").option("--otlp", "http://127.0.0.1:1").start().await;

    let result = host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    rollout_tests::until("spans that are dropped", async || {
        let dropped = host.metrics().await.get("rollout_host_trace_spans_dropped_total");
        dropped.filter(|dropped| *dropped >= 8.0)
    })
    .await;
    let ran = host.stop().await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("the trace collector accepted no spans").count(), 1, "{}", ran.stderr);
}

#[tokio::test]
async fn a_collector_that_hangs_does_not_delay_the_end() {
    let (controller, collector) = (Controller::start().await, Collector::start().await);
    let host = TestHost::of("conform").option("--otlp", collector.url()).start().await;
    collector.hold();
    host.run(&controller.rollout("Calculate 2 + 3.").label("5")).await;

    let ran = host.stop().await;

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("some traces were not sent"), "{}", ran.stderr);
}

#[tokio::test]
async fn an_invalid_url_of_a_collector_is_refused() {
    let mut command = rollout_host(["serve"]);
    command.arg(guest("conform")).args(["--otlp", "localhost:4317", "--listen", "127.0.0.1:0"]);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");

    let ran = command.current_dir(dir.path()).start().ended().await;

    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("'localhost:4317' is not the http or https URL"), "{}", ran.stderr);
}
