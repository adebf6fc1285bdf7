//! Which column is which, in data sets whose columns have other names.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::cells::{Cell, json_problem};

/// What a column can be used as, for messages.
pub const TARGETS: &str = "prompt, system_prompt, label, metadata or metadata.NAME";

/// One column used as something else than its name says: `prompt=question`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    target: Target,
    place: CellPosition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Prompt,
    SystemPrompt,
    Label,
    Metadata,
    Member(String),
}

/// Where in a row a value is: a column, or a JSON pointer the first step of which is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CellPosition {
    column: String,
    /// The steps from the column on.
    steps: Vec<String>,
}

/// Why a mapping cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMapping {
    /// There is no `=`, or nothing on one side of it.
    #[error("'{0}' is not TARGET=COLUMN, such as prompt=question")]
    Form(String),
    /// Nothing of that name is read.
    #[error("'{0}' is nothing that a row has; use {TARGETS}")]
    Target(String),
    /// Two columns for one thing.
    #[error("{0} is given twice")]
    Twice(String),
}

impl FromStr for Mapping {
    type Err = InvalidMapping;

    fn from_str(text: &str) -> Result<Self, InvalidMapping> {
        let form = || InvalidMapping::Form(text.to_owned());
        let (target, place) = text.split_once('=').ok_or_else(form)?;
        let (target, place) = (target.trim(), place.trim());
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
        let place = CellPosition::parse(place).ok_or_else(form)?;
        Ok(Self { target, place })
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Prompt => write!(f, "prompt={}", self.place),
            Target::SystemPrompt => write!(f, "system_prompt={}", self.place),
            Target::Label => write!(f, "label={}", self.place),
            Target::Metadata => write!(f, "metadata={}", self.place),
            Target::Member(name) => write!(f, "metadata.{name}={}", self.place),
        }
    }
}

/// The mappings of a data set. What none of them names has the column of its own name.
#[derive(Clone, Debug, Default)]
pub struct ColumnMap(Vec<Mapping>);

impl ColumnMap {
    /// All of them, each for something else.
    ///
    /// # Errors
    ///
    /// [`InvalidMapping::Twice`].
    pub fn new(mappings: Vec<Mapping>) -> Result<Self, InvalidMapping> {
        for (at, mapping) in mappings.iter().enumerate() {
            if mappings[..at].iter().any(|other| other.target == mapping.target) {
                let text = mapping.to_string();
                return Err(InvalidMapping::Twice(text.split('=').next().unwrap_or_default().to_owned()));
            }
        }
        Ok(Self(mappings))
    }

    /// As they are written, for what is to be the same when an evaluation is resumed.
    pub fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.0.iter().map(Mapping::to_string).collect();
        texts.sort_unstable();
        texts
    }

    fn of(&self, target: &Target) -> Option<&CellPosition> {
        self.0.iter().find(|mapping| mapping.target == *target).map(|mapping| &mapping.place)
    }

    pub(super) fn prompt(&self) -> Option<&CellPosition> {
        self.of(&Target::Prompt)
    }

    pub(super) fn system_prompt(&self) -> Option<&CellPosition> {
        self.of(&Target::SystemPrompt)
    }

    pub(super) fn label(&self) -> Option<&CellPosition> {
        self.of(&Target::Label)
    }

    pub(super) fn metadata(&self) -> Option<&CellPosition> {
        self.of(&Target::Metadata)
    }

    /// The members of the metadata that have columns of their own.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, &CellPosition)> {
        self.0.iter().filter_map(|mapping| match &mapping.target {
            Target::Member(name) => Some((name.as_str(), &mapping.place)),
            _ => None,
        })
    }

    /// Every place in a row that is read.
    pub(super) fn places(&self) -> impl Iterator<Item = &CellPosition> {
        self.0.iter().map(|mapping| &mapping.place)
    }
}

impl fmt::Display for CellPosition {
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

impl CellPosition {
    fn parse(text: &str) -> Option<Self> {
        let Some(pointer) = text.strip_prefix('/') else {
            return (!text.is_empty()).then(|| Self { column: text.to_owned(), steps: Vec::new() });
        };
        let mut steps = pointer.split('/').map(|step| step.replace("~1", "/").replace("~0", "~"));
        let column = steps.next().filter(|column| !column.is_empty())?;
        Some(Self { column, steps: steps.collect() })
    }

    /// The column that it begins in.
    pub(super) fn column(&self) -> &str {
        &self.column
    }

    /// The value there, of a row whose column this is the cell of; none where there is
    /// nothing. With `text_holds_json`, a text may be JSON to step into.
    pub(super) fn within(&self, cell: &Cell, text_holds_json: bool) -> Result<Option<Cell>, String> {
        let mut value: &RawValue = match (cell, self.steps.as_slice()) {
            (Cell::Null, _) => return Ok(None),
            (cell, []) => return Ok(Some(cell.clone())),
            (Cell::Json(value), _) => value,
            (Cell::Text(text), _) if text_holds_json => serde_json::from_str(text).map_err(|error| {
                format!("{}, and that is no JSON ({})", self.is_text(), json_problem(&error))
            })?,
            (Cell::Text(_), _) => return Err(self.is_text()),
        };
        for step in &self.steps {
            let Some(inner) = member(value, step) else { return Ok(None) };
            value = inner;
        }
        let cell = Cell::of(value).map_err(|error| format!("`{self}`: {}", json_problem(&error)))?;
        Ok(Some(cell).filter(|cell| !matches!(cell, Cell::Null)))
    }

    fn is_text(&self) -> String {
        format!("`{self}` is to be looked up within `{}`, which is text", self.column)
    }
}

/// What is there under a name or an index.
fn member<'a>(value: &'a RawValue, step: &str) -> Option<&'a RawValue> {
    /// One member of an object, and the others read over.
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
    fn a_mapping_is_a_target_and_a_place() {
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
        check("answer=label", Err("'answer' is nothing that a row has; use prompt, "));
        check("metadata.=x", Err("is nothing that a row has"));
        let twice = ["label=a", "prompt=b", "ground_truth=c"].map(|text| text.parse().unwrap());
        assert_eq!(ColumnMap::new(twice.to_vec()).unwrap_err(), InvalidMapping::Twice("label".to_owned()));
    }

    #[test]
    fn a_pointer_leads_into_a_cell() {
        fn check(place: &str, cell: &str, expected: &str) {
            let place = CellPosition::parse(place).unwrap();
            let cell = Cell::of(&RawValue::from_string(cell.to_owned()).unwrap()).unwrap();
            let got = match place.within(&cell, false) {
                Ok(None) => "nothing".to_owned(),
                Ok(Some(Cell::Text(text))) => text,
                Ok(Some(Cell::Json(value))) => value.get().to_owned(),
                Ok(Some(Cell::Null)) => "null".to_owned(),
                Err(what) => what,
            };
            assert_eq!(got, expected, "{place} in {cell:?}");
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
        check("/a/b", r#""text""#, "`/a/b` is to be looked up within `a`, which is text");
        let text = Cell::Text(r#"{"b": 7}"#.to_owned());
        let place = CellPosition::parse("/a/b").unwrap();
        assert!(matches!(place.within(&text, true), Ok(Some(Cell::Json(value))) if value.get() == "7"));
    }
}
