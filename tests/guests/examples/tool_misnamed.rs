//! A tool component whose tool names no model server accepts.

use rollout_sdk::*;

struct Misnamed;

impl ToolPlugin for Misnamed {
    fn tools((): ()) -> Result<Vec<Tool>> {
        let tool = |name: &str| Tool::new(name, "Does nothing.", |(): ()| Ok(()));
        Ok(vec![tool("fine"), tool("not fine"), tool("")])
    }
}

export!(tool = Misnamed);
