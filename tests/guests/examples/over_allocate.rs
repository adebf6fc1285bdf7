//! Allocates memory until allocation fails.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, requests_misbehaviour};

struct OverAllocate;

impl Workflow for OverAllocate {
    fn run(ctx: Context) -> Result<Output> {
        if requests_misbehaviour(&ctx) {
            let mut kept = Vec::new();
            loop {
                kept.push(std::hint::black_box(vec![1_u8; 1 << 20]));
            }
        }
        ask_once(&ctx)
    }
}

export!(workflow = OverAllocate, grader = Honest);
