//! The figures of an evaluation as a person reads them at its end.
//!
//! Plain text of at most [`WIDTH`] characters a line, without colours. What came from a
//! guest or a model is shortened, and its control characters are taken out.

use std::fmt::Write;

use super::stats::{RewardStats, Summary, UnscoredKind};

/// The greatest number of characters in a line.
pub const WIDTH: usize = 80;

/// Where the content of a line begins, after the section's name.
const INDENT: usize = 12;

/// How many kinds of failure, and how many metrics, are shown; the rest is counted. All
/// are in the summary file.
const ENTRIES_SHOWN_MAX: usize = 12;

/// The longest name of a kind or metric that is shown whole.
const NAME_CHARS_MAX: usize = 24;

/// The longest name of who is at fault that is shown whole.
const FAULT_CHARS_MAX: usize = 12;

/// Cells of a bar that is full.
const BAR_CELLS: usize = 30;

/// The summary as text that ends with a line break.
#[must_use]
pub fn render(summary: &Summary) -> String {
    let mut table = Table(String::new());
    table.heading(summary);
    if summary.rollouts > 0 {
        reward(&mut table, summary);
        pass_at_k(&mut table, summary);
        outcomes(&mut table, summary);
        metrics(&mut table, summary);
        tokens(&mut table, summary);
        latency(&mut table, summary);
    }
    table.0
}

struct Table(String);

impl Table {
    fn heading(&mut self, summary: &Summary) {
        let rows = counted(summary.rows, "row");
        let text = match summary.rollouts {
            0 => "no rollouts".to_owned(),
            rollouts => {
                let rollouts = counted(rollouts, "rollout");
                let n = counted(summary.n, "attempt");
                format!("{rollouts}: {rows}, {n} each")
            }
        };
        self.line(&text);
    }

    /// A section: its name, and beside it its lines.
    fn section(&mut self, name: &str, lines: &[String]) {
        self.line("");
        for (at, line) in lines.iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            self.line(&format!("  {name:<width$}{line}", width = INDENT - 2));
        }
    }

    fn line(&mut self, text: &str) {
        self.0.push_str(&shortened(text.trim_end(), WIDTH));
        self.0.push('\n');
    }
}

fn reward(table: &mut Table, summary: &Summary) {
    let lines = match summary.reward {
        None => vec!["no reward (nothing was scored)".to_owned()],
        Some(RewardStats { mean, std, min, median, max }) => {
            let (mean, min) = (number(mean), number(min));
            let width = mean.len().max(min.len());
            vec![
                format!("{mean:>width$} mean   ± {} standard deviation", number(std)),
                format!("{min:>width$} min    {} median    {} max", number(median), number(max)),
            ]
        }
    };
    table.section("Reward", &lines);
}

fn pass_at_k(table: &mut Table, summary: &Summary) {
    if summary.scored == 0 {
        return;
    }
    let width = summary.n.to_string().len();
    let mut lines: Vec<String> = summary
        .pass_at_k
        .iter()
        .map(|(k, share)| format!("k = {k:<width$}  {}  {}", percent(*share), bar(*share)))
        .collect();
    let threshold = plain(summary.pass_threshold);
    lines.push(format!("a pass is a reward of {} or more", threshold));
    table.section("Pass@k", &lines);
}

fn outcomes(table: &mut Table, summary: &Summary) {
    let width = thousands(summary.rollouts as u64).len();
    let share = |count: usize| percent(count as f64 / summary.rollouts as f64);
    let line = |name: &str, count: usize| {
        let shown = thousands(count as u64);
        format!("{name:<9} {shown:>width$}  {}", share(count))
    };
    let mut lines = vec![line("scored", summary.scored)];
    if summary.unscored > 0 {
        lines.push(line("unscored", summary.unscored));
    }
    let mut kinds: Vec<(&String, &UnscoredKind)> = summary.unscored_by_kind.iter().collect();
    kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.rollouts));
    let names: Vec<String> = kinds.iter().map(|(name, _)| shortened(&clean(name), NAME_CHARS_MAX)).collect();
    let shown = names.iter().take(ENTRIES_SHOWN_MAX);
    let name_width = shown.map(|name| name.chars().count()).max().unwrap_or(0);
    for ((_, kind), name) in kinds.iter().zip(&names).take(ENTRIES_SHOWN_MAX) {
        let count = thousands(kind.rollouts as u64);
        let fault = fault(kind);
        lines.push(format!("  {name:<name_width$}  {count:>width$}  {fault}"));
        if let Some(reason) = &kind.first_reason {
            lines.push(format!("    e.g. {}", clean(reason)));
        }
    }
    lines.extend(more(kinds.len(), "kind"));
    table.section("Outcomes", &lines);
}

/// Whose fault the failures of one kind were, most first.
fn fault(kind: &UnscoredKind) -> String {
    let mut faults: Vec<(&String, &usize)> = kind.faults.iter().collect();
    faults.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let name = |fault: &str| shortened(&clean(fault), FAULT_CHARS_MAX);
    match faults.as_slice() {
        [] => "fault unknown".to_owned(),
        [(fault, _)] => format!("fault of the {}", name(fault)),
        several => {
            let several: Vec<String> = several
                .iter()
                .map(|(fault, count)| format!("{} {}", name(fault), thousands(**count as u64)))
                .collect();
            format!("fault of {}", several.join(", "))
        }
    }
}

fn metrics(table: &mut Table, summary: &Summary) {
    if summary.metrics.is_empty() {
        return;
    }
    let shown: Vec<(String, String)> = summary
        .metrics
        .iter()
        .take(ENTRIES_SHOWN_MAX)
        .map(|(name, mean)| (shortened(&clean(name), NAME_CHARS_MAX), number(*mean)))
        .collect();
    let name_width = shown.iter().map(|(name, _)| name.chars().count()).max();
    let name_width = name_width.unwrap_or(0);
    let width = shown.iter().map(|(_, mean)| mean.len()).max().unwrap_or(0);
    let mut lines: Vec<String> =
        shown.iter().map(|(name, mean)| format!("{name:<name_width$}  {mean:>width$} mean")).collect();
    lines.extend(more(summary.metrics.len(), "metric"));
    table.section("Metrics", &lines);
}

fn tokens(table: &mut Table, summary: &Summary) {
    let rows = [
        ("prompt", summary.prompt_tokens),
        ("completion", summary.completion_tokens),
        ("chat calls", summary.chat_calls),
    ];
    let width = rows.iter().map(|(_, count)| thousands(*count).len()).max();
    let width = width.unwrap_or(0);
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, count)| {
            let each = *count as f64 / summary.rollouts as f64;
            let each = if each < 100.0 { format!("{each:.1}") } else { thousands(each.round() as u64) };
            let total = thousands(*count);
            format!("{name:<10}  {total:>width$}  {each} a rollout")
        })
        .collect();
    table.section("Tokens", &lines);
}

fn latency(table: &mut Table, summary: &Summary) {
    if let Some(latency) = summary.latency_ms {
        let line = format!(
            "p50 {}    p90 {}    p99 {}",
            duration(latency.p50),
            duration(latency.p90),
            duration(latency.p99)
        );
        table.section("Latency", &[line]);
    }
}

fn more(count: usize, noun: &str) -> Option<String> {
    let hidden = count.saturating_sub(ENTRIES_SHOWN_MAX);
    (hidden > 0).then(|| format!("and {}", counted(hidden, &format!("more {noun}"))))
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(count as u64))
}

/// 1234567 as `1,234,567`.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three decimals, or a power of ten where those would say nothing or be too many.
fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(0.0005..1e7).contains(&size) {
        format!("{value:.2e}")
    } else {
        // Adding zero makes minus zero zero.
        format!("{:.3}", value + 0.0)
    }
}

/// A number without what does not matter: 1 and not 1.000.
fn plain(value: f64) -> String {
    let text = number(value);
    if text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A share in 0..=1. What is not all and not none does not look like it.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let text = if percent > 99.95 && percent < 100.0 {
        ">99.9%".to_owned()
    } else if percent > 0.0 && percent < 0.05 {
        "<0.1%".to_owned()
    } else {
        format!("{percent:.1}%")
    };
    format!("{text:>6}")
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_CELLS as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR_CELLS - full))
}

/// Milliseconds in the unit that suits them.
fn duration(ms: f64) -> String {
    let mut text = String::new();
    let written = if ms < 10.0 {
        write!(text, "{ms:.2} ms")
    } else if ms < 999.5 {
        write!(text, "{ms:.0} ms")
    } else if ms < 59_995.0 {
        write!(text, "{:.2} s", ms / 1e3)
    } else {
        let secs = (ms / 1e3).round() as u64;
        match secs / 3600 {
            0 => write!(text, "{} min {:02} s", secs / 60, secs % 60),
            hours => write!(text, "{hours} h {:02} min", secs % 3600 / 60),
        }
    };
    written.expect("a string can be written to");
    text
}

/// One line without control characters, with single spaces.
fn clean(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let start: String = text.chars().take(chars_max - 1).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{scored, unscored};
    use super::super::stats::Summary;
    use super::*;

    #[test]
    fn a_summary_reads_like_this() {
        let mut lines: Vec<_> =
            (0..28).map(|i| scored(i / 4, i % 4, if i % 3 == 0 { 1.0 } else { 0.25 })).collect();
        lines.push(unscored(7, 0, "deadline", "plugin"));
        lines.push(unscored(7, 1, "deadline", "plugin"));
        lines.push(unscored(7, 2, "model-unavailable", "model"));
        lines.push(unscored(7, 3, "deadline", "host"));
        lines[0].metrics.insert("turns".to_owned(), 3.5);
        lines[1].metrics.insert("tool_calls".to_owned(), 12.0);
        let table = render(&Summary::from_lines(&lines, 4, 1.0));
        assert_eq!(
            table,
            "\
32 rollouts: 8 rows, 4 attempts each

  Reward    0.518 mean   ± 0.359 standard deviation
            0.250 min    0.250 median    1.000 max

  Pass@k    k = 1   35.7%  ███████████░░░░░░░░░░░░░░░░░░░
            k = 2   64.3%  ███████████████████░░░░░░░░░░░
            k = 4  100.0%  ██████████████████████████████
            a pass is a reward of 1 or more

  Outcomes  scored    28   87.5%
            unscored   4   12.5%
              deadline            3  fault of plugin 2, host 1
                e.g. deadline on row 7
              model-unavailable   1  fault of the model
                e.g. model-unavailable on row 7

  Metrics   tool_calls  12.000 mean
            turns        3.500 mean

  Tokens    prompt      3,200  100 a rollout
            completion    320  10.0 a rollout
            chat calls     32  1.0 a rollout

  Latency   p50 250 ms    p90 250 ms    p99 250 ms
"
        );
    }

    #[test]
    fn without_a_score_the_table_says_no_reward() {
        let table = render(&Summary::from_lines(&[unscored(0, 0, "trapped", "plugin")], 4, 1.0));
        assert!(table.contains("Reward    no reward (nothing was scored)"), "{table}");
        assert!(!table.contains("Pass"), "{table}");
        assert!(!table.contains("NaN"), "{table}");
        assert_eq!(render(&Summary::from_lines(&[], 4, 1.0)), "no rollouts\n");
    }

    #[test]
    fn what_a_guest_says_neither_breaks_lines_nor_reaches_the_terminal() {
        let mut line = unscored(0, 0, &"k\n".repeat(200), &"\u{1b}[2J fault ".repeat(50));
        line.reason = Some("\u{1b}[31mred\n\nlines ".repeat(100));
        line.metrics.insert("m\t".repeat(100), 1e300);
        let mut lines = vec![line];
        lines.extend((1..40).map(|i| unscored(i, 0, &format!("kind-{i}"), "model")));
        for line in &mut lines {
            line.metrics.insert(format!("metric-{}", line.row), f64::MIN);
        }
        lines.push(scored(usize::MAX, 0, f64::MAX));
        lines[0].prompt_tokens = u64::MAX;
        let table = render(&Summary::from_lines(&lines, usize::MAX, -1e-300));
        for line in table.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            assert!(!line.contains(char::is_control), "{line:?}");
        }
        assert!(table.contains("and 28 more kinds"), "{table}");
        assert!(table.contains("and 29 more metrics"), "{table}");
    }

    #[test]
    fn numbers_are_short_and_do_not_mislead() {
        fn check(got: String, expected: &str) {
            assert_eq!(got.trim_start(), expected);
        }
        check(number(0.0), "0.000");
        check(number(-0.0), "0.000");
        check(number(-0.25), "-0.250");
        check(number(1234.5), "1234.500");
        check(number(1e-9), "1.00e-9");
        check(number(-2.5e12), "-2.50e12");
        check(plain(1.0), "1");
        check(plain(0.0), "0");
        check(plain(100.0), "100");
        check(plain(0.75), "0.75");
        check(plain(1e-9), "1.00e-9");
        check(percent(1.0), "100.0%");
        check(percent(0.9999), ">99.9%");
        check(percent(0.0001), "<0.1%");
        check(percent(0.0), "0.0%");
        check(percent(0.656), "65.6%");
        check(duration(0.25), "0.25 ms");
        check(duration(873.4), "873 ms");
        check(duration(999.9), "1.00 s");
        check(duration(59_996.0), "1 min 00 s");
        check(duration(3_725_000.0), "1 h 02 min");
        check(thousands(0), "0");
        check(thousands(999), "999");
        check(thousands(1_234_567), "1,234,567");
    }
}
