//! A tool loop: the model solves an arithmetic problem with a calculator.
//!
//! The tool is a Rust function, and the loop is the SDK's. The workflow records the number of tool calls and
//! stores the calculations as an artifact. The grader compares the number after `####` with the label.

mod expression;

use std::cell::RefCell;
use std::rc::Rc;

use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// Configuration of the plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Maximum number of model calls.
    max_turns: u32,
    /// Sampling temperature.
    temperature: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_turns: 8, temperature: 0.7 }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Calculation {
    /// An expression of numbers, `+`, `-`, `*`, `/` and parentheses, such as `-(2 + 3) * 4`.
    expression: String,
}

struct Calculator;

impl Workflow<Config> for Calculator {
    fn run(ctx: Context<Config>) -> Result<Output> {
        let paper = Rc::new(RefCell::new(String::new()));
        let notes = Rc::clone(&paper);
        let calculator = Tool::new(
            "calculator",
            "Works out an arithmetic expression.",
            move |Calculation { expression }| {
                let value = expression::evaluate(&expression)?.to_string();
                *notes.borrow_mut() += &format!("{expression} = {value}\n");
                Ok(value)
            },
        );

        let run = ctx
            .agent()?
            .system("Use the calculator for every calculation.")
            .tool(calculator)
            .max_turns(ctx.config().max_turns)
            .temperature(ctx.config().temperature)
            .run()?;

        run.sample().metric("tool_calls", run.tool_calls() as f64)?;
        artifact::write("calculations.txt", paper.borrow().as_bytes())?;
        log::info(format_args!("{:?} after {} turns", run.stop(), run.turns()));
        Ok(run.into())
    }
}

impl Grader<Config> for Calculator {
    fn grade(ctx: GradeContext<Config>) -> Result<Verdicts> {
        let sample = ctx.sample()?;
        let answer = sample.answer_after("####");
        let right = same_number(answer.as_deref().unwrap_or(""), ctx.require_label()?);
        let answered = f64::from(u8::from(answer.is_some()));
        Ok(sample.reward(right).metric("answered", answered).into())
    }
}

export!(workflow = Calculator, grader = Calculator, settings = Config);
