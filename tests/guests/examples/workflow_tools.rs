//! A workflow that offers the model a tool, which not every caller's protocol supports.

use rollout_sdk::*;

struct WithTool;

impl Workflow for WithTool {
    fn run(ctx: Context) -> Result<Output> {
        Ok(ctx.agent()?.tool(Tool::new("now", "Tells the time.", |(): ()| Ok("noon"))).run()?.into())
    }
}

export!(workflow = WithTool);
