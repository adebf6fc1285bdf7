//! The state of the view: its data, the selected row, an open conversation, and the effect of keys.

use rollout_page::{HostData, RolloutData};

use super::client::{Received, Wanted};

/// A key that the view knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Back,
    Tab,
    BackTab,
    Quit,
}

/// A list of the first screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Tenants,
    Running,
    Queued,
    Finished,
    Failures,
}

/// The lists of one tenant, in their order.
const LISTS: [List; 4] = [List::Running, List::Queued, List::Finished, List::Failures];

impl List {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tenants => "Tenants",
            Self::Running => "Running",
            Self::Queued => "Queued",
            Self::Finished => "Finished",
            Self::Failures => "Failures",
        }
    }
}

/// The conversation that is open.
#[derive(Debug)]
pub(super) struct Opened {
    /// Id of the rollout.
    pub id: String,
    /// The number of the page that is requested; 0 is the last one.
    page: usize,
    /// The conversation, once it was received.
    pub data: Option<Box<RolloutData>>,
    /// Number of the first line on the screen.
    pub scroll: usize,
    /// Whether the end stays on the screen while the conversation grows.
    pub follows_end: bool,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    /// Address of the server.
    pub url: String,
    /// The tenant that is shown, if an operator or an option chose it.
    pub tenant: Option<String>,
    /// Whether the tenant was chosen in the view, so that the view goes back to all tenants.
    tenant_is_chosen_here: bool,
    /// The latest data of the host.
    pub host: HostData,
    /// The error of the latest request.
    pub error: Option<String>,
    list: List,
    /// Index of the selected row.
    pub selected: usize,
    /// The key of the selected row, which stays selected when rows before it come or go.
    selected_key: Option<String>,
    /// The conversation that is open.
    pub opened: Option<Opened>,
    /// Numbers of rows of a list and of lines of a conversation on the screen, and of all lines of the conversation.
    pub size: ScreenSize,
    pub is_over: bool,
}

/// Sizes that keys depend on, known after drawing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScreenSize {
    pub rows: usize,
    pub lines: usize,
    pub all_lines: usize,
}

impl View {
    pub(super) fn new(url: String, tenant: Option<String>, host: HostData) -> Self {
        Self {
            url,
            tenant,
            tenant_is_chosen_here: false,
            host,
            error: None,
            list: List::Running,
            selected: 0,
            selected_key: None,
            opened: None,
            size: ScreenSize::default(),
            is_over: false,
        }
    }

    /// Returns the list that is shown.
    pub(super) fn list(&self) -> List {
        if self.host.is_overview { List::Tenants } else { self.list }
    }

    /// Returns the lists to choose from.
    pub(super) fn lists(&self) -> &'static [List] {
        if self.host.is_overview { &[List::Tenants] } else { &LISTS }
    }

    /// Returns the number of rows of a list.
    pub(super) fn count(&self, list: List) -> usize {
        match list {
            List::Tenants => self.host.tenants.len(),
            List::Running => self.host.running.count,
            List::Queued => self.host.queued.count,
            List::Finished => self.host.ended.count,
            List::Failures => self.host.failures.len(),
        }
    }

    /// Returns the keys of the rows that can be selected.
    fn keys(&self) -> Vec<&str> {
        let HostData { tenants, running, queued, ended, failures, .. } = &self.host;
        match self.list() {
            List::Tenants => tenants.iter().map(|tenant| &*tenant.name).collect(),
            List::Running => running.items.iter().map(|rollout| &*rollout.id).collect(),
            List::Queued => queued.items.iter().map(|rollout| &*rollout.id).collect(),
            List::Finished => ended.items.iter().map(|rollout| &*rollout.id).collect(),
            List::Failures => {
                failures.iter().map(|group| group.examples.first().map_or("", |id| id)).collect()
            }
        }
    }

    /// Returns the data that the screen needs; `None` if it has everything.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        match &self.opened {
            None => Some(Wanted::Host { tenant: self.tenant.clone() }),
            Some(opened) => {
                let is_final = opened.data.as_ref().is_some_and(|data| {
                    data.phase.is_none() && (opened.page == 0 || opened.page == data.page)
                });
                let (tenant, id) = (self.tenant.clone(), opened.id.clone());
                (!is_final).then_some(Wanted::Rollout { tenant, id, page: opened.page })
            }
        }
    }

    /// Takes data that was requested, unless something else is shown by now.
    pub(super) fn receive(&mut self, wanted: &Wanted, received: anyhow::Result<Received>) {
        if self.wanted().as_ref() != Some(wanted) {
            return;
        }
        match received {
            Ok(Received::Host(host)) => {
                self.host = *host;
                self.keep_selected();
                self.error = None;
            }
            Ok(Received::Rollout(data)) => {
                if let Some(opened) = &mut self.opened {
                    opened.data = Some(data);
                }
                self.error = None;
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
    }

    fn keep_selected(&mut self) {
        let (at, count) = {
            let keys = self.keys();
            let selected = self.selected_key.as_deref();
            (keys.iter().position(|key| Some(*key) == selected), keys.len())
        };
        // The first row stays selected until another one is chosen.
        self.selected =
            at.filter(|_| self.selected > 0).unwrap_or(self.selected).min(count.saturating_sub(1));
        self.select(self.selected);
    }

    fn select(&mut self, at: usize) {
        let key = {
            let keys = self.keys();
            let at = at.min(keys.len().saturating_sub(1));
            keys.get(at).map(|key| (at, (*key).to_owned()))
        };
        (self.selected, self.selected_key) = match key {
            Some((at, key)) => (at, Some(key)),
            None => (0, None),
        };
    }

    /// Applies a key.
    pub(super) fn press(&mut self, key: Key) {
        if key == Key::Quit {
            self.is_over = true;
        } else if self.opened.is_some() {
            self.press_in_conversation(key);
        } else {
            self.press_in_lists(key);
        }
    }

    fn press_in_lists(&mut self, key: Key) {
        let page = self.size.rows.max(1);
        match key {
            Key::Up => self.select(self.selected.saturating_sub(1)),
            Key::Down => self.select(self.selected + 1),
            Key::PageUp => self.select(self.selected.saturating_sub(page)),
            Key::PageDown => self.select(self.selected + page),
            Key::Home => self.select(0),
            Key::End => self.select(usize::MAX),
            Key::Tab | Key::Right => self.turn(1),
            Key::BackTab | Key::Left => self.turn(LISTS.len() - 1),
            Key::Enter => self.open(),
            Key::Back if self.tenant_is_chosen_here => self.choose_tenant(None),
            Key::Back | Key::Quit => {}
        }
    }

    fn turn(&mut self, by: usize) {
        let at = LISTS.iter().position(|list| *list == self.list).unwrap_or(0);
        self.list = LISTS[(at + by) % LISTS.len()];
        self.select(0);
    }

    fn choose_tenant(&mut self, tenant: Option<String>) {
        self.tenant_is_chosen_here = tenant.is_some();
        self.tenant = tenant;
        (self.list, self.selected, self.selected_key) = (List::Running, 0, None);
    }

    fn open(&mut self) {
        let Some(key) = self.keys().get(self.selected).map(|key| (*key).to_owned()) else { return };
        if key.is_empty() {
            return;
        }
        if self.list() == List::Tenants {
            self.choose_tenant(Some(key));
            return;
        }
        let follows_end = self.list() == List::Running;
        self.opened = Some(Opened { id: key, page: 0, data: None, scroll: 0, follows_end });
    }

    fn press_in_conversation(&mut self, key: Key) {
        let ScreenSize { lines, all_lines, .. } = self.size;
        let end = all_lines.saturating_sub(lines);
        let Some(opened) = &mut self.opened else { return };
        let from = if opened.follows_end { end } else { opened.scroll.min(end) };
        let page = lines.saturating_sub(1).max(1);
        let to = match key {
            Key::Up => from.saturating_sub(1),
            Key::Down => from + 1,
            Key::PageUp => from.saturating_sub(page),
            Key::PageDown => from + page,
            Key::Home => 0,
            Key::End => end,
            Key::Left | Key::Right => {
                opened.turn_page(key == Key::Right);
                return;
            }
            Key::Back => {
                self.opened = None;
                return;
            }
            Key::Enter | Key::Tab | Key::BackTab | Key::Quit => return,
        };
        opened.scroll = to.min(end);
        opened.follows_end = to >= end && matches!(key, Key::Down | Key::PageDown | Key::End);
    }
}

impl Opened {
    /// Goes to the page of turns before or after this one.
    fn turn_page(&mut self, is_forward: bool) {
        let Some(data) = &self.data else { return };
        let to = if is_forward { data.page + 1 } else { data.page.saturating_sub(1) };
        if (1..=data.page_count).contains(&to) {
            // The last page is requested as such, so that it goes on with a rollout that runs.
            self.page = if to == data.page_count && data.phase.is_some() { 0 } else { to };
            (self.scroll, self.follows_end) = (0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_page::{FailuresData, ListData, LiveData, TenantLine};

    use super::*;

    fn running(ids: &[&str]) -> HostData {
        let items = ids.iter().map(|id| LiveData { id: (*id).to_owned(), ..LiveData::default() }).collect();
        HostData { running: ListData { items, count: ids.len() }, ..HostData::default() }
    }

    fn receive(view: &mut View, host: HostData) {
        let wanted = view.wanted().unwrap();
        view.receive(&wanted, Ok(Received::Host(Box::new(host))));
    }

    fn view(host: HostData) -> View {
        View::new("http://h".to_owned(), None, host)
    }

    #[test]
    fn a_selected_rollout_stays_selected_when_others_come_and_go() {
        let mut view = view(running(&["a", "b", "c"]));
        view.press(Key::Down);
        view.press(Key::Down);
        assert_eq!(view.selected, 2);
        receive(&mut view, running(&["b", "c", "d"]));
        assert_eq!(view.selected, 1, "c");
        receive(&mut view, running(&["b"]));
        assert_eq!(view.selected, 0);
        receive(&mut view, running(&[]));
        view.press(Key::Enter);
        assert!(view.opened.is_none(), "nothing to open");
    }

    #[test]
    fn a_conversation_is_requested_until_it_is_over() {
        let mut view = view(running(&["a"]));
        view.press(Key::Enter);
        let wanted = view.wanted().unwrap();
        assert_eq!(wanted, Wanted::Rollout { tenant: None, id: "a".to_owned(), page: 0 });
        let data = |phase: Option<&str>, page, page_count| {
            let phase = phase.map(str::to_owned);
            Ok(Received::Rollout(Box::new(RolloutData { phase, page, page_count, ..RolloutData::default() })))
        };
        view.receive(&wanted, data(Some("running"), 2, 2));
        assert_eq!(view.wanted().unwrap(), wanted, "it runs");
        view.press(Key::Left);
        let first = view.wanted().unwrap();
        assert_eq!(first, Wanted::Rollout { tenant: None, id: "a".to_owned(), page: 1 });
        view.receive(&wanted, data(Some("running"), 2, 2));
        assert_eq!(
            view.opened.as_ref().unwrap().data.as_ref().unwrap().page,
            2,
            "data of another page is dropped"
        );
        view.receive(&first, data(None, 1, 2));
        assert_eq!(view.wanted(), None);
        view.press(Key::Back);
        assert_eq!(view.wanted(), Some(Wanted::Host { tenant: None }));
    }

    #[test]
    fn an_operator_opens_a_tenant_and_goes_back() {
        let tenant = |name: &str| TenantLine { name: name.to_owned(), ..TenantLine::default() };
        let overview =
            HostData { is_overview: true, tenants: vec![tenant("a"), tenant("b")], ..HostData::default() };
        let mut view = view(overview.clone());
        view.press(Key::Back);
        assert_eq!(view.list(), List::Tenants);
        view.press(Key::Down);
        view.press(Key::Enter);
        assert_eq!(view.wanted(), Some(Wanted::Host { tenant: Some("b".to_owned()) }));
        receive(&mut view, HostData { tenants: overview.tenants.clone(), ..running(&["r"]) });
        assert_eq!(view.list(), List::Running);
        view.press(Key::Back);
        receive(&mut view, overview);
        assert_eq!((view.list(), view.selected), (List::Tenants, 0));
    }

    #[test]
    fn a_failure_opens_its_latest_rollout() {
        let group =
            FailuresData { examples: vec!["x".to_owned(), "y".to_owned()], ..FailuresData::default() };
        let mut view = view(HostData { failures: vec![group], ..HostData::default() });
        view.press(Key::BackTab);
        assert_eq!(view.list(), List::Failures);
        view.press(Key::Enter);
        assert_eq!(view.opened.unwrap().id, "x");
    }

    #[test]
    fn the_end_of_a_conversation_is_followed_until_the_reader_goes_up() {
        let mut view = view(running(&["a"]));
        view.press(Key::Enter);
        view.size = ScreenSize { rows: 5, lines: 10, all_lines: 100 };
        assert!(view.opened.as_ref().unwrap().follows_end);
        view.press(Key::Up);
        let opened =
            |view: &View| view.opened.as_ref().map(|opened| (opened.scroll, opened.follows_end)).unwrap();
        assert_eq!(opened(&view), (89, false));
        view.press(Key::Home);
        view.press(Key::PageDown);
        assert_eq!(opened(&view), (9, false));
        view.press(Key::End);
        assert_eq!(opened(&view), (90, true));
        view.press(Key::Down);
        assert_eq!(opened(&view), (90, true));
    }
}
