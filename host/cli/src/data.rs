//! Options for the data set, for every command that runs rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::PluginFault;
use rollout_eval::rows::{self, ColumnMap, Format, Mapping, Options, Selection};
use rollout_eval::tasks::{self, TasksError};
use rollout_eval::{DataSet, Row};
use rollout_rollout::Host;

/// Options for the data set.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = super::DATA)]
pub(super) struct DataOptions {
    /// File with rows: .jsonl, .json, .csv, .tsv or .parquet, also with .gz, or - for standard input. Columns
    /// are user_prompt (or prompt, text or messages) and, optionally, system_prompt, ground_truth (or label)
    /// and metadata.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "split",
        default_value = "-",
        hide_default_value = true
    )]
    pub data: PathBuf,
    /// Runs the tasks of this split of the plugin's environment instead of the rows of a file.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["data", "data_format", "map", "system_prompt", "label_after"])]
    pub split: Option<String>,
    /// Format, if the file's name does not show it: jsonl, json, csv, tsv or parquet.
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    data_format: Option<Format>,
    /// Uses columns with other names: `--map prompt=question,label=answer`. Targets are prompt,
    /// system_prompt, label, metadata, and metadata.NAME for one member of the metadata, which the workflow
    /// sees. A column may be a JSON pointer: `label=/answers/0/text`.
    #[arg(long, value_name = "TARGET=COLUMN", value_delimiter = ',')]
    map: Vec<Mapping>,
    /// System prompt for rows without one.
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Uses only the part of each label after the last MARK: '####' for GSM8K.
    #[arg(long, value_name = "MARK")]
    label_after: Option<String>,
}

impl DataOptions {
    /// Reads the rows of the file, unless the rows are tasks of a split.
    pub(crate) fn load_file(&self) -> Result<Option<DataSet>> {
        if self.split.is_some() { Ok(None) } else { self.load().map(Some) }
    }

    /// Returns the selected rows of the file if it was read, and otherwise the selected tasks of the split, with the number of
    /// all.
    pub(crate) async fn or_tasks(
        &self,
        loaded: Option<DataSet>,
        host: &Host,
        selected: Selection,
    ) -> Result<(DataSet, u64)> {
        let select = |DataSet { rows, digest }| {
            let count = rows.len() as u64;
            (DataSet { rows: selected.apply(rows), digest }, count)
        };
        match (loaded, &self.split) {
            (Some(loaded), _) => Ok(select(loaded)),
            (None, Some(_)) if !host.has_environment() => {
                bail!("--split {}: the plugin has no environment; give rows with --data FILE", self.name())
            }
            (None, Some(split)) => tasks::load(host, split, selected).await.map_err(|error| match error {
                error @ (TasksError::NoSplit { .. } | TasksError::Empty(_)) => error.into(),
                error => PluginFault(error.to_string()).into(),
            }),
            (None, None) => self.load().map(select),
        }
    }

    /// Returns one task of the split as a row.
    pub(crate) async fn task(&self, host: &Host, index: usize) -> Result<Row> {
        let Some(split) = self.split.as_ref().filter(|_| host.has_environment()) else {
            let (DataSet { mut rows, .. }, _) = self.or_tasks(None, host, Selection::default()).await?;
            if index >= rows.len() {
                bail!("--row {index}: {} has {} rows, counted from 0", self.name(), rows.len());
            }
            return Ok(rows.swap_remove(index));
        };
        tasks::load_one(host, split, index).await.map_err(|error| match error {
            error @ TasksError::NoTask { .. } => anyhow::anyhow!("--row {index}: {error}"),
            error @ (TasksError::NoSplit { .. } | TasksError::Empty(_)) => error.into(),
            error => PluginFault(error.to_string()).into(),
        })
    }

    /// Returns the name of the file or the split for people.
    pub(crate) fn name(&self) -> String {
        self.split.clone().unwrap_or_else(|| self.data.display().to_string())
    }

    fn load(&self) -> Result<DataSet> {
        let options = Options {
            format: self.data_format,
            columns: self.columns()?,
            system_prompt: self.system_prompt.clone().filter(|text| !text.is_empty()),
            label_after: self.label_after.clone().filter(|mark| !mark.is_empty()),
        };
        Ok(rows::load(&self.data, &options)?)
    }

    /// Returns whether the rows come from standard input.
    pub(crate) fn is_standard_input(&self) -> bool {
        self.split.is_none() && self.data == Path::new("-")
    }

    /// Returns the data set's name for use in file names.
    pub(crate) fn stem(&self) -> String {
        if let Some(split) = &self.split {
            // It is part of a file's name.
            return split.chars().map(|each| if each.is_alphanumeric() { each } else { '_' }).collect();
        }
        if self.is_standard_input() {
            return "stdin".to_owned();
        }
        let name = self.data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    /// Returns the options that affect the rows, by name, without the file.
    pub(crate) fn settings(&self) -> Result<Vec<(&'static str, Value)>> {
        let mut settings = Vec::new();
        settings.extend(self.split.as_ref().map(|split| ("split", json!(split))));
        if !self.map.is_empty() {
            settings.push(("map", json!(self.columns()?.texts())));
        }
        settings.extend(self.system_prompt.as_ref().map(|text| ("system_prompt", json!(text))));
        settings.extend(self.label_after.as_ref().map(|mark| ("label_after", json!(mark))));
        Ok(settings)
    }

    fn columns(&self) -> Result<ColumnMap> {
        ColumnMap::new(self.map.clone()).context("--map")
    }
}
