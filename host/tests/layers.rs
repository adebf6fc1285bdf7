//! A module names only modules below it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// From the top down. Modules on one line may not name each other.
const LAYERS: [&[&str]; 16] = [
    &["bin"],
    &["cli", "fuzzing"],
    &["server"],
    &["dialect", "eval", "bench"],
    &["assembly"],
    &["config"],
    &["rollout"],
    &["toolbox"],
    &["engine"],
    &["plugin"],
    &["instance"],
    &["imports"],
    &["outbound"],
    &["limits", "mock_model", "telemetry"],
    &["budget", "capacity", "connection", "harden", "http1", "random", "wire", "error", "id"],
    &["digest", "moments", "text"],
];

/// The parts of `rollout` from the top down. What is outside of it names them through `rollout`.
const WITHIN_ROLLOUT: [&[&str]; 8] = [
    &["admission", "drive"],
    &["run"],
    &["account"],
    &["host"],
    &["runtime", "deployment"],
    &["slots", "trajectory"],
    &["limits", "events"],
    &["model"],
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The modules that a file names through `crate::`, `crate::{…}` or `rollout_host::`.
fn named(text: &str) -> Vec<String> {
    named_after(&["crate::", "rollout_host::"], text)
}

fn named_after(markers: &[&str], text: &str) -> Vec<String> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut names = Vec::new();
    for marker in markers {
        for (at, _) in text.match_indices(marker) {
            let rest = &text[at + marker.len()..];
            match rest.strip_prefix('{') {
                None => names.push(word(rest)),
                Some(list) => {
                    let list = &list[..list.find(';').unwrap_or(list.len())];
                    names.extend(list.split(',').map(|item| word(item.trim())));
                }
            }
        }
    }
    names
}

#[test]
fn a_module_names_only_modules_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rank: BTreeMap<&str, usize> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(rank, modules)| modules.iter().map(move |module| (*module, rank)))
        .collect();
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 30, "only {} sources found under {}", files.len(), root.display());

    let mut wrong = Vec::new();
    let mut checked = 0;
    for file in files {
        let place = file.strip_prefix(&root).unwrap();
        let module = place.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let Some(own) = rank.get(module.as_str()) else {
            wrong.push(format!("{}: module '{module}' has no layer", place.display()));
            continue;
        };
        for name in named(&std::fs::read_to_string(&file).unwrap()) {
            let Some(other) = rank.get(name.as_str()) else { continue };
            checked += 1;
            if name != module && other <= own {
                wrong.push(format!("{}: '{module}' names '{name}', which is not below it", place.display()));
            }
        }
    }
    assert!(checked > 50, "only {checked} names were found, so the check sees too little");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_part_of_rollout_names_only_parts_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rollout");
    let rank = |part: &str| WITHIN_ROLLOUT.iter().position(|parts| parts.contains(&part));
    let mut files = Vec::new();
    sources(&root, &mut files);
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for file in files {
        let place = file.strip_prefix(&root).unwrap();
        let part = place.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        if part == "mod" {
            continue;
        }
        let Some(own) = rank(&part) else {
            wrong.push(format!("{}: part '{part}' has no rank", place.display()));
            continue;
        };
        // From a file of its own, `super` is `rollout`; from below a folder it is that part.
        let markers: &[&str] =
            if place.iter().count() == 1 { &["crate::rollout::", "super::"] } else { &["crate::rollout::"] };
        let text = std::fs::read_to_string(&file).unwrap();
        for name in named_after(markers, text.split("#[cfg(test)]").next().unwrap()) {
            checked += 1;
            // Names of types are those that `rollout` gives to others, from above.
            if name != part && rank(&name).is_none_or(|other| other <= own) && name != "*" {
                wrong.push(format!("{}: '{part}' names '{name}', which is not below it", place.display()));
            }
        }
    }
    assert!(checked > 20, "only {checked} names were found, so the check sees too little");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn names_are_found_in_every_form() {
    let text = "use crate::wire::atif; use crate::{id::RolloutId, error}; rollout_host::cli::main()";
    assert_eq!(named(text), ["wire", "id", "error", "cli"]);
}
