//! Prints before it asks the model: a lot, including terminal escape sequences, or a line to each stream if the prompt is
//! "print". The prompt "log N lines" logs N lines.

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
        let lines = prompt.strip_prefix("log ").and_then(|rest| rest.strip_suffix(" lines"));
        for line in 0..lines.and_then(|lines| lines.parse().ok()).unwrap_or(0) {
            log::info(format_args!("line {line} <script>window.hit=1</script>"));
        }
        ask_once(&ctx)
    }
}

export!(workflow = Noisy, grader = Honest);
