//! A typical agent: it calls a tool repeatedly, whose results have the length that the model requests. `bench --turns
//! 20 --tool-bytes 4096` measures it.

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

struct LongReads;

#[derive(Deserialize, JsonSchema)]
struct Read {
    /// The number of bytes to read.
    bytes: usize,
}

impl Workflow for LongReads {
    fn run(ctx: Context) -> Result<Output> {
        let read =
            Tool::new("read", "Reads a number of bytes.", |Read { bytes }: Read| Ok("x".repeat(bytes)));
        Ok(ctx.agent()?.tool(read).max_turns(1000).run()?.into())
    }
}

impl Grader for LongReads {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
        Ok(same_number(&answer, ctx.require_label()?).into())
    }
}

export!(workflow = LongReads, grader = LongReads);
