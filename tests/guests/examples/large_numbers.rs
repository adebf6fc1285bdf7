//! Opens two samples, each of which has the label as its reward and as a metric.

use rollout_sdk::*;

struct LargeNumbers;

impl Workflow for LargeNumbers {
    fn run(ctx: Context) -> Result<Output> {
        for name in ["first", "second"] {
            ctx.sample_named(name)?.push_all(ctx.prompt())?;
        }
        Ok(().into())
    }
}

impl Grader for LargeNumbers {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let number: f64 =
            ctx.require_label()?.parse().map_err(|_| Error::invalid("the label is not a number"))?;
        let verdicts: Vec<Verdict> =
            ctx.samples().iter().map(|sample| sample.reward(number).metric("size", number)).collect();
        Ok(verdicts.into())
    }
}

export!(workflow = LargeNumbers, grader = LargeNumbers);
