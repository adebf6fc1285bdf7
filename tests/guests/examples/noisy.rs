//! Prints before it asks the model: a lot, with escape sequences for a terminal in it, or a line each way if the prompt is
//! "print".

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, asked, told_to_misbehave};

struct Noisy;

const LINES: usize = 20_000;

impl Workflow for Noisy {
    fn run(ctx: Context) -> Result<Output> {
        if told_to_misbehave(&ctx) {
            for line in 0..LINES {
                println!("\x1b[2J\x1b]0;owned\x07 line {line} to stdout {}", "x".repeat(80));
                eprintln!("\x1b[31m line {line} to stderr\r");
                log::warn(format_args!("\x1b[1m line {line} to the log"));
            }
            print!("{}", "no end of line ".repeat(100_000));
        }
        if asked(&ctx) == "print" {
            println!("printed to stdout");
            eprintln!("printed to stderr");
            log::warn("logged");
        }
        ask_once(&ctx)
    }
}

export!(workflow = Noisy, grader = Honest);
