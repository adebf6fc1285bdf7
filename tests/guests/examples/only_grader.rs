//! Has no workflow. Its reward is not one that another grader here gives.

use rollout_sdk::*;

struct Constant;

impl Grader for Constant {
    fn grade(_: GradeContext) -> Result<Verdicts> {
        Ok(0.25.into())
    }
}

export!(grader = Constant);
