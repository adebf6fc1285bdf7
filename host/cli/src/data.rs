//! Options for the data set, for every command that runs rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use rollout_eval::DataSet;
use rollout_eval::rows::{self, ColumnMap, Format, Mapping, Options};

/// Options for the data set.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = super::DATA)]
pub(super) struct DataOptions {
    /// File with rows: .jsonl, .json, .csv, .tsv or .parquet, also with .gz, or - for standard input. Columns
    /// are user_prompt (or prompt, text or messages) and, optionally, system_prompt, ground_truth (or label)
    /// and metadata.
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// Format, if the file's name does not show it: jsonl, json, csv, tsv or parquet.
    #[arg(long, value_name = "FORMAT")]
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
    /// Reads the rows.
    pub(crate) fn load(&self) -> Result<DataSet> {
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
        self.data == Path::new("-")
    }

    /// Returns the data set's name for use in file names.
    pub(crate) fn stem(&self) -> String {
        if self.is_standard_input() {
            return "stdin".to_owned();
        }
        let name = self.data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    /// Returns the options that affect the rows, by name, without the file.
    pub(crate) fn settings(&self) -> Result<Vec<(&'static str, Value)>> {
        let mut settings = Vec::new();
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
