//! Colours of the terminal.

use std::io::IsTerminal;

use clap::ValueEnum;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// Meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    System,
    User,
    Assistant,
    Tool,
    Judge,
    Note,
    Good,
    Bad,
}

/// Style of the output: with or without colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    pub(crate) fn new(when: When) -> Self {
        let set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let colour = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => std::io::stdout().is_terminal() && !set("NO_COLOR") && !is_dumb,
        };
        Self { colour }
    }

    /// Colours a text, which must not contain control characters.
    pub(crate) fn paint(self, part: Part, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match part {
            Part::System => "35",
            Part::User => "36",
            Part::Assistant => "32",
            Part::Tool => "33",
            Part::Judge => "34",
            Part::Note => "2",
            Part::Good => "1;32",
            Part::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
