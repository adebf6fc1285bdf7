//! Conditions that select rows, such as `reward >= 1 and metrics.accuracy is not null`.
//!
//! The language is a part of SQL, and a parser for SQL reads it: comparisons of columns, numbers, texts and
//! booleans, `is null`, `and`, `or`, `not` and parentheses. Other parts of SQL are refused. As in SQL, a
//! comparison with null is neither true nor false, and a row is selected only if the condition is true.

use std::cmp::Ordering;
use std::fmt;

use sqlparser::ast::{BinaryOperator, Expr, Ident, Spanned, UnaryOperator, Value};
use sqlparser::dialect::Dialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token};

use crate::columns::{COLUMNS, Cell, Kind, METRICS};

/// Error of an invalid condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCondition {
    condition: String,
    reason: String,
    /// Index of the character at which the mistake begins, if it is known.
    at: Option<usize>,
}

impl std::error::Error for InvalidCondition {}

impl fmt::Display for InvalidCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, reason, at } = self;
        write!(f, "{reason}\n  {condition}")?;
        at.map_or(Ok(()), |at| write!(f, "\n  {:at$}^", ""))
    }
}

/// A condition that selects rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition(Predicate);

/// A predicate, which is true or false, or neither if a value that it needs is null.
#[derive(Clone, Debug, PartialEq)]
enum Predicate {
    Is(Operand),
    Compare(Operand, Comparison, Operand),
    IsNull(Operand),
    Not(Box<Predicate>),
    And(Box<Predicate>, Box<Predicate>),
    Or(Box<Predicate>, Box<Predicate>),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// Index of a column.
    Column(usize),
    /// Name of a metric.
    Metric(String),
    Number(f64),
    Text(String),
    Bool(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The dialect of conditions. A text may be in single or double quotes, because the shell may need the other kind for
/// the whole condition. A name that is not a word is in backticks.
#[derive(Debug)]
struct ConditionDialect;

impl Dialect for ConditionDialect {
    fn is_identifier_start(&self, character: char) -> bool {
        character.is_alphabetic() || character == '_'
    }

    fn is_identifier_part(&self, character: char) -> bool {
        character.is_alphanumeric() || character == '_'
    }

    fn is_delimited_identifier_start(&self, character: char) -> bool {
        character == '`'
    }
}

impl Condition {
    /// Parses a condition.
    ///
    /// # Errors
    ///
    /// The text is not a condition, or names an unknown column.
    pub fn parse(condition: &str) -> Result<Self, InvalidCondition> {
        let invalid = |reason: String, at| InvalidCondition { condition: condition.to_owned(), reason, at };
        let syntax_error = |error| {
            let (reason, at) = parser_message(error);
            invalid(reason, at.and_then(|at| index_of(condition, at)))
        };
        let mut parser = Parser::new(&ConditionDialect).try_with_sql(condition).map_err(syntax_error)?;
        let expression = parser.parse_expr().map_err(syntax_error)?;
        let rest = parser.next_token();
        if rest.token != Token::EOF {
            return Err(invalid(
                format!("unexpected `{}`", rest.token),
                index_of(condition, rest.span.start),
            ));
        }
        predicate(&expression).map(Self).map_err(|error| invalid(error.reason, index_of(condition, error.at)))
    }

    /// Returns whether a row is selected.
    pub fn selects(&self, row: &[Cell<'_>]) -> bool {
        self.0.evaluate(row) == Some(true)
    }
}

/// Returns the index of a location in a condition of one line; `None` for the end of the condition.
fn index_of(condition: &str, Location { line, column }: Location) -> Option<usize> {
    let at = usize::try_from(column.checked_sub(1)?).ok()?;
    (line == 1 && !condition.contains('\n')).then_some(at)
}

/// Splits an error of the parser into message and location.
fn parser_message(error: ParserError) -> (String, Option<Location>) {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
        ParserError::RecursionLimitExceeded => {
            return ("the condition is nested too deeply".to_owned(), None);
        }
    };
    let found = text.rsplit_once(" at Line: ").and_then(|(message, at)| {
        let (line, column) = at.split_once(", Column: ")?;
        let at = Location { line: line.parse().ok()?, column: column.parse().ok()? };
        Some((message.to_owned(), Some(at)))
    });
    let (message, at) = found.unwrap_or((text, None));
    (format!("the condition is incomplete or invalid: {}", lower(&message)), at)
}

fn lower(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_lowercase().chain(characters).collect())
}

/// Error of an expression that is not supported.
struct UnsupportedExpression {
    reason: String,
    /// Start of the expression.
    at: Location,
}

impl UnsupportedExpression {
    fn new(expression: &Expr, reason: String) -> Self {
        Self { reason, at: expression.span().start }
    }
}

/// Converts an expression of the SQL parser to a predicate.
fn predicate(expression: &Expr) -> Result<Predicate, UnsupportedExpression> {
    let both = |left: &Expr, right: &Expr| {
        Ok::<_, UnsupportedExpression>((Box::new(predicate(left)?), Box::new(predicate(right)?)))
    };
    Ok(match expression {
        Expr::Nested(inner) => predicate(inner)?,
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Predicate::Not(Box::new(predicate(expr)?)),
        Expr::IsNull(expr) => Predicate::IsNull(nullable(expr)?),
        Expr::IsNotNull(expr) => Predicate::Not(Box::new(Predicate::IsNull(nullable(expr)?))),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            let (left, right) = both(left, right)?;
            Predicate::And(left, right)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
            let (left, right) = both(left, right)?;
            Predicate::Or(left, right)
        }
        Expr::BinaryOp { left, op, right } => {
            let Some(comparison) = Comparison::from_operator(op) else {
                let known = "compare with =, !=, <, <=, > and >=, combine with `and`, `or` and `not`";
                return Err(UnsupportedExpression::new(left, format!("`{op}` is not supported: {known}")));
            };
            compare(left, comparison, right)?
        }
        _ => match operand(expression)? {
            is @ (Operand::Bool(_) | Operand::Column(_)) if is.kind() == Kind::Bool => Predicate::Is(is),
            other => {
                let reason = format!("`{expression}` is {}, not a condition", other.kind().name());
                return Err(UnsupportedExpression::new(
                    expression,
                    format!("{reason}; compare it, as in `{expression} = …`"),
                ));
            }
        },
    })
}

/// Returns the operand of `is null`, which may be a list.
fn nullable(expression: &Expr) -> Result<Operand, UnsupportedExpression> {
    match operand(expression)? {
        named @ (Operand::Column(_) | Operand::Metric(_)) => Ok(named),
        _ => Err(UnsupportedExpression::new(
            expression,
            format!("`{expression}` is never null; name a column"),
        )),
    }
}

/// Converts a comparison. Both sides must have the same type, and neither may be null or a list.
fn compare(left: &Expr, comparison: Comparison, right: &Expr) -> Result<Predicate, UnsupportedExpression> {
    let null = [left, right].into_iter().find(|side| matches!(value(side), Some(Value::Null)));
    if let Some(null) = null {
        return Err(UnsupportedExpression::new(
            null,
            "null cannot be compared; write `is null` or `is not null`".to_owned(),
        ));
    }
    let (one, other) = (operand(left)?, operand(right)?);
    for (side, operand) in [(left, &one), (right, &other)] {
        if matches!(operand.kind(), Kind::List(_) | Kind::Struct(_)) {
            let reason =
                format!("`{side}` is a list, which can only be tested with `is null` and `is not null`");
            return Err(UnsupportedExpression::new(side, reason));
        }
    }
    if one.kind().name() != other.kind().name() {
        let (one, other) = (one.kind().name(), other.kind().name());
        let reason = format!("`{left}` is {one} and `{right}` is {other}, which cannot be compared");
        return Err(UnsupportedExpression::new(left, reason));
    }
    Ok(Predicate::Compare(one, comparison, other))
}

fn value(expression: &Expr) -> Option<&Value> {
    match expression {
        Expr::Value(value) => Some(&value.value),
        _ => None,
    }
}

/// Converts an expression to a column, a metric or a literal.
fn operand(expression: &Expr) -> Result<Operand, UnsupportedExpression> {
    let unknown = || {
        let reason =
            format!("`{expression}` is not supported: use columns, numbers, quoted texts, true and false");
        UnsupportedExpression::new(expression, reason)
    };
    Ok(match expression {
        Expr::Nested(inner) => operand(inner)?,
        Expr::Identifier(name) => column(name)?,
        Expr::CompoundIdentifier(names) => match names.as_slice() {
            [first, rest @ ..] if first.value.eq_ignore_ascii_case(METRICS) => {
                let names: Vec<&str> = rest.iter().map(|name| name.value.as_str()).collect();
                Operand::Metric(names.join("."))
            }
            [first, ..] => return Err(unknown_column(&expression.to_string(), first)),
            [] => return Err(unknown()),
        },
        Expr::UnaryOp { op: op @ (UnaryOperator::Minus | UnaryOperator::Plus), expr } => match operand(expr)?
        {
            Operand::Number(number) if *op == UnaryOperator::Minus => Operand::Number(-number),
            number @ Operand::Number(_) => number,
            _ => return Err(unknown()),
        },
        expression => match value(expression) {
            Some(Value::Number(digits, _)) => Operand::Number(digits.parse().map_err(|_| unknown())?),
            Some(Value::SingleQuotedString(text) | Value::DoubleQuotedString(text)) => {
                Operand::Text(text.clone())
            }
            Some(Value::Boolean(is)) => Operand::Bool(*is),
            _ => return Err(unknown()),
        },
    })
}

fn column(name: &Ident) -> Result<Operand, UnsupportedExpression> {
    let found = COLUMNS.iter().position(|column| column.name.eq_ignore_ascii_case(&name.value));
    found.map(Operand::Column).ok_or_else(|| unknown_column(&name.value, name))
}

fn unknown_column(name: &str, at: &Ident) -> UnsupportedExpression {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let reason = format!(
        "unknown column `{name}`; the columns are {}, and a metric is {METRICS}.NAME",
        names.join(", ")
    );
    UnsupportedExpression { reason, at: at.span.start }
}

impl Comparison {
    fn from_operator(operator: &BinaryOperator) -> Option<Self> {
        Some(match operator {
            BinaryOperator::Eq => Self::Equal,
            BinaryOperator::NotEq => Self::NotEqual,
            BinaryOperator::Lt => Self::Less,
            BinaryOperator::LtEq => Self::LessOrEqual,
            BinaryOperator::Gt => Self::Greater,
            BinaryOperator::GtEq => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl Predicate {
    /// Returns whether the predicate holds for a row, or `None` if a null makes it neither true nor false, as in SQL.
    fn evaluate(&self, row: &[Cell<'_>]) -> Option<bool> {
        match self {
            Self::Is(operand) => match operand.evaluate(row) {
                Cell::Bool(is) => Some(is),
                _ => None,
            },
            Self::Compare(one, comparison, other) => {
                order(&one.evaluate(row), &other.evaluate(row)).map(|order| comparison.accepts(order))
            }
            Self::IsNull(operand) => Some(matches!(operand.evaluate(row), Cell::Null)),
            Self::Not(test) => test.evaluate(row).map(|holds| !holds),
            Self::And(one, other) => match (one.evaluate(row), other.evaluate(row)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Or(one, other) => match (one.evaluate(row), other.evaluate(row)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
        }
    }
}

impl Operand {
    fn kind(&self) -> Kind {
        match self {
            Self::Column(index) => COLUMNS[*index].kind,
            Self::Metric(_) | Self::Number(_) => Kind::Double,
            Self::Text(_) => Kind::Text,
            Self::Bool(_) => Kind::Bool,
        }
    }

    /// Returns the operand's value in a row. A list that is not null is returned without its elements, which do not
    /// matter.
    fn evaluate<'c>(&'c self, row: &'c [Cell<'_>]) -> Cell<'c> {
        match self {
            Self::Column(index) => match &row[*index] {
                Cell::Bool(is) => Cell::Bool(*is),
                Cell::Int(number) => Cell::Int(*number),
                Cell::Double(number) => Cell::Double(*number),
                Cell::Text(text) => Cell::Text(text),
                Cell::Null => Cell::Null,
                Cell::Ints(_) | Cell::Doubles(_) | Cell::List(_) | Cell::Struct(_) => Cell::List(Vec::new()),
            },
            Self::Metric(name) => metric(name, row),
            Self::Number(number) => Cell::Double(*number),
            Self::Text(text) => Cell::Text(text),
            Self::Bool(is) => Cell::Bool(*is),
        }
    }
}

fn metric(name: &str, row: &[Cell<'_>]) -> Cell<'static> {
    let metrics = COLUMNS.iter().position(|column| column.name == METRICS).map(|index| &row[index]);
    let Some(Cell::List(metrics)) = metrics else { return Cell::Null };
    let value = metrics.iter().find_map(|metric| match metric {
        Cell::Struct(members) => match members.as_slice() {
            [Cell::Text(own), Cell::Double(value)] if *own == name => Some(*value),
            _ => None,
        },
        _ => None,
    });
    value.map_or(Cell::Null, Cell::Double)
}

/// Compares two values of the same type. Returns `None` if one is null.
fn order(one: &Cell<'_>, other: &Cell<'_>) -> Option<Ordering> {
    let number = |cell: &Cell<'_>| match cell {
        Cell::Int(number) => Some(*number as f64),
        Cell::Double(number) => Some(*number),
        _ => None,
    };
    match (one, other) {
        (Cell::Int(one), Cell::Int(other)) => Some(one.cmp(other)),
        (Cell::Text(one), Cell::Text(other)) => Some(one.cmp(other)),
        (Cell::Bool(one), Cell::Bool(other)) => Some(one.cmp(other)),
        (one, other) => number(one)?.partial_cmp(&number(other)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a row with a reward of 0.5, attempt 2, outcome "scored", three metrics and no token ids.
    fn row() -> Vec<Cell<'static>> {
        let metric = |name, value| Cell::Struct(vec![Cell::Text(name), Cell::Double(value)]);
        let cell = |name| match name {
            "reward" => Cell::Double(0.5),
            "attempt" => Cell::Int(2),
            "outcome" => Cell::Text("scored"),
            "label" => Cell::Text("it's"),
            "withdrawn" => Cell::Bool(false),
            "mask" => Cell::Ints(&[1]),
            METRICS => Cell::List(vec![metric("accuracy", 0.75), metric("pass@1", -1.0), metric("a.b", 1.0)]),
            _ => Cell::Null,
        };
        COLUMNS.iter().map(|column| cell(column.name)).collect()
    }

    #[test]
    fn a_row_is_selected_if_the_condition_is_true() {
        let check = |condition: &str, expected: bool| {
            let parsed = Condition::parse(condition).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.selects(&row()), expected, "{condition}");
        };
        for (condition, expected) in [
            ("reward >= 0.5", true),
            ("reward > 0.5", false),
            ("reward = .5 AND attempt = 2", true),
            ("reward == 5e-1 and attempt != 2", false),
            ("attempt <> 3 and attempt < 2.5", true),
            ("outcome = 'scored'", true),
            ("outcome = \"scored\" and label = 'it''s'", true),
            ("outcome <= 'a'", false),
            ("metrics.accuracy > 0.7", true),
            ("metrics.`pass@1` = -1", true),
            ("metrics.a.b = 1", true),
            ("metrics.other > 0 or metrics.other <= 0", false),
            ("not metrics.other > 0", false),
            ("metrics.other is null", true),
            ("metrics.accuracy is not null", true),
            ("input_ids is null and mask is not null", true),
            ("not withdrawn", true),
            ("withdrawn = true or true", true),
            ("withdrawn or false", false),
            ("not (reward < 1 and outcome = 'scored')", false),
            ("reward < 1 or reward > 2 and reward > 3", true),
            ("1 > reward", true),
            ("parent_turn = 1 or attempt = 2", true),
            ("parent_turn = 1 and attempt = 2", false),
        ] {
            check(condition, expected);
        }
    }

    #[test]
    fn an_invalid_condition_is_refused_with_reason_and_position() {
        let check = |condition: &str, reason: &str, at: Option<usize>| {
            let error = Condition::parse(condition).unwrap_err();
            assert!(error.reason.contains(reason), "{condition}: {error}");
            assert_eq!(error.at, at, "{condition}: {error}");
        };
        check(
            "attempt = 2 and rewrad >= 1",
            "unknown column `rewrad`; the columns are rollout_id, sample_id,",
            Some(16),
        );
        check("metric.a > 1", "unknown column `metric.a`; the columns are", Some(0));
        check("reward", "`reward` is a number, not a condition", Some(0));
        check("reward >= '1'", "`reward` is a number and `'1'` is text", Some(0));
        check("messages = 'x'", "`messages` is a list", Some(0));
        check("reward = null", "write `is null`", Some(9));
        check("1 is null", "never null", Some(0));
        check("reward + 1 > 2", "`reward + 1` is not supported", Some(0));
        check("lower(outcome) = 'x'", "`lower(outcome)` is not supported", Some(0));
        check("reward >= 1 reward", "unexpected `reward`", Some(12));
        check("reward >=", "an expression", None);
        check("reward >= 'x", "unterminated", Some(10));
        check("", "an expression", None);
        check(&"(".repeat(10_000), "nested too deeply", None);
    }
}
