//! Rollouts that call host-provided tools, by the guest `call_host_tools`.

use serde_json::{Value, json};

use crate::{Controller, Serve, TestHost};

/// The result of a rollout that called host-provided tools.
#[derive(Debug)]
pub struct Called {
    /// The guest's report: the provided names, and the results.
    pub report: Value,
    /// The host's trajectory.
    pub trajectory: Value,
}

impl Called {
    /// Returns the text and the error flag of each call.
    pub fn results(&self) -> Vec<(&str, bool)> {
        let results = self.report["results"].as_array().expect("there are results");
        let text = |result: &'_ Value| result["is_error"].as_bool().expect("a result has the flag");
        results
            .iter()
            .map(|result| (result["content"].as_str().expect("a result has a text"), text(result)))
            .collect()
    }

    /// Returns the names of the provided tools.
    pub fn offered(&self) -> Vec<&str> {
        let names = self.report["available"].as_array().expect("there are names");
        names.iter().filter_map(Value::as_str).collect()
    }

    /// Returns the calls that the host observed.
    pub fn observed(&self) -> &[Value] {
        self.trajectory["extra"]["rollout_host"]["observed_tool_calls"].as_array().map_or(&[], Vec::as_slice)
    }
}

/// Returns options of a host that provides the tools in these lines of configuration.
pub fn providing(config: &str) -> Serve {
    TestHost::of("call_host_tools").config(config)
}

/// Runs a rollout that makes these calls. It succeeds even if tools fail.
pub async fn call(host: &TestHost, calls: Value) -> Called {
    call_as(host, json!({"calls": calls})).await
}

/// Runs a rollout with these instructions for the guest.
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
