//! An agent loop with a tool that generation A's protocol cannot represent.

use rollout_sdk::*;

struct Odd;

impl AgentLoop for Odd {
    fn name() -> String {
        "odd".to_owned()
    }

    fn get_tools(_: &LoopRequest, _: &()) -> Result<Vec<Value>> {
        let parameters =
            json!({"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}]}}, "required": []});
        let function = json!({"name": "odd", "description": "Takes anything.", "parameters": parameters});
        Ok(vec![json!({"type": "function", "function": function})])
    }

    fn run(ctx: LoopContext) -> Result<LoopOutput> {
        let messages = ctx.request().messages().to_vec();
        let reply = ctx.chat(&messages).send()?.into_message();
        Ok(ctx.complete([messages, vec![reply]].concat()).reward(1.0))
    }
}

export!(agent_loop = Odd);
