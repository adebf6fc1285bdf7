//! A crate depends only on crates below it, and a module names only modules below it.

mod modules;
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use modules::{OWN_FILE, Uses, circles, uses_by_folder};

/// The crates from the top down. A crate depends on none on its own line or above. The compiler
/// checks the names that a crate uses of another.
const CRATES: [&[&str]; 11] = [
    &["rollout-host"],
    &["rollout-server", "rollout-eval", "rollout-export", "rollout-bench"],
    &["rollout-assembly"],
    &["rollout-page"],
    &["rollout-rollout"],
    &["rollout-guest", "rollout-registry"],
    &["rollout-outbound"],
    &["rollout-core", "rollout-cluster"],
    &["rollout-mock-model", "rollout-fuse", "rollout-quickjs", "rollout-journal", "rollout-catalog"],
    &["rollout-transcript"],
    &["rollout-wire", "rollout-snapshot"],
];

/// The modules of a folder from the top down. Modules on one line may not name each other, except those between the
/// same quotes. `mod` is the folder's own file; without a line of its own it may name all modules and be named by all.
type Layers = &'static [&'static [&'static str]];

/// The folders that consist of layers. A name that is used through a re-export belongs to the module that declares it.
const LAYERS: [(&str, Layers); 7] = [
    ("core/src", &[&["telemetry"], &["budget", "capacity", "child", "error", "harden", "limits", "moments"]]),
    (
        "outbound/src",
        &[
            &["callback", "chat observer", "mcp", "probe", "service"],
            &["endpoint", "http_tool"],
            &["transport", "retry", "url_template"],
            &["environment", "http1", "network", "tls"],
            &["address", "secrets"],
        ],
    ),
    ("guest/src", &[&["toolbox"], &["engine"], &["plugin"], &["instance"], &["imports"], &["stack"]]),
    (
        "rollout/src",
        &[
            &["admission", "drive", "fork"],
            &["generated", "session", "run"],
            &["episode", "moves", "outcome_counter"],
            &["host"],
            &["runtime", "deployment"],
            &["slots", "trajectory"],
            &["groups"],
            &["activity", "limit_table", "events", "journal"],
            &["model", "seal"],
        ],
    ),
    ("assembly/src", &[&["mod platform"], &["config"]]),
    (
        "server/src",
        &[
            &[
                "mod access any_server connections gateway pages shutdown tenants tls trajectories trajectory_route viewed",
            ],
            &["admin", "dialect", "ui"],
            &["worker"],
            &["connection", "error", "random", "serving"],
        ],
    ),
    (
        "server/src/dialect",
        &[
            &["osmosis", "agent_lightning", "nemo_gym", "open_env", "ors"],
            &["continued", "sessions"],
            &["driver", "pull"],
            &["ledger", "delivery", "body", "row", "tasks"],
        ],
    ),
];

/// The folder with the crates.
fn host() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the folders of the crates.
fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(host()).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// Returns the uses between the modules of each folder of the crates, by paths such as `server/src/dialect`.
fn folders() -> BTreeMap<String, Uses> {
    let mut folders = BTreeMap::new();
    for path in crates() {
        let name = path.file_name().unwrap().to_str().unwrap();
        for (folder, uses) in uses_by_folder(&path.join("src")) {
            let inside = if folder.is_empty() { String::new() } else { format!("/{folder}") };
            folders.insert(format!("{name}/src{inside}"), uses);
        }
    }
    folders
}

#[test]
fn a_module_names_only_modules_below_it() {
    let folders = folders();
    let mut wrong = Vec::new();
    for (folder, layers) in LAYERS {
        let ranks: BTreeMap<&str, (usize, &str)> = layers
            .iter()
            .enumerate()
            .flat_map(|(line, parts)| parts.iter().map(move |part| (line, *part)))
            .flat_map(|(line, part)| part.split(' ').map(move |module| (module, (line, part))))
            .collect();
        let uses = folders.get(folder).unwrap_or_else(|| panic!("no module of {folder} names another"));
        for (module, names) in uses {
            for name in names {
                let (own, other) = (ranks.get(module.as_str()), ranks.get(name.as_str()));
                match (own, other) {
                    (Some((_, part)), Some((_, other))) if part == other => {}
                    (Some((own, _)), Some((other, _))) if other > own => {}
                    (None, _) if module == OWN_FILE => {}
                    (_, None) if name == OWN_FILE => {}
                    (None, _) => wrong.push(format!("{folder}: module '{module}' has no layer")),
                    (_, None) => wrong.push(format!("{folder}: module '{name}' has no layer")),
                    _ => wrong.push(format!("{folder}: '{module}' names '{name}', which is not below it")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_modules_of_a_folder_form_no_circle() {
    let folders = folders();
    assert!(folders.len() > 30, "only {} folders were found, so the check sees too little", folders.len());
    let mut wrong = Vec::new();
    for (folder, uses) in &folders {
        let mut uses = uses.clone();
        // A folder's own file declares what its modules implement.
        uses.remove(OWN_FILE);
        uses.values_mut().for_each(|names| _ = names.remove(OWN_FILE));
        for circle in circles(&uses) {
            wrong.push(format!("{folder}: {circle:?} name each other in a circle"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn circles_are_found() {
    let uses = |uses: &[(&str, &[&str])]| -> Uses {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        uses.iter().map(|(module, names)| ((*module).to_owned(), owned(names))).collect()
    };
    let found = |of: &[(&str, &[&str])]| format!("{:?}", circles(&uses(of)));
    assert_eq!(found(&[("a", &["b", "c"]), ("b", &["c"])]), "[]");
    assert_eq!(found(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]), r#"[{"b", "c"}]"#);
    assert_eq!(
        found(&[("a", &["b"]), ("b", &["a"]), ("c", &["a", "d"]), ("d", &["c"])]),
        r#"[{"a", "b"}, {"c", "d"}]"#
    );
}

#[test]
fn names_are_found_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; pub mod b; mod c; mod d; mod e; pub use b::Thing; #[cfg(test)] mod tests;");
    write(
        "a.rs",
        "use crate::{b::{self, Other}, c}; // crate::d\n #[cfg(test)] mod tests { use super::super::e; }",
    );
    write("b/mod.rs", "mod deep; fn f() { crate::c::g(\"crate::d::x\", '\"', r#\"crate::d\"#); }");
    write("b/deep.rs", "pub(super) fn f() -> impl Sized + use<> { super::super::e::g() }");
    write("c.rs", "use super::Thing;");
    write("d.rs", "");
    write("e.rs", "pub fn g() {}");
    write("tests.rs", "use crate::e;");
    let uses = uses_by_folder(dir.path());
    let root = &uses[""];
    let of = |module: &str| root[module].iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!((of("a"), of("b"), of("c")), ("b c".to_owned(), "c e".to_owned(), "b".to_owned()));
    assert_eq!(root.len(), 3, "{uses:?}");
}

#[test]
fn a_crate_depends_only_on_crates_below_it() {
    let rank = |name: &str| CRATES.iter().position(|line| line.contains(&name));
    let mut checked = 0;
    for folder in crates() {
        let manifest = folder.join("Cargo.toml");
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
fn rollouts_are_built_without_dependencies_of_commands() {
    let ran = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", "rollout-rollout", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(host())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let tree = String::from_utf8(ran.stdout).unwrap();
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"wasmtime"), "{tree}");
    for name in ["axum", "clap", "parquet", "plotters", "sqlparser", "toml"] {
        assert!(!names.contains(&name), "rollout-rollout depends on {name}");
    }
}
