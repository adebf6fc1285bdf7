//! An agent loop with a grader, whose reward takes precedence: 0.25 for a right answer.

use rollout_sdk::*;
use rollout_test_guests::Looping;

struct Quarter;

impl Grader for Quarter {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        ctx.reward_by(|solution, truth, _| {
            Ok(if answer_after(solution, "####") == Some(truth) { 0.25 } else { 0.0 })
        })
    }
}

export!(agent_loop = Looping, grader = Quarter);
