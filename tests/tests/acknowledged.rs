//! Reports about model calls with which a caller acknowledges a callback, in generations B and C: they become part of
//! the trajectories.

use rollout_tests::{Answer, Controller, RolloutRequest, TestHost, until};
use serde_json::{Value, json};

/// Returns the acknowledgement of a callback with this report.
fn reporting(report: Value) -> Answer {
    Answer::Status(200, json!({"status": "ok", "trajectory": report}))
}

fn acknowledged() -> Answer {
    Answer::Status(200, json!({"status": "ok"}))
}

/// Runs a rollout whose callbacks get these answers; returns its trajectory at the end.
async fn trajectory(request: &RolloutRequest, answers: [Answer; 2], controller: &Controller) -> Value {
    let host = TestHost::start("conform").await;
    controller.answer_callbacks(answers);
    assert_eq!(host.ask(request).await.status, 202);
    // The report of the last callback is merged after its acknowledgement; the host ends after both.
    host.stop_for_document(request.rollout_id(), "trajectory.json").await
}

#[tokio::test]
async fn a_report_on_the_completion_is_in_the_trajectory() {
    let call = json!({
        "prompt_tokens": 11, "completion_tokens": 4, "cached_tokens": 2, "cost_usd": 0.5,
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25],
        "model_name": "engine-7", "extra": {"queue_ms": 3},
    });
    let report = json!({"model_name": "engine", "samples": {"whatever": {"llm_call_metrics": [call]}}});
    for ask in [
        (|request: RolloutRequest| request.with_callbacks("k")) as fn(RolloutRequest) -> RolloutRequest,
        RolloutRequest::as_b,
    ] {
        let controller = Controller::start().await;
        let request = ask(controller.rollout("Calculate 2 + 3.").label("5"));

        let document = trajectory(&request, [reporting(report.clone()), acknowledged()], &controller).await;

        let step = &document["steps"][1];
        let expected = json!({
            "prompt_tokens": 11, "completion_tokens": 4, "cached_tokens": 2, "cost_usd": 0.5,
            "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25],
            "extra": {"queue_ms": 3},
        });
        assert_eq!(step["metrics"], expected, "{document:#}");
        assert_eq!((&step["model_name"], &step["llm_call_count"]), (&json!("engine-7"), &json!(1)));
        assert_eq!(document["agent"]["model_name"], "engine");
        let sums = json!({
            "total_prompt_tokens": 11, "total_completion_tokens": 4, "total_cached_tokens": 2,
            "total_cost_usd": 0.5, "total_steps": 2,
        });
        assert_eq!(document["final_metrics"], sums);
        let observed = &document["extra"]["rollout_host"]["observed"];
        assert_eq!(observed.as_array().map(Vec::len), Some(1), "the host's observations stay: {document:#}");
        assert_eq!(document["extra"]["osmosis"]["reward"], 1.0);
    }
}

#[tokio::test]
async fn a_report_on_the_grader_callback_replaces_that_on_the_completion() {
    let calls = |tokens: u64, count: usize| json!({"samples": {"s": {"llm_call_metrics": vec![json!({"prompt_tokens": tokens}); count]}}});
    let controller = Controller::start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");

    let document =
        trajectory(&request, [reporting(calls(100, 1)), reporting(calls(9, 1))], &controller).await;

    assert_eq!(document["steps"][1]["metrics"], json!({"prompt_tokens": 9}), "{document:#}");
    assert_eq!(document["final_metrics"]["total_prompt_tokens"], 9);

    // A report that matches no step leaves the host's observations, and nothing of the first report.
    let controller = Controller::start().await;
    let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");
    let document =
        trajectory(&request, [reporting(calls(100, 1)), reporting(calls(9, 2))], &controller).await;
    assert_eq!(document["steps"][1]["metrics"]["prompt_tokens"], 7, "{document:#}");
    assert_eq!(
        document["extra"]["osmosis"]["unmatched_llm_call_metrics"],
        json!([{"prompt_tokens": 9}, {"prompt_tokens": 9}])
    );
    assert_eq!(document["final_metrics"]["total_prompt_tokens"], 18);
}

#[tokio::test]
async fn a_report_that_cannot_be_read_changes_nothing() {
    for body in [
        json!({"trajectory": {"samples": []}}),
        json!({"trajectory": {"samples": {"s": {"llm_call_metrics": [{"prompt_tokens": "many"}]}}}}),
        json!({"trajectory": null}),
        json!([{"trajectory": {"model_name": "engine"}}]),
        json!("trajectory"),
    ] {
        let controller = Controller::start().await;
        let request = controller.rollout("Calculate 2 + 3.").label("5").with_callbacks("k");

        let answers = [Answer::Status(200, body.clone()), Answer::Text("{no JSON")];
        let document = trajectory(&request, answers, &controller).await;

        assert_eq!(document["steps"][1]["metrics"]["prompt_tokens"], 7, "{body}");
        assert_eq!(document["agent"]["model_name"], "a-model", "{body}");
    }
}

#[tokio::test]
async fn each_of_several_samples_gets_the_report_under_its_id() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let report = json!({"samples": {
        "second": {"model_name": "engine", "llm_call_metrics": [{"prompt_tokens": 22}]},
        "nobody": {"llm_call_metrics": [{"prompt_tokens": 99}]},
    }});
    controller.answer_callbacks([reporting(report)]);
    let request = controller.rollout("please branch: 2 + 3").label("5").as_b();
    host.ask(&request).await;
    controller.callbacks_arrived(2).await;

    let second = host.document(request.rollout_id(), "trajectory-second.json").await;
    let first = host.document(request.rollout_id(), "trajectory-first.json").await;

    assert_eq!(second["steps"][1]["metrics"], json!({"prompt_tokens": 22}), "{second:#}");
    assert_eq!(second["agent"]["model_name"], "engine");
    assert_eq!(first["steps"][1]["metrics"]["prompt_tokens"], 7, "{first:#}");
    assert_eq!(first["agent"]["model_name"], "a-model");
}

#[tokio::test]
async fn a_rollout_that_failed_has_its_report_too() {
    let controller = Controller::start().await;
    let host = TestHost::start("conform").await;
    let report =
        json!({"model_name": "engine", "samples": {"s": {"final_metrics": {"total_cost_usd": 2.5}}}});
    controller.answer_callbacks([acknowledged(), reporting(report)]);
    let request = controller.rollout("please fail").label("5").with_callbacks("k");
    host.ask(&request).await;

    let reported = until("the report to be merged", async || {
        let document = host.trajectory(request.rollout_id()).await;
        (document["agent"]["model_name"] == "engine").then_some(document)
    });

    assert_eq!(reported.await["final_metrics"], json!({"total_cost_usd": 2.5, "total_steps": 1}));
}
