//! Mappings of columns for data sets whose columns have other names.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::cell::{Cell, json_problem};

/// Targets of a mapping, for messages.
pub const TARGETS: &str = "prompt, system_prompt, label, metadata or metadata.NAME";

/// A mapping of a target to a column, such as `prompt=question`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    target: Target,
    path: CellPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Prompt,
    SystemPrompt,
    Label,
    Metadata,
    Member(String),
}

/// The path of a value in a row: a column, or a JSON pointer whose first step is a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CellPath {
    column: String,
    /// The steps within the column's value.
    steps: Vec<String>,
}

/// Error of parsing a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMapping {
    /// There is no `=`, or one side of it is empty.
    #[error("'{0}' is not TARGET=COLUMN, such as prompt=question")]
    Form(String),
    /// The target is unknown.
    #[error("unknown target '{0}'; use {TARGETS}")]
    Target(String),
    /// A target has two columns.
    #[error("{0} is mapped twice; keep one of the mappings")]
    Twice(String),
}

impl FromStr for Mapping {
    type Err = InvalidMapping;

    fn from_str(text: &str) -> Result<Self, InvalidMapping> {
        let form = || InvalidMapping::Form(text.to_owned());
        let (target, path) = text.split_once('=').ok_or_else(form)?;
        let (target, path) = (target.trim(), path.trim());
        let target = match target.to_ascii_lowercase().as_str() {
            "prompt" | "user_prompt" => Target::Prompt,
            "system_prompt" => Target::SystemPrompt,
            "label" | "ground_truth" => Target::Label,
            "metadata" => Target::Metadata,
            _ => match target.split_once('.') {
                Some(("metadata", name)) if !name.is_empty() => Target::Member(name.to_owned()),
                _ => return Err(InvalidMapping::Target(target.to_owned())),
            },
        };
        let path = CellPath::parse(path).ok_or_else(form)?;
        Ok(Self { target, path })
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Prompt => write!(f, "prompt={}", self.path),
            Target::SystemPrompt => write!(f, "system_prompt={}", self.path),
            Target::Label => write!(f, "label={}", self.path),
            Target::Metadata => write!(f, "metadata={}", self.path),
            Target::Member(name) => write!(f, "metadata.{name}={}", self.path),
        }
    }
}

/// The mappings of a data set. A target without a mapping is read from the column of its name.
#[derive(Clone, Debug, Default)]
pub struct ColumnMap(Vec<Mapping>);

impl ColumnMap {
    /// Collects mappings, which must have different targets.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidMapping::Twice`] if two mappings have the same target.
    pub fn new(mappings: Vec<Mapping>) -> Result<Self, InvalidMapping> {
        for (at, mapping) in mappings.iter().enumerate() {
            if mappings[..at].iter().any(|other| other.target == mapping.target) {
                let text = mapping.to_string();
                return Err(InvalidMapping::Twice(text.split('=').next().unwrap_or_default().to_owned()));
            }
        }
        Ok(Self(mappings))
    }

    /// Returns the mappings as text, for the manifest of an evaluation.
    pub fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.0.iter().map(Mapping::to_string).collect();
        texts.sort_unstable();
        texts
    }

    fn of(&self, target: &Target) -> Option<&CellPath> {
        self.0.iter().find(|mapping| mapping.target == *target).map(|mapping| &mapping.path)
    }

    pub(super) fn prompt(&self) -> Option<&CellPath> {
        self.of(&Target::Prompt)
    }

    pub(super) fn system_prompt(&self) -> Option<&CellPath> {
        self.of(&Target::SystemPrompt)
    }

    pub(super) fn label(&self) -> Option<&CellPath> {
        self.of(&Target::Label)
    }

    pub(super) fn metadata(&self) -> Option<&CellPath> {
        self.of(&Target::Metadata)
    }

    /// Returns the members of the metadata that have columns of their own.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &CellPath)> {
        self.0.iter().filter_map(|mapping| match &mapping.target {
            Target::Member(name) => Some((name.as_str(), &mapping.path)),
            _ => None,
        })
    }

    /// Returns the path of every mapping.
    pub(super) fn cells(&self) -> impl Iterator<Item = &CellPath> {
        self.0.iter().map(|mapping| &mapping.path)
    }
}

impl fmt::Display for CellPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() && !self.column.starts_with('/') {
            return f.write_str(&self.column);
        }
        for step in std::iter::once(&self.column).chain(&self.steps) {
            write!(f, "/{}", step.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

impl CellPath {
    fn parse(text: &str) -> Option<Self> {
        let Some(pointer) = text.strip_prefix('/') else {
            return (!text.is_empty()).then(|| Self { column: text.to_owned(), steps: Vec::new() });
        };
        let mut steps = pointer.split('/').map(|step| step.replace("~1", "/").replace("~0", "~"));
        let column = steps.next().filter(|column| !column.is_empty())?;
        Some(Self { column, steps: steps.collect() })
    }

    /// Returns the column in which the path begins.
    pub(super) fn column(&self) -> &str {
        &self.column
    }

    /// Returns the value at this path within the cell of its column, if there is one. With `text_holds_json`, the path
    /// may lead into a text that is JSON.
    pub(super) fn within(&self, cell: &Cell, text_holds_json: bool) -> Result<Option<Cell>, String> {
        let mut value: &RawValue = match (cell, self.steps.as_slice()) {
            (Cell::Null, _) => return Ok(None),
            (cell, []) => return Ok(Some(cell.clone())),
            (Cell::Json(value), _) => value,
            (Cell::Text(text), _) if text_holds_json => serde_json::from_str(text).map_err(|error| {
                format!("{} that is not JSON ({})", self.text_problem(), json_problem(&error))
            })?,
            (Cell::Text(_), _) => return Err(self.text_problem()),
        };
        for step in &self.steps {
            let Some(inner) = member(value, step) else { return Ok(None) };
            value = inner;
        }
        let cell = Cell::of(value).map_err(|error| format!("`{self}`: {}", json_problem(&error)))?;
        Ok(Some(cell).filter(|cell| !matches!(cell, Cell::Null)))
    }

    fn text_problem(&self) -> String {
        format!("`{self}` cannot be looked up because `{}` is text", self.column)
    }
}

/// Returns the member of an object or the element of a list.
fn member<'a>(value: &'a RawValue, step: &str) -> Option<&'a RawValue> {
    /// Visitor that returns one member of an object and skips the others.
    struct Seek<'s>(&'s str);

    impl<'de> serde::de::DeserializeSeed<'de> for Seek<'_> {
        type Value = Option<&'de RawValue>;

        fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> serde::de::Visitor<'de> for Seek<'_> {
        type Value = Option<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(name) = map.next_key::<String>()? {
                let value: &'de RawValue = map.next_value()?;
                if name == self.0 {
                    found = Some(value);
                }
            }
            Ok(found)
        }
    }

    let text = value.get();
    if text.starts_with('[') {
        let elements = Vec::<&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?;
        return elements.get(step.parse::<usize>().ok()?).copied();
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde::de::DeserializeSeed::deserialize(Seek(step), &mut deserializer).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_parsed_as_target_and_path() {
        fn check(text: &str, expected: Result<&str, &str>) {
            let got = text.parse::<Mapping>().map(|mapping| mapping.to_string());
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected),
                (Err(got), Err(expected)) => assert!(got.to_string().contains(expected), "{text}: {got}"),
                (got, expected) => panic!("{text}: {got:?}, {expected:?}"),
            }
        }
        check("prompt=question", Ok("prompt=question"));
        check(" user_prompt = Question text ", Ok("prompt=Question text"));
        check("Ground_Truth=a=b", Ok("label=a=b"));
        check("metadata.id=task_id", Ok("metadata.id=task_id"));
        check("label=/answers/text/0", Ok("label=/answers/text/0"));
        check("label=/a~1b", Ok("label=a/b"));
        check("label=/~1a/b", Ok("label=/~1a/b"));
        check("question", Err("is not TARGET=COLUMN"));
        check("prompt=", Err("is not TARGET=COLUMN"));
        check("prompt=/", Err("is not TARGET=COLUMN"));
        check("answer=label", Err("unknown target 'answer'; use prompt, "));
        check("metadata.=x", Err("unknown target"));
        let twice = ["label=a", "prompt=b", "ground_truth=c"].map(|text| text.parse().unwrap());
        assert_eq!(ColumnMap::new(twice.to_vec()).unwrap_err(), InvalidMapping::Twice("label".to_owned()));
    }

    #[test]
    fn a_pointer_leads_into_a_cell() {
        fn check(path: &str, cell: &str, expected: &str) {
            let path = CellPath::parse(path).unwrap();
            let cell = Cell::of(&RawValue::from_string(cell.to_owned()).unwrap()).unwrap();
            let got = match path.within(&cell, false) {
                Ok(None) => "nothing".to_owned(),
                Ok(Some(Cell::Text(text))) => text,
                Ok(Some(Cell::Json(value))) => value.get().to_owned(),
                Ok(Some(Cell::Null)) => "null".to_owned(),
                Err(what) => what,
            };
            assert_eq!(got, expected, "{path} in {cell:?}");
        }
        check("a", r#""text""#, "text");
        check("/a/b", r#"{"x": [1], "b": "in"}"#, "in");
        check("/a/b/1", r#"{"b": [0, {"c": 1.10}]}"#, r#"{"c": 1.10}"#);
        check("/a/b~1c/~0", r#"{"b/c": {"~": true}}"#, "true");
        check("/a/b", r#"{"c": 1}"#, "nothing");
        check("/a/b", r#"{"b": null}"#, "nothing");
        check("/a/b", "null", "nothing");
        check("/a/b", "[1]", "nothing");
        check("/a/2", "[1]", "nothing");
        check("/a/b", r#""text""#, "`/a/b` cannot be looked up because `a` is text");
        let text = Cell::Text(r#"{"b": 7}"#.to_owned());
        let path = CellPath::parse("/a/b").unwrap();
        assert!(matches!(path.within(&text, true), Ok(Some(Cell::Json(value))) if value.get() == "7"));
    }
}
