//! An evaluation: rows of a data set, results that outlive the process, and figures.
//!
//! [`rows`] reads a data set. [`manifest`] says what a run was started with, and
//! [`results`] keeps its results on disk so that it can be resumed. [`stats`] turns
//! results into a [`Summary`], and [`table`] into what a person reads at the end.
//!
//! These five are plain, synchronous code. They know no plugin, no model and no
//! network, and they decide no reward: an attempt without one is unscored and is
//! counted as that. [`run`] puts rollouts behind them, and [`Kept`] is where those are kept,
//! [`regrade`] grades them again from there, and [`rewards`] says what that made of them.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod kept;
pub mod manifest;
pub mod regrade;
pub mod results;
pub mod rewards;
pub mod rows;
pub mod run;
pub mod stats;
pub mod table;
mod trajectory;

pub use kept::Kept;
pub use manifest::Manifest;
pub use results::{Journal, JournalError, LimitLine, Opened, Outcome, ResultLine, Resume, SampleLine};
pub use rows::{DataError, DataSet, Row};
pub use stats::{Summary, Tally};
