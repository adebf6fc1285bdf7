//! Panics in the grader.

use rollout_sdk::*;
use rollout_test_guests::{Honest, MISBEHAVE};

struct Trap;

impl Grader for Trap {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        if ctx.label() == Some(MISBEHAVE) {
            panic!("this grader traps");
        }
        Honest::grade(ctx)
    }
}

export!(workflow = Honest, grader = Trap);
