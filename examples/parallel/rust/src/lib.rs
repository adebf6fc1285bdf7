//! Several concurrent calls of the model.
//!
//! If the caller accepts several samples, each attempt becomes a sample with its own reward. If it accepts
//! one, the attempts vote, and the sample has the winner.

use rollout_sdk::*;
use serde::Deserialize;

const MARKER: &str = "####";

/// Configuration of the plugin.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Number of concurrent attempts, at least 1.
    attempts: u32,
    /// Sampling temperature; 0 makes all attempts alike.
    temperature: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { attempts: 5, temperature: 1.0 }
    }
}

struct Parallel;

impl Workflow<Config> for Parallel {
    fn run(ctx: Context<Config>) -> Result<Output> {
        match ctx.samples_max() {
            1 => vote(&ctx)?,
            most => attempt_each(&ctx, most)?,
        }
        Ok(().into())
    }
}

/// Records one sample with the first attempt that has the most frequent answer.
fn vote(ctx: &Context<Config>) -> Result<()> {
    let sample = ctx.sample()?;
    sample.push_all(ctx.prompt())?;
    let attempts = ctx.config().attempts.max(1);
    let replies = successes(chat_all((0..attempts).map(|_| request(ctx, &sample))))?;

    let answers: Vec<String> = replies.iter().map(answer).collect();
    let votes = |place: &usize| answers.iter().filter(|a| **a == answers[*place]).count();
    // `max_by_key` returns the last of equal maxima, so the iteration runs backwards.
    let winner = (0..replies.len()).rev().max_by_key(votes).unwrap_or(0);

    sample.push(replies[winner].message())?;
    sample.metric("agreement", votes(&winner) as f64 / replies.len() as f64)?;
    sample.field("answers", answers)?;
    Ok(())
}

/// Records one sample per attempt, as many as the caller accepts. An attempt without a reply is withdrawn and
/// gets no reward, because the model did not fail.
fn attempt_each(ctx: &Context<Config>, most: u32) -> Result<()> {
    let attempts = ctx.config().attempts.clamp(1, most);
    let samples = (0..attempts)
        .map(|place| ctx.sample_named(&format!("attempt-{place}")))
        .collect::<Result<Vec<_>, _>>()?;
    let replies = chat_all(samples.iter().map(|sample| request(ctx, sample)));
    for (sample, reply) in samples.iter().zip(&replies) {
        sample.push_all(ctx.prompt())?;
        match reply {
            Ok(reply) => sample.push(reply.message())?,
            Err(error) => {
                log::warn(format_args!("{} has no reply: {error}", sample.id()));
                sample.withdraw();
            }
        }
    }
    successes(replies)?;
    Ok(())
}

fn request<'a>(ctx: &Context<Config>, sample: &'a Sample) -> ChatRequest<'a> {
    let temperature = ctx.config().temperature;
    sample.chat(ctx.prompt()).temperature(temperature)
}

/// Returns the successful replies. One is enough; without any, returns the first error.
fn successes(replies: Vec<Result<Completion, ChatError>>) -> Result<Vec<Completion>> {
    let (came, failed): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_ok);
    match failed.into_iter().find_map(Result::err) {
        Some(error) if came.is_empty() => Err(error.into()),
        _ => Ok(came.into_iter().flatten().collect()),
    }
}

/// Normalizes the answer, so that equal answers are equal texts. Returns an empty text for none.
fn answer(reply: &Completion) -> String {
    let answer = answer_after(reply.text(), MARKER).unwrap_or_default();
    match parse_number(answer) {
        Some(number) => number.to_string(),
        None => answer.to_owned(),
    }
}

impl Grader for Parallel {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let label = ctx.require_label()?;
        let rate = |sample: &GradedSample| {
            if sample.messages().last().map(Message::role) != Some("assistant") {
                return sample.no_reward();
            }
            let answer = sample.answer_after(MARKER).unwrap_or_default();
            sample.reward(same_number(&answer, label))
        };
        Ok(ctx.samples().iter().map(rate).collect())
    }
}

export!(workflow = Parallel, grader = Parallel);
