//! The prompt of `--interactive`, which reads commands from standard input.

use crate::print::{out, outln};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// A command of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Next,
    Continue,
    Messages,
    Tools,
    Edit(String),
    Quit,
    Unknown(String),
}

impl Command {
    fn parse(line: &str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word.to_lowercase().as_str() {
            "e" | "edit" => Self::Edit(rest.trim().to_owned()),
            _ if !rest.is_empty() => Self::Unknown(line.to_owned()),
            "" | "n" | "next" => Self::Next,
            "c" | "continue" => Self::Continue,
            "m" | "messages" => Self::Messages,
            "t" | "tools" => Self::Tools,
            "q" | "quit" | "exit" => Self::Quit,
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

/// Reads commands from standard input. The end of the input quits.
#[derive(Debug)]
pub(crate) struct Prompt {
    lines: Mutex<Lines<BufReader<Stdin>>>,
    is_disabled: std::sync::atomic::AtomicBool,
    quit: CancellationToken,
}

impl Prompt {
    /// Creates a prompt that cancels `quit` when the user quits.
    pub(crate) fn new(quit: CancellationToken) -> Self {
        let lines = Mutex::new(BufReader::new(tokio::io::stdin()).lines());
        Self { lines, is_disabled: std::sync::atomic::AtomicBool::new(false), quit }
    }

    /// Stops asking, so that the rollout runs to its end.
    pub(crate) fn disable(&self) {
        self.is_disabled.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns whether the prompt still asks.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.is_disabled.load(std::sync::atomic::Ordering::Relaxed) && !self.quit.is_cancelled()
    }

    /// Quits the rollout.
    pub(crate) fn quit(&self) {
        self.quit.cancel();
    }

    /// Prints a question and reads a command.
    pub(crate) async fn ask(&self, question: &str) -> Command {
        match self.line(question).await {
            Some(line) => Command::parse(&line),
            None => Command::Quit,
        }
    }

    /// Reads a text of several lines, which ends with a line that is only a full stop.
    pub(crate) async fn text(&self) -> Option<String> {
        let mut text = Vec::new();
        loop {
            match self.line("| ").await {
                Some(line) if line == "." => return Some(text.join("\n")),
                Some(line) => text.push(line),
                None => return None,
            }
        }
    }

    /// Prints a question and reads a line.
    pub(crate) async fn line(&self, question: &str) -> Option<String> {
        out!("{question}");
        let line = self.lines.lock().await.next_line().await.ok().flatten();
        if line.is_none() {
            outln!();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_single_letters_or_words() {
        fn check(line: &str, expected: Command) {
            assert_eq!(Command::parse(line), expected, "{line:?}");
        }
        for line in ["", "  ", "n", "next", "N\r"] {
            check(line, Command::Next);
        }
        check("c", Command::Continue);
        check("continue", Command::Continue);
        check("m", Command::Messages);
        check("messages", Command::Messages);
        check("t", Command::Tools);
        check("tools ", Command::Tools);
        for line in ["q", "quit", "exit"] {
            check(line, Command::Quit);
        }
        check("e", Command::Edit(String::new()));
        check("e the answer is 3", Command::Edit("the answer is 3".to_owned()));
        check("edit  x", Command::Edit("x".to_owned()));
        check("next one", Command::Unknown("next one".to_owned()));
        check("what", Command::Unknown("what".to_owned()));
    }
}
