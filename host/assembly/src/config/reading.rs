//! Parser of the configuration file that reports all mistakes at once.
//!
//! Serde stops at the first mistake. The parser therefore records each mistake, removes it from the document and parses
//! the rest again, until the document is valid. The operator sees the mistakes of all tables together, and the valid
//! part is checked further.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::RawConfig;
use rollout_wire::text::{no_such, printable};

/// Maximum number of mistakes that Serde reports. A file that is not a configuration may have one in each line.
const MISTAKES_MAX: usize = 50;

/// Parses a configuration. The message of each mistake contains the file's name, the line, the column and the key.
pub(super) fn read(text: &str, name: &str) -> RawConfig {
    let at = |span: &Range<usize>| format!("{name}:{}", line_and_column(text, span.start));
    let (mut document, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<(usize, String)> = Vec::new();
    let mut note =
        |span: &Range<usize>, what: String| mistakes.push((span.start, format!("{}: {what}", at(span))));
    for error in &errors {
        note(&error.span().unwrap_or_default(), message(error));
    }
    let mut left = MISTAKES_MAX;
    let mut config = loop {
        let error = match RawConfig::deserialize(toml::de::Deserializer::from(document.clone())) {
            Ok(config) => break config,
            Err(error) => error,
        };
        let span = error.span().unwrap_or_default();
        left -= 1;
        let removed = if left > 0 { remove(document.get_mut(), &span) } else { None };
        match removed {
            Some(key) => note(&span, format!("{}: {}", printable(&key), message(&error))),
            // Nothing can be removed, so further mistakes cannot be found.
            None => {
                note(&span, message(&error));
                break RawConfig::default();
            }
        }
    };
    // Serde does not find mistakes in the order of the file.
    mistakes.sort_by_key(|(start, _)| *start);
    config.mistakes = mistakes.into_iter().map(|(_, mistake)| mistake).collect();
    config
}

/// Removes the key or value that an error is about and returns its path.
fn remove(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<String> {
    for (key, value) in table.iter_mut() {
        if let Some(rest) = remove_within(value.get_mut(), at) {
            let dot = if rest.starts_with('[') { "" } else { "." };
            return Some(format!("{}{dot}{rest}", key.get_ref()));
        }
    }
    let matches = |(key, value): &(&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        key.span() == *at || value.span() == *at
    };
    let name = table.iter().find(matches).map(|(key, _)| key.get_ref().to_string())?;
    table.remove(name.as_str());
    Some(name)
}

fn remove_within(value: &mut DeValue<'_>, at: &Range<usize>) -> Option<String> {
    match value {
        DeValue::Table(table) => remove(table, at),
        DeValue::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                if let Some(rest) = remove_within(item.get_mut(), at) {
                    let dot = if rest.starts_with('[') { "" } else { "." };
                    return Some(format!("[{index}]{dot}{rest}"));
                }
            }
            let index = items.iter().position(|item| item.span() == *at)?;
            let all = std::mem::replace(items, DeArray::new());
            let remaining = all.into_iter().enumerate().filter(|(at, _)| *at != index);
            remaining.for_each(|(_, item)| items.push(item));
            Some(format!("[{index}]"))
        }
        _ => None,
    }
}

/// Returns the message of an error, with a suggestion for an unknown name.
fn message(error: &toml::de::Error) -> String {
    let message = error.message();
    let Some((name, rest)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'))
    else {
        return printable(message);
    };
    // The known names are between backticks.
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    printable(&no_such(name, &known))
}

/// Returns `line:column` of a byte, both from 1, in characters.
fn line_and_column(text: &str, at: usize) -> String {
    let mut end = at.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("{line}:{column}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(read(text, "c.toml").mistakes, expected, "{text}");
    }

    #[test]
    fn every_mistake_of_every_table_is_reported_with_its_position() {
        check("max-concurrent = 3\n[limits]\nsamples-max = 2\n", &[]);
        check(
            "max-concurent = 3\nqueue-max = 'many'\n[limits]\nsample-max = 2\nhost-calls-max = -1\n\
             [osmosis]\ngeneration = 'e'\n[[tools.http]]\nnam = 'x'\nhosts = ['a', 3]\n[judge]\nkey = 1\n",
            &[
                "c.toml:1:1: max-concurent: there is no such setting; did you mean max-concurrent?",
                "c.toml:2:13: queue-max: invalid type: string \"many\", expected u32",
                "c.toml:4:1: limits.sample-max: there is no such setting; did you mean samples-max?",
                "c.toml:5:18: limits.host-calls-max: invalid value: integer `-1`, expected u64",
                "c.toml:7:14: osmosis.generation: unknown variant `e`, expected one of `auto`, `b`, `c`, `d`",
                "c.toml:9:1: tools.http[0].nam: there is no such setting; did you mean name?",
                "c.toml:10:15: tools.http[0].hosts[1]: invalid type: integer `3`, expected a string",
                "c.toml:12:1: judge.key: there is no such setting; there are: url, model, api-key-env, \
                 params, attempts-max, attempt-secs-max, budget-secs",
            ],
        );
    }

    #[test]
    fn syntax_errors_and_unknown_settings_are_reported_together() {
        let mistakes = read("listen = \nqueue-mox = 3\n", "c.toml").mistakes;
        assert!(mistakes[0].starts_with("c.toml:1:"), "{mistakes:?}");
        assert!(mistakes.iter().any(|mistake| mistake.contains("did you mean queue-max?")), "{mistakes:?}");
    }

    #[test]
    fn correct_settings_are_read_despite_mistakes() {
        let config = read("queue-max = 7\nqueue-mux = 3\n[limits]\nsamples-max = 2\nx = 1\n", "c.toml");
        assert_eq!((config.queue_max, config.limits.samples_max), (Some(7), Some(2)));
        assert_eq!(config.mistakes.len(), 2);
    }
}
