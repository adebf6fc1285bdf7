//! Behaves as each prompt says, exactly like `python/parity`.

use rollout_sdk::*;
use rollout_test_guests::prompt_text;
use schemars::JsonSchema;
use serde::Deserialize;

struct Parity;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    greeting: String,
    turns: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { greeting: "Hello.".to_owned(), turns: 3 }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Join {
    /// The words to join.
    words: Vec<String>,
    /// The separator.
    between: Option<String>,
    loud: bool,
}

fn join(args: Join) -> Result<String> {
    if args.words.is_empty() {
        bail!("there are no words");
    }
    let text = args.words.join(args.between.as_deref().unwrap_or(" "));
    Ok(if args.loud { text.to_uppercase() } else { text })
}

impl Workflow<Config> for Parity {
    fn run(ctx: Context<Config>) -> Result<Output> {
        match prompt_text(&ctx).as_str() {
            "messages" => messages(&ctx),
            "push" => push(&ctx),
            "names" => names(&ctx),
            "parallel" => parallel(&ctx),
            "refused" | "no json" => answer_of(&ctx, ctx.sample()?.chat(ctx.prompt())),
            "reserved" => answer_of(&ctx, ctx.sample()?.chat(ctx.prompt()).param("model", "mine")),
            "budget" => budget(&ctx),
            "artifacts" => artifacts(&ctx),
            "config" => report(&ctx, json!([ctx.config().greeting, ctx.config().turns])),
            "context" => report(&ctx, json!([ctx.rollout_id(), ctx.attempt(), ctx.metadata_json()?])),
            "tools" => tools(&ctx),
            "log" => speak(&ctx),
            "fail" => Err(Error::failed("told to fail")),
            "refuse" => Err(Error::invalid("told to refuse")),
            "time out" => Err(Error::timed_out("told to run out of time")),
            "unhandled" => {
                ctx.sample()?.chat(ctx.prompt()).send()?;
                Ok(().into())
            }
            "nothing" => Ok(().into()),
            _ => Ok(ctx.agent()?.run()?.into()),
        }
    }
}

/// Returns the prompt with a report as its reply.
fn report(ctx: &Context<Config>, found: Value) -> Result<Output> {
    let mut messages = ctx.prompt().to_vec();
    messages.push(Message::assistant(found.to_string()));
    Ok(messages.into())
}

fn messages(ctx: &Context<Config>) -> Result<Output> {
    let mut messages = ctx.prompt().to_vec();
    let odd = json!({"role": "assistant", "content": "caf\u{e9} \u{1f600} \u{0}\u{2028}", "x": [1.5, -0.0, 12345678901234567890_u64, null]});
    messages.push(odd.try_into()?);
    Ok(messages.into())
}

fn push(ctx: &Context<Config>) -> Result<Output> {
    let sample = ctx.sample()?;
    sample.push(&Message::user("not kept"))?;
    sample.replace(ctx.prompt())?;
    sample.push_all(&[Message::assistant("one"), Message::tool("1", "two")])?;
    sample.metric("height", 1.5)?;
    sample.metric("height", 2.5)?;
    sample.field("notes", json!({"a": [1, "b"]}))?;
    sample.push(&Message::assistant(text_of(sample.metric("depth", f64::NAN))))?;
    Ok(().into())
}

fn text_of<T, E: std::fmt::Display>(outcome: Result<T, E>) -> String {
    outcome.map_or_else(|error| error.to_string(), |_| "done".to_owned())
}

fn names(ctx: &Context<Config>) -> Result<Output> {
    let first = ctx.sample_named("first")?;
    let names = [ctx.sample_named("first"), ctx.sample_named("caf\u{e9}"), ctx.sample_named("second")];
    let names: Vec<String> = names.into_iter().map(text_of).collect();
    first.push(&Message::assistant(names.join("\n")))?;
    first.withdraw();
    Ok(().into())
}

fn parallel(ctx: &Context<Config>) -> Result<Output> {
    let sample = ctx.sample()?;
    let ask = |number: u32| [Message::user(format!("Calculate {number} + 10."))];
    let prompt_text: Vec<_> = (1..4).map(ask).collect();
    let replies = chat_all(prompt_text.iter().map(|messages| sample.chat(messages)));
    let texts: Vec<String> =
        replies.into_iter().map(|reply| Ok(reply?.text().to_owned())).collect::<Result<_>>()?;
    sample.push(&Message::assistant(texts.join("\n")))?;
    Ok(().into())
}

fn answer_of(ctx: &Context<Config>, request: ChatRequest<'_>) -> Result<Output> {
    let answer = text_of(request.send());
    report(ctx, answer.into())
}

fn budget(ctx: &Context<Config>) -> Result<Output> {
    let run = ctx.agent()?.user("Calculate 1 + 1.").run()?;
    let run = run.resume().user("Calculate 2 + 2.").run()?;
    let run = run.resume().user("Calculate 3 + 3.").run()?;
    let run = run.resume().user("Calculate 4 + 4.").run()?;
    run.sample().metric("spent", f64::from(u8::from(run.stop() == Stop::BudgetSpent)))?;
    Ok(().into())
}

fn artifacts(ctx: &Context<Config>) -> Result<Output> {
    artifact::write("notes/a.txt", "first")?;
    artifact::write("notes/a.txt", "caf\u{e9}")?;
    artifact::write("b.bin", [0, 255])?;
    let errors = [text_of(artifact::write("../up", "x")), text_of(artifact::read("none"))];
    report(ctx, json!([artifact::names(), artifact::read("b.bin")?, errors]))
}

fn tools(ctx: &Context<Config>) -> Result<Output> {
    let agent = ctx.agent()?.system("Use the tool.").tool(tool!(join, "Joins words."));
    let run = agent.max_turns(4).temperature(0.5).run()?;
    run.sample().metric("tool_calls", run.tool_calls() as f64)?;
    run.sample().metric("turns", run.turns().into())?;
    Ok(().into())
}

fn speak(ctx: &Context<Config>) -> Result<Output> {
    log::debug("one");
    log::info("caf\u{e9}");
    log::warn("three");
    log::error("four");
    log::event("step", json!({"n": 1}));
    println!("printed");
    report(ctx, "spoken".into())
}

impl Grader<Config> for Parity {
    fn grade(ctx: GradeContext<Config>) -> Result<Verdicts> {
        let rate = |sample: &GradedSample| match ctx.label() {
            Some("withdraw") => Ok(sample.reward(0.5).withdraw()),
            Some("none") => Ok(sample.no_reward()),
            Some("infinite") => Ok(sample.reward(f64::INFINITY)),
            Some("observe") => {
                let observed = sample.observed()?;
                let replied = observed.iter().filter(|exchange| exchange.reply.is_ok()).count();
                Ok(sample
                    .reward(0.25)
                    .metric("observed", observed.len() as f64)
                    .metric("replied", replied as f64))
            }
            Some("artifact") => Ok(sample.reward(artifact::read("b.bin")?.len() as f64)),
            Some("fail") => Err(Error::failed("the grader was told to fail")),
            Some("metric") => Ok(sample.reward(sample.metric("height").unwrap_or_default())),
            Some(label) => {
                Ok(sample.reward(same_number(&sample.answer_after("####").unwrap_or_default(), label)))
            }
            None => Ok(sample.reward(1.0)),
        };
        ctx.samples().iter().map(rate).collect()
    }
}

export!(workflow = Parity, grader = Parity);
