//! The workflow and grader that `tests/clients/cases.py` describes.

use rollout_sdk::*;
use rollout_test_guests::{ask_once, prompt_text, spin, with_reply};

struct Conform;

#[derive(serde::Deserialize)]
struct Row {
    ground_truth: Option<String>,
}

impl Workflow for Conform {
    fn run(ctx: Context) -> Result<Output> {
        match prompt_text(&ctx).as_str() {
            "please fail" => bail!("the workflow was told to fail"),
            "please refuse" => Err(Error::invalid("the workflow was told to refuse")),
            "please take too long" => Err(Error::timed_out("the workflow was told to take too long")),
            "please spin" => spin(),
            "please trap" => panic!("the workflow was told to trap"),
            "please return nothing" => Ok(().into()),
            "please stay silent" => Ok(with_reply(&ctx, Message::assistant("#### 5"))),
            text if text.starts_with("please branch") => branch(&ctx, &["first", "second"], &[]),
            text if text.starts_with("please half branch") => branch(&ctx, &["first"], &["silent"]),
            text if text.starts_with("please name alike") => branch(&ctx, &["a/b", "a_b"], &[]),
            text if text.starts_with("please push") => branch(&ctx, &["only"], &[]),
            _ => ask_once(&ctx),
        }
    }
}

/// Registers samples under these names. Those in `asking` have a reply of the model.
fn branch(ctx: &Context, asking: &[&str], silent: &[&str]) -> Result<Output> {
    for name in asking {
        let sample = ctx.sample_named(name)?;
        let reply = sample.chat(ctx.prompt()).send()?;
        sample.push_all(ctx.prompt())?;
        sample.push(&reply.into_message())?;
    }
    for name in silent {
        ctx.sample_named(name)?.push_all(ctx.prompt())?;
    }
    Ok(().into())
}

impl Grader for Conform {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        match ctx.label() {
            Some("please fail") => bail!("the grader was told to fail"),
            Some("please spin") => spin(),
            Some("please give no reward") => return Ok(Verdict::no_reward().into()),
            Some("please remove") => return Ok(Verdict::reward(1.0).withdraw().into()),
            Some("please rate the first") => return Ok(ctx.samples()[0].reward(1.0).into()),
            Some("please remove the second") => {
                let (first, second) = (&ctx.samples()[0], &ctx.samples()[1]);
                return Ok(vec![first.reward(1.0), second.reward(0.5).withdraw()].into());
            }
            _ => {}
        }
        let truth = match ctx.label() {
            Some(label) => Some(label.to_owned()),
            None => ctx.metadata::<Row>()?.ground_truth,
        };
        let rate = |sample: &GradedSample| {
            let text = sample.text();
            let answer = text.rsplit("####").next().unwrap_or_default().trim();
            sample.reward(Some(answer) == truth.as_deref())
        };
        Ok(ctx.samples().iter().map(rate).collect())
    }
}

export!(workflow = Conform, grader = Conform);
