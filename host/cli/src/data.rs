//! The options that say what the rows are, the same for every command that runs rows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use rollout_eval::DataSet;
use rollout_eval::rows::{self, ColumnMap, Format, Mapping, Options};

/// A data set, and how it is read.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = super::DATA)]
pub(super) struct DataOptions {
    /// Rows: .jsonl, .json, .csv, .tsv or .parquet, perhaps with .gz, or - for standard input.
    /// Columns are user_prompt (or prompt, text or messages), system_prompt, ground_truth (or
    /// label) and metadata, as far as there are any.
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// The format, where the name does not say it: jsonl, json, csv, tsv or parquet.
    #[arg(long, value_name = "FORMAT")]
    data_format: Option<Format>,
    /// Uses columns of other names: `--map prompt=question,label=answer`. Targets are prompt,
    /// system_prompt, label, metadata, and metadata.NAME for one member of it, which the
    /// workflow sees. A column may be a JSON pointer: `label=/answers/0/text`.
    #[arg(long, value_name = "TARGET=COLUMN", value_delimiter = ',')]
    map: Vec<Mapping>,
    /// Begins the prompt of every row that has no system prompt of its own.
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Takes of every label what follows the last MARK in it: '####' for GSM8K.
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

    /// Whether the rows come from standard input.
    pub(crate) fn is_standard_input(&self) -> bool {
        self.data == Path::new("-")
    }

    /// What the rows are called in names of files.
    pub(crate) fn stem(&self) -> String {
        if self.is_standard_input() {
            return "stdin".to_owned();
        }
        let name = self.data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    /// What decides on the rows besides the file, by name.
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
