//! Never returns from the grader.

use rollout_sdk::*;
use rollout_test_guests::{Honest, MISBEHAVE, spin};

struct Spin;

impl Grader for Spin {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        if ctx.label() == Some(MISBEHAVE) {
            spin();
        }
        Honest::grade(ctx)
    }
}

export!(workflow = Honest, grader = Spin);
