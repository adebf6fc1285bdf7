//! Built-in modules of Node and globals of the web for JavaScript projects.
//!
//! A built-in module is a file of the SDK. A module that a component cannot have can still be imported, because
//! packages import modules that they never use; its members fail when they are used. A global is part of a component
//! only if the program contains its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// Modules that a component has: the name, and the file in the SDK's `src/node`.
const PRESENT: [(&str, &str); 26] = [
    ("assert", "assert.js"),
    ("assert/strict", "assert_strict.js"),
    ("async_hooks", "async_hooks.js"),
    ("buffer", "buffer.js"),
    ("crypto", "crypto.js"),
    ("diagnostics_channel", "diagnostics_channel.js"),
    ("events", "events.js"),
    ("fs", "fs.js"),
    ("fs/promises", "fs_promises.js"),
    ("os", "os.js"),
    ("path", "path.js"),
    ("path/posix", "path.js"),
    ("perf_hooks", "perf_hooks.js"),
    ("process", "process.js"),
    ("querystring", "querystring.js"),
    ("stream/web", "stream_web.js"),
    ("string_decoder", "string_decoder.js"),
    ("timers", "timers.js"),
    ("timers/promises", "timers_promises.js"),
    ("tty", "tty.js"),
    ("url", "url.js"),
    ("util", "util.js"),
    ("util/types", "util_types.js"),
    ("console", "console.js"),
    ("constants", "constants.js"),
    ("sys", "util.js"),
];

/// Modules that a component cannot have.
const ABSENT: [&str; 25] = [
    "child_process",
    "cluster",
    "dgram",
    "dns",
    "dns/promises",
    "domain",
    "http",
    "http2",
    "https",
    "inspector",
    "module",
    "net",
    "readline",
    "readline/promises",
    "repl",
    "stream",
    "stream/consumers",
    "stream/promises",
    "tls",
    "trace_events",
    "v8",
    "vm",
    "wasi",
    "worker_threads",
    "zlib",
];

/// Modules that work with files. A component has no files, so the author's own code must not import these modules.
const OF_FILES: [&str; 2] = ["fs", "fs/promises"];

/// Entry points of the SDK's package besides its main one, and their files in `src`.
pub(super) const ADAPTERS: [(&str, &str); 5] = [
    ("ai", "ai.js"),
    ("langchain", "langchain.js"),
    ("mcp", "mcp.js"),
    ("openai", "openai.js"),
    ("openai-agents", "openai-agents.js"),
];

/// Globals, by the SDK's file in `src` that exports them.
const GLOBALS: [(&str, &[&str]); 5] = [
    (
        "web/streams.js",
        &[
            "ByteLengthQueuingStrategy",
            "CountQueuingStrategy",
            "ReadableByteStreamController",
            "ReadableStream",
            "ReadableStreamDefaultController",
            "ReadableStreamDefaultReader",
            "TextDecoderStream",
            "TextEncoderStream",
            "TransformStream",
            "TransformStreamDefaultController",
            "WritableStream",
            "WritableStreamDefaultController",
            "WritableStreamDefaultWriter",
        ],
    ),
    ("web/url.js", &["URL", "URLSearchParams"]),
    ("web/fetch.js", &["Blob", "File", "FormData", "Headers", "Request", "Response"]),
    ("node/buffer.js", &["Buffer"]),
    ("node/process.js", &["process"]),
];

/// Interfaces of the contract that the SDK imports as `#contract/NAME`. Under Node, the SDK's package replaces them by
/// scripted implementations.
const CONTRACT: [&str; 8] =
    ["artifacts", "calls", "context", "log", "models", "observations", "samples", "tools"];

/// Version of the contract's package.
const CONTRACT_VERSION: &str = "0.1.0";

/// The file with `crypto.subtle`, and the name that a program contains if it uses `crypto.subtle`.
const SUBTLE: (&str, &str) = ("web/subtle.js", "subtle");

/// Returns the targets of all module names that are not the project's, after writing the files that they refer to.
pub(super) fn aliases(work: &Path, sdk: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let dir = work.join("node");
    std::fs::create_dir_all(&dir)?;
    let source = sdk.join("src/node");
    let quoted = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
    let mut aliases = BTreeMap::new();
    let mut add = |name: &str, text: String| -> io::Result<()> {
        // CommonJS, so that `require` returns the module itself.
        let path = dir.join(format!("{}.cjs", name.replace('/', "_")));
        std::fs::write(&path, text)?;
        aliases.insert(name.to_owned(), path.clone());
        aliases.insert(format!("node:{name}"), path);
        Ok(())
    };
    for (name, file) in PRESENT {
        add(name, format!("module.exports = require({}).default;\n", quoted(&source.join(file))))?;
    }
    for name in ABSENT {
        let file = quoted(&source.join("absent.js"));
        add(name, format!("module.exports = require({file}).absent('{name}');\n"))?;
    }
    for interface in CONTRACT {
        let module = format!("rollout:plugin/{interface}@{CONTRACT_VERSION}");
        aliases.insert(format!("#contract/{interface}"), module.into());
    }
    aliases.insert("#contract/random".to_owned(), rollout_quickjs::RANDOM.into());
    aliases.insert("#contract/stdin".to_owned(), rollout_quickjs::STDIN.into());
    aliases.insert("rollout-sdk".to_owned(), sdk.to_owned());
    for (name, file) in ADAPTERS {
        aliases.insert(format!("rollout-sdk/{name}"), sdk.join("src").join(file));
    }
    Ok(aliases)
}

/// Returns a module that defines the globals among the words of this program, or `None` if it has none.
pub(super) fn globals(program: &str, sdk: &Path) -> Option<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let words: BTreeSet<&str> = program.split(|c| !is_part(c)).collect();
    let file = |name: &str| serde_json::Value::from(sdk.join("src").join(name).to_string_lossy()).to_string();
    let (mut imports, mut defined) = (String::new(), Vec::new());
    for (name, exports) in GLOBALS {
        if exports.iter().any(|export| words.contains(export)) {
            // Writing to a string cannot fail.
            let _ = writeln!(imports, "import {{ {} }} from {};", exports.join(", "), file(name));
            defined.extend_from_slice(exports);
        }
    }
    let subtle = words.contains(SUBTLE.1);
    if subtle {
        let _ = writeln!(
            imports,
            "import {{ subtle }} from {};\nglobalThis.crypto.subtle = subtle;",
            file(SUBTLE.0)
        );
    }
    if defined.is_empty() && !subtle {
        return None;
    }
    Some(format!(
        "{imports}for (const [name, value] of Object.entries({{ {} }})) {{\n\
         \x20   Object.defineProperty(globalThis, name, {{ value, writable: true, configurable: true }});\n}}\n",
        defined.join(", ")
    ))
}

/// Returns whether an import of this name in the author's own code is a mistake.
pub(super) fn is_absent(name: &str) -> bool {
    let bare = name.strip_prefix("node:").unwrap_or(name);
    ABSENT.contains(&bare) || OF_FILES.contains(&bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_global_is_defined_if_the_program_has_its_name() {
        let sdk = Path::new("/sdk");

        assert_eq!(globals("const urls = 1; class Responses {}", sdk), None);
        let found = globals("return new URL(text)", sdk).unwrap();
        assert!(found.contains("import { URL, URLSearchParams } from \"/sdk/src/web/url.js\";"), "{found}");
        assert!(!found.contains("Response"), "{found}");
        let found = globals("await crypto.subtle.digest(x)", sdk).unwrap();
        assert!(found.contains("globalThis.crypto.subtle = subtle;"), "{found}");
    }

    #[test]
    fn an_author_cannot_import_modules_for_files_or_the_network() {
        assert!(is_absent("node:fs") && is_absent("http") && is_absent("node:dns/promises"));
        assert!(!is_absent("node:path") && !is_absent("events") && !is_absent("fs-extra"));
    }

    #[test]
    fn each_name_has_a_file_of_the_sdk() {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-sdk/js");
        let work = tempfile::tempdir().unwrap();

        let aliases = aliases(work.path(), &sdk).unwrap();

        for (name, path) in aliases.iter().filter(|(name, _)| !name.starts_with('#')) {
            assert!(path.exists(), "{name}: {path:?}");
        }
        for (name, file) in PRESENT {
            assert!(sdk.join("src/node").join(file).is_file(), "{name}: {file}");
            assert_eq!(aliases[name], aliases[&format!("node:{name}")]);
        }
    }
}
