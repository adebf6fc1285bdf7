//! A module names only modules below it.

mod sources;

use std::collections::BTreeMap;
use std::path::Path;

use sources::sources;

/// The crates from the top down. A crate depends on none that is on its own line or above. What a
/// crate names of another, the compiler checks.
const CRATES: [&[&str]; 6] = [
    &["rollout-host"],
    &["rollout-server", "rollout-eval", "rollout-export", "rollout-bench"],
    &["rollout-assembly"],
    &["rollout-core"],
    &["rollout-mock-model", "rollout-fuse", "rollout-quickjs", "rollout-journal", "rollout-catalog"],
    &["rollout-wire"],
];

/// The modules of a crate from the top down. Modules on one line may not name each other, except
/// those between the same quotes.
type Layers = &'static [&'static [&'static str]];

/// The crates that are made of layers, by their folders.
const LAYERS: [(&str, Layers); 3] = [
    (
        "core",
        &[
            &["fuzzing"],
            &["rollout"],
            &["toolbox"],
            &["engine"],
            &["plugin"],
            &["instance"],
            &["imports", "seal"],
            &["outbound"],
            &["limits", "telemetry"],
            &["budget", "capacity", "harden", "http1", "error"],
            &["child", "moments", "stack"],
        ],
    ),
    (
        "server",
        &[
            &["lib access connections error fuzzing given_out serves stopping tenants tls trajectories"],
            &["admin", "dialect"],
            &["connection", "random", "serving"],
        ],
    ),
    ("assembly", &[&["lib fuzzing platform tests"], &["config"]]),
];

/// The parts of `rollout` from the top down. What is outside of it names them through `rollout`.
const WITHIN_ROLLOUT: [&[&str]; 8] = [
    &["admission", "drive", "fork"],
    &["run"],
    &["outcome_counter"],
    &["host"],
    &["runtime", "deployment"],
    &["slots", "trajectory"],
    &["limits", "events", "journal"],
    &["model"],
];

/// The parts of the server's `dialect` from the top down.
const WITHIN_DIALECT: [&[&str]; 3] = [&["osmosis"], &["driver"], &["ledger", "delivery"]];

/// The modules that a file names through `crate::` or `crate::{…}`.
fn named(text: &str) -> Vec<String> {
    named_after(&["crate::"], text)
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

/// The folder with the crates.
fn host() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn a_module_names_only_modules_below_it() {
    for (name, layers) in LAYERS {
        check_modules(&host().join(name).join("src"), layers);
    }
}

/// Checks one crate. What is named of it and is no module is of its root, `lib`.
fn check_modules(root: &Path, layers: Layers) {
    let mut rank = BTreeMap::new();
    for (line, parts) in layers.iter().enumerate() {
        for part in *parts {
            rank.extend(part.split(' ').map(|module| (module, (line, *part))));
        }
    }
    let mut files = Vec::new();
    sources(root, &mut files);
    assert!(files.len() > 5, "only {} sources found under {}", files.len(), root.display());

    let mut wrong = Vec::new();
    let mut checked = 0;
    for file in files {
        let place = file.strip_prefix(root).unwrap();
        let module = place.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let Some((own, part)) = rank.get(module.as_str()) else {
            wrong.push(format!("{}: module '{module}' has no layer", place.display()));
            continue;
        };
        for name in named(&std::fs::read_to_string(&file).unwrap()) {
            let Some((other, of)) = rank.get(name.as_str()).or_else(|| rank.get("lib")) else { continue };
            checked += 1;
            if part != of && other <= own {
                wrong.push(format!("{}: '{module}' names '{name}', which is not below it", place.display()));
            }
        }
    }
    assert!(checked > 0, "no names were found under {}, so the check sees too little", root.display());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_crate_depends_only_on_crates_below_it() {
    let rank = |name: &str| CRATES.iter().position(|line| line.contains(&name));
    let mut checked = 0;
    for entry in std::fs::read_dir(host()).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).unwrap_or_else(|error| panic!("{manifest:?}: {error}"));
        let manifest: toml::Table = text.parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap();
        let own = rank(name).unwrap_or_else(|| panic!("{name} has no layer"));
        for other in manifest["dependencies"].as_table().unwrap().keys() {
            let Some(other_rank) = rank(other) else { continue };
            checked += 1;
            assert!(other_rank > own, "{name} depends on {other}, which is not below it");
        }
    }
    assert!(checked > 10, "only {checked} dependencies were found, so the check sees too little");
}

#[test]
fn the_core_is_built_without_what_only_commands_need() {
    let ran = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", "rollout-core", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(host())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let tree = String::from_utf8(ran.stdout).unwrap();
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"wasmtime"), "{tree}");
    for name in ["axum", "clap", "parquet", "plotters", "sqlparser", "toml"] {
        assert!(!names.contains(&name), "rollout-core depends on {name}");
    }
}

#[test]
fn a_part_of_rollout_names_only_parts_below_it() {
    check_parts("core/src/rollout", "crate::rollout::", &WITHIN_ROLLOUT, 20);
}

#[test]
fn a_part_of_dialect_names_only_parts_below_it() {
    check_parts("server/src/dialect", "crate::dialect::", &WITHIN_DIALECT, 10);
}

/// Checks the parts of one module, in which more than so many names are found.
fn check_parts(root: &str, marker: &str, ranks: &[&[&str]], names_min: usize) {
    let root = host().join(root);
    let rank = |part: &str| ranks.iter().position(|parts| parts.contains(&part));
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
        // From a file of its own, `super` is the module; from below a folder it is that part.
        let markers: &[&str] = if place.iter().count() == 1 { &[marker, "super::"] } else { &[marker] };
        let text = std::fs::read_to_string(&file).unwrap();
        for name in named_after(markers, text.split("#[cfg(test)]").next().unwrap()) {
            checked += 1;
            // Names of types are those that the module gives to others, from above.
            if name != part && rank(&name).is_none_or(|other| other <= own) && name != "*" {
                wrong.push(format!("{}: '{part}' names '{name}', which is not below it", place.display()));
            }
        }
    }
    assert!(checked > names_min, "only {checked} names were found, so the check sees too little");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn names_are_found_in_every_form() {
    let text = "use crate::wire::atif; use crate::{id::RolloutId, error}; crate::cli::main()";
    assert_eq!(named(text), ["wire", "id", "error", "cli"]);
}
