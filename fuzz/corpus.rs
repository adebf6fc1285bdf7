//! A part of the tests of each crate that has targets: what fuzzing found and kept.

use std::path::Path;

use super::TARGETS;

#[test]
fn what_fuzzing_found_and_kept_does_no_harm_any_more() {
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
        // Cut anywhere, it is as good a test as what it was cut from.
        target(b"");
    }
}
