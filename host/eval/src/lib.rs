//! Evaluations: rows of a data set, results on disk, and figures.
//!
//! [`rows`] reads a data set. [`manifest`] records the settings of a run, and [`results`] stores its
//! results on disk so that it can be resumed. [`stats`] computes a [`Summary`] of the results, and
//! [`table`] renders it as text.
//!
//! These five modules are synchronous and know no plugin, no model and no network. They decide no reward: an attempt
//! without a reward is unscored and is counted as unscored. [`run`] runs the rollouts, and [`RolloutJournal`] stores
//! them for crash recovery. [`tasks`] reads the rows of an environment's split. [`regrade`] grades rollouts again from
//! that journal, and [`rewards`] compares the rewards before and after.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

mod lines;
pub mod manifest;
pub mod regrade;
pub mod results;
pub mod rewards;
mod rollout_journal;
pub mod rows;
pub mod run;
pub mod stats;
pub mod table;
pub mod tasks;
mod trajectory;

pub use lines::{LimitLine, LineOutcome, ResultLine, SampleLine};
pub use manifest::Manifest;
pub use results::{Opened, ResultsDir, ResultsError, Resume};
pub use rollout_journal::RolloutJournal;
pub use rows::{DataError, DataSet, Row};
pub use stats::{Summary, Tally};
