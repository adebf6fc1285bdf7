//! Progress on standard error.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::print::errln;

/// Returns a progress bar for a transfer, such as `uploading` of a file. Without a terminal, prints a line instead.
pub(super) fn bytes_bar(verb: &str, name: &str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        errln!("{verb} {name}, {} KiB", bytes.div_ceil(1024));
        return ProgressBar::hidden();
    }
    let template = format!("{verb} {{msg}}  {{wide_bar}}  {{bytes}} of {{total_bytes}}");
    let bar = ProgressBar::new(bytes).with_message(name.to_owned());
    match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Time after which work that is not over is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Time between two pictures of the sign that work goes on.
const TICK: Duration = Duration::from_millis(200);

/// Work whose end nothing else shows. If it takes longer than a second and standard error is a terminal, a line there says so
/// until this is dropped.
pub(super) struct Working {
    bar: ProgressBar,
    over: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Working {
    /// Begins work, such as `compiling agent.wasm`.
    pub(super) fn on(what: String) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        // The template is constant; if it were invalid, the default would do.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        if !std::io::stderr().is_terminal() {
            return Self { bar, over: None };
        }
        let (sender, receiver) = channel::<()>();
        let shown = bar.clone();
        let thread = std::thread::spawn(move || {
            if receiver.recv_timeout(SHOWN_AFTER) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(TICK);
            }
        });
        Self { bar, over: Some((sender, thread)) }
    }

    /// Prints something else on standard error, without the line meanwhile.
    pub(super) fn pause(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.over.take() {
            drop(sender);
            // The thread shows the bar, or ends at once; it must not show the bar later.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
