//! Training rows: what trajectories say, in columns that trainers read.
//!
//! [`source`] gives the documents of a folder, one after the other. [`Row`] is made of one document: one
//! sample of one rollout. [`Condition`] selects rows, and [`Output`] writes them as Parquet or JSON Lines.
//! [`COLUMNS`] says which columns there are, and is all that writers and conditions know of a row.
//!
//! A row is made of the document alone, so that it is the same whether the document was a file or came
//! out of a journal. This crate knows no rollout, no journal and no command.

mod columns;
mod condition;
mod document;
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
pub use row::{Row, Unreadable};
