//! The screens: the lists of a host, and a conversation.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};

use rollout_page::{EndedData, FailuresData, HostData, LiveData, TenantLine, number, reward};

use super::conversation;
use super::palette::{Meaning, Palette};
use super::view::{List, Opened, View};

/// Width of the bar of a gauge.
const BAR_WIDTH: usize = 10;

/// Height of the lists from which the panels of plugins and failures are shown.
const PANELS_FROM: u16 = 16;

/// Draws the view and notes the sizes that its keys depend on.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, palette: Palette) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    title(frame, head, view, palette);
    let keys = match &view.opened {
        Some(opened) => {
            let keys = conversation_keys(opened);
            draw_conversation(frame, body, view, palette);
            keys
        }
        None => {
            draw_lists(frame, body, view, palette);
            let back = if view.tenant.is_some() && !view.host.is_overview { "  Esc all tenants" } else { "" };
            let lists = if view.host.is_overview { "" } else { "  Tab other list" };
            format!("q quit  ↑↓ select  Enter open{lists}{back}")
        }
    };
    frame.render_widget(Line::styled(keys, palette.style(Meaning::Note)), foot);
}

fn conversation_keys(opened: &Opened) -> String {
    let pages = opened.data.as_ref().filter(|data| data.page_count > 1);
    let pages =
        pages.map(|data| format!("  ←→ page {} of {}", data.page, data.page_count)).unwrap_or_default();
    format!("q quit  Esc back  ↑↓ PgUp PgDn Home End scroll{pages}")
}

fn title(frame: &mut Frame<'_>, area: Rect, view: &View, palette: Palette) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::styled(view.host.name.clone(), bold)];
    if let Some(tenant) = &view.tenant {
        spans.push(Span::raw(format!(" · {tenant}")));
    }
    if let Some(opened) = &view.opened {
        spans.push(Span::raw(format!(" · {}", shown_id(opened))));
    }
    match (&view.error, view.host.is_accepting) {
        (Some(error), _) => spans.push(Span::styled(format!("  {error}"), palette.style(Meaning::Bad))),
        (None, false) => {
            spans.push(Span::styled("  shutting down, admits no rollouts", palette.style(Meaning::Warning)));
        }
        (None, true) => spans.push(Span::styled(format!("  {}", view.url), palette.style(Meaning::Note))),
    }
    frame.render_widget(Line::from(spans), area);
}

fn shown_id(opened: &Opened) -> &str {
    opened.data.as_ref().map_or(&opened.id, |data| &data.shown_id)
}

/// Returns a number with plain spaces between its digits, which every terminal shows as wide as a digit.
pub(super) fn digits(value: u64) -> String {
    number(value).replace('\u{2009}', " ")
}

/// Returns a rate with one decimal if it is small.
pub(super) fn rate(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { digits(value.round() as u64) }
}

/// Returns a time in whole seconds or minutes.
pub(super) fn time(secs: f64) -> String {
    match secs {
        secs if secs < 1.0 => format!("{:.0} ms", secs * 1e3),
        secs if secs < 100.0 => format!("{secs:.0} s"),
        secs if secs < 6000.0 => format!("{:.0} min", secs / 60.0),
        secs => format!("{:.0} h", secs / 3600.0),
    }
}

fn draw_lists(frame: &mut Frame<'_>, area: Rect, view: &mut View, palette: Palette) {
    let is_overview = view.host.is_overview;
    // In a low terminal, the list needs their lines.
    let has_panels = !is_overview && area.height >= PANELS_FROM;
    let panels = if has_panels { 6 } else { 0 };
    let [gauges, figures, panels, tabs, list] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(panels),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(area);
    draw_gauges(frame, gauges, &view.host, palette);
    draw_figures(frame, figures, &view.host, palette);
    if has_panels {
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(panels);
        draw_plugins(frame, left, &view.host, palette);
        draw_failures(frame, right, &view.host, palette);
    }
    draw_tabs(frame, tabs, view, palette);
    view.size.rows = usize::from(list.height.saturating_sub(1));
    draw_list(frame, list, view, palette);
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, host: &HostData, palette: Palette) {
    let mut spans = Vec::new();
    for gauge in &host.gauges {
        let full = (usize::from(gauge.percent) * BAR_WIDTH).div_ceil(100).min(BAR_WIDTH);
        let meaning = if gauge.percent >= 90 { Meaning::Warning } else { Meaning::Running };
        let amounts = format!(" {} of {}   ", gauge.used, gauge.max).replace('\u{2009}', " ");
        spans.extend([
            Span::raw(format!("{} ", gauge.name)),
            Span::styled("█".repeat(full), palette.style(meaning)),
            Span::styled("░".repeat(BAR_WIDTH - full), palette.style(Meaning::Note)),
            Span::raw(amounts),
        ]);
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, host: &HostData, palette: Palette) {
    let rates = host.rates;
    let mut text = format!(
        "{} ended/min   {} tokens/min   {:.2} cores",
        rate(rates.ended_per_minute),
        rate(rates.tokens_per_minute),
        rates.guest_cores
    );
    if !host.is_overview {
        let counts = &host.counts;
        let mean = counts.mean_reward.map_or("–".to_owned(), reward);
        let unscored = digits(counts.unscored);
        text.push_str(&format!("   reward {mean} ({})   {unscored} without", digits(counts.scored)));
    }
    frame.render_widget(Line::styled(text, palette.style(Meaning::Plain)), area);
}

fn draw_plugins(frame: &mut Frame<'_>, area: Rect, host: &HostData, palette: Palette) {
    if host.plugins.is_empty() {
        let tokens = format!("tokens {}", digits(host.counts.tokens));
        let lines =
            [format!("running {}", host.running.count), format!("queued {}", host.queued.count), tokens];
        let quotas =
            host.quotas.iter().map(|quota| format!("{} {} of {}", quota.name, quota.used, quota.max));
        let lines: Vec<Line<'_>> = lines.into_iter().chain(quotas).map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("Load")), area);
        return;
    }
    let rows = host.plugins.iter().map(|plugin| {
        Row::new([
            plugin.name.clone(),
            format!("{}/{}", plugin.running, plugin.running_max),
            plugin.queued.to_string(),
            digits(plugin.ended),
            digits(plugin.unscored),
        ])
    });
    let widths = [
        Constraint::Min(6),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(6),
    ];
    let header =
        Row::new(["plugin", "running", "queued", "ended", "failed"]).style(palette.style(Meaning::Note));
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title("Plugins"));
    frame.render_widget(table, area);
}

fn draw_failures(frame: &mut Frame<'_>, area: Rect, host: &HostData, palette: Palette) {
    let block = Block::bordered().title("Failures");
    if host.failures.is_empty() {
        let none = Line::styled("none since the start", palette.style(Meaning::Note));
        frame.render_widget(Paragraph::new(none).block(block), area);
        return;
    }
    let rows = host.failures.iter().map(|group| {
        Row::new([group.kind.clone(), group.stage.clone(), group.fault.clone(), digits(group.count)])
    });
    let widths = [Constraint::Min(8), Constraint::Length(8), Constraint::Length(7), Constraint::Length(6)];
    let header = Row::new(["kind", "stage", "fault", "count"]).style(palette.style(Meaning::Note));
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, view: &View, palette: Palette) {
    let mut spans = Vec::new();
    for list in view.lists() {
        let style = if *list == view.list() {
            Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            palette.style(Meaning::Note)
        };
        spans.push(Span::styled(format!("{} {}", list.name(), digits(view.count(*list) as u64)), style));
        spans.push(Span::raw("   "));
    }
    frame.render_widget(Line::from(spans), area);
}

/// A list as a table: the titles of its columns, their widths, and its rows.
struct ListTable<'a> {
    titles: &'static [&'static str],
    widths: Vec<Constraint>,
    rows: Vec<Row<'a>>,
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, view: &View, palette: Palette) {
    let ListTable { titles, widths, rows } = list_table(view, palette);
    if rows.is_empty() {
        let none = match view.list() {
            List::Tenants => "No tenant is open.",
            List::Running => "No rollout runs at present.",
            List::Queued => "No rollout waits for a slot.",
            List::Finished => "No rollout has ended since the start of the server.",
            List::Failures => "No rollout has ended without a reward since the start of the server.",
        };
        frame.render_widget(Line::styled(none, palette.style(Meaning::Note)), area);
        return;
    }
    let header = Row::new(titles.iter().copied()).style(palette.style(Meaning::Note));
    let table = Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(view.selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn list_table<'a>(view: &'a View, palette: Palette) -> ListTable<'a> {
    let host = &view.host;
    let fixed = |widths: &[u16]| {
        let rest = widths.iter().map(|width| Constraint::Length(*width));
        std::iter::once(Constraint::Min(10)).chain(rest).collect()
    };
    match view.list() {
        List::Tenants => ListTable {
            titles: &["tenant", "running", "queued", "ended", "failed", "tokens"],
            widths: fixed(&[8, 8, 10, 8, 14]),
            rows: host.tenants.iter().map(tenant_cells).map(Row::new).collect(),
        },
        List::Running => ListTable {
            titles: &["rollout", "plugin", "phase", "time", "calls", "tokens"],
            widths: fixed(&[12, 8, 8, 6, 10]),
            rows: host.running.items.iter().map(|rollout| live_row(rollout, palette)).collect(),
        },
        List::Queued => ListTable {
            titles: &["rollout", "plugin", "phase", "time", "calls", "tokens"],
            widths: fixed(&[12, 8, 8, 6, 10]),
            rows: host.queued.items.iter().map(|rollout| live_row(rollout, palette)).collect(),
        },
        List::Finished => ListTable {
            titles: &["rollout", "plugin", "reward", "failure", "time", "calls", "tokens"],
            widths: fixed(&[12, 8, 18, 8, 6, 10]),
            rows: host.ended.items.iter().map(|rollout| ended_row(rollout, palette)).collect(),
        },
        List::Failures => ListTable {
            titles: &["kind", "stage", "fault", "count", "latest"],
            widths: fixed(&[10, 8, 8, 30]),
            rows: host.failures.iter().map(failure_cells).map(Row::new).collect(),
        },
    }
}

/// Returns the cells of a tenant: name, running, queued, ended, failed and tokens.
pub(super) fn tenant_cells(tenant: &TenantLine) -> [String; 6] {
    [
        tenant.name.clone(),
        digits(tenant.running as u64),
        digits(tenant.queued as u64),
        digits(tenant.ended),
        digits(tenant.unscored),
        digits(tenant.tokens),
    ]
}

/// Returns the cells of failures of one kind: kind, stage, fault, count and the latest example.
pub(super) fn failure_cells(group: &FailuresData) -> [String; 5] {
    [
        group.kind.clone(),
        group.stage.clone(),
        group.fault.clone(),
        digits(group.count),
        group.examples.first().cloned().unwrap_or_default(),
    ]
}

fn live_row(rollout: &LiveData, palette: Palette) -> Row<'_> {
    let plain = |text: String| Span::raw(text);
    Row::new([
        Span::raw(&*rollout.shown_id),
        Span::raw(rollout.plugin.as_deref().unwrap_or("–")),
        Span::styled(&*rollout.phase, palette.style(Meaning::Running)),
        plain(time(rollout.secs)),
        plain(digits(rollout.calls)),
        plain(digits(rollout.tokens)),
    ])
}

fn ended_row(rollout: &EndedData, palette: Palette) -> Row<'_> {
    let (value, meaning) = match rollout.reward {
        Some(value) => (reward(value), Meaning::Good),
        None => ("–".to_owned(), Meaning::Note),
    };
    let failure = rollout.failure.as_ref().map_or("", |failure| &failure.kind);
    Row::new([
        Span::raw(&*rollout.shown_id),
        Span::raw(rollout.plugin.as_deref().unwrap_or("–")),
        Span::styled(value, palette.style(meaning)),
        Span::styled(failure, palette.style(Meaning::Bad)),
        Span::raw(time(rollout.secs)),
        Span::raw(digits(rollout.calls)),
        Span::raw(digits(rollout.tokens)),
    ])
}

fn draw_conversation(frame: &mut Frame<'_>, area: Rect, view: &mut View, palette: Palette) {
    let Some(opened) = &mut view.opened else { return };
    let Some(data) = &opened.data else {
        frame.render_widget(Line::styled("reading the conversation …", palette.style(Meaning::Note)), area);
        return;
    };
    let lines = conversation::lines(data, usize::from(area.width), palette);
    (view.size.lines, view.size.all_lines) = (usize::from(area.height), lines.len());
    let end = lines.len().saturating_sub(usize::from(area.height));
    let from = if opened.follows_end { end } else { opened.scroll.min(end) };
    opened.scroll = from;
    let shown: Vec<Line<'_>> = lines.into_iter().skip(from).take(usize::from(area.height)).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use rollout_page::{
        CountsData, FailureData, FailuresData, Gauge, ListData, LoadRates, MessageData, PluginLine,
        RolloutData, TenantLine, TextData, TurnData,
    };

    use super::super::client::{Received, Wanted};
    use super::super::view::Key;
    use super::*;

    fn host() -> HostData {
        let live = |id: &str, phase: &str| LiveData {
            id: id.to_owned(),
            shown_id: id.to_owned(),
            plugin: Some("sums".to_owned()),
            phase: phase.to_owned(),
            secs: 12.4,
            calls: 3,
            tokens: 1234,
        };
        let failure = FailureData { kind: "trap".to_owned(), ..FailureData::default() };
        let ended = |id: &str, reward, failure| EndedData {
            id: id.to_owned(),
            shown_id: id.to_owned(),
            reward,
            failure,
            ..EndedData::default()
        };
        let ended = vec![ended("won", Some(1.0), None), ended("lost", None, Some(failure))];
        HostData {
            name: "conform".to_owned(),
            is_accepting: true,
            gauges: vec![Gauge::new("running", 2, 64, number), Gauge::new("queued", 7, 1000, number)],
            rates: LoadRates { ended_per_minute: 2.125, tokens_per_minute: 34_567.0, guest_cores: 0.5 },
            counts: CountsData { scored: 1, unscored: 1, mean_reward: Some(1.0), tokens: 1234 },
            plugins: vec![PluginLine {
                name: "sums".to_owned(),
                running: 2,
                queued: 7,
                running_max: 64,
                ended: 2,
                unscored: 1,
                ..PluginLine::default()
            }],
            failures: vec![FailuresData {
                stage: "workflow".to_owned(),
                kind: "trap".to_owned(),
                fault: "plugin".to_owned(),
                count: 1,
                examples: vec!["lost".to_owned()],
            }],
            running: ListData { items: vec![live("a", "running"), live("b", "grading")], count: 2 },
            queued: ListData { items: Vec::new(), count: 7 },
            ended: ListData { count: 2, items: ended },
            ..HostData::default()
        }
    }

    /// Draws on a screen of this size and returns its lines.
    fn screen(view: &mut View, [width, height]: [u16; 2]) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, Palette::new(true))).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn view() -> View {
        View::new("http://h:1".to_owned(), None, host())
    }

    fn conversation() -> RolloutData {
        let message = |role: &str, text: &str| MessageData {
            role: role.to_owned(),
            text: TextData { shown: text.to_owned(), left_out: 0 },
            ..MessageData::default()
        };
        let turn = |number: usize| TurnData {
            title: format!("turn {number}"),
            facts: vec!["12 ms".to_owned()],
            messages: vec![message("user", "What is 1 + 2?"), message("assistant", "It is 3.")],
            ..TurnData::default()
        };
        RolloutData {
            shown_id: "a".to_owned(),
            reward: Some(0.5),
            turns: (1..=20).map(turn).collect(),
            page: 1,
            page_count: 1,
            ..RolloutData::default()
        }
    }

    #[test]
    fn the_first_screen_has_80_columns_and_24_lines() {
        let screen = screen(&mut view(), [80, 24]);
        let shown = screen.join("\n");
        for (line, expected) in [
            (0, "conform  http://h:1"),
            (1, "running █░░░░░░░░░ 2 of 64   queued ░░░░░░░░░░ 7 of 1 000"),
            (2, "2.1 ended/min   34 567 tokens/min   0.50 cores   reward 1 (1)   1 without"),
            (9, "Running 2   Queued 7   Finished 2   Failures 1"),
            (23, "q quit  ↑↓ select  Enter open  Tab other list"),
        ] {
            assert_eq!(screen[line], expected, "line {line} of\n{shown}");
        }
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(&screen[11]), "a sums running 12 s 3 1 234", "{shown}");
        assert_eq!(words(&screen[12]), "b sums grading 12 s 3 1 234", "{shown}");
        assert_eq!(words(&screen[5]), "│sums 2/64 7 2 1 ││trap workflow plugin 1 │", "{shown}");
    }

    #[test]
    fn a_low_terminal_has_lines_for_the_list() {
        let shown = screen(&mut view(), [80, 10]);
        assert!(shown[5].starts_with("a  ") && shown[6].starts_with("b  "), "{}", shown.join("\n"));
    }

    #[test]
    fn keys_select_other_lists() {
        let mut view = view();
        view.press(Key::Tab);
        assert!(screen(&mut view, [80, 24]).join("\n").contains("No rollout waits for a slot."));
        view.press(Key::Tab);
        let shown = screen(&mut view, [80, 24]).join("\n");
        assert!(shown.contains("won") && shown.contains("lost") && shown.contains("trap"), "{shown}");
    }

    #[test]
    fn a_conversation_scrolls_to_its_end() {
        let mut view = view();
        view.press(Key::Enter);
        assert!(screen(&mut view, [80, 24]).join("\n").contains("reading the conversation"));
        let wanted = Wanted::Rollout { tenant: None, id: "a".to_owned(), page: 0 };
        view.receive(&wanted, Ok(Received::Rollout(Box::new(conversation()))));
        let shown = screen(&mut view, [80, 24]);
        assert_eq!(shown[22], "  It is 3.", "the end is shown");
        view.press(Key::Home);
        let shown = screen(&mut view, [80, 24]);
        assert_eq!(shown[1], "reward 0.5");
        assert_eq!(shown[3], "── turn 1 12 ms");
        view.press(Key::Back);
        assert!(screen(&mut view, [80, 24])[9].starts_with("Running 2"));
    }

    #[test]
    fn an_operator_sees_tenants() {
        let tenant =
            TenantLine { name: "lab".to_owned(), running: 3, ended: 12_345, ..TenantLine::default() };
        let overview =
            HostData { is_overview: true, tenants: vec![tenant], is_accepting: true, ..HostData::default() };
        let mut view = View::new("http://h".to_owned(), None, overview);
        let shown = screen(&mut view, [80, 24]).join("\n");
        assert!(shown.contains("Tenants 1") && shown.contains("lab") && shown.contains("12 345"), "{shown}");
    }

    #[test]
    fn screens_of_any_size_are_drawn() {
        for size in [[1, 1], [5, 3], [20, 5], [40, 10], [79, 23], [300, 100]] {
            let mut view = view();
            screen(&mut view, size);
            view.error = Some("the server does not answer".repeat(10));
            view.press(Key::Enter);
            let wanted = view.wanted().unwrap();
            view.receive(&wanted, Ok(Received::Rollout(Box::new(conversation()))));
            screen(&mut view, size);
            view.press(Key::PageUp);
            screen(&mut view, size);
        }
    }
}
