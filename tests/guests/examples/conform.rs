//! The workflow and grader that `tests/clients/cases.py` describes.

use rollout_sdk::*;
use rollout_test_guests::{ask_once, asked, spin};

struct Conform;

#[derive(serde::Deserialize)]
struct Row {
    ground_truth: Option<String>,
}

impl Workflow for Conform {
    fn run(ctx: Context) -> Result<Output> {
        match asked(&ctx).as_str() {
            "please fail" => bail!("the workflow was told to fail"),
            "please refuse" => Err(Error::invalid("the workflow was told to refuse")),
            "please spin" => spin(),
            "please trap" => panic!("the workflow was told to trap"),
            "please return nothing" => Ok(().into()),
            _ => ask_once(&ctx),
        }
    }
}

impl Grader for Conform {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        match ctx.label() {
            Some("please fail") => bail!("the grader was told to fail"),
            Some("please spin") => spin(),
            Some("please give no reward") => return Ok(Verdict::no_reward().into()),
            Some("please remove") => return Ok(Verdict::reward(1.0).withdraw().into()),
            _ => {}
        }
        let truth = match ctx.label() {
            Some(label) => Some(label.to_owned()),
            None => ctx.metadata::<Row>()?.ground_truth,
        };
        let text = ctx.sample()?.text();
        let answer = text.rsplit("####").next().unwrap_or_default().trim();
        Ok((Some(answer) == truth.as_deref()).into())
    }
}

export!(workflow = Conform, grader = Conform);
