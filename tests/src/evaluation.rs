//! A run of `eval` in its own directory.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Controller, Process, Ran, Start, guest, rollout_host};

/// An evaluation in its own directory.
pub struct Evaluation {
    dir: TempDir,
    /// The component.
    pub guest: PathBuf,
    options: Vec<String>,
}

impl Evaluation {
    /// Creates an evaluation of this guest on these rows.
    pub fn of(guest_name: &str, rows: &[Value]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let evaluation = Self { dir, guest: guest(guest_name), options: Vec::new() };
        evaluation.write_rows(rows);
        evaluation
    }

    /// Replaces the rows.
    pub fn write_rows(&self, rows: &[Value]) {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(self.path("rows.jsonl"), lines).expect("it can be written");
    }

    /// Returns the path of a file in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Adds options.
    pub fn options<'a>(mut self, options: impl IntoIterator<Item = &'a str>) -> Self {
        self.options.extend(options.into_iter().map(str::to_owned));
        self
    }

    /// Removes an option and its value.
    pub fn without(mut self, option: &str) -> Self {
        if let Some(at) = self.options.iter().position(|given| given == option) {
            self.options.drain(at..at + 2);
        }
        self
    }

    /// Sets the model.
    pub fn model(self, controller: &Controller) -> Self {
        let url = controller.model_url();
        self.options(["--model", "a-model", "--base-url", &url])
    }

    /// Sets the configuration.
    pub fn config(self, lines: &str) -> Self {
        let path = self.path("config.toml");
        std::fs::write(&path, lines).expect("it can be written");
        self.options(["--config", &path.display().to_string()])
    }

    /// Starts it.
    pub fn start(&self) -> Process {
        self.command(rollout_host(["eval"])).start()
    }

    /// Adds its options to a command. It uses its own rows unless an option names others.
    pub fn command(&self, mut command: Command) -> Command {
        command.arg(&self.guest).arg("--out").arg(self.path("out"));
        if !self.options.iter().any(|option| option == "--data") {
            command.arg("--data").arg(self.path("rows.jsonl"));
        }
        command.args(&self.options).current_dir(self.dir.path());
        command.env("KEY_OF_THE_MODEL", "secret-of-the-model");
        command
    }

    /// Runs it to completion.
    pub async fn run(&self) -> Ran {
        self.start().ended().await
    }

    /// Returns the results, in the order of rows and runs.
    pub fn results(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("out/results.jsonl")).unwrap_or_default();
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        lines.sort_by_key(|line| (line["row"].as_u64(), line["run"].as_u64()));
        lines
    }

    /// Returns the summary.
    pub fn summary(&self) -> Value {
        read_json(&self.path("out/summary.json"))
    }
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Returns rows that the model answers correctly, and a last one with a wrong label.
pub fn sums(count: u64) -> Vec<Value> {
    let row = |number: u64| json!({"user_prompt": format!("Calculate {number} + 3."), "ground_truth": (number + 3).to_string()});
    let wrong = json!({"user_prompt": "Calculate 2 + 3.", "ground_truth": "6"});
    (1..count).map(row).chain([wrong]).collect()
}
