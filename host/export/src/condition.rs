//! Which rows are written: `reward >= 1 and metrics.accuracy is not null`.
//!
//! The language is the conditions of SQL, read by a parser of SQL: comparisons of columns, numbers, texts and
//! truth values, `is null`, `and`, `or`, `not` and parentheses. What SQL has beyond that is refused. As there, a
//! comparison with what is null is neither true nor false, and only what is true is selected.

use std::cmp::Ordering;
use std::fmt;

use sqlparser::ast::{BinaryOperator, Expr, Ident, Spanned, UnaryOperator, Value};
use sqlparser::dialect::Dialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token};

use crate::columns::{COLUMNS, Cell, Kind, METRICS};

/// What is wrong with a condition, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCondition {
    condition: String,
    what: String,
    /// The character at which it is, from 0, where that is known.
    at: Option<usize>,
}

impl std::error::Error for InvalidCondition {}

impl fmt::Display for InvalidCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, what, at } = self;
        write!(f, "{what}\n  {condition}")?;
        at.map_or(Ok(()), |at| write!(f, "\n  {:at$}^", ""))
    }
}

/// Selects rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition(Test);

/// Something that is true, false or, with what is null, neither.
#[derive(Clone, Debug, PartialEq)]
enum Test {
    Is(Operand),
    Compare(Operand, Comparison, Operand),
    IsNull(Operand),
    Not(Box<Test>),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// A column, by its place.
    Column(usize),
    /// A metric, by its name.
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

/// Texts are in either quotes, as in a shell one of them is taken; a name that is no word is in backticks.
#[derive(Debug)]
struct Words;

impl Dialect for Words {
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
    /// Reads a condition.
    ///
    /// # Errors
    ///
    /// It is none, or names what is no column.
    pub fn parse(condition: &str) -> Result<Self, InvalidCondition> {
        let invalid = |what: String, at| InvalidCondition { condition: condition.to_owned(), what, at };
        let unread = |error| {
            let (what, at) = readable(error);
            invalid(what, at.and_then(|at| place(condition, at)))
        };
        let mut parser = Parser::new(&Words).try_with_sql(condition).map_err(unread)?;
        let expression = parser.parse_expr().map_err(unread)?;
        let rest = parser.next_token();
        if rest.token != Token::EOF {
            let what = format!("`{}` does not go on with what is before it", rest.token);
            return Err(invalid(what, place(condition, rest.span.start)));
        }
        test(&expression).map(Self).map_err(|Refused { what, at }| invalid(what, place(condition, at)))
    }

    /// Whether a row is selected.
    pub fn holds(&self, row: &[Cell<'_>]) -> bool {
        self.0.of(row) == Some(true)
    }
}

/// Where in a condition of one line something is; none for the place after it.
fn place(condition: &str, Location { line, column }: Location) -> Option<usize> {
    let at = usize::try_from(column.checked_sub(1)?).ok()?;
    (line == 1 && !condition.contains('\n')).then_some(at)
}

/// What the parser says, without the place, and the place.
fn readable(error: ParserError) -> (String, Option<Location>) {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
        ParserError::RecursionLimitExceeded => return ("the condition is nested too deep".to_owned(), None),
    };
    let found = text.rsplit_once(" at Line: ").and_then(|(what, at)| {
        let (line, column) = at.split_once(", Column: ")?;
        let at = Location { line: line.parse().ok()?, column: column.parse().ok()? };
        Some((what.to_owned(), Some(at)))
    });
    let (what, at) = found.unwrap_or((text, None));
    (format!("the condition is not complete or not one: {}", lower(&what)), at)
}

fn lower(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_lowercase().chain(characters).collect())
}

/// What of an expression is not taken, and where it begins.
struct Refused {
    what: String,
    at: Location,
}

impl Refused {
    fn new(expression: &Expr, what: String) -> Self {
        Self { what, at: expression.span().start }
    }
}

fn test(expression: &Expr) -> Result<Test, Refused> {
    let both = |left: &Expr, right: &Expr| Ok::<_, Refused>((Box::new(test(left)?), Box::new(test(right)?)));
    Ok(match expression {
        Expr::Nested(inner) => test(inner)?,
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Test::Not(Box::new(test(expr)?)),
        Expr::IsNull(expr) => Test::IsNull(nullable(expr)?),
        Expr::IsNotNull(expr) => Test::Not(Box::new(Test::IsNull(nullable(expr)?))),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            let (left, right) = both(left, right)?;
            Test::And(left, right)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
            let (left, right) = both(left, right)?;
            Test::Or(left, right)
        }
        Expr::BinaryOp { left, op, right } => {
            let Some(comparison) = Comparison::of(op) else {
                let known = "=, !=, <, <=, > and >= compare, and `and`, `or` and `not` join";
                return Err(Refused::new(left, format!("`{op}` is no part of a condition: {known}")));
            };
            compare(left, comparison, right)?
        }
        _ => match operand(expression)? {
            is @ (Operand::Bool(_) | Operand::Column(_)) if is.kind() == Kind::Bool => Test::Is(is),
            other => {
                let what = format!("`{expression}` is {}, not a condition", other.kind().name());
                return Err(Refused::new(
                    expression,
                    format!("{what}; compare it, as in `{expression} = …`"),
                ));
            }
        },
    })
}

/// What is asked whether it is null, which may be a list.
fn nullable(expression: &Expr) -> Result<Operand, Refused> {
    match operand(expression)? {
        named @ (Operand::Column(_) | Operand::Metric(_)) => Ok(named),
        _ => Err(Refused::new(expression, format!("`{expression}` is never null; name a column"))),
    }
}

fn compare(left: &Expr, comparison: Comparison, right: &Expr) -> Result<Test, Refused> {
    let null = [left, right].into_iter().find(|side| matches!(value(side), Some(Value::Null)));
    if let Some(null) = null {
        return Err(Refused::new(
            null,
            "nothing compares with null; write `is null` or `is not null`".to_owned(),
        ));
    }
    let (one, other) = (operand(left)?, operand(right)?);
    for (side, operand) in [(left, &one), (right, &other)] {
        if matches!(operand.kind(), Kind::List(_) | Kind::Struct(_)) {
            let what = format!("`{side}` is a list, which only `is null` and `is not null` ask about");
            return Err(Refused::new(side, what));
        }
    }
    if one.kind().name() != other.kind().name() {
        let (one, other) = (one.kind().name(), other.kind().name());
        let what = format!("`{left}` is {one} and `{right}` is {other}, which do not compare");
        return Err(Refused::new(left, what));
    }
    Ok(Test::Compare(one, comparison, other))
}

fn value(expression: &Expr) -> Option<&Value> {
    match expression {
        Expr::Value(value) => Some(&value.value),
        _ => None,
    }
}

fn operand(expression: &Expr) -> Result<Operand, Refused> {
    let unknown = || {
        let what = format!(
            "`{expression}` is no part of a condition: columns, numbers, texts in quotes, true and false are"
        );
        Refused::new(expression, what)
    };
    Ok(match expression {
        Expr::Nested(inner) => operand(inner)?,
        Expr::Identifier(name) => column(name)?,
        Expr::CompoundIdentifier(names) => match names.as_slice() {
            [first, rest @ ..] if first.value.eq_ignore_ascii_case(METRICS) => {
                let names: Vec<&str> = rest.iter().map(|name| name.value.as_str()).collect();
                Operand::Metric(names.join("."))
            }
            [first, ..] => return Err(no_column(&expression.to_string(), first)),
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

fn column(name: &Ident) -> Result<Operand, Refused> {
    let found = COLUMNS.iter().position(|column| column.name.eq_ignore_ascii_case(&name.value));
    found.map(Operand::Column).ok_or_else(|| no_column(&name.value, name))
}

fn no_column(name: &str, at: &Ident) -> Refused {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let what = format!(
        "there is no column `{name}`; there are {}, and a metric is {METRICS}.NAME",
        names.join(", ")
    );
    Refused { what, at: at.span.start }
}

impl Comparison {
    fn of(operator: &BinaryOperator) -> Option<Self> {
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

    fn holds(self, order: Ordering) -> bool {
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

impl Test {
    fn of(&self, row: &[Cell<'_>]) -> Option<bool> {
        match self {
            Self::Is(operand) => match operand.of(row) {
                Cell::Bool(is) => Some(is),
                _ => None,
            },
            Self::Compare(one, comparison, other) => {
                order(&one.of(row), &other.of(row)).map(|order| comparison.holds(order))
            }
            Self::IsNull(operand) => Some(matches!(operand.of(row), Cell::Null)),
            Self::Not(test) => test.of(row).map(|holds| !holds),
            Self::And(one, other) => match (one.of(row), other.of(row)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Or(one, other) => match (one.of(row), other.of(row)) {
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
            Self::Column(place) => COLUMNS[*place].kind,
            Self::Metric(_) | Self::Number(_) => Kind::Double,
            Self::Text(_) => Kind::Text,
            Self::Bool(_) => Kind::Bool,
        }
    }

    /// What it is in a row. Of a list it matters only whether it is there.
    fn of<'c>(&'c self, row: &'c [Cell<'_>]) -> Cell<'c> {
        match self {
            Self::Column(place) => match &row[*place] {
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
    let metrics = COLUMNS.iter().position(|column| column.name == METRICS).map(|place| &row[place]);
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

/// The order of two values of one sort; none with a null.
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

    /// A row with a reward of 0.5, attempt 2, outcome "scored", two metrics and no token ids.
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
    fn a_row_is_selected_where_the_condition_is_true() {
        let check = |condition: &str, expected: bool| {
            let parsed = Condition::parse(condition).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.holds(&row()), expected, "{condition}");
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
    fn a_condition_that_is_none_is_refused_with_what_is_wrong_and_where() {
        let check = |condition: &str, what: &str, at: Option<usize>| {
            let error = Condition::parse(condition).unwrap_err();
            assert!(error.what.contains(what), "{condition}: {error}");
            assert_eq!(error.at, at, "{condition}: {error}");
        };
        check(
            "attempt = 2 and rewrad >= 1",
            "no column `rewrad`; there are rollout_id, sample_id,",
            Some(16),
        );
        check("metric.a > 1", "no column `metric.a`; there are", Some(0));
        check("reward", "`reward` is a number, not a condition", Some(0));
        check("reward >= '1'", "`reward` is a number and `'1'` is text", Some(0));
        check("messages = 'x'", "`messages` is a list", Some(0));
        check("reward = null", "write `is null`", Some(9));
        check("1 is null", "never null", Some(0));
        check("reward + 1 > 2", "`reward + 1` is no part of a condition", Some(0));
        check("lower(outcome) = 'x'", "`lower(outcome)` is no part of a condition", Some(0));
        check("reward >= 1 reward", "`reward` does not go on", Some(12));
        check("reward >=", "an expression", None);
        check("reward >= 'x", "unterminated", Some(10));
        check("", "an expression", None);
        check(&"(".repeat(10_000), "nested too deep", None);
    }
}
