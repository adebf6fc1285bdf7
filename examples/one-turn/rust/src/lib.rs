//! The smallest plugin: calls the model once and compares the number after `####` with the label.

use rollout_sdk::*;

struct OneTurn;

impl Workflow for OneTurn {
    fn run(ctx: Context) -> Result<Output> {
        Ok(ctx.agent()?.run()?.into())
    }
}

impl Grader for OneTurn {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
        Ok(same_number(&answer, ctx.require_label()?).into())
    }
}

export!(workflow = OneTurn, grader = OneTurn);
