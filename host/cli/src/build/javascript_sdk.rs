//! The JavaScript SDK and the contract, embedded when this program is built.

use std::io;
use std::path::Path;

/// Embeds files of `guest-sdk/js`, by their path there.
macro_rules! sdk {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../guest-sdk/js/", $path)))),+]
    };
}

const SDK: &[(&str, &str)] = sdk![
    "README.md",
    "package.json",
    "src/agent-loop.js",
    "src/agent.js",
    "src/ai.d.ts",
    "src/ai.js",
    "src/answer.js",
    "src/artifact.js",
    "src/calls.js",
    "src/check.js",
    "src/conversation.js",
    "src/environment.js",
    "src/errors.js",
    "src/files.d.ts",
    "src/grader.js",
    "src/group-grader.js",
    "src/host-tools.js",
    "src/host.js",
    "src/index.d.ts",
    "src/index.js",
    "src/json.js",
    "src/judge.js",
    "src/langchain.d.ts",
    "src/langchain.js",
    "src/mcp.d.ts",
    "src/mcp.js",
    "src/message.js",
    "src/models.js",
    "src/node/absent.js",
    "src/node/assert.js",
    "src/node/assert_strict.js",
    "src/node/async_hooks.js",
    "src/node/buffer.js",
    "src/node/console.js",
    "src/node/constants.js",
    "src/node/crypto.js",
    "src/node/diagnostics_channel.js",
    "src/node/events.js",
    "src/node/fs.js",
    "src/node/fs_promises.js",
    "src/node/hash.js",
    "src/node/os.js",
    "src/node/path.js",
    "src/node/perf_hooks.js",
    "src/node/process.js",
    "src/node/querystring.js",
    "src/node/stream_web.js",
    "src/node/string_decoder.js",
    "src/node/timers.js",
    "src/node/timers_promises.js",
    "src/node/tty.js",
    "src/node/url.js",
    "src/node/util.js",
    "src/node/util_types.js",
    "src/openai-agents.d.ts",
    "src/openai-agents.js",
    "src/openai.d.ts",
    "src/openai.js",
    "src/part.js",
    "src/quick.js",
    "src/rubric.js",
    "src/runtime/events.js",
    "src/runtime/globals.js",
    "src/runtime/index.js",
    "src/runtime/loop.js",
    "src/runtime/promise.js",
    "src/runtime/random.js",
    "src/runtime/text.js",
    "src/sample.js",
    "src/schema.js",
    "src/settings.js",
    "src/sleep.js",
    "src/testing/contract/artifacts.js",
    "src/testing/contract/calls.js",
    "src/testing/contract/context.js",
    "src/testing/contract/log.js",
    "src/testing/contract/models.js",
    "src/testing/contract/observations.js",
    "src/testing/contract/random.js",
    "src/testing/contract/samples.js",
    "src/testing/contract/tools.js",
    "src/testing/host.js",
    "src/testing/index.d.ts",
    "src/testing/index.js",
    "src/tool.js",
    "src/tools.js",
    "src/trace.js",
    "src/web/fetch.js",
    "src/web/streams.js",
    "src/web/subtle.js",
    "src/web/url.js",
    "src/workflow.js",
];

pub(super) const CONTRACT: &str = include_str!("../../../../wit/plugin.wit");

/// Returns the files of the SDK's package: path and text.
pub(super) fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    SDK.iter().copied()
}

/// Writes the SDK's package to a directory, which is created if it does not exist.
pub(crate) fn unpack(dir: &Path) -> io::Result<()> {
    for (path, text) in SDK {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_file_of_the_sdk_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-sdk/js");
        let mut found = BTreeSet::from([PathBuf::from("README.md"), PathBuf::from("package.json")]);
        let mut dirs = vec![root.join("src")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => dirs.push(path),
                    false => drop(found.insert(path.strip_prefix(&root).unwrap().to_owned())),
                }
            }
        }

        let embedded: BTreeSet<PathBuf> = SDK.iter().map(|(path, _)| PathBuf::from(path)).collect();

        assert_eq!(found, embedded);
    }
}
