//! A workflow that calls the model once, a grader, and a group grader that compares the answers.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text};

struct Member;

impl Workflow for Member {
    fn run(ctx: Context) -> Result<Output> {
        match prompt_text(&ctx).as_str() {
            "please fail" => bail!("the workflow was told to fail"),
            _ => ask_once(&ctx),
        }
    }
}

/// Rates each answer by its rank among the numbers of the group, from 0 to 1.
struct Ranked;

impl GroupGrader for Ranked {
    fn grade_group(ctx: GroupContext) -> Result<Vec<GroupRating>> {
        let number = |sample: &GroupSample| -> Result<f64> {
            let text = sample.answer_after("####").unwrap_or_default();
            text.trim().parse().context("the answer of a member")
        };
        if ctx.id().starts_with("reject") {
            bail!("there is no order among {} samples", ctx.samples().count());
        }
        if ctx.id().starts_with("trap") {
            panic!("the group grader was told to trap");
        }
        if ctx.id().starts_with("judged") {
            // The number of the judge's reply, which differs each time.
            let reply = JudgeRequest::new(&[Message::user("How good are they?")]).send()?;
            let number = reply.text().split(' ').find_map(|word| word.parse().ok());
            let number: f64 = number.context("the judge gave no number")?;
            return Ok(ctx.samples().map(|sample| sample.rate(number)).collect());
        }
        let numbers: Vec<f64> = ctx.samples().map(number).collect::<Result<_>>()?;
        let rate = |sample: &GroupSample| -> Result<GroupRating> {
            let own = number(sample)?;
            let below = numbers.iter().filter(|number| **number < own).count();
            let rank = below as f64 / (numbers.len().max(2) - 1) as f64;
            Ok(sample
                .rate(rank)
                .metric("before", sample.reward().unwrap_or(-1.0))
                .metric("failed", ctx.failed().len() as f64))
        };
        let mut ratings: Vec<GroupRating> = ctx.samples().map(rate).collect::<Result<_>>()?;
        if ctx.id().starts_with("forget") {
            ratings.pop();
        }
        log::info(format_args!("group {} of {} was rated", ctx.id(), ctx.size()));
        Ok(ratings)
    }
}

rollout_sdk::export!(workflow = Member, grader = Honest, group_grader = Ranked);
