//! The page of a plugin: its deployments with their validation reports.

use askama::Template;
use serde::Deserialize;

use crate::links::{Frame, path_segment};
use crate::text::{Text, visible};

/// Maximum number of bytes of the detail of a check that are shown.
const DETAIL_BYTES_MAX: usize = 2000;

/// A deployment of a plugin.
#[derive(Clone, Debug)]
pub struct DeploymentSource {
    /// Its version.
    pub version: u32,
    /// Whether new rollouts use it.
    pub is_active: bool,
    /// Whether it passed its checks.
    pub passed: bool,
    /// Time of its creation.
    pub created_at: String,
    /// First characters of the key that pushed it.
    pub created_by: String,
    /// Digest of its component.
    pub component: String,
    /// Its validation report in JSON.
    pub report: String,
}

/// The data of the page of a plugin.
#[derive(Clone, Debug)]
pub struct PluginSource {
    /// Its name.
    pub name: String,
    /// The latest deployments, the newest first.
    pub deployments: Vec<DeploymentSource>,
    /// Whether there are older ones.
    pub has_more: bool,
    /// Whether the reader may activate deployments.
    pub may_activate: bool,
}

/// A check of a report.
#[derive(Clone, Debug)]
struct CheckLine {
    name: String,
    outcome: String,
    style: &'static str,
    detail: Text,
    advice: String,
}

/// A deployment on the page.
#[derive(Clone, Debug)]
struct DeploymentLine {
    deployment: DeploymentSource,
    checks: Vec<CheckLine>,
    summary: String,
    is_unreadable: bool,
}

/// The page of a plugin.
#[derive(Debug, Template)]
#[template(path = "plugin.html")]
pub struct PluginPage {
    /// The frame.
    pub frame: Frame,
    name: String,
    deployments: Vec<DeploymentLine>,
    has_more: bool,
    may_activate: bool,
    can_roll_back: bool,
    activate: String,
}

impl PluginPage {
    /// Makes the page.
    pub fn new(frame: Frame, source: PluginSource) -> Self {
        let PluginSource { name, deployments, has_more, may_activate } = source;
        let path = format!("{}/plugins/{}/activate", frame.links.root, path_segment(&name));
        let is_active = deployments.iter().any(|deployment| deployment.is_active);
        Self {
            activate: frame.links.with_query(path, ""),
            name: visible(&name),
            can_roll_back: may_activate && is_active && deployments.len() > 1,
            deployments: deployments.into_iter().map(deployment_line).collect(),
            has_more,
            may_activate,
            frame,
        }
    }
}

/// Returns a deployment with the checks of its report.
fn deployment_line(deployment: DeploymentSource) -> DeploymentLine {
    #[derive(Deserialize)]
    struct Report {
        checks: Vec<Check>,
    }
    #[derive(Deserialize)]
    struct Check {
        name: String,
        outcome: String,
        #[serde(default)]
        detail: String,
        #[serde(default)]
        advice: String,
    }
    let report = serde_json::from_str::<Report>(&deployment.report);
    let is_unreadable = report.is_err();
    let checks = report.map(|report| report.checks).unwrap_or_default();
    let count = |outcome: &str| checks.iter().filter(|check| check.outcome == outcome).count();
    let counts = ["passed", "warned", "failed", "skipped"].map(|outcome| (outcome, count(outcome)));
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    let summary = counts.map(|(outcome, count)| format!("{count} {outcome}")).collect::<Vec<_>>().join(", ");
    let line = |check: Check| CheckLine {
        style: match &*check.outcome {
            "passed" => "good",
            "failed" => "bad",
            "warned" => "grading",
            _ => "",
        },
        name: visible(&check.name),
        outcome: visible(&check.outcome),
        detail: Text::beginning(&check.detail, DETAIL_BYTES_MAX),
        advice: visible(&check.advice),
    };
    DeploymentLine { deployment, checks: checks.into_iter().map(line).collect(), summary, is_unreadable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_shown_as_text_and_an_unreadable_one_is_said_to_be() {
        let deployment = |report: &str| DeploymentSource {
            version: 1,
            is_active: true,
            passed: true,
            created_at: String::new(),
            created_by: String::new(),
            component: String::new(),
            report: report.to_owned(),
        };
        let report = r#"{"checks":[{"name":"<b>","outcome":"failed","detail":"x\u202e","advice":"a"},{"name":"n","outcome":"passed"}]}"#;
        let source = PluginSource {
            name: "p".to_owned(),
            deployments: vec![deployment(report), deployment("?")],
            has_more: false,
            may_activate: false,
        };
        let page = PluginPage::new(Frame::default(), source).render().unwrap();
        assert!(page.contains("1 passed, 1 failed") && page.contains("&#60;b&#62;"), "{page}");
        assert!(page.contains("x\\u{202e}") && page.contains("cannot be read"), "{page}");
        assert!(!page.contains("<form"), "{page}");
    }
}
