//! A workflow without tools of its own, which uses tools that the operator provides.
//!
//! The model is offered all provided tools. With the configuration in this example these are the calculator
//! of a Model Context Protocol server and the tools of a component. At the end the workflow itself calls the
//! component's tool to format the answer.

use rollout_sdk::*;

/// The host-provided tool that the workflow calls itself.
const PLAIN: &str = "number_plain";

struct Borrower;

impl Workflow for Borrower {
    fn run(ctx: Context) -> Result<Output> {
        let run = ctx.agent()?.system("Use the calculator for every calculation.").with_host_tools().run()?;

        run.sample().metric("tool_calls", run.tool_calls() as f64)?;
        if let Some(answer) = answer_after(&run.text(), "####") {
            let arguments = json!({"text": answer}).to_string();
            let call = ToolCall { id: "plain".to_owned(), name: PLAIN.to_owned(), arguments };
            // A failed or missing tool is reported in the result and does not fail the rollout.
            let result = host_tools::execute(&[call]).remove(0);
            run.sample().field("answer", json!({"text": result.content, "is_error": result.is_error}))?;
        }
        Ok(run.into())
    }
}

impl Grader for Borrower {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
        Ok(same_number(&answer, ctx.require_label()?).into())
    }
}

export!(workflow = Borrower, grader = Borrower);
