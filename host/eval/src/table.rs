//! Renders the figures of an evaluation as plain text without colours.
//!
//! Text of a guest or a model is wrapped or shortened to the width of a line, and its control characters
//! are removed.

use std::fmt::Write;

use super::stats::{Estimate, PassAtK, RewardStats, Summary, Suspects, UnscoredKind};

/// Default number of characters in a line.
pub const WIDTH: usize = 80;

/// Range of the number of characters in a line. Figures do not fit into less, and wider sentences are hard
/// to read.
const WIDTH_RANGE: std::ops::RangeInclusive<usize> = 72..=120;

/// Column in which the content of a section begins, after its name.
const INDENT: usize = 12;

/// Maximum number of kinds of failure, and of metrics, that are shown. The summary file has all.
const ENTRIES_SHOWN_MAX: usize = 12;

/// Maximum length of the name of a kind or metric.
const NAME_CHARS_MAX: usize = 24;

/// Maximum length of the name of a party at fault.
const FAULT_CHARS_MAX: usize = 12;

/// Number of cells of a full bar.
const BAR_CELLS: usize = 24;

/// Maximum number of lines of a reason: its beginning, and its end, which often has the cause.
const REASON_LINES_MAX: usize = 6;

/// Renders a summary with at most `width` characters a line.
#[must_use]
pub fn render(summary: &Summary, width: usize) -> String {
    let width = width.clamp(*WIDTH_RANGE.start(), *WIDTH_RANGE.end());
    let mut table = Table { text: String::new(), width };
    table.heading(summary);
    if summary.rollouts > 0 {
        reward(&mut table, summary);
        pass_at_k(&mut table, summary);
        outcomes(&mut table, summary);
        warnings(&mut table, summary);
        metrics(&mut table, summary);
        tokens(&mut table, summary);
        time(&mut table, summary);
    }
    table.text
}

struct Table {
    text: String,
    width: usize,
}

impl Table {
    fn heading(&mut self, summary: &Summary) {
        let part = |done: usize, planned: usize, noun: &str| {
            if done < planned {
                format!("{} of {}", thousands(done as u64), counted(planned, noun))
            } else {
                counted(done, noun)
            }
        };
        let rollouts = part(summary.rollouts, summary.rollouts_planned, "rollout");
        let rows = part(summary.rows, summary.rows_planned, "row");
        let n = counted(summary.n, "run");
        let text = match summary.rollouts {
            0 => "no rollouts".to_owned(),
            done if done < summary.rollouts_planned => format!("{rollouts}: {rows}, of up to {n} each"),
            _ => format!("{rollouts}: {rows}, {n} each"),
        };
        self.line(&text);
    }

    /// Adds a section: its name, and its lines to the right.
    fn section(&mut self, name: &str, lines: &[String]) {
        self.line("");
        for (at, line) in lines.iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            self.line(&format!("  {name:<width$}{line}", width = INDENT - 2));
        }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(&shortened(text.trim_end(), self.width));
        self.text.push('\n');
    }

    /// Wraps a text of any length into lines, the first of which begins with `lead`.
    fn folded(&self, lead: &str, text: &str) -> Vec<String> {
        let indent = " ".repeat(lead.chars().count());
        let lines = fold(&clean(text), self.width - INDENT - indent.len());
        let (head, tail) = (REASON_LINES_MAX / 2, REASON_LINES_MAX - REASON_LINES_MAX / 2);
        let left_out = lines.len().saturating_sub(REASON_LINES_MAX);
        let mut shown: Vec<String> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let lead = if at == 0 { lead } else { &indent };
            if left_out == 0 || at < head || at >= lines.len() - tail {
                shown.push(format!("{lead}{line}"));
            } else if at == head {
                shown.push(format!("{lead}… ({} left out)", counted(left_out, "line")));
            }
        }
        shown
    }
}

fn reward(table: &mut Table, summary: &Summary) {
    let lines = match summary.reward {
        None => vec!["no reward (nothing was scored)".to_owned()],
        Some(RewardStats { mean, standard_error, std, min, median, max }) => {
            let (mean, min, std) = (number(mean), number(min), number(std));
            let width = mean.len().max(min.len()).max(std.len());
            let error = standard_error
                .map_or(String::new(), |error| format!("   ± {} standard error over rows", number(error)));
            vec![
                format!("{mean:>width$} mean{error}"),
                format!("{std:>width$} standard deviation"),
                format!("{min:>width$} min    {} median    {} max", number(median), number(max)),
            ]
        }
    };
    table.section("Reward", &lines);
}

/// Adds the estimates of pass@k, and the number of rows that each leaves out.
fn pass_at_k(table: &mut Table, summary: &Summary) {
    if summary.scored == 0 {
        return;
    }
    let width = summary.n.to_string().len();
    let mut lines = Vec::new();
    for (k, pass) in &summary.pass_at_k {
        let scored = pass.estimate.map(|estimate| Estimate {
            estimate,
            standard_error: pass.standard_error,
            rows: pass.rows,
        });
        lines.push(match scored {
            Some(scored) => estimate(*k, width, &scored),
            None => format!("k = {k:<width$}       –  no row has {}", counted(*k, "scored run")),
        });
        if pass.rows_left_out > 0 && pass.rows > 0 {
            let runs =
                if *k == 1 { "no scored run".to_owned() } else { format!("fewer than {k} scored runs") };
            let (rows, have) = (counted(pass.rows_left_out, "more row"), have(pass.rows_left_out));
            lines.push(format!("{:width$}      {rows} {have} {runs}", ""));
        }
    }
    let as_failed: Vec<String> = summary
        .pass_at_k
        .iter()
        .filter_map(|(k, PassAtK { unscored_as_failed, .. })| {
            unscored_as_failed.map(|failed| estimate(*k, width, &failed))
        })
        .collect();
    if !as_failed.is_empty() {
        lines.push("with the runs without a reward as failures:".to_owned());
        lines.extend(as_failed);
    }
    lines.push(format!("a pass is a reward of {} or more", plain(summary.pass_threshold)));
    table.section("Pass@k", &lines);
}

fn estimate(k: usize, width: usize, Estimate { estimate, standard_error, rows }: &Estimate) -> String {
    let error = standard_error.map_or(String::new(), |error| format!("± {}", points(error)));
    format!(
        "k = {k:<width$}  {} {error:<7}  {}  of {}",
        percent(*estimate),
        bar(*estimate),
        counted(*rows, "row")
    )
}

fn have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

/// Adds the numbers of scored and unscored rollouts, and the kinds of failure, most frequent first.
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
            lines.extend(table.folded("    e.g. ", reason));
        }
    }
    lines.extend(more(kinds.len(), "kind"));
    table.section("Outcomes", &lines);
}

/// Adds the rollouts whose rewards may be meaningless, and the reasons.
fn warnings(table: &mut Table, summary: &Summary) {
    let mut lines = Vec::new();
    let mut warn = |what: &str, Suspects { rollouts, first, first_rollout }: &Suspects| {
        let of = counted(summary.rollouts, "rollout");
        lines.extend(table.folded("", &format!("{} of {of} {what}", thousands(*rollouts as u64))));
        let place = if first.is_empty() { String::new() } else { format!("{first}, ") };
        lines.extend(table.folded("    e.g. ", &format!("{place}{first_rollout}")));
    };
    for (kind, suspects) in &summary.refused_uses {
        let (what, its) =
            (kind.description(), if suspects.rollouts == 1 { "its reward" } else { "their rewards" });
        match kind.is_failure() {
            true => warn(&format!("{what}; {its} may mean nothing"), suspects),
            false => warn(what, suspects),
        }
    }
    if let Some(suspects) = &summary.samples_unanswered {
        let have = have(suspects.rollouts);
        warn(&format!("{have} a sample without a reply of the model"), suspects);
    }
    if !lines.is_empty() {
        table.section("Warnings", &lines);
    }
}

/// Describes the parties at fault for the failures of one kind, most frequent first.
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
    let mut rows = vec![
        ("prompt", summary.prompt_tokens),
        ("completion", summary.completion_tokens),
        ("chat calls", summary.chat_calls),
    ];
    if summary.chat_retries > 0 {
        rows.push(("retries", summary.chat_retries));
    }
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

fn time(table: &mut Table, summary: &Summary) {
    let mut lines = Vec::new();
    if let Some(latency) = summary.latency_ms {
        lines.push(format!(
            "p50 {}    p90 {}    p99 {}    of a rollout",
            duration(latency.p50),
            duration(latency.p90),
            duration(latency.p99)
        ));
    }
    lines.extend(summary.wall_secs.map(|secs| format!("{} in all", duration(secs * 1e3))));
    table.section("Time", &lines);
}

fn more(count: usize, noun: &str) -> Option<String> {
    let hidden = count.saturating_sub(ENTRIES_SHOWN_MAX);
    (hidden > 0).then(|| format!("and {}", counted(hidden, &format!("more {noun}"))))
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(count as u64))
}

/// Formats 1234567 as `1,234,567`.
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

/// Formats a number with three decimals, or with an exponent if it is very small or very large.
fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(0.0005..1e7).contains(&size) {
        format!("{value:.2e}")
    } else {
        // Adding zero turns negative zero into zero.
        format!("{:.3}", value + 0.0)
    }
}

/// Formats a number without trailing zeros: 1 and not 1.000.
fn plain(value: f64) -> String {
    let text = number(value);
    if text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a share in 0..=1 as a percentage. Only exact 0 and 1 are shown as 0% and 100%.
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

/// Formats the standard error of a share in percentage points. Only an exact 0 is shown as 0.
fn points(error: f64) -> String {
    let points = error * 100.0;
    if points > 0.0 && points < 0.05 { "<0.1".to_owned() } else { format!("{points:.1}") }
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_CELLS as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR_CELLS - full))
}

/// Formats milliseconds in a suitable unit.
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

/// Joins a text into one line without control characters, with single spaces.
fn clean(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Wraps a line into lines of at most `width` characters. A longer word is broken.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut room = width;
    for word in text.split(' ') {
        let mut letters: &str = word;
        loop {
            let fresh = room == width;
            let needed = letters.chars().count() + usize::from(!fresh);
            let Some(line) = lines.last_mut() else { break };
            if needed <= room {
                line.extend((!fresh).then_some(' '));
                line.push_str(letters);
                room -= needed;
                break;
            }
            if fresh {
                let cut = letters.char_indices().nth(width).map_or(letters.len(), |(at, _)| at);
                line.push_str(&letters[..cut]);
                letters = &letters[cut..];
            }
            lines.push(String::new());
            room = width;
        }
    }
    lines
}

fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let start: String = text.chars().take(chars_max - 1).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests;
