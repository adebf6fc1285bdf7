//! Checks that every command in the documents is one that this program understands.

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::Arguments;

/// Adds the Markdown files of a folder and of the folders below it.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "build", "venvs"].contains(&&*name) {
            collect(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns the lines of the shell blocks of a document, with continued lines joined.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_shell = false;
    let mut continued = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_shell = ["sh", "console"].contains(&language);
        } else if is_shell {
            match line.strip_suffix('\\') {
                Some(beginning) => continued.push_str(beginning),
                None => lines.push(std::mem::take(&mut continued) + line),
            }
        }
    }
    lines
}

/// Returns the calls of `rollout-host` in a line, or `None` if the line has no balanced quotes.
///
/// Calls inside quoted arguments, such as `--command 'rollout-host serve …'`, are included.
fn calls(line: &str) -> Option<Vec<Vec<String>>> {
    let words = shlex::split(line)?;
    let mut calls = Vec::new();
    for command in words.split(|word| ["&&", "||", "|", ";", "&"].contains(&&**word)) {
        for word in command.iter().filter(|word| word.starts_with("rollout-host ")) {
            calls.extend(self::calls(word)?);
        }
        // Cargo's commands name the package.
        let is_cargo = command.first().is_some_and(|word| word == "cargo");
        let start = command.iter().position(|word| word == "rollout-host");
        let Some(start) = start.filter(|_| !is_cargo) else { continue };
        let call = command[start..].iter();
        calls.push(call.take_while(|word| !word.starts_with(['>', '<']) && *word != "2>").cloned().collect());
    }
    Some(calls)
}

/// Returns the reason why the program does not understand a call.
fn mistake(call: &[String]) -> Option<String> {
    let parsed = Arguments::try_parse_from(call).or_else(|error| match error.kind() {
        // The documents have the server's address in a variable of the environment.
        ErrorKind::MissingRequiredArgument => {
            let address = ["--to".to_owned(), "http://127.0.0.1:9000".to_owned()];
            Arguments::try_parse_from(call.iter().chain(&address)).map_err(|_| error)
        }
        _ => Err(error),
    });
    let error = parsed.err()?;
    let is_answer = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    (!is_answer).then(|| error.to_string())
}

#[test]
fn every_command_of_the_documents_is_understood() {
    let mut documents = Vec::new();
    collect(Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap(), &mut documents);
    let (mut count, mut wrong) = (0, Vec::new());
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for line in shell_lines(&text).iter().filter(|line| line.contains("rollout-host ")) {
            // An ellipsis stands for options that the line leaves out, and the shell computes other words.
            let is_whole =
                |call: &Vec<String>| !call.iter().any(|word| word.contains('…') || word.contains("$("));
            for call in calls(line).unwrap_or_default().into_iter().filter(is_whole) {
                count += 1;
                if let Some(why) = mistake(&call) {
                    wrong.push(format!("{}: {line}\n{why}", document.display()));
                }
            }
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_are_found_in_a_line_of_shell() {
    let line = "X=1 rollout-host new a && cd a   # a comment with rollout-host new b";
    assert_eq!(calls(line).unwrap(), [["rollout-host", "new", "a"]]);
    let line = "rollout-host bench --command 'rollout-host serve a.wasm' > out";
    assert_eq!(
        calls(line).unwrap(),
        [
            vec!["rollout-host", "serve", "a.wasm"],
            vec!["rollout-host", "bench", "--command", "rollout-host serve a.wasm"]
        ]
    );
}

#[test]
fn an_unknown_option_is_a_mistake() {
    let call = |line: &str| calls(line).unwrap().remove(0);
    assert!(mistake(&call("rollout-host serve a.wasm --no-such-option")).is_some());
    assert_eq!(mistake(&call("rollout-host serve a.wasm --listen 127.0.0.1:9000")), None);
    assert_eq!(mistake(&call("rollout-host --version")), None);
}
