//! Test of the stored fuzzing inputs, which each crate with targets includes.

use std::path::Path;

use super::TARGETS;

#[test]
fn stored_fuzzing_inputs_cause_no_failure() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpus.join(name));
        let files: Vec<_> =
            files.unwrap_or_else(|error| panic!("no corpus of {name}: {error}")).flatten().collect();
        assert!(!files.is_empty(), "the corpus of {name} is empty");
        for file in files {
            let bytes = std::fs::read(file.path()).unwrap();
            let harm = std::panic::catch_unwind(|| target(&bytes));
            assert!(harm.is_ok(), "{name} fails with {}", file.path().display());
        }
        // A truncated input is as good a test as the whole one.
        target(b"");
    }
}
