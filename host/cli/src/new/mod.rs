//! The commands `new`, which creates a project from a template, and `update-sdk`.

pub(super) mod rust_sdk;

use crate::print::outln;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use super::Exit;
use super::build::{javascript_sdk, python};

/// Creates a project that `rollout-host build` compiles and that passes `rollout-host validate`.
///
/// A Rust project has its SDK in vendor/rollout-sdk, where `cargo check`, editors and other machines find it;
/// `rollout-host update-sdk` updates it. The Python and JavaScript SDKs are part of this program, and `build` adds
/// them to the component. A TypeScript or JavaScript project has a copy in vendor/rollout-sdk for editors and the
/// type checker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rollout-host new my-agent\n  \
    rollout-host new my-agent --lang python --template tools\n  \
    rollout-host new my-game --lang python --template environment")]
pub(super) struct New {
    /// Name of the project: lower-case letters, digits, '-' and '_', beginning with a letter.
    name: String,
    /// Template of the project.
    #[arg(long, value_enum, default_value_t = Template::OneTurn)]
    template: Template,
    /// Language of the project.
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    lang: Language,
    /// Directory of the project; created if it does not exist. [default: NAME in the working directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Rust: uses the SDK in this directory, guest-sdk/rust of a clone, instead of a copy in
    /// vendor/rollout-sdk.
    #[arg(long, value_name = "DIR", conflicts_with = "sdk_git", help_heading = "SDK")]
    sdk: Option<PathBuf>,
    /// Rust: uses the SDK from a git repository.
    #[arg(long, value_name = "URL", help_heading = "SDK")]
    sdk_git: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    Rust,
    Python,
    Ts,
    Js,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Python => "Python",
            Self::Ts => "TypeScript",
            Self::Js => "JavaScript",
        }
    }
}

/// Directory of the SDK in a TypeScript or JavaScript project.
const JAVASCRIPT_SDK_DIR: &str = "vendor/rollout-sdk";

/// Updates the SDK in a Rust, TypeScript or JavaScript project to the version in this program.
///
/// Replaces vendor/rollout-sdk and changes no other file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  rollout-host update-sdk my-agent")]
pub(super) struct UpdateSdk {
    /// Directory of the project.
    #[arg(default_value = ".")]
    dir: PathBuf,
}

impl UpdateSdk {
    pub(crate) fn run(self) -> Result<Exit> {
        let package = self.dir.join("package.json");
        let is_javascript =
            std::fs::read_to_string(&package).is_ok_and(|text| text.contains(JAVASCRIPT_SDK_DIR));
        if is_javascript {
            let dir = self.dir.join(JAVASCRIPT_SDK_DIR);
            if dir.is_dir() {
                std::fs::remove_dir_all(&dir).with_context(|| format!("cannot replace {}", dir.display()))?;
            }
            javascript_sdk::unpack(&dir).with_context(|| format!("cannot write {}", dir.display()))?;
            outln!("{JAVASCRIPT_SDK_DIR} is updated to rollout-host {}", env!("CARGO_PKG_VERSION"));
            return Ok(Exit::Done);
        }
        let manifest = self.dir.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        if !text.contains(rust_sdk::DIR) {
            bail!(
                "{} does not depend on {}; add to it:\n[dependencies]\nrollout-sdk = {{ path = \"{}\" }}",
                manifest.display(),
                rust_sdk::DIR,
                rust_sdk::DIR
            );
        }
        rust_sdk::vendor(&self.dir)?;
        outln!("{} is updated to rollout-host {}", rust_sdk::DIR, env!("CARGO_PKG_VERSION"));
        Ok(Exit::Done)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Template {
    /// A workflow that calls the model once, and a grader.
    OneTurn,
    /// A workflow with a tool loop and settings, and a grader.
    Tools,
    /// An agent loop that declares its tools before it runs, and a grader.
    AgentLoop,
    /// Only a grader, for other workflows.
    Grader,
    /// An environment, in which a caller's model acts by tools.
    Environment,
}

impl Template {
    fn code(self, lang: Language) -> &'static str {
        match (lang, self) {
            (Language::Rust, Self::OneTurn) => include_str!("templates/one-turn.rs.in"),
            (Language::Rust, Self::Tools) => include_str!("templates/tools.rs.in"),
            (Language::Rust, Self::AgentLoop) => include_str!("templates/agent-loop.rs.in"),
            (Language::Rust, Self::Grader) => include_str!("templates/grader.rs.in"),
            (Language::Rust, Self::Environment) => include_str!("templates/environment.rs.in"),
            (Language::Python, Self::OneTurn) => include_str!("templates/one-turn.py.in"),
            (Language::Python, Self::Tools) => include_str!("templates/tools.py.in"),
            (Language::Python, Self::AgentLoop) => include_str!("templates/agent-loop.py.in"),
            (Language::Python, Self::Grader) => include_str!("templates/grader.py.in"),
            (Language::Python, Self::Environment) => include_str!("templates/environment.py.in"),
            // The templates have no type annotations and are therefore also JavaScript.
            (Language::Ts | Language::Js, Self::OneTurn) => include_str!("templates/one-turn.ts.in"),
            (Language::Ts | Language::Js, Self::Tools) => include_str!("templates/tools.ts.in"),
            (Language::Ts | Language::Js, Self::AgentLoop) => include_str!("templates/agent-loop.ts.in"),
            (Language::Ts | Language::Js, Self::Grader) => include_str!("templates/grader.ts.in"),
            (Language::Ts | Language::Js, Self::Environment) => include_str!("templates/environment.ts.in"),
        }
    }

    /// Returns whether the code derives traits of serde and schemars.
    fn derives(self) -> bool {
        self != Self::OneTurn
    }
}

/// Names that a crate cannot have: keywords of Rust, and names that cargo or the SDK uses.
const RESERVED: [&str; 12] =
    ["crate", "fn", "impl", "main", "mod", "self", "struct", "super", "test", "use", "core", "std"];

/// Names that a module cannot have: keywords of Python, and modules that it would hide.
const RESERVED_IN_PYTHON: [&str; 16] = [
    "and", "as", "class", "def", "del", "for", "from", "if", "import", "in", "is", "json", "not", "or",
    "try", "with",
];

const ROWS: &str = r##"{"system_prompt": "Give the final answer after ####.", "user_prompt": "What is 17 + 25?", "ground_truth": "42"}
{"system_prompt": "Give the final answer after ####.", "user_prompt": "What is 120 + 3 + 77?", "ground_truth": "200"}
{"system_prompt": "Give the final answer after ####.", "user_prompt": "What is 9 + 8 + 7 + 6?", "ground_truth": "30"}
"##;

/// Rows of an environment. Their metadata are the arguments of resets.
const TASK_ROWS: &str = r#"{"user_prompt": "Make the number 10.", "metadata": {"target": 10}}
{"user_prompt": "Make the number 27.", "metadata": {"target": 27}}
{"user_prompt": "Make the number 64.", "metadata": {"target": 64}}
{"user_prompt": "Make the number 100.", "metadata": {"target": 100}}
"#;

const IGNORED: &str = "/target\n/.venv\n/evals\n/rollouts\n*.wasm\n__pycache__/\n";

impl New {
    pub(crate) fn run(self) -> Result<Exit> {
        check_name(&self.name, self.lang)?;
        let dir = self.dir.clone().unwrap_or_else(|| PathBuf::from(&self.name));
        let manifest = match self.lang {
            Language::Rust => ("Cargo.toml", self.manifest(&self.sdk_source()?)),
            lang if self.sdk.is_some() || self.sdk_git.is_some() => {
                bail!("--sdk and --sdk-git are for Rust; the {} SDK is part of this program", lang.name())
            }
            Language::Python => ("pyproject.toml", self.pyproject()),
            Language::Ts | Language::Js => ("package.json", self.package()),
        };
        check_empty(&dir)?;
        let code = self.template.code(self.lang).replace("@NAME@", &self.name);
        let rows = if self.template == Template::Environment { TASK_ROWS } else { ROWS };
        let (entry, rows) = (self.entry(), rows.to_owned());
        let readme = self.readme();
        let ignored =
            if self.is_javascript() { format!("/node_modules\n{IGNORED}") } else { IGNORED.to_owned() };
        for (name, text) in [
            manifest,
            (entry.as_str(), code),
            ("rows.jsonl", rows),
            ("README.md", readme),
            (".gitignore", ignored),
        ] {
            write(&dir.join(name), &text)?;
        }
        if self.lang == Language::Ts {
            write(&dir.join("tsconfig.json"), include_str!("templates/tsconfig.json.in"))?;
        }
        if self.is_javascript() {
            javascript_sdk::unpack(&dir.join(JAVASCRIPT_SDK_DIR)).context("cannot write the SDK")?;
        }
        if self.vendors() {
            rust_sdk::vendor(&dir)?;
        }
        outln!("created {}. Next steps:\n\n  cd {}", self.name, dir.display());
        self.commands().iter().for_each(|command| outln!("  {command}"));
        Ok(Exit::Done)
    }

    /// Returns the path of the file with the code.
    fn entry(&self) -> String {
        match self.lang {
            Language::Rust => "src/lib.rs".to_owned(),
            Language::Python => format!("{}.py", self.name.replace('-', "_")),
            Language::Ts => "src/index.ts".to_owned(),
            Language::Js => "src/index.js".to_owned(),
        }
    }

    fn is_javascript(&self) -> bool {
        matches!(self.lang, Language::Ts | Language::Js)
    }

    fn package(&self) -> String {
        let check = if self.lang == Language::Ts { ",\n    \"check\": \"tsc\"" } else { "" };
        let compiler = if self.lang == Language::Ts { ",\n    \"typescript\": \"^7.0.2\"" } else { "" };
        include_str!("templates/package.json.in")
            .replace("@NAME@", &self.name)
            .replace("@FILE@", &self.name.replace('-', "_"))
            .replace("@ENTRY@", &self.entry())
            .replace("@CHECK@", check)
            .replace("@COMPILER@", compiler)
    }

    fn pyproject(&self) -> String {
        let mut text = include_str!("templates/pyproject.toml.in").replace("@NAME@", &self.name);
        if self.template == Template::Grader {
            text += "\n[tool.rollout-host]\nonly-grader = true\n";
        }
        text
    }

    /// Returns the source of the SDK as a dependency in the manifest.
    fn sdk_source(&self) -> Result<String> {
        if let Some(url) = &self.sdk_git {
            return Ok(format!("git = {}", toml::Value::from(url.as_str())));
        }
        let Some(dir) = &self.sdk else { return Ok(format!("path = \"{}\"", rust_sdk::DIR)) };
        let is_sdk = std::fs::read_to_string(dir.join("Cargo.toml"))
            .is_ok_and(|manifest| manifest.contains("name = \"rollout-sdk\""));
        match dir.canonicalize() {
            Ok(path) if is_sdk => {
                Ok(format!("path = {}", toml::Value::from(path.to_string_lossy().into_owned())))
            }
            _ => {
                bail!("--sdk {} is not the SDK; give the directory guest-sdk/rust of a clone", dir.display())
            }
        }
    }

    /// Returns whether the SDK is copied into the project.
    fn vendors(&self) -> bool {
        self.lang == Language::Rust && self.sdk.is_none() && self.sdk_git.is_none()
    }

    fn manifest(&self, sdk: &str) -> String {
        let mut text = format!(
            "[package]\nname = \"{}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n\
             [lib]\ncrate-type = [\"cdylib\"]\n\n[dependencies]\nrollout-sdk = {{ {sdk} }}\n",
            self.name
        );
        if self.template.derives() {
            text += "schemars = \"1\"\nserde = { version = \"1\", features = [\"derive\"] }\n";
        }
        text + "\n# Half the size of the default: every waiting rollout holds memory in proportion to its component.\n\
                [profile.release]\ncodegen-units = 1\nlto = true\nopt-level = \"s\"\npanic = \"abort\"\n\
                \n# A separate workspace, also inside the directory of another one.\n[workspace]\nexclude = [\"vendor\"]\n"
    }

    /// Returns the commands to build and run the project.
    fn commands(&self) -> Vec<String> {
        let wasm = format!("{}.wasm", self.name.replace('-', "_"));
        let mut commands = Vec::new();
        if self.lang == Language::Python && !python::is_installed_with_tool() {
            let package = format!("{}=={}", python::TOOL, python::TOOL_VERSION);
            commands.push(format!("python3 -m venv .venv && .venv/bin/python -m pip install {package}"));
        }
        if self.is_javascript() {
            commands.push("npm install".to_owned());
        }
        commands.extend([format!("rollout-host build . -o {wasm}"), format!("rollout-host validate {wasm}")]);
        if self.template == Template::Environment {
            commands.push(format!("rollout-host test {wasm} --split train --interactive"));
            commands.push(format!("rollout-host serve {wasm}"));
        } else if self.template == Template::Grader {
            commands.push(format!(
                "rollout-host eval WORKFLOW.wasm --grader {wasm} --data rows.jsonl --model mock"
            ));
        } else {
            commands.push(format!("rollout-host test {wasm} --data rows.jsonl --model mock --interactive"));
            commands.push(format!("rollout-host eval {wasm} --data rows.jsonl --model mock"));
        }
        commands
    }

    /// Returns the text of the project's README.
    fn readme(&self) -> String {
        let mut text = format!("# {}\n\n```sh\n", self.name);
        for command in self.commands() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{command}");
        }
        text += "```\n\n";
        text += match self.template {
            Template::Environment => {
                "With `--interactive` you play an episode in the terminal, such as `add number=9`. For a model, give its \
                 name and `--base-url`,\nin place of `--interactive`, or to `rollout-host eval` with `--split test`. The \
                 code is in `"
            }
            _ => {
                "`--model mock` is a stand-in that solves arithmetic. For a model, give its name and \
                 `--base-url`;\n`rollout-host test --help` lists the rest. The code is in `"
            }
        };
        text += &self.entry();
        text += "`, example rows are in `rows.jsonl`.\n";
        if self.vendors() {
            text += "\nThe SDK and its guide are in `vendor/rollout-sdk`, from the `rollout-host` that created this project;\n\
                     after a newer one is installed, `rollout-host update-sdk` updates the SDK here.\n";
        }
        if self.is_javascript() {
            text += "\nThe SDK and its guide are in `vendor/rollout-sdk`, for editors and the type checker. A component has the\nSDK \
                     of the `rollout-host` that builds it; `rollout-host update-sdk` updates the copy.\n";
        }
        text
    }
}

fn check_name(name: &str, lang: Language) -> Result<()> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.len() > 64 || !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(word) {
        bail!(
            "invalid project name '{}': a name has lower-case letters, digits, '-' and '_', begins with a letter, and has at \
             most 64 characters; --dir sets another directory",
            rollout_wire::text::printable(name)
        );
    }
    let reserved: &[&str] = match lang {
        Language::Rust => &RESERVED,
        Language::Python => &RESERVED_IN_PYTHON,
        Language::Ts | Language::Js => &[],
    };
    if reserved.contains(&name) {
        bail!("'{name}' is reserved in {}; choose another name", lang.name());
    }
    Ok(())
}

/// Checks that the directory is empty, so that no file is overwritten.
fn check_empty(dir: &Path) -> Result<()> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{} is not empty; choose another directory with --dir", dir.display()),
        },
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_valid_for_cargo_and_push() {
        for good in ["a", "my-agent", "agent_2", &"a".repeat(64)] {
            assert!(check_name(good, Language::Rust).is_ok(), "{good}");
            assert!(rollout_catalog::Name::new(good).is_ok(), "`push` refuses {good}");
        }
        for bad in ["", "My", "2a", "-a", "a b", "a/b", "../a", "é", &"a".repeat(65)] {
            for lang in [Language::Rust, Language::Python] {
                assert!(check_name(bad, lang).is_err(), "{bad}");
            }
        }
        assert!(
            check_name("crate", Language::Rust).is_err() && check_name("crate", Language::Python).is_ok()
        );
        assert!(
            check_name("class", Language::Python).is_err() && check_name("class", Language::Rust).is_ok()
        );
    }
}
