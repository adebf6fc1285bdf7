//! What a rollout is admitted with, as it is kept.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::model::{RequestSecrets, RolloutRequest};
use crate::seal::Seal;
use rollout_guest::imports::ClockStart;
use rollout_outbound::Secret;

/// The version of the events' form. Another one is not read.
pub(super) const VERSION: u32 = 1;

/// What a driver needs to go on with a rollout in another process.
#[derive(Clone, Debug)]
pub struct Continuation {
    /// Which driver.
    pub driver: Cow<'static, str>,
    /// What it knows, a JSON value without a secret.
    pub facts: Box<RawValue>,
    /// What of it must not be read on disk.
    pub secret: Option<Secret>,
}

/// Which deployment a rollout was admitted to: all that decides on what its guests do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentId {
    /// The digest of the component with the agent.
    pub workflow: String,
    /// The digest of the component that grades, if one does.
    pub grader: Option<String>,
    /// A digest of the components' configuration and of the tools that are provided.
    pub settings: String,
    /// What it is called among several, by which it is found again. It decides on nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<ServedAs>,
    /// The date that clocks of its rollouts begin at. A rollout keeps it wherever it goes on or is made again.
    #[serde(default, skip_serializing_if = "ClockStart::is_default")]
    pub clock_begins: ClockStart,
}

/// What a deployment is called among several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedAs {
    /// The plugin.
    pub plugin: String,
    /// Which of its versions.
    pub version: u32,
}

impl DeploymentId {
    /// What differs, in words with both sides.
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

/// What is kept of an admission but for secrets.
#[derive(Serialize, Deserialize)]
pub(super) struct AdmissionLine<'a> {
    pub version: u32,
    pub nanos: u64,
    pub deployment: DeploymentId,
    pub driver: Cow<'static, str>,
    pub facts: Box<RawValue>,
    /// Read, it is one of its own.
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
    #[expect(clippy::disallowed_methods, reason = "a time that another process measures from")]
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

/// The secrets of a rollout: its request's and its driver's.
#[derive(Clone, Debug, Default)]
pub struct JournaledSecrets {
    /// The request's.
    pub request: RequestSecrets,
    /// The driver's.
    pub driver: Option<Secret>,
}

/// How they are kept, sealed.
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

    /// What was sealed for this rollout, if the seal is the same.
    pub(super) fn open(seal: &Seal, rollout: &[u8], sealed: &[u8]) -> Option<Self> {
        let text = seal.open(rollout, sealed)?;
        let line: SecretsLine<'_> = serde_json::from_slice(&text).ok()?;
        let secret = |text: Option<Cow<'_, str>>| text.map(Secret::new);
        let SecretsLine { model_key, model_url, driver } = line;
        let request = RequestSecrets { model_key: secret(model_key), model_url: secret(model_url) };
        Some(Self { request, driver: secret(driver) })
    }
}
