//! Fuzz targets of the evaluation: data sets and stored results.

use crate::rows::fuzzing::rows;
use crate::{ResultLine, Tally};

/// A fuzz target, a function of arbitrary bytes.
pub type Target = fn(&[u8]);

/// The targets of this crate by name, which is that of the program and of the corpus directory.
pub const TARGETS: [(&str, Target); 2] = [("rows", rows), ("result_line", result_line)];

/// Fuzz target: reads a line of results and writes it again.
fn result_line(bytes: &[u8]) {
    let Ok(line) = serde_json::from_slice::<ResultLine>(bytes) else { return };
    let Ok(text) = line.checked_text() else { return };
    let read: ResultLine = serde_json::from_str(&text).expect("a written line can be read");
    assert_eq!(read.checked_text().as_deref(), Ok(text.as_str()), "a line is written again unchanged");
    Tally::new(1, 1.0).add(&read);
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
