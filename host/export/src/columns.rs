//! The columns of a row, and what is in them: the one place that has their names, their order and their types.

use std::borrow::Cow;

/// The type of a column, or of what is in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number of 64 bits.
    Int,
    /// A double.
    Double,
    /// Text.
    Text,
    /// A list.
    List(&'static Self),
    /// Members by name.
    Struct(&'static [Column]),
}

impl Kind {
    /// As an error names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int | Self::Double => "a number",
            Self::Text => "text",
            Self::List(_) => "a list",
            Self::Struct(_) => "a struct",
        }
    }
}

/// A column, or a member of a struct. Each may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind }
}

/// The columns, in their order. `docs/serve/training-rows.md` says what each means.
pub const COLUMNS: &[Column] = &[
    column("rollout_id", Kind::Text),
    column("sample_id", Kind::Text),
    column("attempt", Kind::Int),
    column("parent_rollout_id", Kind::Text),
    column("parent_turn", Kind::Int),
    column("plugin_digest", Kind::Text),
    column("grader_digest", Kind::Text),
    column("model", Kind::Text),
    column("outcome", Kind::Text),
    column("failure_stage", Kind::Text),
    column("failure_kind", Kind::Text),
    column("failure_fault", Kind::Text),
    column("failure_reason", Kind::Text),
    column("reward", Kind::Double),
    column("withdrawn", Kind::Bool),
    column("refused_uses", Kind::List(&REFUSED_USE)),
    column(METRICS, Kind::List(&METRIC)),
    column("label", Kind::Text),
    column("metadata", Kind::Text),
    column("tools", Kind::Text),
    column("prompt", Kind::List(&MESSAGE)),
    column("messages", Kind::List(&MESSAGE)),
    column("mask", Kind::List(&Kind::Int)),
    column("turns", Kind::List(&TURN)),
    column("input_ids", Kind::List(&Kind::Int)),
    column("assistant_masks", Kind::List(&Kind::Int)),
    column("logprobs", Kind::List(&Kind::Double)),
    column("tokens_missing", Kind::Text),
];

/// The column of metrics, of which a condition names members.
pub(crate) const METRICS: &str = "metrics";

/// A list of pairs and not a map: `datasets` has no type for a map.
const METRIC: Kind = Kind::Struct(&[column("name", Kind::Text), column("value", Kind::Double)]);

/// Uses of one kind that a component does not have: `process`, `file`, `network`, `thread`, `alarm`, `module`.
const REFUSED_USE: Kind =
    Kind::Struct(&[column("kind", Kind::Text), column("count", Kind::Int), column("first", Kind::Text)]);

const MESSAGE: Kind = Kind::Struct(&[
    column("role", Kind::Text),
    column("content", Kind::Text),
    column("reasoning_content", Kind::Text),
    column("tool_calls", Kind::List(&TOOL_CALL)),
    column("tool_call_id", Kind::Text),
    column("name", Kind::Text),
    column("raw", Kind::Text),
]);

const TOOL_CALL: Kind = Kind::Struct(&[
    column("id", Kind::Text),
    column("type", Kind::Text),
    column("function", Kind::Struct(&[column("name", Kind::Text), column("arguments", Kind::Text)])),
]);

const TURN: Kind = Kind::Struct(&[
    column("request", Kind::Int),
    column("message", Kind::Int),
    column("model", Kind::Text),
    column("finish_reason", Kind::Text),
    column("prompt_tokens", Kind::Int),
    column("completion_tokens", Kind::Int),
    column("prompt_token_ids", Kind::List(&Kind::Int)),
    column("completion_token_ids", Kind::List(&Kind::Int)),
    column("logprobs", Kind::List(&Kind::Double)),
]);

/// What is in a column of one row, of the column's type or null.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A finite number.
    Double(f64),
    /// Text.
    Text(&'a str),
    /// A list of whole numbers.
    Ints(&'a [i64]),
    /// A list of finite numbers.
    Doubles(&'a [f64]),
    /// A list.
    List(Vec<Cell<'a>>),
    /// The members of a struct, in the order of its type.
    Struct(Vec<Cell<'a>>),
}

impl<'a> Cell<'a> {
    pub(crate) fn text(text: Option<&'a Cow<'_, str>>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(text))
    }

    pub(crate) fn int(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Int)
    }

    pub(crate) fn ints(numbers: Option<&'a Vec<i64>>) -> Self {
        numbers.map_or(Self::Null, |numbers| Self::Ints(numbers))
    }

    pub(crate) fn doubles(numbers: Option<&'a Vec<f64>>) -> Self {
        numbers.map_or(Self::Null, |numbers| Self::Doubles(numbers))
    }
}
