//! The Python SDK and the contract, embedded in this program, so that components match the host that builds
//! them.

use std::io;
use std::path::Path;

/// Embeds files of `guest-sdk/python/src`, each with its path.
macro_rules! sdk {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../guest-sdk/python/src/", $path)))),+]
    };
}

const SDK: &[(&str, &str)] = sdk![
    "rollout_sdk/__init__.py",
    "rollout_sdk/_absent.py",
    "rollout_sdk/_after.py",
    "rollout_sdk/_agents_guards.py",
    "rollout_sdk/_agents_items.py",
    "rollout_sdk/_agents_sessions.py",
    "rollout_sdk/_agents_tools.py",
    "rollout_sdk/_app.py",
    "rollout_sdk/_archive.py",
    "rollout_sdk/_archived.py",
    "rollout_sdk/_artifacts_dir.py",
    "rollout_sdk/_build.py",
    "rollout_sdk/_build_base.py",
    "rollout_sdk/_build_key.py",
    "rollout_sdk/_build_late.py",
    "rollout_sdk/_build_quick.py",
    "rollout_sdk/_chance.py",
    "rollout_sdk/_discover.py",
    "rollout_sdk/_environment.py",
    "rollout_sdk/_episode.py",
    "rollout_sdk/_export.py",
    "rollout_sdk/_failure.py",
    "rollout_sdk/_finalize.py",
    "rollout_sdk/_history.py",
    "rollout_sdk/_host.py",
    "rollout_sdk/_image.py",
    "rollout_sdk/_incoming.py",
    "rollout_sdk/_json.py",
    "rollout_sdk/_loop.py",
    "rollout_sdk/_memory.py",
    "rollout_sdk/_metrics.py",
    "rollout_sdk/_models.py",
    "rollout_sdk/_modules.py",
    "rollout_sdk/_names.py",
    "rollout_sdk/_no_tls.py",
    "rollout_sdk/_older.py",
    "rollout_sdk/_one_thread.py",
    "rollout_sdk/_processes.py",
    "rollout_sdk/_quick.py",
    "rollout_sdk/_refused.py",
    "rollout_sdk/_rehearse.py",
    "rollout_sdk/_resolve.py",
    "rollout_sdk/_rubric.py",
    "rollout_sdk/_schema.py",
    "rollout_sdk/_strands_blocks.py",
    "rollout_sdk/_strands_hooks.py",
    "rollout_sdk/_strands_managers.py",
    "rollout_sdk/_strands_results.py",
    "rollout_sdk/_strands_tools.py",
    "rollout_sdk/_structured.py",
    "rollout_sdk/_system.py",
    "rollout_sdk/_take_in.py",
    "rollout_sdk/_unawaited.py",
    "rollout_sdk/agent.py",
    "rollout_sdk/agent_loop.py",
    "rollout_sdk/anthropic_client.py",
    "rollout_sdk/answer.py",
    "rollout_sdk/artifact.py",
    "rollout_sdk/config.py",
    "rollout_sdk/context.py",
    "rollout_sdk/environment.py",
    "rollout_sdk/errors.py",
    "rollout_sdk/grading.py",
    "rollout_sdk/group.py",
    "rollout_sdk/host_tools.py",
    "rollout_sdk/judge.py",
    "rollout_sdk/log.py",
    "rollout_sdk/message.py",
    "rollout_sdk/openai_agents.py",
    "rollout_sdk/openai_client.py",
    "rollout_sdk/reward.py",
    "rollout_sdk/sample.py",
    "rollout_sdk/strands.py",
    "rollout_sdk/testing.py",
    "rollout_sdk/tool.py",
    "rollout_sdk/toolbox.py",
];

const CONTRACT: &str = include_str!("../../../../wit/plugin.wit");

/// Writes the SDK to `dir/sdk` and the contract to `dir/wit`.
pub(super) fn unpack(dir: &Path) -> io::Result<()> {
    for (path, text) in SDK {
        let path = dir.join("sdk").join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    std::fs::create_dir(dir.join("wit"))?;
    std::fs::write(dir.join("wit/plugin.wit"), CONTRACT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_module_of_the_sdk_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-sdk/python/src");
        let mut found = BTreeSet::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.extension().and_then(|ending| ending.to_str()) {
                    Some("py") => drop(found.insert(path.strip_prefix(&root).unwrap().to_owned())),
                    None if path.is_dir() => dirs.push(path),
                    _ => {}
                }
            }
        }

        let embedded: BTreeSet<PathBuf> = SDK.iter().map(|(path, _)| PathBuf::from(path)).collect();

        assert_eq!(found, embedded);
    }
}
