//! The terminal: its alternate screen, its keys without echo, and its return to what it was before.

use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;

use anyhow::{Context, Result};
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::{Event, Key as TerminalKey};
use ratatui::termion::input::TermRead;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::view::Key;

/// Selects the alternate screen and hides the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";

/// Shows the cursor and selects the screen from before.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// Number of keys that may wait.
const KEYS_MAX: usize = 64;

/// The terminal while the view is shown. Dropping it restores the terminal.
pub(super) struct Screen {
    pub(super) terminal: Terminal<TermionBackend<io::Stdout>>,
    before: Arc<Termios>,
}

impl Screen {
    /// Shows the alternate screen. A panic restores the terminal before its message is printed.
    pub(super) fn enter() -> Result<Self> {
        let before = Arc::new(tcgetattr(io::stdin()).context("the terminal's mode cannot be read")?);
        let terminal = Terminal::new(TermionBackend::new(io::stdout()))
            .context("the size of the terminal is unknown")?;
        let screen = Self { terminal, before: before.clone() };
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(restoring(move || restore(&before), hook)));
        let mut raw = Termios::clone(&screen.before);
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)
            .context("the terminal's mode cannot be changed")?;
        io::stdout().write_all(ENTER).and_then(|()| io::stdout().flush()).context("the terminal is gone")?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

/// Restores the terminal. Failures are ignored: a terminal that is gone needs nothing.
fn restore(before: &Termios) {
    let _ = io::stdout().write_all(LEAVE).and_then(|()| io::stdout().flush());
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

/// Returns a panic hook that restores the terminal and then calls the hook from before.
fn restoring(
    restore: impl Fn() + Send + Sync + 'static,
    hook: impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static,
) -> impl Fn(&PanicHookInfo<'_>) + Send + Sync + 'static {
    move |info| {
        restore();
        hook(info);
    }
}

/// Returns the keys that are pressed from now on, which end with the terminal.
pub(super) fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    // Reading blocks, and the thread ends with the process.
    std::thread::spawn(move || {
        for event in io::stdin().events() {
            let Ok(event) = event else { return };
            if let Some(key) = key(&event)
                && sender.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// Returns the meaning of a key.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else { return None };
    Some(match key {
        TerminalKey::Up | TerminalKey::Char('k') => Key::Up,
        TerminalKey::Down | TerminalKey::Char('j') => Key::Down,
        TerminalKey::PageUp => Key::PageUp,
        TerminalKey::PageDown | TerminalKey::Char(' ') => Key::PageDown,
        TerminalKey::Home | TerminalKey::Char('g') => Key::Home,
        TerminalKey::End | TerminalKey::Char('G') => Key::End,
        TerminalKey::Left | TerminalKey::Char('h') => Key::Left,
        TerminalKey::Right | TerminalKey::Char('l') => Key::Right,
        // In raw mode, Enter is a carriage return.
        TerminalKey::Char('\n' | '\r') => Key::Enter,
        TerminalKey::Char('\t') => Key::Tab,
        TerminalKey::BackTab => Key::BackTab,
        TerminalKey::Esc | TerminalKey::Backspace => Key::Back,
        TerminalKey::Char('q') | TerminalKey::Ctrl('c') => Key::Quit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let here = std::thread::current().id();
        let note = |word: &'static str| {
            let order = order.clone();
            move || {
                // Other tests may panic meanwhile.
                if std::thread::current().id() == here {
                    order.lock().unwrap().push(word);
                }
            }
        };
        let (restored, printed) = (note("restored"), note("printed"));
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(restoring(restored, move |_| printed())));
        let panicked = std::panic::catch_unwind(|| panic!("here"));
        std::panic::set_hook(before);
        assert!(panicked.is_err());
        assert_eq!(*order.lock().unwrap(), ["restored", "printed"]);
    }

    #[test]
    fn keys_have_their_meanings() {
        fn check(bytes: &[u8], expected: &[Key]) {
            let keys: Vec<Key> = bytes.events().filter_map(|event| key(&event.unwrap())).collect();
            assert_eq!(keys, expected, "{bytes:?}");
        }
        check(b"\x1b[A\x1b[B\r\t", &[Key::Up, Key::Down, Key::Enter, Key::Tab]);
        check(b"\x1b[5~\x1b[6~\x1b[Z", &[Key::PageUp, Key::PageDown, Key::BackTab]);
        check(b"q", &[Key::Quit]);
        check(b"\x03", &[Key::Quit]);
        check(b"x", &[]);
    }
}
