//! Admissions of rollouts in the journal.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::model::{RequestSecrets, RolloutRequest};
use crate::seal::Seal;
use rollout_guest::imports::ClockStart;
use rollout_outbound::Secret;

/// Version of the events' format. Other versions are not read.
pub(super) const VERSION: u32 = 1;

/// Data that a driver needs to resume a rollout in another process.
#[derive(Clone, Debug)]
pub struct Continuation {
    /// Name of the driver.
    pub driver: Cow<'static, str>,
    /// The driver's data, a JSON value without secrets.
    pub facts: Box<RawValue>,
    /// The driver's secret, which must not be readable on disk.
    pub secret: Option<Secret>,
}

/// Identity of the deployment that a rollout was admitted to: everything that determines what its guests do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentId {
    /// Digest of the component with the agent.
    pub workflow: String,
    /// Digest of the component that grades, if there is one.
    pub grader: Option<String>,
    /// Digest of the components' configuration and of the provided tools.
    pub settings: String,
    /// Name by which the next process finds the deployment again, if several plugins are served. It does not affect
    /// behaviour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<ServedAs>,
    /// The date that its rollouts' clocks start with. A rollout keeps it when it is resumed or rerun.
    #[serde(default, skip_serializing_if = "ClockStart::is_default")]
    pub clock_begins: ClockStart,
}

/// Name of a deployment if several plugins are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedAs {
    /// The plugin.
    pub plugin: String,
    /// Its version.
    pub version: u32,
}

impl DeploymentId {
    /// Returns the first difference in words, with both values.
    pub fn difference(&self, now: &Self) -> Option<String> {
        let none = || "none".to_owned();
        let (grader, grader_now) = (self.grader.clone(), now.grader.clone());
        let parts = [
            ("component", self.workflow.clone(), now.workflow.clone()),
            ("grader's component", grader.unwrap_or_else(none), grader_now.unwrap_or_else(none)),
            ("configuration", self.settings.clone(), now.settings.clone()),
        ];
        let differs = parts.into_iter().find(|(_, then, now)| then != now);
        differs.map(|(what, then, now)| format!("the {what} was {then} and is {now}"))
    }
}

/// An admission without its secrets.
#[derive(Serialize, Deserialize)]
pub(super) struct AdmissionLine<'a> {
    pub version: u32,
    pub nanos: u64,
    pub deployment: DeploymentId,
    pub driver: Cow<'static, str>,
    pub facts: Box<RawValue>,
    /// Borrowed when it is written, owned when it is read.
    pub request: Cow<'a, RolloutRequest>,
}

pub(super) fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn time(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

impl<'a> AdmissionLine<'a> {
    #[expect(clippy::disallowed_methods, reason = "another process measures from this time")]
    pub(super) fn new(
        request: &'a RolloutRequest,
        deployment: DeploymentId,
        driver: Cow<'static, str>,
        facts: Box<RawValue>,
    ) -> Self {
        let request = Cow::Borrowed(request);
        Self { version: VERSION, nanos: nanos(SystemTime::now()), deployment, driver, facts, request }
    }
}

/// The secrets of a rollout: those of its request and its driver.
#[derive(Clone, Debug, Default)]
pub struct JournaledSecrets {
    /// The secrets of the request.
    pub request: RequestSecrets,
    /// The secret of the driver.
    pub driver: Option<Secret>,
}

/// The secrets as JSON, before they are encrypted.
#[derive(Serialize, Deserialize)]
struct SecretsLine<'a> {
    #[serde(borrow)]
    model_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    model_url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    driver: Option<Cow<'a, str>>,
}

impl JournaledSecrets {
    pub(super) fn seal(&self, seal: &Seal, rollout: &[u8]) -> io::Result<Vec<u8>> {
        let text =
            |secret: &'_ Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned().into());
        let line = SecretsLine {
            model_key: text(&self.request.model_key),
            model_url: text(&self.request.model_url),
            driver: text(&self.driver),
        };
        seal.seal(rollout, &serde_json::to_vec(&line)?)
    }

    /// Decrypts the secrets of a rollout. Returns `None` if they were encrypted with another key or for another
    /// rollout.
    pub(super) fn open(seal: &Seal, rollout: &[u8], sealed: &[u8]) -> Option<Self> {
        let text = seal.open(rollout, sealed)?;
        let line: SecretsLine<'_> = serde_json::from_slice(&text).ok()?;
        let secret = |text: Option<Cow<'_, str>>| text.map(Secret::new);
        let SecretsLine { model_key, model_url, driver } = line;
        let request = RequestSecrets { model_key: secret(model_key), model_url: secret(model_url) };
        Some(Self { request, driver: secret(driver) })
    }
}
