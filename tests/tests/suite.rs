//! Most tests from outside, as one program: it is linked once, and its tests fill both cores until the last one ends.
//!
//! Tests that measure time or memory, that need most of the machine, or that are heavy to compile with have a program of their own
//! (`tests/Cargo.toml`). `cargo test "${packages[@]}" --test suite tools_mcp::` runs the tests of one file.

#[path = "admin_commands.rs"]
mod admin_commands;
#[path = "agent_lightning.rs"]
mod agent_lightning;
#[path = "agent_loop.rs"]
mod agent_loop;
#[path = "artifacts.rs"]
mod artifacts;
#[path = "cache.rs"]
mod cache;
#[path = "canary.rs"]
mod canary;
#[path = "catalog.rs"]
mod catalog;
#[path = "catalog_admin.rs"]
mod catalog_admin;
#[path = "clients.rs"]
mod clients;
#[path = "clocks.rs"]
mod clocks;
#[path = "cluster.rs"]
mod cluster;
#[path = "cluster_log.rs"]
mod cluster_log;
#[path = "commands.rs"]
mod commands;
#[path = "config.rs"]
mod config;
#[path = "connection_shares.rs"]
mod connection_shares;
#[path = "contract_versions.rs"]
mod contract_versions;
#[path = "conversations.rs"]
mod conversations;
#[path = "credentials.rs"]
mod credentials;
#[path = "delivery.rs"]
mod delivery;
#[path = "doctor.rs"]
mod doctor;
#[path = "documented.rs"]
mod documented;
#[path = "drain.rs"]
mod drain;
#[path = "environments.rs"]
mod environments;
#[path = "eval.rs"]
mod eval;
#[path = "eval_again.rs"]
mod eval_again;
#[path = "eval_data.rs"]
mod eval_data;
#[path = "eval_journal.rs"]
mod eval_journal;
#[path = "export.rs"]
mod export;
#[path = "fork.rs"]
mod fork;
#[path = "groups.rs"]
mod groups;
#[path = "isolation.rs"]
mod isolation;
#[path = "javascript.rs"]
mod javascript;
#[path = "javascript_journal.rs"]
mod javascript_journal;
#[path = "javascript_packages.rs"]
mod javascript_packages;
#[path = "javascript_quick.rs"]
mod javascript_quick;
#[path = "judge.rs"]
mod judge;
#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "limits.rs"]
mod limits;
#[path = "metrics.rs"]
mod metrics;
#[path = "misbehaving.rs"]
mod misbehaving;
#[path = "mistakes.rs"]
mod mistakes;
#[path = "nemo_gym.rs"]
mod nemo_gym;
#[path = "network.rs"]
mod network;
#[path = "new.rs"]
mod new;
#[path = "open_env.rs"]
mod open_env;
#[path = "ors.rs"]
mod ors;
#[path = "outbound.rs"]
mod outbound;
#[path = "pages.rs"]
mod pages;
#[path = "parity.rs"]
mod parity;
#[path = "prose.rs"]
mod prose;
#[path = "pushes.rs"]
mod pushes;
#[path = "quick.rs"]
mod quick;
#[path = "refused_uses.rs"]
mod refused_uses;
#[path = "registry.rs"]
mod registry;
#[path = "registry_transfers.rs"]
mod registry_transfers;
#[path = "replay.rs"]
mod replay;
#[path = "results.rs"]
mod results;
#[path = "serve_a.rs"]
mod serve_a;
#[path = "serve_b.rs"]
mod serve_b;
#[path = "serve_c.rs"]
mod serve_c;
#[path = "serve_d.rs"]
mod serve_d;
#[path = "serve_tls.rs"]
mod serve_tls;
#[path = "sessions.rs"]
mod sessions;
#[path = "shared_catalog.rs"]
mod shared_catalog;
#[path = "shared_usage.rs"]
mod shared_usage;
#[path = "shares.rs"]
mod shares;
#[path = "slots.rs"]
mod slots;
#[path = "small_json.rs"]
mod small_json;
#[path = "small_parts.rs"]
mod small_parts;
#[path = "staged_activation.rs"]
mod staged_activation;
#[path = "tools.rs"]
mod tools;
#[path = "tools_http.rs"]
mod tools_http;
#[path = "tools_mcp.rs"]
mod tools_mcp;
#[path = "top.rs"]
mod top;
#[path = "traces.rs"]
mod traces;
#[path = "trainers.rs"]
mod trainers;
#[path = "trajectories.rs"]
mod trajectories;
#[path = "traps.rs"]
mod traps;
#[path = "unread.rs"]
mod unread;
#[path = "validate.rs"]
mod validate;
#[path = "view.rs"]
mod view;
#[path = "watched.rs"]
mod watched;

/// A file that no program lists would not be compiled, and its tests would never run.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let suite = include_str!("suite.rs");
    let manifest = include_str!("../Cargo.toml");
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the folder of tests") {
        let path = entry.expect("an entry of the folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a readable name").to_owned();
        let is_listed = if path.is_dir() {
            !path.join("main.rs").is_file() || manifest.contains(&format!("path = \"tests/{name}/main.rs\""))
        } else {
            name == "suite.rs"
                || suite.contains(&format!("#[path = \"{name}\"]"))
                || manifest.contains(&format!("path = \"tests/{name}\""))
        };
        if !is_listed {
            missing.push(name);
        }
    }
    assert!(
        missing.is_empty(),
        "list these in tests/suite.rs, or in tests/Cargo.toml if they measure: {missing:?}"
    );
}
