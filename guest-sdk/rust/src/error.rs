//! What can go wrong in a plugin, and whose move it is.
//!
//! [`Error`] is what a workflow or a grader gives up with. Any standard error turns
//! into one with `?`, so the narrower errors of this crate, such as
//! [`ChatError`](crate::ChatError), are matched where a reaction exists and passed on
//! where none does.
//!
//! This module does not know how the host is told; that is `export`'s.

use std::error::Error as StdError;
use std::fmt;

/// What everything fallible in a plugin returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a workflow or a grader gives up.
///
/// It does not implement [`std::error::Error`], because it is made from any type that
/// does: `?` works on all of them.
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Whose move it is after an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The plugin could not do its work.
    Failed,
    /// What the plugin was given is wrong: prompt, configuration, metadata or label.
    Invalid,
    /// A time limit that the plugin set itself passed.
    TimedOut,
}

impl Error {
    /// The plugin could not do its work. The text should say what and where.
    pub fn failed(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Failed, text: text.to_string(), source: None }
    }

    /// What the plugin was given is wrong. The text should say what and where.
    pub fn invalid(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Invalid, ..Self::failed(text) }
    }

    /// A time limit that the plugin set itself passed. The text should say what took
    /// too long.
    pub fn timed_out(text: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::TimedOut, ..Self::failed(text) }
    }

    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error, with what was being done put before its text.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.text = format!("{doing}: {}", self.text);
        self
    }

    /// The error that this one was made from, if it was a `T`.
    ///
    /// `error.downcast_ref::<ChatError>()` tells whether the model was the reason.
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

/// Turns what is missing or went wrong into an [`Error`] that says what was being done.
pub trait OrError<T> {
    /// Puts what was being done before the error's text. On an `Option`, the text is
    /// the whole error.
    fn context(self, doing: impl fmt::Display) -> Result<T>;

    /// As [`context`](Self::context), and says that what the plugin was given is wrong.
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

/// Returns with [`Error::failed`] and a text, written as for [`format!`].
#[macro_export]
macro_rules! bail {
    ($($text:tt)+) => {
        return ::core::result::Result::Err($crate::Error::failed(::core::format_args!($($text)+)).into())
    };
}

/// The error's text and the texts of its causes, in one line.
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
    fn a_standard_error_turns_into_a_failure_and_can_be_found_again() {
        let error = number("x").context("reading the limit").unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Failed);
        assert_eq!(error.to_string(), "reading the limit: invalid digit found in string");
        assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
    }

    #[test]
    fn what_is_missing_can_be_called_invalid() {
        let error = None::<u32>.or_invalid("the prompt is empty").unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "the prompt is empty");
    }
}
