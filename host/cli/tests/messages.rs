//! Checks that texts for people do not contain values in Rust's `Debug` format.

mod sources;

use std::path::Path;

use sources::sources;

/// Returns the lines of a file before its tests, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]").map(|(at, line)| (at + 1, line))
}

/// Returns whether a line prints a value with `Debug`: `{x:?}` in a text, or `?x` in a log line.
///
/// Panics, which are for developers, single characters `{c:?}`, and lines with the comment `not shown` are
/// exempt.
fn is_debug(line: &str) -> bool {
    if line.contains("// not shown") {
        return false;
    }
    let code = line.split("//").next().unwrap_or(line);
    let is_log = ["tracing::", "info!(", "warn!(", "error!(", "debug!("].iter().any(|log| code.contains(log));
    let alone = code.trim_start().strip_prefix('?').is_some_and(|name| name.starts_with(char::is_alphabetic));
    let field = |at: usize| code[at + 1..].starts_with(|c: char| c.is_ascii_lowercase());
    let logged =
        is_log && code.match_indices(" ?").chain(code.match_indices("(?")).any(|(at, _)| field(at + 1));
    let named = code.contains(":?}") || code.contains(":#?}") || code.contains("x?}");
    let for_developers =
        ["assert", "panic!", "unreachable!", "expect("].iter().any(|word| code.contains(word));
    (logged || named || alone) && !for_developers && !code.contains("{c:?}")
}

/// Files whose texts are for developers.
const NOT_SHOWN: [&str; 2] = ["fuzzing.rs", "tests.rs"];

#[test]
fn no_text_for_people_contains_debug_output() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        // Messages of `fuse` name parts of modules as the parser prints them.
        if !path.ends_with("fuse") {
            sources(&path.join("src"), &mut files);
        }
    }
    assert!(files.len() > 100, "only {} sources found, so the check sees too little", files.len());
    let mut wrong = Vec::new();
    for file in files {
        if NOT_SHOWN.iter().any(|name| file.ends_with(name)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in lines(&text).filter(|(_, line)| is_debug(line)) {
            wrong.push(format!("{}:{number}: {}", file.strip_prefix(root).unwrap().display(), line.trim()));
        }
    }
    assert!(wrong.is_empty(), "write these for people (`text::time`, `Display`):\n{}", wrong.join("\n"));
}
