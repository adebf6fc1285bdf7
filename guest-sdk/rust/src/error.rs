//! Errors of a plugin, classified by the party that must act.
//!
//! [`Error`] ends a workflow or a grader. `?` converts any standard error to one, so the narrower errors of
//! this crate, such as [`ChatError`](crate::ChatError), are matched by code that can react and propagated by
//! code that cannot.
//!
//! The module `export` reports errors to the host.

use std::error::Error as StdError;
use std::fmt;

/// Result of a fallible function in a plugin.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error that ends a workflow or a grader.
///
/// It does not implement [`std::error::Error`], because it converts from every type that does: `?` works on
/// all of them.
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Kind of an [`Error`], which determines the party that must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The plugin could not do its work.
    Failed,
    /// An input is invalid: prompt, configuration, metadata or label.
    Invalid,
    /// A time limit that the plugin set itself expired.
    TimedOut,
}

impl Error {
    /// Creates the error of a plugin that could not do its work. The text should say what failed and where.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Failed, text: text.to_string(), source: None }
    }

    /// Creates the error of an invalid input. The text should say what is invalid and where.
    pub fn invalid(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Invalid, ..Self::failed(text) }
    }

    /// Creates the error of an expired time limit that the plugin set itself. The text should say what took too long.
    pub fn timed_out(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::TimedOut, ..Self::failed(text) }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prepends the failed operation to the error's text.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.text = format!("{doing}: {}", self.text);
        self
    }

    /// Returns the original error if it was a `T`.
    ///
    /// `error.downcast_ref::<ChatError>()` shows whether the model was the cause.
    pub fn downcast_ref<T: StdError + 'static>(&self) -> Option<&T> {
        self.source.as_deref()?.downcast_ref()
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self { kind: ErrorKind::Failed, text: with_causes(&error), source: Some(Box::new(error)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}: {}", self.kind, self.text)
    }
}

/// Converts a missing value or an error to an [`Error`] that names the failed operation.
pub trait OrError<T> {
    /// Prepends the failed operation to the error's text. On an `Option`, the text is the whole error.
    fn context(self, doing: impl fmt::Display) -> Result<T>;

    /// Like [`context`](Self::context), for an invalid input.
    fn or_invalid(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> OrError<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().context(doing))
    }

    fn or_invalid(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error { kind: ErrorKind::Invalid, ..error.into().context(doing) })
    }
}

impl<T> OrError<T> for Option<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Error::failed(doing))
    }

    fn or_invalid(self, doing: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Error::invalid(doing))
    }
}

/// Returns [`Error::failed`] from the function, with a text formatted as by [`format!`].
#[macro_export]
macro_rules! bail {
    ($($text:tt)+) => {
        return ::core::result::Result::Err($crate::Error::failed(::core::format_args!($($text)+)).into())
    };
}

/// Joins the error's text and the texts of its sources in one line.
fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<u32> {
        Ok(text.parse::<u32>()?)
    }

    #[test]
    fn a_standard_error_becomes_a_failure_and_can_be_downcast() {
        let error = number("x").context("reading the limit").unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Failed);
        assert_eq!(error.to_string(), "reading the limit: invalid digit found in string");
        assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
    }

    #[test]
    fn a_missing_value_can_be_an_invalid_input() {
        let error = None::<u32>.or_invalid("the prompt is empty").unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "the prompt is empty");
    }
}
