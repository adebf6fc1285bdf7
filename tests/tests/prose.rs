//! Checks a part of the rules of "Plain English" in `CONTRIBUTING.md` on the source files.
//!
//! The check covers the directories in [`DIRECTORIES`]. Add a directory there once it is revised; the list grows
//! until it covers the workspace.

use std::path::{Path, PathBuf};

use rollout_tests::project_root;

/// Directories that follow the rules. Add a directory when it is done, never remove one.
const DIRECTORIES: [&str; 25] = [
    "host/catalog/src",
    "host/mock-model/src",
    "host/fuse/src",
    "host/bench/src",
    "guest-sdk/rust/src",
    "examples",
    "wit",
    "host/journal/src",
    "host/eval/src",
    "host/assembly/src",
    "host/cli/src/eval",
    "host/transcript/src",
    "host/wire/src",
    "host/server/src/dialect",
    "host/server/src",
    "host/cli",
    "host/export",
    "tests",
    "fuzz",
    "host/core/src",
    "host/outbound/src",
    "host/registry/src",
    "host/rollout/src",
    "host/guest/src",
    "host/cluster/src",
];

/// Directories whose Python sources follow the rules. Add a directory when it is done, never remove one.
const PYTHON_DIRECTORIES: [&str; 6] = [
    "clients/python/src",
    "guest-sdk/python/src",
    "guest-sdk/python/packages",
    "guest-sdk/python/tests",
    "tests/clients",
    "tests/guests/python",
];

/// Openings of a doc comment that never name its subject.
const OPENINGS: [&str; 10] =
    ["What", "Whatever", "Where", "Wherever", "Who", "Whoever", "Whose", "Which", "Why", "Those"];

/// Retired words and phrases in comments, with their replacements.
const RETIRED: [(&str, &str); 14] = [
    ("nobody", "the subject (the host, the caller, no tenant)"),
    ("somebody", "the subject (a caller, an operator)"),
    ("everybody", "the subject (all callers, all tenants)"),
    ("whoever", "the subject (the caller, the reader)"),
    ("anybody", "the subject (any caller)"),
    ("see above", "a sentence about the item"),
    ("what came of", "the outcome"),
    ("is told", "is reported"),
    ("are told", "are reported"),
    ("given up", "abandoned"),
    ("given back", "released or returned"),
    ("let go of", "released or unloaded"),
    ("made anew", "recreated"),
    ("under way", "in progress"),
];

/// Words that must not name an item: the usual name is a command or a noun.
const NAMES: [&str; 7] = ["told", "said", "crosses", "patience", "crew", "course", "beside"];

#[test]
fn finished_directories_are_written_in_plain_english() {
    let root = project_root();
    let mut mistakes = Vec::new();
    let mut check_directory = |directory: &str, endings: &[&str], check: fn(&str) -> Vec<(usize, String)>| {
        let mut files = Vec::new();
        add_files(&root.join(directory), endings, &mut files);
        // This file quotes mistakes.
        files.retain(|file| !file.ends_with("tests/tests/prose.rs"));
        assert!(!files.is_empty(), "no sources in {directory}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(root).unwrap().display();
            let found = check(&text).into_iter();
            mistakes.extend(found.map(|(line, mistake)| format!("{name}:{line}: {mistake}")));
        }
    };
    for directory in DIRECTORIES {
        check_directory(directory, &["rs", "wit"], check);
    }
    for directory in PYTHON_DIRECTORIES {
        check_directory(directory, &["py"], check_python);
    }
    assert!(
        mistakes.is_empty(),
        "comments and names must be plain English with a noun in front, so that a stranger can read them; the \
         rules and examples are in CONTRIBUTING.md, \"Plain English\":\n{}",
        mistakes.join("\n")
    );
}

#[test]
fn each_kind_of_mistake_is_found() {
    #[track_caller]
    fn mistakes(text: &str, expected: &[usize]) {
        let lines: Vec<usize> = check(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, expected, "{text}");
    }
    mistakes("/// What it is.\nstruct A;", &[1]);
    mistakes("/// Returns the\n/// Whose is fine here.\nfn a() {}", &[]);
    mistakes("//! Why it fails.\n//!\n//! Where it goes.", &[1, 3]);
    mistakes("// Somebody waits.", &[1]);
    mistakes("/// Code such as `nobody` is not prose.", &[]);
    mistakes("let nobody = 1; // nobody", &[1]);
    mistakes("fn told(&self) {}", &[1]);
    mistakes("let course = 1;", &[1]);
    mistakes("let url = \"http://nobody\";", &[]);
}

#[test]
fn each_kind_of_mistake_is_found_in_python() {
    #[track_caller]
    fn mistakes(text: &str, expected: &[usize]) {
        let lines: Vec<usize> = check_python(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, expected, "{text}");
    }
    mistakes("\"\"\"What it is.\"\"\"", &[1]);
    mistakes("def a():\n    \"\"\"Runs.\n\n    Nobody waits.\n    \"\"\"\n    nobody()", &[4]);
    mistakes("# Somebody waits.\na = 1  # see above", &[1, 2]);
    mistakes("TEXT = \"\"\"\nnobody\n\"\"\"\n# Code such as `nobody` is not prose.", &[]);
    mistakes("name = \"nobody\"\n\"\"\"The name.\"\"\"", &[]);
}

/// Returns the line and a description of each mistake in a source text in Rust or WIT.
fn check(text: &str) -> Vec<(usize, String)> {
    let mut mistakes = Vec::new();
    let mut is_start = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
        if let Some(doc) = doc {
            let first = doc.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            if is_start && OPENINGS.contains(&first) {
                mistakes.push((number, opening_mistake(first)));
            }
        }
        // A paragraph starts after code and after an empty doc line.
        is_start = doc.is_none_or(str::is_empty);
        if let Some(comment) = comment(line) {
            mistakes.extend(retired_words(comment).map(|mistake| (number, mistake)));
        } else if let Some(name) = declared_name(line)
            && NAMES.contains(&name)
        {
            mistakes.push((number, format!("'{name}' is no usual name for an item")));
        }
    }
    mistakes
}

/// Returns the line and a description of each mistake in the docstrings and comments of a source text in Python.
fn check_python(text: &str) -> Vec<(usize, String)> {
    let mut mistakes = Vec::new();
    // Whether the open triple-quoted string, if there is one, is a docstring.
    let mut open: Option<bool> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let docstring = line.strip_prefix("\"\"\"").or_else(|| line.strip_prefix("r\"\"\""));
        let prose = match (open, docstring) {
            (Some(is_docstring), _) => is_docstring.then_some(line),
            (None, Some(docstring)) => Some(docstring),
            (None, None) if line.starts_with('#') => Some(line),
            (None, None) => line.find("  # ").map(|at| &line[at..]),
        };
        let first =
            docstring.map_or("", |text| text.split(|c: char| !c.is_alphabetic()).next().unwrap_or(""));
        if open.is_none() && OPENINGS.contains(&first) {
            mistakes.push((number, opening_mistake(first)));
        }
        mistakes.extend(prose.into_iter().flat_map(retired_words).map(|mistake| (number, mistake)));
        if line.matches("\"\"\"").count() % 2 == 1 {
            open = open.is_none().then_some(docstring.is_some());
        }
    }
    mistakes
}

/// Describes a paragraph that begins with this word.
fn opening_mistake(first: &str) -> String {
    let reason = "the sentence names no subject; begin with a verb (\"Returns…\") or a noun";
    format!("a paragraph begins with '{first}': {reason}")
}

/// Describes the retired words of a comment.
fn retired_words(comment: &str) -> impl Iterator<Item = String> {
    let prose = without_code(comment).to_lowercase();
    let found = RETIRED.into_iter().filter(move |(word, _)| contains_word(&prose, word));
    found.map(|(word, instead)| format!("'{word}' is retired; write {instead}"))
}

/// Returns the comment on a line, if there is one.
fn comment(line: &str) -> Option<&str> {
    let at = if line.starts_with("//") { 0 } else { line.find(" // ")? };
    Some(line[at..].trim_start_matches([' ', '/', '!']))
}

/// Removes the parts in backticks.
fn without_code(comment: &str) -> String {
    comment.split('`').step_by(2).collect()
}

/// Returns whether a phrase occurs in a text as whole words.
fn contains_word(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

/// Returns the name of the function, local, constant or module that a line declares.
fn declared_name(line: &str) -> Option<&str> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let mut words = words.skip_while(|word| !["fn", "let", "const", "static", "mod"].contains(word)).skip(1);
    words.find(|word| *word != "mut")
}

/// Adds the sources with these endings in a directory, without those of builds.
fn add_files(directory: &Path, endings: &[&str], files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with("node_modules") {
                add_files(&path, endings, files);
            }
        } else if path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)) {
            files.push(path);
        }
    }
}
