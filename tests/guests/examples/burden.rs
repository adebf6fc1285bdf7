//! Strains its host as the prompt's two words say: `memory 240` fills 240 MiB and ends, `result 40` returns messages of
//! 40 MiB, `spin 1` computes forever. With any other prompt it is honest.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text, spin};

struct Burden;

const MIB: usize = 1 << 20;

impl Workflow for Burden {
    fn run(ctx: Context) -> Result<Output> {
        let prompt_text = prompt_text(&ctx);
        let (kind, count) = prompt_text.split_once(' ').unwrap_or_default();
        match (kind, count.parse::<usize>()) {
            ("memory", Ok(count)) => {
                let filled = std::hint::black_box(vec![1_u8; count * MIB]);
                Ok(vec![Message::assistant(format!("{} bytes are filled", filled.len()))].into())
            }
            ("result", Ok(count)) => {
                let message = || Message::assistant("x".repeat(MIB));
                Ok(std::iter::repeat_with(message).take(count).collect::<Vec<_>>().into())
            }
            ("spin", Ok(_)) => spin(),
            _ => ask_once(&ctx),
        }
    }
}

export!(workflow = Burden, grader = Honest);
