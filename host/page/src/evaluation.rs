//! Pages of an evaluation: its rows, and two evaluations next to each other.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use askama::Template;
use rollout_wire::id::RolloutId;

use crate::conversation::{Conversation, PageOfTurns};
use crate::format::{number, reward};
use crate::links::{Frame, path_segment};
use crate::plot::{Curve, Histogram, curve, histogram};
use crate::rollout::PageLinks;
use crate::text::{Text, visible};

/// Number of rows of a page.
pub const ROWS_PER_PAGE: usize = 100;

/// Maximum number of bytes of a text in a table.
const EXCERPT_BYTES: usize = 300;

/// A rollout of an evaluation.
#[derive(Clone, Debug)]
pub struct RowLine {
    /// Index of the row in the data set.
    pub row: usize,
    /// Number of the attempt on the row, from 0.
    pub run: usize,
    /// The rollout's id.
    pub id: RolloutId,
    /// Its reward, if it has one.
    pub reward: Option<f64>,
    /// Kind of the failure; empty if it has a reward.
    pub kind: String,
    /// The party at fault; empty if it has a reward.
    pub fault: String,
    /// The reason of the failure; empty if it has a reward.
    pub reason: String,
    /// The last message of the prompt.
    pub prompt: String,
    /// The model's last message.
    pub answer: String,
    /// The label.
    pub label: String,
    /// Number of calls of the model.
    pub chat_calls: u64,
    /// Number of tokens of these calls.
    pub tokens: u64,
    /// Time in milliseconds.
    pub duration_ms: f64,
    /// Mean reward of the row's attempts.
    pub row_mean: Option<f64>,
    /// Difference between the row's highest and lowest reward.
    pub row_spread: f64,
}

impl RowLine {
    /// Computes the figures of rows from their attempts.
    pub fn add_row_figures(lines: &mut [Self]) {
        let mut by_row: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for line in &*lines {
            by_row.entry(line.row).or_default().extend(line.reward);
        }
        for line in lines {
            let rewards = &by_row[&line.row];
            if rewards.is_empty() {
                continue;
            }
            line.row_mean = Some(rewards.iter().sum::<f64>() / rewards.len() as f64);
            let bounds = rewards.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), reward| {
                (low.min(*reward), high.max(*reward))
            });
            line.row_spread = bounds.1 - bounds.0;
        }
    }

    /// Returns whether one of the row's texts contains `text`, which must be in lower case.
    fn contains(&self, text: &str) -> bool {
        [self.id.as_str(), &self.prompt, &self.answer, &self.label, &self.reason, &self.kind]
            .iter()
            .any(|own| own.to_lowercase().contains(text))
    }
}

/// The column by which rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Row and attempt.
    #[default]
    Row,
    /// Reward. Rollouts without one come first.
    Reward,
    /// Mean reward of the row.
    RowMean,
    /// Difference between the rewards of a row's attempts.
    Spread,
    /// Number of calls of the model.
    Calls,
    /// Number of tokens.
    Tokens,
    /// Time.
    Time,
}

impl SortBy {
    const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Row, "row", "row"),
        (Self::Reward, "reward", "reward"),
        (Self::RowMean, "row-mean", "row's mean"),
        (Self::Spread, "spread", "row's spread"),
        (Self::Calls, "calls", "calls"),
        (Self::Tokens, "tokens", "tokens"),
        (Self::Time, "time", "time"),
    ];

    fn parse(word: &str) -> Self {
        Self::ALL.iter().find(|(_, found, _)| *found == word).map_or(Self::Row, |(sort, ..)| *sort)
    }

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(sort, ..)| *sort == self).map_or("row", |(_, word, _)| word)
    }

    fn compare(self, one: &RowLine, other: &RowLine) -> Ordering {
        let number = |of: f64, other: f64| of.total_cmp(&other);
        let option = |of: Option<f64>| of.unwrap_or(f64::NEG_INFINITY);
        match self {
            Self::Row => Ordering::Equal,
            Self::Reward => number(option(one.reward), option(other.reward)),
            Self::RowMean => number(option(one.row_mean), option(other.row_mean)),
            Self::Spread => number(one.row_spread, other.row_spread),
            Self::Calls => one.chat_calls.cmp(&other.chat_calls),
            Self::Tokens => one.tokens.cmp(&other.tokens),
            Self::Time => number(one.duration_ms, other.duration_ms),
        }
    }
}

/// A choice of rows, and their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowQuery {
    /// The order.
    pub sort: SortBy,
    /// Whether the order is reversed.
    pub is_descending: bool,
    /// `scored`, `unscored`, `passed`, `failed`, or a kind of failure.
    pub outcome: String,
    /// The lowest and the highest reward.
    pub rewards: [Option<f64>; 2],
    /// A text that one of the row's texts contains.
    pub text: String,
    /// Number of the page, from 1.
    pub page: usize,
}

impl RowQuery {
    /// Reads the query of an address.
    pub fn read<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut query = Self { page: 1, ..Self::default() };
        for (name, value) in pairs {
            match name {
                "sort" => query.sort = SortBy::parse(value),
                "order" => query.is_descending = value == "descending",
                "outcome" => value.clone_into(&mut query.outcome),
                "from" => query.rewards[0] = value.parse().ok(),
                "to" => query.rewards[1] = value.parse().ok(),
                "text" => value.clone_into(&mut query.text),
                "page" => query.page = value.parse().unwrap_or(1).max(1),
                _ => {}
            }
        }
        query
    }

    fn address(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |name: &str, value: &str| {
            if !value.is_empty() {
                parts.push(format!("{name}={}", path_segment(value)));
            }
        };
        let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
        part("sort", if self.sort == SortBy::Row { "" } else { self.sort.word() });
        part("order", if self.is_descending { "descending" } else { "" });
        part("outcome", &self.outcome);
        part("from", &bound(self.rewards[0]));
        part("to", &bound(self.rewards[1]));
        part("text", &self.text);
        part("page", &if self.page > 1 { self.page.to_string() } else { String::new() });
        format!("?{}#rows", parts.join("&"))
    }

    /// Returns the indices of the selected rows, in their order.
    fn select(&self, lines: &[RowLine], pass_threshold: f64) -> Vec<usize> {
        let text = self.text.to_lowercase();
        let matches = |line: &RowLine| {
            let is_passed = line.reward.is_some_and(|reward| reward >= pass_threshold);
            let outcome = match &*self.outcome {
                "" => true,
                "scored" => line.reward.is_some(),
                "unscored" => line.reward.is_none(),
                "passed" => is_passed,
                "failed" => line.reward.is_some() && !is_passed,
                kind => line.kind == kind,
            };
            let [low, high] = self.rewards;
            let is_within =
                |reward: f64| low.is_none_or(|low| reward >= low) && high.is_none_or(|high| reward <= high);
            let reward = (low.is_none() && high.is_none()) || line.reward.is_some_and(is_within);
            outcome && reward && (text.is_empty() || line.contains(&text))
        };
        let mut chosen: Vec<usize> = (0..lines.len()).filter(|at| matches(&lines[*at])).collect();
        chosen.sort_by(|one, other| {
            let (one, other) = (&lines[*one], &lines[*other]);
            let order = self.sort.compare(one, other);
            let order = if self.is_descending { order.reverse() } else { order };
            let place = (one.row, one.run).cmp(&(other.row, other.run));
            order.then(if self.sort == SortBy::Row && self.is_descending { place.reverse() } else { place })
        });
        chosen
    }
}

/// An estimate of pass@k.
#[derive(Clone, Copy, Debug)]
pub struct PassAtK {
    /// k.
    pub k: usize,
    /// The estimate.
    pub estimate: f64,
    /// Its standard error, if there are several rows.
    pub standard_error: Option<f64>,
}

/// The figures of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct EvaluationFigures {
    /// Names with values: plugin, data, model.
    pub about: Vec<(String, String)>,
    /// Names with values: rewards, rollouts, tokens, time.
    pub figures: Vec<(String, String)>,
    /// Minimum reward that counts as a pass.
    pub pass_threshold: f64,
    /// Estimates of pass@k.
    pub pass_at_k: Vec<PassAtK>,
    /// Number of rollouts without a reward by kind of failure.
    pub unscored: Vec<(String, usize)>,
}

/// The header of a column.
#[derive(Debug)]
struct Column {
    name: &'static str,
    link: String,
    /// The order for the attribute `aria-sort`.
    order: Option<&'static str>,
    is_number: bool,
}

/// A row of the table.
#[derive(Debug)]
struct ShownRow {
    link: String,
    row: usize,
    run: usize,
    reward: Option<String>,
    is_passed: bool,
    kind: String,
    fault: String,
    text: Text,
    answer: Text,
    row_mean: String,
    spread: String,
    calls: String,
    tokens: String,
    time: String,
}

/// A filter to click.
#[derive(Debug)]
struct Choice {
    name: String,
    link: String,
    is_chosen: bool,
}

/// The page of an evaluation.
#[derive(Debug, Template)]
#[template(path = "evaluation.html")]
pub struct EvaluationPage {
    /// The frame.
    pub frame: Frame,
    about: Vec<(String, String)>,
    figures: Vec<(String, String)>,
    rewards: Histogram,
    pass_at_k: Curve,
    columns: Vec<Column>,
    rows: Vec<ShownRow>,
    row_count: String,
    all_count: String,
    choices: Vec<Choice>,
    shortcuts: Vec<Choice>,
    query: RowQuery,
    from: String,
    to: String,
    text: String,
    page_links: PageLinks,
    compare: Option<String>,
}

impl EvaluationPage {
    /// Makes the page. `compare` is the address of the comparison with another evaluation.
    pub fn new(
        frame: Frame,
        figures: &EvaluationFigures,
        lines: &[RowLine],
        query: RowQuery,
        compare: Option<String>,
    ) -> Self {
        let threshold = figures.pass_threshold;
        let chosen = query.select(lines, threshold);
        let pages = chosen.len().div_ceil(ROWS_PER_PAGE).max(1);
        let page = query.page.min(pages);
        let rows = chosen.iter().skip((page - 1) * ROWS_PER_PAGE).take(ROWS_PER_PAGE);
        let choice = |name: String, outcome: &str| {
            let other = RowQuery { outcome: outcome.to_owned(), page: 1, ..query.clone() };
            Choice { name, link: other.address(), is_chosen: other.outcome == query.outcome }
        };
        let mut choices: Vec<Choice> = [("all", ""), ("passed", "passed"), ("failed", "failed")]
            .map(|(name, outcome)| choice(name.to_owned(), outcome))
            .into();
        if !figures.unscored.is_empty() {
            choices.push(choice("without reward".to_owned(), "unscored"));
        }
        choices.extend(
            figures
                .unscored
                .iter()
                .map(|(kind, count)| choice(format!("{} {}", visible(kind), number(*count as u64)), kind)),
        );
        let shortcut = |name: &str, sort, is_descending| {
            let other = RowQuery { sort, is_descending, page: 1, ..RowQuery::default() };
            Choice { name: name.to_owned(), is_chosen: other == query, link: other.address() }
        };
        let columns = SortBy::ALL.map(|(sort, _, name)| {
            let is_this = query.sort == sort;
            // The first click shows the worst rows, or the longest ones.
            let is_first_descending = !matches!(sort, SortBy::Row | SortBy::Reward | SortBy::RowMean);
            let is_descending = if is_this { !query.is_descending } else { is_first_descending };
            let other = RowQuery { sort, is_descending, page: 1, ..query.clone() };
            let order = if query.is_descending { "descending" } else { "ascending" };
            Column {
                name,
                link: other.address(),
                order: is_this.then_some(order),
                is_number: sort != SortBy::Row,
            }
        });
        let rewards: Vec<f64> = lines.iter().filter_map(|line| line.reward).collect();
        let within = |from: f64, to: f64| {
            RowQuery { rewards: [Some(from), Some(to)], page: 1, ..RowQuery::default() }.address()
        };
        let pass_at_k: Vec<_> =
            figures.pass_at_k.iter().map(|pass| (pass.k, pass.estimate, pass.standard_error)).collect();
        let shown = |pairs: &[(String, String)]| {
            pairs
                .iter()
                .map(|(name, value)| (visible(name), Text::beginning(value, EXCERPT_BYTES).shown))
                .collect()
        };
        let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
        Self {
            about: shown(&figures.about),
            figures: shown(&figures.figures),
            rewards: histogram(&rewards, within),
            pass_at_k: curve(&pass_at_k),
            columns: columns.into(),
            rows: rows.map(|at| shown_row(&frame, &lines[*at], threshold)).collect(),
            row_count: number(chosen.len() as u64),
            all_count: number(lines.len() as u64),
            choices,
            shortcuts: vec![
                shortcut("worst rows", SortBy::RowMean, false),
                shortcut("least consistent rows", SortBy::Spread, true),
                shortcut("longest", SortBy::Tokens, true),
            ],
            page_links: PageLinks::new(page, pages, |page| RowQuery { page, ..query.clone() }.address()),
            from: bound(query.rewards[0]),
            to: bound(query.rewards[1]),
            text: visible(&query.text),
            query,
            compare,
            frame,
        }
    }
}

fn shown_row(frame: &Frame, line: &RowLine, pass_threshold: f64) -> ShownRow {
    let text = if line.reason.is_empty() { &line.prompt } else { &line.reason };
    ShownRow {
        link: frame.links.rollout(&line.id),
        row: line.row,
        run: line.run,
        reward: line.reward.map(reward),
        is_passed: line.reward.is_some_and(|reward| reward >= pass_threshold),
        kind: visible(&line.kind),
        fault: visible(&line.fault),
        text: Text::beginning(text, EXCERPT_BYTES),
        answer: Text::beginning(&line.answer, EXCERPT_BYTES),
        row_mean: line.row_mean.map_or("–".to_owned(), reward),
        spread: reward(line.row_spread),
        calls: number(line.chat_calls),
        tokens: number(line.tokens),
        time: crate::format::duration(std::time::Duration::from_secs_f64(
            (line.duration_ms / 1e3).clamp(0.0, 1e9),
        )),
    }
}

/// A row in two evaluations.
#[derive(Clone, Debug)]
struct ComparedRow {
    row: usize,
    /// Mean rewards.
    means: [Option<f64>; 2],
    prompt: String,
}

impl ComparedRow {
    fn change(&self) -> Option<f64> {
        Some(self.means[1]? - self.means[0]?)
    }
}

/// A row of the table of changes.
#[derive(Debug)]
struct ShownChange {
    link: String,
    row: usize,
    means: [String; 2],
    change: String,
    style: &'static str,
    prompt: Text,
}

/// The page that compares two evaluations.
#[derive(Debug, Template)]
#[template(path = "comparison.html")]
pub struct ComparisonPage {
    /// The frame.
    pub frame: Frame,
    names: [String; 2],
    counts: [String; 4],
    mean_change: Option<String>,
    rows: Vec<ShownChange>,
    choices: Vec<Choice>,
    page_links: PageLinks,
}

impl ComparisonPage {
    /// Makes the page from the rows of both. `show` is `better`, `worse`, `same`, or empty for all.
    pub fn new(frame: Frame, names: [&str; 2], lines: [&[RowLine]; 2], show: &str, page: usize) -> Self {
        let mut by_row: BTreeMap<usize, ComparedRow> = BTreeMap::new();
        for (side, lines) in lines.into_iter().enumerate() {
            for line in lines {
                let row = by_row.entry(line.row).or_insert_with(|| ComparedRow {
                    row: line.row,
                    means: [None; 2],
                    prompt: line.prompt.clone(),
                });
                row.means[side] = line.row_mean;
            }
        }
        let style = |row: &ComparedRow| match row.change() {
            None => "other",
            Some(change) if change > 0.0 => "better",
            Some(change) if change < 0.0 => "worse",
            Some(_) => "same",
        };
        let count = |word: &str| by_row.values().filter(|row| style(row) == word).count();
        let counts = ["better", "worse", "same", "other"].map(count);
        let changes: Vec<f64> = by_row.values().filter_map(ComparedRow::change).collect();
        let mean_change =
            (!changes.is_empty()).then(|| signed(changes.iter().sum::<f64>() / changes.len() as f64));
        let mut rows: Vec<&ComparedRow> =
            by_row.values().filter(|row| show.is_empty() || style(row) == show).collect();
        let size = |row: &ComparedRow| row.change().map_or(-1.0, f64::abs);
        rows.sort_by(|one, other| size(other).total_cmp(&size(one)).then(one.row.cmp(&other.row)));
        let pages = rows.len().div_ceil(ROWS_PER_PAGE).max(1);
        let page = page.clamp(1, pages);
        let shown = rows.iter().skip((page - 1) * ROWS_PER_PAGE).take(ROWS_PER_PAGE).map(|row| ShownChange {
            link: format!("{}/compare/{}", frame.links.root, row.row),
            row: row.row,
            means: row.means.map(|mean| mean.map_or("–".to_owned(), reward)),
            change: row.change().map_or("–".to_owned(), signed),
            style: style(row),
            prompt: Text::beginning(&row.prompt, EXCERPT_BYTES),
        });
        let names_of = [("all", ""), ("better", "better"), ("worse", "worse"), ("same", "same")];
        let choice = |(name, word): (&str, &str)| Choice {
            name: name.to_owned(),
            link: format!("?show={word}"),
            is_chosen: show == word,
        };
        Self {
            names: names.map(visible),
            counts: counts.map(|count| number(count as u64)),
            mean_change,
            rows: shown.collect(),
            choices: names_of.map(choice).into(),
            page_links: PageLinks::new(page, pages, |page| {
                format!("?show={}&page={page}", path_segment(show))
            }),
            frame,
        }
    }
}

fn signed(change: f64) -> String {
    let text = reward(change);
    if change > 0.0 && !text.starts_with('-') { format!("+{text}") } else { text.replace('-', "−") }
}

/// One side of a row in two evaluations.
#[derive(Debug)]
pub struct Side {
    /// The evaluation's name.
    pub name: String,
    /// Prefix of the anchors of its turns.
    pub anchor: &'static str,
    /// The reward, or the kind of the failure.
    pub outcome: String,
    /// The address of the rollout's page.
    pub link: String,
    /// The conversation, if it was recorded.
    pub conversation: Option<Conversation>,
}

/// The page with both conversations of a row.
#[derive(Debug, Template)]
#[template(path = "side_by_side.html")]
pub struct SideBySidePage {
    /// The frame.
    pub frame: Frame,
    /// Index of the row in the data set.
    pub row: usize,
    /// Both sides.
    pub sides: Vec<Side>,
}

impl Side {
    /// Makes a side from a line, and from the transcript of its rollout if it was recorded.
    pub fn new(
        name: &str,
        anchor: &'static str,
        line: &RowLine,
        link: String,
        recorded: Option<(&rollout_transcript::Transcript, &[rollout_rollout::FinishedSample])>,
    ) -> Self {
        let outcome =
            line.reward.map_or_else(|| visible(&line.kind), |value| format!("reward {}", reward(value)));
        let read =
            |(transcript, samples)| Conversation::read(transcript, Some(samples), PageOfTurns { number: 1 });
        Self { name: visible(name), anchor, outcome, link, conversation: recorded.map(read) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(row: usize, run: usize, reward: Option<f64>) -> RowLine {
        RowLine {
            row,
            run,
            id: RolloutId::parse(format!("row-{row}-run-{run}")).unwrap(),
            reward,
            kind: if reward.is_some() { String::new() } else { "trap".to_owned() },
            fault: String::new(),
            reason: String::new(),
            prompt: format!("Prompt Number {row}"),
            answer: String::new(),
            label: String::new(),
            chat_calls: row as u64,
            tokens: 0,
            duration_ms: 1.0,
            row_mean: None,
            row_spread: 0.0,
        }
    }

    fn lines() -> Vec<RowLine> {
        let mut lines =
            vec![line(0, 0, Some(1.0)), line(0, 1, Some(0.0)), line(1, 0, None), line(2, 0, Some(0.25))];
        RowLine::add_row_figures(&mut lines);
        lines
    }

    #[test]
    fn rows_are_chosen_and_sorted_by_the_query() {
        let lines = lines();
        let check = |query: &str, expected: &[usize]| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let query = RowQuery::read(pairs);
            assert_eq!(query.select(&lines, 0.5), expected, "{query:?}");
        };
        check("", &[0, 1, 2, 3]);
        check("order=descending", &[3, 2, 1, 0]);
        check("sort=reward", &[2, 1, 3, 0]);
        check("sort=row-mean", &[2, 3, 0, 1]);
        check("sort=spread&order=descending", &[0, 1, 2, 3]);
        check("outcome=passed", &[0]);
        check("outcome=failed", &[1, 3]);
        check("outcome=trap", &[2]);
        check("from=0.2&to=0.3", &[3]);
        check("text=number+2", &[]);
        check("text=prompt number 2", &[3]);
        let query = RowQuery::read([("sort", "reward"), ("text", "a&b"), ("page", "2")]);
        assert_eq!(query.address(), "?sort=reward&text=a%26b&page=2#rows");
    }

    #[test]
    fn rows_of_two_evaluations_are_compared_by_their_means() {
        let frame = Frame::default();
        let mut after = lines();
        for line in &mut after {
            line.reward = line.reward.map(|reward| reward * 2.0);
        }
        RowLine::add_row_figures(&mut after);

        let page = ComparisonPage::new(frame, ["a", "b"], [&lines(), &after], "", 1);

        assert_eq!(page.counts, ["2", "0", "0", "1"]);
        assert_eq!(page.mean_change.as_deref(), Some("+0.375"));
        let rows: Vec<(usize, &str)> = page.rows.iter().map(|row| (row.row, &*row.change)).collect();
        assert_eq!(rows, [(0, "+0.5"), (2, "+0.25"), (1, "–")]);
    }
}
