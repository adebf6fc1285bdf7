//! The columns of a row: their names, order and types, and their values.

use std::borrow::Cow;

/// Type of a column, an element or a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// True or false.
    Bool,
    /// 64-bit integer.
    Int,
    /// 64-bit floating-point number.
    Double,
    /// Text.
    Text,
    /// A list.
    List(&'static Self),
    /// A struct with these members.
    Struct(&'static [Column]),
}

impl Kind {
    /// Returns the name of the type in error messages.
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

/// A column, or a member of a struct. The value may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: &'static str,
    /// Type of the column.
    pub kind: Kind,
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind }
}

/// All columns, in order. `docs/serve/training-rows.md` describes them.
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

/// Name of the column of metrics, whose members a condition can name.
pub(crate) const METRICS: &str = "metrics";

/// Element of the list of metrics. It is not a map, because `datasets` has no type for maps.
const METRIC: Kind = Kind::Struct(&[column("name", Kind::Text), column("value", Kind::Double)]);

/// Refused uses of one kind: `process`, `file`, `network`, `thread`, `alarm` or `module`.
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

/// Value of a column in a row: null or of the column's type.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A finite number.
    Double(f64),
    /// Text.
    Text(&'a str),
    /// A list of integers.
    Ints(&'a [i64]),
    /// A list of finite numbers.
    Doubles(&'a [f64]),
    /// A list.
    List(Vec<Cell<'a>>),
    /// Members of a struct, in the order of its type.
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
