//! Prints before it asks the model: a lot, including terminal escape sequences, or a line to each stream if the prompt is
//! "print". The prompt "print N lines" prints N lines.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text, requests_misbehaviour};

struct Noisy;

const LINES: usize = 20_000;

impl Workflow for Noisy {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            for line in 0..LINES {
                println!("\x1b[2J\x1b]0;owned\x07 line {line} to stdout {}", "x".repeat(80));
                eprintln!("\x1b[31m line {line} to stderr\r");
                log::warn(format_args!("\x1b[1m line {line} to the log"));
            }
            print!("{}", "no end of line ".repeat(100_000));
        }
        if prompt_text(&ctx) == "print" {
            println!("printed to stdout");
            eprintln!("printed to stderr");
            log::warn("logged");
        }
        let prompt = prompt_text(&ctx);
        let lines = prompt.strip_prefix("print ").and_then(|rest| rest.strip_suffix(" lines"));
        let lines = lines.and_then(|lines| lines.parse().ok()).unwrap_or(0);
        // Standard output takes many lines in one call.
        for first in (0..lines).step_by(LINES) {
            let last = lines.min(first + LINES);
            let text: String =
                (first..last).map(|line| format!("line {line} <script>window.hit=1</script>\n")).collect();
            print!("{text}");
        }
        ask_once(&ctx)
    }
}

export!(workflow = Noisy, grader = Honest);
