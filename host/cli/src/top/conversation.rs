//! A conversation as lines of a terminal.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

use rollout_page::{CallData, MessageData, RolloutData, TextData, TurnData, bytes, reward};

use super::palette::{Meaning, Palette};

/// Maximum number of lines that one text fills. The page in a browser has the rest.
const TEXT_LINES_MAX: usize = 400;

/// Returns the lines of a conversation, at most `width` wide.
pub(super) fn lines(data: &RolloutData, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let mut writer = Writer { lines: Vec::new(), width: width.max(20), palette };
    writer.head(data);
    for turn in &data.turns {
        writer.turn(turn);
    }
    if data.turns.is_empty() {
        writer.text("", "The model has not been called.", Meaning::Note);
    }
    writer.lines
}

struct Writer {
    lines: Vec<Line<'static>>,
    width: usize,
    palette: Palette,
}

impl Writer {
    fn head(&mut self, data: &RolloutData) {
        let plugin = data.plugin.as_ref().map(|plugin| format!(" of plugin {plugin}")).unwrap_or_default();
        match (&data.phase, data.reward, &data.failure) {
            (Some(phase), ..) => self.text("", &format!("{phase}{plugin}"), Meaning::Running),
            (None, Some(value), _) => {
                self.text("", &format!("reward {}{plugin}", reward(value)), Meaning::Good);
            }
            (None, None, Some(failure)) => {
                let cause = format!(
                    "no reward{plugin}: {} in the {}, at fault: {}",
                    failure.kind, failure.stage, failure.fault
                );
                self.text("", &cause, Meaning::Bad);
                self.text("", &failure.reason, Meaning::Plain);
            }
            (None, None, None) => {}
        }
        let facts = data.facts.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
        self.text("", &facts.join("   "), Meaning::Note);
        if let Some(caveat) = &data.caveat {
            self.text("", caveat, Meaning::Warning);
        }
    }

    fn turn(&mut self, turn: &TurnData) {
        self.lines.push(Line::default());
        let style = self.palette.style(Meaning::Plain).add_modifier(Modifier::BOLD);
        let facts = turn.facts.join(" · ");
        self.lines.push(Line::from(vec![
            Span::styled(format!("── {} ", turn.title), style),
            Span::styled(facts, self.palette.style(Meaning::Note)),
        ]));
        if let Some(warning) = &turn.warning {
            self.text("", warning, Meaning::Warning);
        }
        for message in &turn.messages {
            self.message(message);
        }
        if let Some(error) = &turn.error {
            self.text("", error, Meaning::Bad);
        }
        if turn.is_awaited {
            self.text("", "waiting for the model …", Meaning::Running);
        }
    }

    fn message(&mut self, message: &MessageData) {
        let meaning = match &*message.role {
            "system" | "developer" => Meaning::System,
            "user" => Meaning::User,
            "assistant" => Meaning::Assistant,
            _ => Meaning::Tool,
        };
        let note = message.note.as_ref().map(|note| format!("  {note}")).unwrap_or_default();
        self.lines.push(Line::from(vec![
            Span::styled(message.role.clone(), self.palette.style(meaning)),
            Span::styled(note, self.palette.style(Meaning::Note)),
        ]));
        self.beginning("  ", &message.reasoning, Meaning::Note);
        self.beginning("  ", &message.text, Meaning::Plain);
        for call in &message.calls {
            self.call(call);
        }
    }

    fn call(&mut self, call: &CallData) {
        let observed = call.observed.as_ref().map(|observed| format!("  {observed}")).unwrap_or_default();
        self.lines.push(Line::from(vec![
            Span::styled(format!("  calls {}", call.name), self.palette.style(Meaning::Tool)),
            Span::styled(observed, self.palette.style(Meaning::Note)),
        ]));
        self.beginning("    ", &call.arguments, Meaning::Plain);
        match &call.result {
            Some(result) => {
                self.text("  ", "result", Meaning::Tool);
                self.beginning("    ", result, Meaning::Plain);
            }
            None => self.text("  ", "no result", Meaning::Note),
        }
    }

    fn beginning(&mut self, indent: &str, text: &TextData, meaning: Meaning) {
        if !text.shown.is_empty() {
            self.text(indent, &text.shown, meaning);
        }
        if text.left_out > 0 {
            self.text(indent, &format!("… {} more", bytes(text.left_out as u64)), Meaning::Note);
        }
    }

    /// Adds a text, with its lines broken where they are wider than the screen.
    fn text(&mut self, indent: &str, text: &str, meaning: Meaning) {
        let style = self.palette.style(meaning);
        let room = self.width.saturating_sub(indent.len()).max(10);
        let mut pieces = text.lines().flat_map(|line| wrapped(line, room));
        for piece in pieces.by_ref().take(TEXT_LINES_MAX) {
            self.lines.push(styled(indent, piece, style));
        }
        let more = pieces.count();
        if more > 0 {
            let note = format!("… {more} more lines");
            self.lines.push(styled(indent, note, self.palette.style(Meaning::Note)));
        }
    }
}

fn styled(indent: &str, text: String, style: Style) -> Line<'static> {
    Line::from(vec![Span::raw(indent.to_owned()), Span::styled(text, style)])
}

/// Breaks a line into pieces of a width, at spaces where there are some.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let (mut pieces, mut piece, mut used, mut space) = (Vec::new(), String::new(), 0, None);
    for c in line.chars() {
        let c = if c == '\t' { ' ' } else { c };
        let wide = c.width().unwrap_or(0);
        if used + wide > width {
            let rest = match space.take() {
                Some(at) => piece.split_off(at),
                None => String::new(),
            };
            pieces.push(std::mem::replace(&mut piece, rest.trim_start().to_owned()));
            used = piece.chars().filter_map(UnicodeWidthChar::width).sum();
        }
        if c == ' ' && !piece.is_empty() {
            space = Some(piece.len());
        }
        piece.push(c);
        used += wide;
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_and_by_the_width_of_characters() {
        fn check(line: &str, expected: &[&str]) {
            assert_eq!(wrapped(line, 10), expected, "{line:?}");
        }
        check("", &[""]);
        check("one two three", &["one two", "three"]);
        check("0123456789ab", &["0123456789", "ab"]);
        check("  a\tb", &["  a b"]);
        check("日本語日本語", &["日本語日本", "語"]);
        check("one 0123456789", &["one", "0123456789"]);
    }

    #[test]
    fn a_long_text_has_an_end() {
        let text = TextData { shown: "x\n".repeat(TEXT_LINES_MAX * 2), left_out: 2048 };
        let message = MessageData { role: "user".to_owned(), text, ..MessageData::default() };
        let turn = TurnData { title: "turn 1".to_owned(), messages: vec![message], ..TurnData::default() };
        let data = RolloutData { turns: vec![turn], ..RolloutData::default() };
        let lines: Vec<String> =
            lines(&data, 80, Palette::new(false)).iter().map(ToString::to_string).collect();
        assert!(lines.len() < TEXT_LINES_MAX + 10, "{}", lines.len());
        assert!(lines.contains(&format!("  … {TEXT_LINES_MAX} more lines")), "{lines:?}");
        assert!(lines.contains(&"  … 2.0 KiB more".to_owned()), "{lines:?}");
    }
}
