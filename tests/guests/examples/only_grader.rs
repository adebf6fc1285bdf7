//! Has only a grader. No other grader here returns its reward.

use rollout_sdk::*;

struct Constant;

impl Grader for Constant {
    fn grade(_: GradeContext) -> Result<Verdicts> {
        Ok(0.25.into())
    }
}

export!(grader = Constant);
