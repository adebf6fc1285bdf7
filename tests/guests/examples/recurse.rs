//! Recurses until the stack overflows.

use std::hint::black_box;

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

struct Recurse;

impl Workflow for Recurse {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            bail!("it came back with {}", deeper(0));
        }
        ask_once(&ctx)
    }
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "this is what it is for")]
fn deeper(depth: u64) -> u64 {
    // The addition prevents tail-call elimination.
    black_box(deeper(black_box(depth) + 1)) + 1
}

export!(workflow = Recurse, grader = Honest);
