//! Exits with the code in the prompt.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text};

struct Exit;

impl Workflow for Exit {
    fn run(ctx: Context) -> Result<Output> {
        if let Some(code) = prompt_text(&ctx).strip_prefix("exit ") {
            std::process::exit(code.parse()?);
        }
        ask_once(&ctx)
    }
}

export!(workflow = Exit, grader = Honest);
