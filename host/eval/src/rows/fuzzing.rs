//! The fuzz target of text data sets. The first byte selects the format.

use std::path::Path;

use super::{Collector, DataError, Format, Options, PROBLEMS_SHOWN_MAX, read_text};
use rollout_wire as wire;

/// Maximum length of the message about one row, in bytes.
const PROBLEM_BYTES_MAX: usize = 4096;

/// Fuzz target: reads a file of rows.
pub(crate) fn rows(bytes: &[u8]) {
    let Some((kind, text)) = bytes.split_first() else { return };
    let format = [Format::JsonLines, Format::JsonArray, Format::Csv, Format::Tsv][usize::from(kind % 4)];
    let options = Options::default();
    let mut found = Collector::new(format, &options);
    read_text(format, text, &mut found);
    let seen = found.rows_seen;
    match found.finish(Path::new("rows")) {
        Ok(rows) => {
            assert_eq!(rows.len(), seen, "a file is used whole or not at all");
            for (at, row) in rows.iter().enumerate() {
                assert_eq!(row.index, at);
                assert!(!row.prompt.is_empty(), "a row has a prompt");
                for message in &row.prompt {
                    assert!(wire::object(message.get()).is_ok(), "a guest can read each message: {message}");
                }
                assert!(row.metadata.as_ref().is_none_or(|data| wire::object(data.get()).is_ok()));
            }
        }
        Err(DataError::Rows { problems, total, .. }) => {
            assert!(!problems.is_empty() && problems.len() <= PROBLEMS_SHOWN_MAX && total >= problems.len());
            for problem in &problems {
                assert!(
                    problem.message.len() < PROBLEM_BYTES_MAX,
                    "{} bytes about a row",
                    problem.message.len()
                );
            }
        }
        Err(_) => {}
    }
}
