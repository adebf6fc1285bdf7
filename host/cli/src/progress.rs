//! Progress bars on standard error.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

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
