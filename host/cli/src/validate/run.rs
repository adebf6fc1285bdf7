//! Runs one rollout with scripted replies and records its requests and results.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use rollout_eval as eval;
use rollout_eval::Row;
use rollout_eval::run::Model;
use rollout_outbound::{ChatFailure, Observer, Watched};
use rollout_rollout::{
    AfterWorkflow, Failure, Finished, Host, Next, Outcome, Rollout, RolloutEnd, Steps, drive,
};
use rollout_wire::text::beginning;

/// Records every request.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<Vec<(String, Bytes)>>);

impl Recorder {
    /// Returns the requests since the last call, sorted, so that the timing of concurrent requests does not
    /// matter.
    pub(super) fn take(&self) -> Vec<(String, Bytes)> {
        let mut requests = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        requests.sort();
        requests
    }
}

impl Observer for Recorder {
    fn asking<'a>(&'a self, call: Watched<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            requests.push((call.sample_id.to_owned(), call.request.clone()));
        })
    }

    fn answered<'a>(
        &'a self,
        _call: Watched<'a>,
        _outcome: Result<&'a Bytes, &'a ChatFailure>,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(std::future::ready(None))
    }
}

/// A temporary directory for artifacts, removed on drop.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| anyhow::anyhow!("the system has no random numbers: {error}"))?;
        let name = format!("rollout-host-validate-{:016x}", u64::from_le_bytes(random));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "the temporary directory was not removed");
        }
    }
}

/// Requests and results of a rollout, by a description of each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trace(BTreeMap<String, Vec<u8>>);

impl Trace {
    pub(super) fn new(requests: &[(String, Bytes)], finished: &Finished, artifacts: &Path) -> Self {
        let mut parts = BTreeMap::new();
        for (at, (sample, body)) in requests.iter().enumerate() {
            parts.insert(format!("request {at:04} for sample '{sample}'"), body.to_vec());
        }
        for sample in &finished.samples {
            let id = &sample.record.id;
            for (at, message) in sample.record.messages.iter().enumerate() {
                parts.insert(format!("message {at:04} of sample '{id}'"), message.as_bytes().to_vec());
            }
            let rest = json!({
                "metrics": sample.record.metrics,
                "fields": sample.record.fields,
                "withdrawn": sample.record.withdrawn,
                "reward": sample.reward,
            });
            parts.insert(
                format!("metrics, fields and reward of sample '{id}'"),
                rest.to_string().into_bytes(),
            );
        }
        let outcome = match &finished.outcome {
            Outcome::Scored { reward } => format!("reward {reward}"),
            Outcome::Unscored(failure) => format!("no reward: {failure}"),
        };
        parts.insert("the outcome".to_owned(), outcome.into_bytes());
        let folder = artifacts.join(finished.id.dir_name()).join("artifacts");
        add_artifacts(&folder, &folder, &mut parts);
        Self(parts)
    }

    /// Describes the first difference to another trace, with both sides.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let names = self.0.keys().chain(other.0.keys().filter(|name| !self.0.contains_key(*name)));
        let mut different = names.filter(|name| self.0.get(*name) != other.0.get(*name));
        let first = different.next()?;
        let more = match different.count() {
            0 => String::new(),
            count => format!("\nand {count} more"),
        };
        Some(match (self.0.get(first), other.0.get(first)) {
            (Some(a), Some(b)) => {
                let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                let shown = |bytes: &[u8]| {
                    let from = at.saturating_sub(30);
                    beginning(&String::from_utf8_lossy(&bytes[from..]), 80)
                };
                format!("{first} differs at byte {at}:\n  first   {}\n  second  {}{more}", shown(a), shown(b))
            }
            (only, _) => {
                let which = if only.is_some() { "first" } else { "second" };
                format!("{first} is only in the {which} run{more}")
            }
        })
    }
}

fn add_artifacts(root: &Path, folder: &Path, parts: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            add_artifacts(root, &path, parts);
        } else if let Ok(content) = std::fs::read(&path) {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            parts.insert(format!("artifact '{name}'"), content);
        }
    }
}

/// Returns the distinct tools that requests offer.
pub(super) fn offered_tools(requests: &[(String, Bytes)]) -> Vec<Value> {
    let mut tools: Vec<Value> = Vec::new();
    for (_, body) in requests {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        for tool in body["tools"].as_array().into_iter().flatten() {
            if !tools.contains(tool) {
                tools.push(tool.clone());
            }
        }
    }
    tools
}

/// Runs the row to its end.
pub(super) async fn rollout(host: &Host, row: &Row, model: &Model) -> Result<Box<Finished>> {
    let rollout = eval::run::admit(host, row, 0, model)?;
    eval::run::complete(rollout).await.map_err(|failure| anyhow::anyhow!("{failure}"))
}

/// Returns the tools that an agent loop offers for the row, without running the loop.
pub(super) async fn offers(
    host: &Host,
    row: &Row,
    model: &Model,
) -> Result<Result<Vec<Box<RawValue>>, Failure>> {
    let rollout = eval::run::admit(host, row, 0, model)?;
    let offered = drive(rollout, Box::new(Offer::default())).await;
    offered.context("the host panicked while it requested the tools")
}

/// Steps of a rollout that ends when its tools are known.
#[derive(Default)]
struct Offer(Mutex<Option<Result<Vec<Box<RawValue>>, Failure>>>);

impl Steps for Offer {
    type End = Option<Result<Vec<Box<RawValue>>, Failure>>;

    async fn before_workflow(&self, rollout: &mut Rollout) -> ControlFlow<()> {
        let tools = rollout.tools(Ok).await;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tools);
        ControlFlow::Break(())
    }

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::Finish)
    }

    async fn finished(self: Box<Self>, _ended: RolloutEnd) -> Self::End {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(parts: &[(&str, &str)]) -> Trace {
        Trace(parts.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect())
    }

    #[test]
    fn the_first_difference_is_described_with_both_sides() {
        let a = trace(&[("a", "same"), ("b", "one two"), ("c", "x")]);
        assert_eq!(a.difference(&trace(&[("a", "same"), ("b", "one two"), ("c", "x")])), None);
        let found = a.difference(&trace(&[("a", "same"), ("b", "one 2"), ("c", "y")])).unwrap();
        assert_eq!(found, "b differs at byte 4:\n  first   one two\n  second  one 2\nand 1 more");
        let found = a.difference(&trace(&[("a", "same"), ("b", "one two")])).unwrap();
        assert_eq!(found, "c is only in the first run");
        let found = trace(&[]).difference(&trace(&[("z", "")])).unwrap();
        assert_eq!(found, "z is only in the second run");
    }
}
