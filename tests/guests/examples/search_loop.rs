//! An agent loop that shows all that it receives: to its caller in the tools, to its model, and in its conversation.
//! Its grader returns the length of the ground truth as the reward, which proves that it received it, and checks that
//! the metadata has it too.

use rollout_sdk::*;

struct ShowAll;

/// Returns everything that this instance can see.
fn seen(request: &LoopRequest) -> Result<String> {
    let metadata = request.metadata_json()?;
    Ok(format!("{request:?} {metadata:?} {}", request.rollout_id()))
}

impl AgentLoop for ShowAll {
    fn name() -> String {
        "show-all".to_owned()
    }

    fn get_tools(request: &LoopRequest, _: &()) -> Result<Vec<Value>> {
        let parameters = json!({"type": "object", "properties": {}, "required": []});
        let function = json!({"name": "seen", "description": seen(request)?, "parameters": parameters});
        Ok(vec![json!({"type": "function", "function": function})])
    }

    fn run(ctx: LoopContext) -> Result<LoopOutput> {
        let request = ctx.request().clone();
        let mut messages = request.messages().to_vec();
        messages.push(Message::user(seen(&request)?));
        let reply = ctx.chat(&messages).send()?.into_message();
        messages.push(reply);
        Ok(ctx.complete(messages))
    }
}

struct Length;

impl Grader for Length {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = ctx.require_label()?.to_owned();
        let metadata = ctx.metadata_json()?.unwrap_or_default();
        if metadata["ground_truth"] != label.as_str() {
            bail!("the grader's metadata lack the truth");
        }
        Ok((label.len() as f64).into())
    }
}

export!(agent_loop = ShowAll, grader = Length);
