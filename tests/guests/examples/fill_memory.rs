//! A guest that fills 200 MiB of memory in every rollout, including that of a check.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once};

const BYTES: usize = 200 << 20;

struct FillMemory;

impl Workflow for FillMemory {
    fn run(ctx: Context) -> Result<Output> {
        let filled = std::hint::black_box(vec![1_u8; BYTES]);
        let output = ask_once(&ctx);
        drop(std::hint::black_box(filled));
        output
    }
}

export!(workflow = FillMemory, grader = Honest);
