//! Evaluation of arithmetic expressions with exact fractions.
//!
//! Errors are written for the model: they say what was wrong and where.

use std::fmt;

/// Maximum nesting of parentheses and signs, so that a model's text cannot overflow the stack.
const DEPTH_MAX: u32 = 64;

/// Evaluates an expression.
pub fn evaluate(text: &str) -> Result<Number, ExpressionError> {
    let mut parser = Parser { text, place: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.unexpected("an operator")),
    }
}

/// An exact fraction in lowest terms. The denominator is positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    numerator: i128,
    denominator: i128,
}

impl Number {
    fn new(numerator: i128, denominator: i128) -> Result<Self, ExpressionError> {
        if denominator == 0 {
            return Err(ExpressionError::DivisionByZero);
        }
        let divisor = common_divisor(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).map_err(|_| ExpressionError::TooLarge)?;
        let sign = denominator.signum();
        let part = |value: i128| (value / divisor).checked_mul(sign);
        Ok(Self {
            numerator: part(numerator).ok_or(ExpressionError::TooLarge)?,
            denominator: part(denominator).ok_or(ExpressionError::TooLarge)?,
        })
    }

    fn add(self, other: Self) -> Result<Self, ExpressionError> {
        let numerator = || {
            let left = self.numerator.checked_mul(other.denominator)?;
            left.checked_add(other.numerator.checked_mul(self.denominator)?)
        };
        let denominator = self.denominator.checked_mul(other.denominator);
        Self::checked(numerator(), denominator)
    }

    fn multiply(self, other: Self) -> Result<Self, ExpressionError> {
        Self::checked(
            self.numerator.checked_mul(other.numerator),
            self.denominator.checked_mul(other.denominator),
        )
    }

    fn divide(self, other: Self) -> Result<Self, ExpressionError> {
        Self::checked(
            self.numerator.checked_mul(other.denominator),
            self.denominator.checked_mul(other.numerator),
        )
    }

    fn negate(self) -> Result<Self, ExpressionError> {
        Self::checked(self.numerator.checked_neg(), Some(self.denominator))
    }

    fn checked(numerator: Option<i128>, denominator: Option<i128>) -> Result<Self, ExpressionError> {
        match (numerator, denominator) {
            (Some(numerator), Some(denominator)) => Self::new(numerator, denominator),
            _ => Err(ExpressionError::TooLarge),
        }
    }
}

impl fmt::Display for Number {
    /// Formats whole numbers exactly and rounds others to double precision.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(out, "{}", self.numerator),
            _ => write!(out, "{}", self.numerator as f64 / self.denominator as f64),
        }
    }
}

/// Error of evaluating an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// Another token is expected at this position, counted in characters from 1.
    Unexpected {
        place: usize,
        found: Option<char>,
        expected: &'static str,
    },
    DivisionByZero,
    TooLarge,
    TooDeep,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected { place, found: Some(found), expected } => {
                write!(out, "expected {expected} at character {place}, found `{found}`")
            }
            Self::Unexpected { expected, .. } => {
                write!(out, "expected {expected} at the end of the expression")
            }
            Self::DivisionByZero => out.write_str("division by zero"),
            Self::TooLarge => out.write_str("the numbers are too large"),
            Self::TooDeep => write!(out, "more than {DEPTH_MAX} nested parentheses or signs"),
        }
    }
}

impl std::error::Error for ExpressionError {}

struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the rest of the text.
    place: usize,
    depth: u32,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Number, ExpressionError> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value = value.add(self.product()?)?;
            } else if self.take('-') {
                value = value.add(self.product()?.negate()?)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<Number, ExpressionError> {
        let mut value = self.signed()?;
        loop {
            if self.take('*') {
                value = value.multiply(self.signed()?)?;
            } else if self.take('/') {
                value = value.divide(self.signed()?)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<Number, ExpressionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(ExpressionError::TooDeep);
        }
        let value = if self.take('-') {
            self.signed()?.negate()
        } else if self.take('+') {
            self.signed()
        } else if self.take('(') {
            let value = self.sum()?;
            match self.take(')') {
                true => Ok(value),
                false => Err(self.unexpected("an operator or `)`")),
            }
        } else {
            self.number()
        };
        self.depth -= 1;
        value
    }

    fn number(&mut self) -> Result<Number, ExpressionError> {
        self.skip_space();
        let rest = &self.text[self.place..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (whole, decimals) = rest[..end].split_once('.').unwrap_or((&rest[..end], ""));
        if whole.len() + decimals.len() == 0 || decimals.contains('.') {
            return Err(self.unexpected("a number"));
        }
        let numerator = format!("{whole}{decimals}").parse().ok();
        let denominator = u32::try_from(decimals.len()).ok().and_then(|count| 10_i128.checked_pow(count));
        self.place += end;
        Number::checked(numerator, denominator)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = match self.peek() {
            // Signs that models write instead of the ASCII ones.
            Some('\u{2212}') => Some('-'),
            Some('\u{d7}') => Some('*'),
            Some('\u{f7}') => Some('/'),
            found => found,
        };
        if found != Some(wanted) {
            return false;
        }
        self.place += self.peek().map_or(0, char::len_utf8);
        true
    }

    fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.text[self.place..].chars().next()
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.place..];
        self.place += rest.len() - rest.trim_start().len();
    }

    fn unexpected(&mut self, expected: &'static str) -> ExpressionError {
        ExpressionError::Unexpected {
            found: self.peek(),
            place: self.text[..self.place].chars().count() + 1,
            expected,
        }
    }
}

fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_their_exact_value() {
        let check = |text: &str, expected: &str| {
            assert_eq!(evaluate(text).unwrap().to_string(), expected, "{text}");
        };

        check("2 + 3 * 4", "14");
        check("-( 6775 / 271 ) - 4634", "-4659");
        check("-( -483 * -873 ) * -( -253 + -802 )", "-444850245");
        check("10 - 4 - 3", "3");
        check("1 / 3 * 3", "1");
        check("7 / 2", "3.5");
        check("0.1 + 0.2", "0.3");
        check(".5 * 4.", "2");
        check("--4", "4");
        check("8 / -2", "-4");
        check("6 \u{d7} 7 \u{2212} 2", "40");
        check("99999999999999999999 * 2", "199999999999999999998");
    }

    #[test]
    fn a_mistake_is_described_for_the_model() {
        let check = |text: &str, expected: &str| {
            assert_eq!(evaluate(text).unwrap_err().to_string(), expected, "{text}");
        };

        check("", "expected a number at the end of the expression");
        check("2 +", "expected a number at the end of the expression");
        check("2 3", "expected an operator at character 3, found `3`");
        check("(2 + 3", "expected an operator or `)` at the end of the expression");
        check("2 ^ 3", "expected an operator at character 3, found `^`");
        check("two", "expected a number at character 1, found `t`");
        check("1.2.3", "expected a number at character 1, found `1`");
        check("1 / (2 - 2)", "division by zero");
        check(&"9".repeat(60), "the numbers are too large");
        check(&"(".repeat(1000), "more than 64 nested parentheses or signs");
    }

    #[test]
    fn every_row_of_the_example_has_its_label_as_value() {
        let field = |row: &str, name: &str| {
            let (_, rest) = row.split_once(&format!("\"{name}\": \"")).unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        };
        for row in include_str!("../../rows.jsonl").lines() {
            let prompt = field(row, "user_prompt");
            let expression = prompt.trim_start_matches("Calculate ").trim_end_matches('.');
            let value = evaluate(expression).unwrap().to_string();
            assert_eq!(value, field(row, "ground_truth"), "{row}");
        }
    }
}
