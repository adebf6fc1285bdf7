//! Opens two samples, even if the caller accepts only one. The grader gives the first 1 and the second 0.

use rollout_sdk::*;

struct TwoSamples;

impl Workflow for TwoSamples {
    fn run(ctx: Context) -> Result<Output> {
        let samples = [ctx.sample_named("first")?, ctx.sample_named("second")?];
        for reply in chat_all(samples.iter().map(|sample| sample.chat(ctx.prompt()))) {
            reply?;
        }
        for sample in &samples {
            sample.push_all(ctx.prompt())?;
            sample.push(&Message::assistant(sample.id()))?;
        }
        Ok(().into())
    }
}

impl Grader for TwoSamples {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let verdicts: Vec<Verdict> =
            ctx.samples().iter().map(|sample| sample.reward(sample.id() == "first")).collect();
        Ok(verdicts.into())
    }
}

export!(workflow = TwoSamples, grader = TwoSamples);
