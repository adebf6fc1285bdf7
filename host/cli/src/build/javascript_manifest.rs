//! Reads `package.json` and `deno.json`: the project's name, its entry module and its dependencies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::PluginFault;

/// Names of manifests, in order of precedence.
const NAMES: [&str; 2] = ["package.json", "deno.json"];

/// Default entry modules, for projects that name none, in order of precedence.
const DEFAULT_ENTRIES: [&str; 6] =
    ["src/index.ts", "src/index.js", "index.ts", "index.js", "src/mod.ts", "mod.ts"];

/// Name of the SDK's package, which is part of this program.
const SDK: &str = "rollout-sdk";

/// The parts of a project's manifest that this program reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Manifest {
    name: String,
    main: Option<String>,
    exports: Option<Value>,
    dependencies: BTreeMap<String, Value>,
    /// Import map of Deno: modules by their names.
    imports: BTreeMap<String, Value>,
    #[serde(rename = "rollout-host")]
    settings: Settings,
    #[serde(skip)]
    directory: String,
}

/// `"rollout-host"` in the manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// The entry module.
    entry: Option<String>,
}

impl Manifest {
    /// Returns the manifest's file, if the directory has one.
    pub(super) fn path(dir: &Path) -> Option<PathBuf> {
        NAMES.iter().map(|name| dir.join(name)).find(|path| path.is_file())
    }

    pub(super) fn read(dir: &Path) -> Result<Self> {
        let Some(path) = Self::path(dir) else { bail!("{} has no package.json", dir.display()) };
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let manifest: Self = serde_json::from_str(&text)
            .map_err(|error| PluginFault(format!("{} is invalid: {error}", path.display())))?;
        let directory = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { directory, ..manifest })
    }

    /// Returns the entry module's path in the project.
    pub(super) fn entry(&self, dir: &Path) -> Result<String> {
        let named = self.settings.entry.as_deref().or_else(|| self.exported()).or(self.main.as_deref());
        if let Some(named) = named {
            let path = named.trim_start_matches("./");
            if dir.join(path).is_file() {
                return Ok(path.to_owned());
            }
            return Err(PluginFault(format!("the entry module {named} is not in {}", dir.display())).into());
        }
        let default_entry = DEFAULT_ENTRIES.iter().find(|path| dir.join(path).is_file());
        default_entry.map(|path| (*path).to_owned()).ok_or_else(|| {
            PluginFault(format!(
                "{} has no src/index.ts; set the entry module in its manifest: \"rollout-host\": {{ \"entry\": \
                 \"src/agent.ts\" }}",
                dir.display()
            ))
            .into()
        })
    }

    /// Returns the main module of the package's `exports`.
    fn exported(&self) -> Option<&str> {
        let mut value = self.exports.as_ref()?;
        if let Some(root) = value.get(".") {
            value = root;
        }
        while value.is_object() {
            value =
                ["rollout-host", "import", "module", "default"].iter().find_map(|name| value.get(name))?;
        }
        value.as_str()
    }

    /// Checks that the dependencies are installed.
    pub(super) fn check_installed(&self, dir: &Path) -> Result<()> {
        let is_missing = |name: &&String| {
            name.as_str() != SDK && !dir.ancestors().any(|dir| dir.join("node_modules").join(name).is_dir())
        };
        let missing: Vec<&str> = self.dependencies.keys().filter(is_missing).map(String::as_str).collect();
        if missing.is_empty() {
            return Ok(());
        }
        bail!("{} is not installed in {}; run there: npm ci", missing.join(", "), dir.display())
    }

    /// Returns the targets of Deno's import map, by name.
    pub(super) fn aliases(&self) -> BTreeMap<String, String> {
        let target_of = |given: &str| match given.strip_prefix("npm:") {
            // A version follows the last `@`; an `@` at the beginning belongs to a scope.
            Some(package) => match package.rfind('@').filter(|at| *at > 0) {
                Some(at) => package[..at].to_owned(),
                None => package.to_owned(),
            },
            None => given.to_owned(),
        };
        let given = self.imports.iter().filter_map(|(name, value)| Some((name, value.as_str()?)));
        // Names that begin with `#` are imports of a package, which esbuild resolves.
        let given = given.filter(|(name, _)| !name.starts_with('#') && name.as_str() != SDK);
        given
            .map(|(name, value)| (name.clone(), target_of(value)))
            .filter(|(name, value)| name != value)
            .collect()
    }

    /// Returns the project's name as part of a file name.
    pub(super) fn file_name(&self) -> String {
        let name = self.name.rsplit('/').next().unwrap_or_default();
        let name = if name.is_empty() { self.directory.as_str() } else { name };
        let letter = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
        let name: String = name.chars().map(letter).collect();
        if name.is_empty() { "plugin".to_owned() } else { name.replace('-', "_") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(json: &str) -> Manifest {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_entry_is_named_in_the_manifest_or_is_a_default_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        for file in ["src/index.ts", "src/agent.ts"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let check = |json: &str, expected: &str| {
            assert_eq!(manifest(json).entry(dir.path()).unwrap(), expected, "{json}");
        };
        check("{}", "src/index.ts");
        check(r#"{"main": "./src/agent.ts"}"#, "src/agent.ts");
        check(r#"{"exports": "./src/agent.ts", "main": "x.js"}"#, "src/agent.ts");
        check(r#"{"exports": {".": {"types": "./x.d.ts", "import": "./src/agent.ts"}}}"#, "src/agent.ts");
        check(r#"{"rollout-host": {"entry": "src/agent.ts"}, "main": "x.js"}"#, "src/agent.ts");
        let error = manifest(r#"{"main": "lib/x.js"}"#).entry(dir.path()).unwrap_err().to_string();
        assert!(error.contains("lib/x.js"), "{error}");
    }

    #[test]
    fn dependencies_that_are_not_installed_are_named_with_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("packages/agent");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::create_dir_all(dir.path().join("node_modules/@scope/there")).unwrap();
        let check = |json: &str| manifest(json).check_installed(&inner).map_err(|error| error.to_string());

        assert_eq!(check(r#"{"dependencies": {"@scope/there": "1", "rollout-sdk": "*"}}"#), Ok(()));
        let error = check(r#"{"dependencies": {"zod": "4", "ai": "7"}}"#).unwrap_err();
        assert!(error.starts_with("ai, zod is not installed") && error.ends_with("npm ci"), "{error}");
    }

    #[test]
    fn an_import_map_of_deno_names_packages_and_files() {
        let aliases = manifest(
            r##"{"imports": {"zod": "npm:zod@4", "z": "npm:@a/b@^1.2", "lib": "./lib.ts", "#x": "./x", "rollout-sdk": "npm:rollout-sdk"}}"##,
        )
        .aliases();

        let expected = [("lib", "./lib.ts"), ("z", "@a/b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(aliases, BTreeMap::from(expected));
    }

    #[test]
    fn a_file_is_named_like_the_package() {
        assert_eq!(manifest(r#"{"name": "@scope/my-agent"}"#).file_name(), "my_agent");
        assert_eq!(manifest("{}").file_name(), "plugin");
    }
}
