//! Finds an arithmetic expression in prose and evaluates it exactly.
//!
//! Numbers are fractions of two `i128`; an overflow is an error, never rounded. Only the printed decimal of a
//! fraction is rounded.
//!
//! This module knows no chat. [`corrupted`] introduces a mistake that another module requests.

use std::fmt;

/// Maximum nesting of brackets and signs, so that a prompt cannot overflow the stack.
const DEPTH_MAX: u32 = 100;
/// Maximum denominator: a decimal digit is computed by multiplying a remainder by ten.
const DENOMINATOR_MAX: i128 = i128::MAX / 10;
/// Number of decimals printed of a fraction.
const DECIMALS: u32 = 10;

/// Reason why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EvalError {
    #[error("not an arithmetic expression")]
    Syntax,
    #[error("division by zero")]
    DivisionByZero,
    #[error("the numbers are too large")]
    Overflow,
}

/// An exact fraction in lowest terms; the denominator is positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    pub(super) fn whole(numerator: i128) -> Self {
        Self { numerator, denominator: 1 }
    }

    fn new(numerator: i128, denominator: i128) -> Result<Self, EvalError> {
        if denominator == 0 {
            return Err(EvalError::DivisionByZero);
        }
        // The divisor divides the denominator, so only a denominator of i128::MIN overflows.
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).map_err(|_| EvalError::Overflow)?;
        let (mut numerator, mut denominator) = (numerator / divisor, denominator / divisor);
        if denominator < 0 {
            numerator = numerator.checked_neg().ok_or(EvalError::Overflow)?;
            denominator = denominator.checked_neg().ok_or(EvalError::Overflow)?;
        }
        if denominator > DENOMINATOR_MAX {
            return Err(EvalError::Overflow);
        }
        Ok(Self { numerator, denominator })
    }

    pub(super) fn plus(self, other: Self) -> Result<Self, EvalError> {
        let left = times(self.numerator, other.denominator)?;
        let right = times(other.numerator, self.denominator)?;
        let sum = left.checked_add(right).ok_or(EvalError::Overflow)?;
        Self::new(sum, times(self.denominator, other.denominator)?)
    }

    fn negated(self) -> Result<Self, EvalError> {
        let numerator = self.numerator.checked_neg().ok_or(EvalError::Overflow)?;
        Ok(Self { numerator, ..self })
    }

    fn multiplied(self, other: Self) -> Result<Self, EvalError> {
        Self::new(times(self.numerator, other.numerator)?, times(self.denominator, other.denominator)?)
    }

    fn divided(self, other: Self) -> Result<Self, EvalError> {
        Self::new(times(self.numerator, other.denominator)?, times(self.denominator, other.numerator)?)
    }
}

impl fmt::Display for Rational {
    /// Formats a whole number as it is and any other as a decimal, rounded half away from zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denominator = self.denominator.unsigned_abs();
        let mut whole = self.numerator.unsigned_abs() / denominator;
        let mut rest = self.numerator.unsigned_abs() % denominator;
        let mut decimals: u64 = 0;
        for _ in 0..DECIMALS {
            rest *= 10;
            decimals = decimals * 10 + (rest / denominator) as u64;
            rest %= denominator;
        }
        if rest * 2 >= denominator {
            decimals += 1;
        }
        if decimals == 10_u64.pow(DECIMALS) {
            whole += 1;
            decimals = 0;
        }
        if self.numerator < 0 && (whole, decimals) != (0, 0) {
            f.write_str("-")?;
        }
        write!(f, "{whole}")?;
        if decimals != 0 {
            let text = format!("{decimals:0width$}", width = DECIMALS as usize);
            write!(f, ".{}", text.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

/// An expression found in prose, in plain ASCII, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) value: Result<Rational, EvalError>,
}

/// Finds the expression with the most operators; among equals, the last one.
///
/// A single number is not an expression, because prose is full of numbers.
pub(super) fn find(prose: &str) -> Option<Expression> {
    let mut best: Option<(usize, Expression)> = None;
    let mut consider = |run: &str| {
        if let Some(found) = read_run(run)
            && best.as_ref().is_none_or(|(most, _)| found.0 >= *most)
        {
            best = Some(found);
        }
    };
    let mut run = String::new();
    for (at, character) in prose.char_indices() {
        match plain(character) {
            Some(character) => run.push(character),
            None if character == ',' && separates_thousands(prose, at) => {}
            None => {
                consider(&run);
                run.clear();
            }
        }
    }
    consider(&run);
    best.map(|(_, expression)| expression)
}

/// Evaluates a text that consists of one expression.
pub(super) fn evaluate(text: &str) -> Result<Rational, EvalError> {
    parse(text).0
}

/// Returns the expression with one operator changed or a small number added, so that its value differs.
/// `choice` selects the change.
pub(super) fn corrupted(expression: &Expression, choice: u64) -> String {
    let text = &expression.text;
    let operators = binary_operators(text);
    if !operators.is_empty() {
        let at = operators[(choice % operators.len() as u64) as usize];
        let other = match text.as_bytes()[at] {
            b'+' => "-",
            b'-' => "+",
            b'*' => "+",
            _ => "*",
        };
        let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
        let value = evaluate(&changed);
        if value.is_ok() && value != expression.value {
            return changed;
        }
    }
    format!("{text} + {}", 1 + choice % 9)
}

/// Evaluates a run of expression characters, without the punctuation around it, and counts its operators.
fn read_run(run: &str) -> Option<(usize, Expression)> {
    let read = |text: &str| {
        let text = without_punctuation(text);
        let (value, operators) = parse(text);
        (operators > 0 && value != Err(EvalError::Syntax)).then(|| {
            let text = text.to_owned();
            (operators, Expression { text, value })
        })
    };
    read(run).or_else(|| {
        // A sentence may end with a number and the next one begin with one.
        let sentences = run.contains(". ").then(|| run.split(". ").filter_map(read));
        sentences.and_then(|found| found.max_by_key(|(operators, _)| *operators))
    })
}

fn without_punctuation(text: &str) -> &str {
    let mut text = text
        .trim_end_matches(|c: char| c.is_whitespace() || "+-*/(.".contains(c))
        .trim_start_matches(|c: char| c.is_whitespace() || "+*/).".contains(c));
    let opened = text.bytes().filter(|byte| *byte == b'(').count();
    let closed = text.bytes().filter(|byte| *byte == b')').count();
    for _ in closed..opened {
        text = text.strip_prefix('(').unwrap_or(text).trim_start();
    }
    for _ in opened..closed {
        text = text.strip_suffix(')').unwrap_or(text).trim_end();
    }
    text
}

/// Returns the character in ASCII if it may be part of an expression. A line break may not.
fn plain(character: char) -> Option<char> {
    match character {
        '0'..='9' | '+' | '-' | '*' | '/' | '(' | ')' | '.' | ' ' => Some(character),
        '\t' | '\u{a0}' => Some(' '),
        '\u{2212}' | '\u{2013}' => Some('-'),
        '\u{d7}' | '\u{b7}' => Some('*'),
        '\u{f7}' => Some('/'),
        _ => None,
    }
}

/// Returns whether the comma at `at` has a digit before it and exactly three after it.
fn separates_thousands(prose: &str, at: usize) -> bool {
    let bytes = prose.as_bytes();
    let digits_after = bytes[at + 1..].iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    at > 0 && bytes[at - 1].is_ascii_digit() && digits_after == 3
}

fn binary_operators(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut after_operand = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'+' | b'-' | b'*' | b'/' => {
                if after_operand {
                    found.push(at);
                }
                after_operand = false;
            }
            b' ' => {}
            b'(' => after_operand = false,
            _ => after_operand = true,
        }
    }
    found
}

fn parse(text: &str) -> (Result<Rational, EvalError>, usize) {
    let mut parser = Parser { rest: text.as_bytes(), operators: 0 };
    let value = parser.sum(0).and_then(|value| match parser.peek() {
        None => Ok(value),
        Some(_) => Err(EvalError::Syntax),
    });
    (value, parser.operators)
}

/// Recursive-descent parser that evaluates while it reads.
struct Parser<'a> {
    rest: &'a [u8],
    /// Number of binary operators and of signs before brackets.
    operators: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn skip(&mut self) {
        self.rest = &self.rest[1..];
    }

    fn sum(&mut self, depth: u32) -> Result<Rational, EvalError> {
        let mut value = self.product(depth)?;
        while let Some(operator @ (b'+' | b'-')) = self.peek() {
            self.skip();
            self.operators += 1;
            let right = self.product(depth)?;
            value = match operator {
                b'+' => value.plus(right)?,
                _ => value.plus(right.negated()?)?,
            };
        }
        Ok(value)
    }

    fn product(&mut self, depth: u32) -> Result<Rational, EvalError> {
        let mut value = self.factor(depth)?;
        while let Some(operator @ (b'*' | b'/')) = self.peek() {
            self.skip();
            self.operators += 1;
            let right = self.factor(depth)?;
            value = match operator {
                b'*' => value.multiplied(right)?,
                _ => value.divided(right)?,
            };
        }
        Ok(value)
    }

    /// Parses a number, an expression in brackets, or either of them after a sign. A sign before a bracket counts as an
    /// operator, because it makes an expression of a number in brackets.
    fn factor(&mut self, depth: u32) -> Result<Rational, EvalError> {
        if depth > DEPTH_MAX {
            return Err(EvalError::Syntax);
        }
        match self.peek() {
            Some(sign @ (b'+' | b'-')) => {
                self.skip();
                self.operators += usize::from(self.peek() == Some(b'('));
                let value = self.factor(depth + 1)?;
                if sign == b'-' { value.negated() } else { Ok(value) }
            }
            Some(b'(') => {
                self.skip();
                let value = self.sum(depth + 1)?;
                if self.peek() != Some(b')') {
                    return Err(EvalError::Syntax);
                }
                self.skip();
                Ok(value)
            }
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Result<Rational, EvalError> {
        let (mut numerator, mut denominator) = (0_i128, 1_i128);
        let (mut digits, mut in_decimals) = (0, false);
        while let Some(byte) = self.rest.first().copied() {
            match byte {
                b'0'..=b'9' => {
                    digits += 1;
                    numerator = times(numerator, 10)?
                        .checked_add(i128::from(byte - b'0'))
                        .ok_or(EvalError::Overflow)?;
                    if in_decimals {
                        denominator = times(denominator, 10)?;
                    }
                }
                b'.' if !in_decimals => in_decimals = true,
                _ => break,
            }
            self.skip();
        }
        if digits == 0 {
            return Err(EvalError::Syntax);
        }
        Rational::new(numerator, denominator)
    }
}

fn times(left: i128, right: i128) -> Result<i128, EvalError> {
    left.checked_mul(right).ok_or(EvalError::Overflow)
}

fn gcd(mut left: u128, mut right: u128) -> u128 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(prose: &str) -> Option<String> {
        find(prose).map(|expression| match expression.value {
            Ok(value) => value.to_string(),
            Err(error) => error.to_string(),
        })
    }

    #[track_caller]
    fn check(prose: &str, expected: &str) {
        assert_eq!(answer(prose).as_deref(), Some(expected), "{prose}");
    }

    #[test]
    fn problems_of_real_data_sets_have_their_ground_truth_as_value() {
        // Prompt and ground truth of reasoning-gym's basic_arithmetic and chain_sum.
        for row in include_str!("arithmetic_rows.txt").lines() {
            let (prompt, truth) = row.split_once('\t').expect("prompt, tab, truth");
            check(prompt, truth);
        }
    }

    #[test]
    fn precedence_signs_and_fractions_follow_the_rules_of_arithmetic() {
        check("What is 2 + 3 * 4?", "14");
        check("8 - 3 - 2", "3");
        check("100 / 10 / 5", "2");
        check("-2 * -3", "6");
        check("--2 + 1", "3");
        check("-(4)", "-4");
        check("7 / 2", "3.5");
        check("-1 / 3", "-0.3333333333");
        check("2 / 3", "0.6666666667");
        check("1 / 3 * 3 + 0", "1");
        check("0.1 + 0.2", "0.3");
        check("5 / 0", "division by zero");
        check("-1 / 30000000000000", "0");
        check("1999999999999 / 2000000000000", "1");
        check(&format!("{} * 10", i128::MAX), "the numbers are too large");
        check(&format!("{} + 1", i128::MAX), "the numbers are too large");
        check(&format!("1 / {}", i128::MAX), "the numbers are too large");
    }

    #[test]
    fn an_expression_is_found_among_words_and_punctuation() {
        check("Room 12: add 3 + 4, then rest.", "7");
        check("Is it (as they say) 3 + 4)?", "7");
        check("It is 5. 3 + 4 is?", "7");
        check("1 + 1 or rather\n2 + 2", "4");
        check("1 + 1 or rather 2 + 2 + 2 or 3 + 3", "6");
        check("6 \u{d7} 7", "42");
        check("10 \u{2212} 8 \u{f7} 2", "6");
        check("1,234 + 1,000,000", "1001234");
        check("3 + 4 =", "7");
    }

    #[test]
    fn numbers_alone_and_broken_expressions_are_not_found() {
        for prose in ["", "Hello.", "Craig has 5 $20 bills.", "(1) What now?", "3 4", "((((", "2 ** 3"] {
            assert_eq!(answer(prose), None, "{prose}");
        }
    }

    #[test]
    fn deep_nesting_is_rejected_without_a_stack_overflow() {
        let deep = format!("{}1 + 1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(answer(&deep), None);
        assert_eq!(evaluate(&"-".repeat(100_000)), Err(EvalError::Syntax));
    }

    #[test]
    fn a_corrupted_expression_has_another_value() {
        for prose in ["2 * 2", "3 + 0", "5 - 5 + 1", "-( 6775 / 271 ) - 4634", "-(4)"] {
            let expression = find(prose).expect("an expression");
            for choice in 0..20 {
                let wrong = corrupted(&expression, choice);
                let value = evaluate(&wrong);
                assert!(value.is_ok(), "{wrong}");
                assert_ne!(value, expression.value, "{wrong}");
            }
        }
    }
}
