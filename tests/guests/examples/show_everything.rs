//! Shows everything that a workflow can see: to the model, in its sample, as an artifact, in the log and on its output.

use rollout_sdk::*;

struct ShowEverything;

impl Workflow<Option<Map<String, Value>>> for ShowEverything {
    fn run(ctx: Context<Option<Map<String, Value>>>) -> Result<Output> {
        let sample = ctx.sample()?;
        let seen = json!({
            "rollout_id": ctx.rollout_id(),
            "attempt": ctx.attempt(),
            "prompt": ctx.prompt(),
            "config": ctx.config(),
            "metadata": ctx.metadata_json()?,
            "time_left": format!("{:?}", ctx.time_left()),
            "samples_max": ctx.samples_max(),
            "sample_id": sample.id(),
            "host_tools": host_tools::available(),
            "artifacts": artifact::names(),
            "environment": std::env::vars().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        });
        let reply = sample.chat(&[Message::user(seen.to_string())]).send()?;
        sample.field("seen", seen.clone())?;
        artifact::write("seen.json", seen.to_string())?;
        log::info(&seen);
        println!("{seen}");
        Ok(vec![Message::user(seen.to_string()), reply.into_message()].into())
    }
}

/// Returns the label's length as the reward, which proves that it received the label.
impl Grader for ShowEverything {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let length = ctx.require_label()?.len();
        Ok((length as f64).into())
    }
}

export!(workflow = ShowEverything, grader = ShowEverything);
