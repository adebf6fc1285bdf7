//! Training rows: trajectories as columns that trainers read.
//!
//! [`source`] lists the trajectories in a folder. A [`Row`] is created from one of these documents, which is
//! one sample of one rollout. [`Condition`] selects rows, and [`Output`] writes them as Parquet or JSON
//! Lines. [`COLUMNS`] describes the columns, and is all that writers and conditions know about a row.
//!
//! A row depends only on its document, so that it is the same from a file and from a journal. This crate
//! knows neither rollouts nor journals nor commands.

mod columns;
mod condition;
mod document;
mod inspect;
mod jsonl;
mod messages;
mod output;
mod parquet_file;
mod reply;
mod row;
pub mod source;
#[cfg(test)]
mod tests;
mod tokens;

pub use columns::{COLUMNS, Cell, Column, Kind};
pub use condition::{Condition, InvalidCondition};
pub use output::{Format, Output, OutputError};
pub use row::{InvalidTrajectory, Row};
