//! Fuzz targets: heads of HTTP messages, and keys in replies. A target takes any bytes and panics if an
//! invariant does not hold.
//!
//! This module is compiled only in tests and with the feature `fuzzing`, which released builds do not enable.

use crate::Secrets;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// The crate's targets with the names of their programs and corpora.
pub const TARGETS: [(&str, Target); 2] = [("http1", crate::http1::fuzzing::heads), ("secrets", secrets)];

/// Removes a key from the text of a server that received it. The first line is the key, the other lines are the text.
fn secrets(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some((key, text)) = text.split_once('\n') else { return };
    let mut secrets = Secrets::default();
    secrets.add(key);
    let cut = secrets.cut_from(text.to_owned());
    // A key that is part of the replacement may be in the result.
    if key.len() > "secret".len() && !key.contains(['(', ')']) {
        assert!(!cut.contains(key), "{key:?} is in {cut:?}");
        assert_eq!(secrets.cut_from(cut.clone()), cut, "a second removal changes nothing");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;
