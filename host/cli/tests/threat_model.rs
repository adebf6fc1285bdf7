//! Checks that the tests that `docs/understand/threat-model.md` names exist.

use std::path::Path;

/// Returns the names of the form `file::name` between backquotes.
fn named(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|name| name.split_once("::")).filter(|(file, _)| file.ends_with(".rs")).collect()
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = std::fs::read_to_string(root.join("docs/understand/threat-model.md")).unwrap();
    let tests = named(&text);
    assert!(tests.len() > 30, "only {} tests were found, so the check sees too little", tests.len());

    let missing = tests.into_iter().filter(|(file, name)| {
        let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        !source.contains(&format!("fn {name}("))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn names_are_found_between_backquotes() {
    let text = "shown by `tests/a.rs::it_holds`, and `crate::other`, `b.rs`";
    assert_eq!(named(text), [("tests/a.rs", "it_holds")]);
}

#[test]
fn overflow_checks_are_on_in_release_builds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let manifest: toml::Table = std::fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    let crates: Vec<&str> = manifest["workspace"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|member| member.as_str())
        .filter_map(|member| member.strip_prefix("host/"))
        .collect();
    assert!(crates.len() > 5, "{crates:?}");
    for name in crates {
        let package = if name == "cli" { "rollout-host".to_owned() } else { format!("rollout-{name}") };
        // `fuse` only builds components and runs in no server.
        if name == "fuse" {
            continue;
        }
        let host = manifest["profile"]["release"]["package"].get(&package);
        let checked = host.and_then(|profile| profile["overflow-checks"].as_bool());
        assert_eq!(checked, Some(true), "{package}");
    }
}
