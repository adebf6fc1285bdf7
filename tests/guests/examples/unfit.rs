//! Makes the mistakes that a validation must find, one for each prompt.

use rollout_sdk::*;
use rollout_test_guests::{Honest, ask_once, prompt_text};

struct Unfit;

impl Workflow for Unfit {
    fn run(ctx: Context) -> Result<Output> {
        match prompt_text(&ctx).as_str() {
            "register nothing" => return Ok(().into()),
            "fail" => bail!("told to fail"),
            "trap" => panic!("told to trap"),
            "offer bad tools" => {
                let sample = ctx.sample()?;
                let nameless = json!({"type": "function", "function": {"description": "Which?"}});
                let odd = json!({"type": "web", "function": {"name": "2 fast", "parameters": []}});
                sample.chat(ctx.prompt()).tools([&nameless, &odd]).send()?;
                sample.push_all(ctx.prompt())?;
                return Ok(().into());
            }
            "tell the time" => {
                // The host's time, which differs between two runs.
                let begun = ctx.time_left();
                let mut looks = 0_u64;
                for _ in 0..5 {
                    let last = ctx.time_left();
                    while ctx.time_left() == last {
                        looks += 1;
                    }
                }
                let sample = ctx.sample()?;
                let question = Message::user(format!("{begun:?} {looks}"));
                let reply = sample.chat(&[question]).send()?;
                return Ok(vec![reply.into_message()].into());
            }
            "write another file" => {
                let mut looks = 0_u64;
                for _ in 0..5 {
                    let last = ctx.time_left();
                    while ctx.time_left() == last {
                        looks += 1;
                    }
                }
                artifact::write("looks.txt", looks.to_string().as_bytes())?;
            }
            _ => {}
        }
        ask_once(&ctx)
    }
}

impl Grader for Unfit {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        match ctx.label() {
            Some("rate nothing") => Ok(Verdicts::default()),
            Some("rate without end") => Ok(f64::INFINITY.into()),
            Some("withdraw") => Ok(ctx.sample()?.no_reward().withdraw().into()),
            _ => <Honest as Grader>::grade(ctx),
        }
    }
}

export!(workflow = Unfit, grader = Unfit);
