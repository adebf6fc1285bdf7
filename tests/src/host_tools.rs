//! Rollouts that call host-provided tools, by the guest `call_host_tools`.

use serde_json::{Value, json};

use crate::{Controller, Serve, TestHost};

/// What came of a rollout that called host-provided tools.
#[derive(Debug)]
pub struct Called {
    /// What the guest was told: the names that were provided, and the results.
    pub report: Value,
    /// What the host wrote down.
    pub trajectory: Value,
}

impl Called {
    /// The text and the error flag of each call.
    pub fn results(&self) -> Vec<(&str, bool)> {
        let results = self.report["results"].as_array().expect("there are results");
        let text = |result: &'_ Value| result["is_error"].as_bool().expect("a result says whether");
        results
            .iter()
            .map(|result| (result["content"].as_str().expect("a result has a text"), text(result)))
            .collect()
    }

    /// The names that were provided.
    pub fn offered(&self) -> Vec<&str> {
        let names = self.report["available"].as_array().expect("there are names");
        names.iter().filter_map(Value::as_str).collect()
    }

    /// The calls that the host observed.
    pub fn observed(&self) -> &[Value] {
        self.trajectory["extra"]["rollout_host"]["observed_tool_calls"].as_array().map_or(&[], Vec::as_slice)
    }
}

/// A host that provides tools as these lines of configuration say.
pub fn providing(config: &str) -> Serve {
    TestHost::of("call_host_tools").config(config)
}

/// Runs a rollout that makes these calls. It succeeds whatever the tools do.
pub async fn call(host: &TestHost, calls: Value) -> Called {
    call_as(host, json!({"calls": calls})).await
}

/// Runs a rollout that does what this says.
pub async fn call_as(host: &TestHost, wanted: Value) -> Called {
    let controller = Controller::start().await;
    let request = controller.rollout(&wanted.to_string()).label("-");
    let result = host.run(&request).await;
    assert_eq!(result["status"], "success", "a tool never fails a rollout: {result:#}");
    let messages = result["sample"]["messages"].as_array().expect("there are messages");
    let text = messages.last().and_then(|message| message["content"].as_str()).expect("there is a report");
    let report = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Called { report, trajectory: host.trajectory(request.rollout_id()).await }
}
