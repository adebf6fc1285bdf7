//! A workflow with no tools of its own: the operator provides it some.
//!
//! The model is offered everything that is provided; with the configuration beside this, the
//! calculator of a server that speaks the Model Context Protocol, and the tools of a
//! component. When it is done, the workflow itself has its answer written plainly by the
//! component's tool. It would work with other tools of these names just as well.

use rollout_sdk::*;

/// The host-provided tool that the workflow itself calls.
const PLAIN: &str = "number_plain";

struct Borrower;

impl Workflow for Borrower {
    fn run(ctx: Context) -> Result<Output> {
        let run = ctx.agent()?.system("Use the calculator for every calculation.").with_host_tools().run()?;

        run.sample().metric("tool_calls", run.tool_calls() as f64)?;
        if let Some(answer) = answer_after(&run.text(), "####") {
            let arguments = json!({"text": answer}).to_string();
            let call = ToolCall { id: "plain".to_owned(), name: PLAIN.to_owned(), arguments };
            // A tool that fails, or is not provided, says so and fails nothing else.
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
