//! A grader that calls the judge. The label selects other ways to call it.

use rollout_sdk::*;
use rollout_test_guests::{Honest, prompt_text};

struct Judged;

impl Workflow for Judged {
    fn run(ctx: Context) -> Result<Output> {
        if prompt_text(&ctx) == "ask the judge" {
            question().send()?;
        }
        <Honest as Workflow>::run(ctx)
    }
}

fn question() -> JudgeRequest {
    JudgeRequest::new(&[Message::user("Is it right?")]).temperature(0.0)
}

impl Grader for Judged {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let sample = ctx.sample()?;
        match ctx.require_label()? {
            "ask three at once" => {
                let calls = (0..3).map(|_| question().start()).collect::<Result<Vec<_>, _>>()?;
                assert!(!wait_any(&calls, None).is_empty());
                let replies = calls.into_iter().map(PendingJudge::wait).collect::<Result<Vec<_>, _>>()?;
                Ok((replies.len() as f64).into())
            }
            "ask until it is enough" => {
                let mut answered = 0;
                loop {
                    match question().send() {
                        Ok(_) => answered += 1,
                        Err(JudgeError::BudgetSpent(which)) => {
                            log::info(&which);
                            return Ok(f64::from(answered).into());
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            "give up after a good answer" => {
                let failed = question().send().is_err();
                question().send()?;
                bail!("it gave up by itself, after a failure: {failed}")
            }
            "send a model" => {
                question().param("model", "another").send()?;
                Ok(1.0.into())
            }
            label => {
                let rating = rubric("Is the answer right?")
                    .range(0.0..=10.0)
                    .truth(label)
                    .input("the question")
                    .metadata(json!({"row": 7}))
                    .rate(&sample.text())?;
                log::info(&rating.explanation);
                Ok(sample.reward(rating.score).metric("judge_score", rating.score).into())
            }
        }
    }
}

export!(workflow = Judged, grader = Judged);
