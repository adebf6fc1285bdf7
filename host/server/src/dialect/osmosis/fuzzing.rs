//! Fuzz targets of this protocol's requests. The first byte decides whether the content type is JSON, which it nearly always
//! is.

use axum::http::{HeaderMap, HeaderValue, header};

use super::error::ApiError;
use super::request::{self, StartRollout};
pub(crate) use rollout_assembly::config::OsmosisGeneration;
use rollout_outbound::NetworkRules;
use rollout_wire as wire;

/// Maximum size in bytes of an error, whatever the size of its request.
const ERROR_BYTES_MAX: usize = 1 << 20;

fn json() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))])
}

fn check_error(error: &ApiError) {
    let ApiError::Invalid(problems) = error else { return };
    assert!(!problems.is_empty(), "an error says what is wrong");
    let mut bytes = 0;
    for problem in problems {
        let problem = serde_json::to_value(problem).expect("a problem is JSON");
        assert_eq!(problem["loc"][0], "body", "a problem says where: {problem}");
        assert!(problem["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{problem}");
        bytes += problem.to_string().len();
    }
    assert!(bytes < ERROR_BYTES_MAX, "an error of {bytes} bytes");
}

/// `POST /rollout`, of any generation.
pub(crate) fn start_rollout(body: &[u8]) {
    let read = request::read(&json(), body, OsmosisGeneration::default(), &NetworkRules::open());
    assert!(
        request::read(&HeaderMap::new(), body, OsmosisGeneration::default(), &NetworkRules::open()).is_err(),
        "a body of another content type is not parsed as JSON"
    );
    let parsed = match read {
        Ok(StartRollout::Polled(request)) => request.parsed,
        Ok(StartRollout::CalledBack(request)) => {
            assert!(
                request.completion_url.to_ascii_lowercase().starts_with("http"),
                "{}",
                request.completion_url
            );
            request.parsed
        }
        Err(error) => return check_error(&error),
    };
    let rollout = parsed.rollout;
    for message in rollout.prompt.iter() {
        assert!(wire::object(message).is_ok(), "a guest can read each message: {message}");
    }
    for seen in rollout.metadata.iter().flat_map(|metadata| [metadata.whole(), metadata.public()]) {
        assert!(wire::object(seen.get()).is_ok(), "a guest can read its metadata: {seen}");
    }
    assert!(
        rollout.workflow_secs.is_none_or(f64::is_finite) && rollout.grader_secs.is_none_or(f64::is_finite)
    );
    assert_eq!(rollout.attempt, 1);
    assert!(rollout.samples_max >= 1);
    assert_eq!(parsed.label, rollout.label);
}

/// `POST /rollout/cancel`.
pub(crate) fn cancel(body: &[u8]) {
    if let Err(error) = super::cancel::read(&json(), body) {
        check_error(&error);
    }
}
