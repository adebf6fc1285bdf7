//! Takes the number of turns in its prompt. In each turn it makes two concurrent calls and continues with the first
//! reply, waits briefly, calls a tool, and sends the remaining time and a random number: any difference in a second run
//! shows up in its next request.
//!
//! With the word `steady` after the number of turns it sends no time, random number or order, so that two such rollouts
//! are identical. With the word `restless` it reads the clock and polls for answers two thousand times in each turn,
//! without waiting.

use std::time::Duration;

use rollout_sdk::*;
use rollout_test_guests::{prompt_text, random_number};

struct LongWay;

impl Workflow for LongWay {
    fn run(ctx: Context) -> Result<Output> {
        let prompt = prompt_text(&ctx);
        let mut words = prompt.split_whitespace();
        let turns = words.next().and_then(|turns| turns.parse::<u32>().ok());
        let turns = turns.ok_or_else(|| Error::invalid("the prompt does not begin with a number"))?;
        let manner = words.next();
        let (is_steady, is_restless) = (manner == Some("steady"), manner == Some("restless"));
        let sample = ctx.sample()?;
        let mut history = ctx.prompt().to_vec();
        for turn in 0..turns {
            let ask = |which: &str| {
                let mut messages = history.clone();
                messages.push(Message::user(format!("turn {turn}, {which}")));
                sample.chat(&messages).start()
            };
            let mut under_way = vec![ask("one")?, ask("two")?];
            let mut waits = 0;
            for _ in 0..if is_restless { 2_000 } else { 0 } {
                waits += wait_any(&under_way, Some(Duration::ZERO)).len();
                waits += usize::from(ctx.time_left().is_none());
            }
            let first = loop {
                match wait_any(&under_way, Some(Duration::from_millis(2))).first() {
                    Some(place) => break *place,
                    None => waits += 1,
                }
            };
            let is_first_first = first == 0;
            let mut first = under_way.remove(first).wait()?;
            let mut second = under_way.remove(0).wait()?;
            if is_steady && !is_first_first {
                std::mem::swap(&mut first, &mut second);
            }
            let call = ToolCall {
                id: format!("call_{turn}"),
                name: "upper".to_owned(),
                arguments: json!({"text": format!("{} {}", first.text(), second.text())}).to_string(),
            };
            let result = host_tools::execute(&[call]).remove(0);
            let left = ctx.time_left().map_or(0, |left| left.as_millis());
            let random = random_number();
            history.push(first.into_message());
            let differs = if is_steady { String::new() } else { format!(" {waits} {left} {random}") };
            history.push(Message::user(format!("{}{differs}", result.content)));
        }
        history.iter().try_for_each(|message| sample.push(message))?;
        Ok(Output::default())
    }
}

impl Grader for LongWay {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let sample = ctx.sample()?;
        let reply = JudgeRequest::new(&[Message::user(sample.text())]).send()?;
        let sum: f64 = reply.text().bytes().chain(sample.text().bytes()).map(f64::from).sum();
        Ok(sample.reward(sum).into())
    }
}

export!(workflow = LongWay, grader = LongWay);
