//! The report of `validate`: checks and their outcomes.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::Exit;
use rollout_core::error::Fault;
use rollout_wire::text::printable;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckOutcome {
    Passed,
    Warned,
    Failed,
    Skipped,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Check {
    name: String,
    outcome: CheckOutcome,
    detail: String,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    advice: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,
}

/// All checks of a plugin, in order. A deserialized report may come from another version of the host.
#[derive(Debug, Default, serde::Deserialize)]
pub(crate) struct Report {
    checks: Vec<Check>,
}

impl Report {
    fn add(&mut self, name: &str, outcome: CheckOutcome, detail: impl Into<String>, advice: &'static str) {
        let detail = printable(&detail.into());
        self.checks.push(Check {
            name: name.to_owned(),
            outcome,
            detail,
            advice: advice.into(),
            fault: None,
        });
    }

    pub(super) fn passed(&mut self, name: &str, detail: impl Into<String>) {
        self.add(name, CheckOutcome::Passed, detail, "");
    }

    pub(super) fn skipped(&mut self, name: &str, detail: impl Into<String>) {
        self.add(name, CheckOutcome::Skipped, detail, "");
    }

    pub(super) fn warned(&mut self, name: &str, detail: impl Into<String>, advice: &'static str) {
        self.add(name, CheckOutcome::Warned, detail, advice);
    }

    /// Adds a failure that the plugin's author must fix.
    pub(super) fn failed(&mut self, name: &str, detail: impl Into<String>, advice: &'static str) {
        self.failed_by(Fault::Plugin, name, detail, advice);
    }

    /// Adds a failure with the party that must fix it.
    pub(super) fn failed_by(
        &mut self,
        fault: Fault,
        name: &str,
        detail: impl Into<String>,
        advice: &'static str,
    ) {
        self.add(name, CheckOutcome::Failed, detail, advice);
        if let Some(check) = self.checks.last_mut() {
            check.fault = Some(fault);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.count(CheckOutcome::Failed) > 0
    }

    fn count(&self, outcome: CheckOutcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    pub(crate) fn exit(&self) -> Exit {
        match self.has_failed() {
            false => Exit::Done,
            true if self.checks.iter().any(|check| check.fault == Some(Fault::Plugin)) => Exit::Plugin,
            true => Exit::NotDone,
        }
    }

    pub(super) fn json(&self, plugin: &str) -> Value {
        json!({"plugin": plugin, "valid": !self.has_failed(), "checks": self.checks})
    }

    pub(crate) fn text(&self, plugin: &str) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let margin = " ".repeat(width + 13);
        let mut out = format!("{plugin}\n\n");
        for check in &self.checks {
            let word = match check.outcome {
                CheckOutcome::Passed => "passed",
                CheckOutcome::Warned => "warned",
                CheckOutcome::Failed => "FAILED",
                CheckOutcome::Skipped => "skipped",
            };
            let detail = check.detail.trim().replace('\n', &format!("\n{margin}"));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "  {word:<9}{:<width$}  {detail}", check.name);
            if !check.advice.is_empty() {
                let _ = writeln!(out, "{margin}→ {}", check.advice);
            }
        }
        let counted = [
            (CheckOutcome::Passed, "passed"),
            (CheckOutcome::Warned, "warned"),
            (CheckOutcome::Failed, "failed"),
            (CheckOutcome::Skipped, "skipped"),
        ];
        let counted: Vec<String> = counted
            .iter()
            .map(|(outcome, word)| (self.count(*outcome), word))
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let _ = writeln!(out, "\n{}", counted.join(", "));
        out
    }
}
