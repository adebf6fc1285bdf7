//! An evaluation: rows of a data set, results that outlive the process, and figures.
//!
//! [`rows`] reads a data set. [`manifest`] says what a run was started with, and
//! [`results`] keeps its results on disk so that it can be resumed. [`stats`] turns
//! results into a [`Summary`], and [`table`] into what a person reads at the end.
//!
//! These five are plain, synchronous code. They know no plugin, no model and no
//! network, and they decide no reward: an attempt without one is unscored and is
//! counted as that. [`run`] puts rollouts behind them.

pub mod manifest;
pub mod results;
pub mod rows;
pub mod run;
pub mod stats;
pub mod table;

pub use manifest::Manifest;
pub use results::{Journal, JournalError, LimitLine, Opened, Outcome, ResultLine, Resume, SampleLine};
pub use rows::{DataError, DataSet, Row};
pub use stats::{Summary, Tally};

/// The fuzz target of a line of results that is read back.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzzing_result_line(bytes: &[u8]) {
    let Ok(line) = serde_json::from_slice::<ResultLine>(bytes) else { return };
    let Ok(text) = line.checked_text() else { return };
    let read: ResultLine = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(read.checked_text().as_deref(), Ok(text.as_str()), "and is written the same again");
    Tally::new(1, 1.0).add(&read);
}
