//! The modules of a crate, read from its sources, and the names that they use of each other.
//!
//! A name is followed through re-exports to the module that declares it. Code of tests and fuzz targets is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::sources::sources;

/// Path of a module below the root of its crate; the root's is empty.
type ModulePath = Vec<String>;

/// A folder's own file among its modules: `lib.rs`, `mod.rs`, or the file with the folder's name.
pub(crate) const OWN_FILE: &str = "mod";

/// Uses between the modules of one folder: the name of a module, and the modules that it names.
pub(crate) type Uses = BTreeMap<String, BTreeSet<String>>;

/// Reads the sources of a crate and returns the uses between modules by folder. The folder `src` is empty.
pub(crate) fn uses_by_folder(src: &Path) -> BTreeMap<String, Uses> {
    let modules = read_modules(src);
    let mut folders: BTreeMap<String, Uses> = BTreeMap::new();
    for (path, module) in &modules {
        for name in &module.names {
            let Some(owner) = owner(&modules, &name.path, 0) else { continue };
            let common = path.iter().zip(&owner).take_while(|(one, other)| one == other).count();
            if owner == *path || (name.is_re_export && owner.starts_with(path)) {
                continue;
            }
            let part = |path: &[String]| path.get(common).map_or(OWN_FILE, String::as_str).to_owned();
            let uses = folders.entry(path[..common].join("/")).or_default();
            uses.entry(part(path)).or_default().insert(part(&owner));
        }
    }
    folders
}

/// Returns the circles of a folder: sets of modules that all reach each other.
pub(crate) fn circles(uses: &Uses) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|module| (module.as_str(), reached_from(uses, module))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (module, others) in &reached {
        let is_back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(module));
        let circle: BTreeSet<&str> = others.iter().filter(is_back).copied().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reached_from<'a>(uses: &'a Uses, module: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![module];
    while let Some(next) = left.pop() {
        let others = uses.get(next).into_iter().flatten();
        left.extend(others.map(String::as_str).filter(|other| reached.insert(*other)));
    }
    reached
}

/// A module's file.
struct Module {
    names: Vec<Name>,
}

/// A path in a module's code, from the root of the crate.
struct Name {
    path: ModulePath,
    /// Name of the item in this module, for a `use`.
    alias: Option<String>,
    /// Whether the module only re-exports the item (`pub use`).
    is_re_export: bool,
}

fn read_modules(src: &Path) -> BTreeMap<ModulePath, Module> {
    let mut files = Vec::new();
    sources(src, &mut files);
    let mut texts = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(src).unwrap().with_extension("");
        let mut path: ModulePath = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if matches!(path.last().map(String::as_str), Some("lib" | "main" | "mod")) {
            path.pop();
        }
        texts.insert(path, std::fs::read_to_string(&file).unwrap());
    }
    let tokens: BTreeMap<&ModulePath, Vec<&str>> =
        texts.iter().map(|(path, text)| (path, without_tests(tokens(text)))).collect();
    // A module whose declaration was removed with the tests is a module of tests.
    let is_declared = |path: &ModulePath| {
        (1..=path.len()).all(|depth| {
            let (name, parent) = path[..depth].split_last().unwrap();
            tokens
                .get(&parent.to_vec())
                .is_some_and(|tokens| tokens.windows(3).any(|three| three == ["mod", name.as_str(), ";"]))
        })
    };
    let declared: BTreeSet<&ModulePath> = tokens.keys().copied().filter(|path| is_declared(path)).collect();
    let read = |path: &ModulePath| {
        let is_child = |name: &str| declared.contains(&[path.as_slice(), &[name.to_owned()]].concat());
        Module { names: Reader { path: path.clone(), is_child: &is_child }.read(&tokens[path]) }
    };
    declared.iter().map(|path| ((*path).clone(), read(path))).collect()
}

/// Returns the module that declares the item at a path, or `None` for an item of another crate.
fn owner(modules: &BTreeMap<ModulePath, Module>, path: &[String], depth: usize) -> Option<ModulePath> {
    const RE_EXPORTS_MAX: usize = 8;
    let mut module = ModulePath::new();
    let mut rest = path.iter();
    for part in rest.by_ref() {
        let child = [module.as_slice(), std::slice::from_ref(part)].concat();
        if modules.contains_key(&child) {
            module = child;
            continue;
        }
        let passed_on = modules[&module].names.iter().find(|name| name.alias.as_ref() == Some(part));
        return match passed_on {
            Some(name) if depth < RE_EXPORTS_MAX && name.path != path => {
                let whole: Vec<String> = name.path.iter().chain(rest).cloned().collect();
                owner(modules, &whole, depth + 1)
            }
            _ => Some(module),
        };
    }
    Some(module)
}

/// Reads the names in the tokens of a module.
struct Reader<'a> {
    path: ModulePath,
    is_child: &'a dyn Fn(&str) -> bool,
}

impl Reader<'_> {
    fn read(&self, tokens: &[&str]) -> Vec<Name> {
        let mut names = Vec::new();
        // Modules that are written within this file, each with the depth of its braces.
        let mut inner: Vec<(String, usize)> = Vec::new();
        let mut depth = 0;
        let mut at = 0;
        while at < tokens.len() {
            let here: ModulePath =
                self.path.iter().cloned().chain(inner.iter().map(|(name, _)| name.clone())).collect();
            match tokens[at..] {
                ["use", next, ..] if next != "<" => {
                    let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                    let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap();
                    let mut tree = &tokens[at + 1..end];
                    self.add_tree(&here, &mut tree, &[], is_public, &mut names);
                    at = end;
                }
                ["mod", name, "{", ..] => {
                    depth += 1;
                    inner.push((name.to_owned(), depth));
                    at += 2;
                }
                ["{", ..] => depth += 1,
                ["}", ..] => {
                    if inner.last().is_some_and(|(_, opened)| *opened == depth) {
                        inner.pop();
                    }
                    depth -= 1;
                }
                [_, "::", ..] if at == 0 || tokens[at - 1] != "::" => {
                    let parts: Vec<&str> = tokens[at..]
                        .chunks(2)
                        .take_while(|two| is_word(two[0]))
                        .scan(true, |continues, two| {
                            let now = *continues;
                            *continues = two.get(1) == Some(&"::");
                            now.then_some(two[0])
                        })
                        .collect();
                    at += (parts.len().max(1) - 1) * 2;
                    if let Some(path) = self.absolute(&here, &parts) {
                        names.push(Name { path, alias: None, is_re_export: false });
                    }
                }
                _ => {}
            }
            at += 1;
        }
        names
    }

    /// Adds the paths of a `use` behind a prefix.
    fn add_tree(
        &self,
        here: &ModulePath,
        tokens: &mut &[&str],
        prefix: &[&str],
        is_re_export: bool,
        names: &mut Vec<Name>,
    ) {
        let mut parts = prefix.to_vec();
        while let Some((token, rest)) = tokens.split_first() {
            match *token {
                "," | "}" => break,
                "{" => {
                    *tokens = rest;
                    while !tokens.is_empty() && tokens[0] != "}" {
                        self.add_tree(here, tokens, &parts, is_re_export, names);
                        if tokens.first() == Some(&",") {
                            *tokens = &tokens[1..];
                        }
                    }
                    *tokens = &tokens[1..];
                    return;
                }
                "as" => {
                    let alias = Some(rest[0].to_owned());
                    *tokens = &rest[1..];
                    if let Some(path) = self.absolute(here, &parts) {
                        names.push(Name { path, alias, is_re_export });
                    }
                    return;
                }
                "::" | "*" => {}
                "self" if !parts.is_empty() => {}
                part => parts.push(part),
            }
            *tokens = rest;
        }
        if let Some(path) = self.absolute(here, &parts) {
            let alias = path.last().cloned();
            names.push(Name { path, alias, is_re_export });
        }
    }

    /// Returns a path from the root of the crate, or `None` for one of another crate or of a type.
    fn absolute(&self, here: &ModulePath, parts: &[&str]) -> Option<ModulePath> {
        let (first, mut rest) = parts.split_first()?;
        let mut path = match *first {
            "crate" => ModulePath::new(),
            "self" => here.clone(),
            "super" => here[..here.len().checked_sub(1)?].to_vec(),
            child if *here == self.path && (self.is_child)(child) => {
                here.iter().cloned().chain([child.to_owned()]).collect()
            }
            _ => return None,
        };
        while let Some(("super", others)) = rest.split_first().map(|(first, others)| (*first, others)) {
            path.pop();
            rest = others;
        }
        path.extend(rest.iter().map(|part| (*part).to_owned()));
        Some(path)
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Splits a source into words, `::` and other characters. Comments, texts and white space are left out.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            text_length(rest)
        } else if first == '\'' {
            character_length(rest)
        } else if let Some(hashes) = raw_text(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = rest.find('"').unwrap() + 1;
            start + rest[start..].find(&end).unwrap() + end.len()
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// Returns the number of hashes of a raw text that begins here.
fn raw_text(rest: &str) -> Option<usize> {
    let behind = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = behind.find(|c| c != '#')?;
    behind[hashes..].starts_with('"').then_some(hashes)
}

/// Returns the length of a text with its quotes.
fn text_length(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    rest.len()
}

/// Returns the length of a character with its quotes, or 1 for the quote of a lifetime.
fn character_length(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => {
            characters.next();
            characters.find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1)
        }
        _ => characters.next().filter(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1),
    }
}

/// Removes the items that follow an attribute `cfg` for tests.
fn without_tests(tokens: Vec<&str>) -> Vec<&str> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&["#", "[", "cfg", "("]) {
            let end = at + tokens[at..].iter().position(|token| *token == "]").unwrap();
            let attribute = &tokens[at..end];
            if attribute.contains(&"test") && !attribute.contains(&"not") {
                at = item_end(&tokens, end + 1);
                continue;
            }
        }
        kept.push(tokens[at]);
        at += 1;
    }
    kept
}

/// Returns the index after the item that begins here: after its `;`, its braces, or the comma of a field.
fn item_end(tokens: &[&str], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < tokens.len() {
        match tokens[at] {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                if depth == 0 {
                    return at;
                }
                depth -= 1;
                if depth == 0 && tokens[at] == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}
