//! Colours of the view, for a terminal with colours or without.

use ratatui::style::{Color, Modifier, Style};

/// Meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    Plain,
    Note,
    System,
    User,
    Assistant,
    Tool,
    Running,
    Good,
    Bad,
    Warning,
}

/// The colours, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    has_colours: bool,
}

impl Palette {
    pub(super) fn new(has_colours: bool) -> Self {
        Self { has_colours }
    }

    pub(super) fn style(self, meaning: Meaning) -> Style {
        let colour = match meaning {
            Meaning::Plain => return Style::new(),
            Meaning::Note => return Style::new().add_modifier(Modifier::DIM),
            Meaning::System => Color::Magenta,
            Meaning::User => Color::Cyan,
            Meaning::Assistant | Meaning::Good => Color::Green,
            Meaning::Tool | Meaning::Warning => Color::Yellow,
            Meaning::Running => Color::Blue,
            Meaning::Bad => Color::Red,
        };
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }
}
