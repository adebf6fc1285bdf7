//! A conversation, turn by turn, from the calls of a transcript.
//!
//! A turn is one call of the model: the messages that are new in its request, and its reply. The result of a tool is
//! shown below the call that it answers, although it is sent with the next request. A reply that a workflow sends again
//! is compared with the reply that the host observed.

use std::time::{Duration, SystemTime};

use rollout_rollout::FinishedSample;
use rollout_transcript::{ChatFailure, Exchange, Lists, ModelRole, Part, ToolUse, Transcript, in_common};

use crate::format::{duration, number};
use crate::logprob::{ShadedTokens, shaded_tokens};
use crate::message::{Message, ObservedCall, RawMessage, shown};
use crate::text::{Room, Text, visible};

/// Number of turns of a page.
pub const TURNS_PER_PAGE: usize = 50;

/// Maximum number of calls of the judge that are shown.
const JUDGE_CALLS_MAX: usize = 20;

/// Maximum number of messages of one turn, or after the last turn, that are shown.
const MESSAGES_MAX: usize = 100;

/// A page of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageOfTurns {
    /// Number of the page, from 1; 0 for the last one.
    pub number: usize,
}

/// One call of a model.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Number of the call of its model, from 1.
    pub number: usize,
    /// The sample, if the rollout has several.
    pub sample: Option<String>,
    /// A warning about the request.
    pub warning: Option<String>,
    /// The messages that are new in the request.
    pub messages: Vec<Message>,
    /// Number of new messages that are left out.
    pub messages_left_out: usize,
    /// The reply.
    pub reply: Reply,
    /// The tokens of the reply, if the model's server sent their log-probabilities.
    pub tokens: Option<ShadedTokens>,
    /// Duration, token counts and similar facts.
    pub facts: Vec<String>,
    /// Time of the call.
    pub started_at: SystemTime,
}

/// The result of a call of a model.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The reply.
    Message(Box<Message>),
    /// The error.
    Failed(String),
    /// No result yet.
    Awaited,
}

/// The messages that a workflow registered after the last reply of a sample.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The sample, if the rollout has several.
    pub sample: Option<String>,
    /// A difference from the host's observation.
    pub warning: Option<String>,
    /// The messages.
    pub messages: Vec<Message>,
    /// Number of messages that are left out.
    pub messages_left_out: usize,
}

/// A page of a conversation, and what follows it.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The turns of the page.
    pub turns: Vec<Turn>,
    /// Number of all turns.
    pub turn_count: usize,
    /// Number of the page, from 1.
    pub page: usize,
    /// Number of pages.
    pub page_count: usize,
    /// The messages after the last turns, on the last page.
    pub endings: Vec<Ending>,
    /// The calls of the judge, on the last page.
    pub judge: Vec<Turn>,
    /// Number of calls of the judge that are left out.
    pub judge_left_out: usize,
}

/// The new part of a request.
struct News<'a> {
    messages: Vec<&'a str>,
    warning: Option<String>,
}

/// The calls of one model.
struct Calls<'a> {
    lists: Lists<'a>,
    tools: &'a [ToolUse],
    is_live: bool,
    has_many_samples: bool,
}

impl Conversation {
    /// Reads a page of a rollout's conversation. `finished` are its samples once it has ended.
    pub fn read(transcript: &Transcript, finished: Option<&[FinishedSample]>, page: PageOfTurns) -> Self {
        let policy = transcript.calls(ModelRole::Policy);
        let turn_count = policy.exchanges().len();
        let page_count = turn_count.div_ceil(TURNS_PER_PAGE).max(1);
        let page = if page.number == 0 { page_count } else { page.number.min(page_count) };
        let first_sample = policy.exchanges().first().and_then(|exchange| exchange.sample.as_ref());
        let calls = Calls {
            lists: policy.among(&transcript.samples),
            tools: &transcript.tools,
            is_live: finished.is_none(),
            has_many_samples: policy
                .exchanges()
                .iter()
                .any(|exchange| exchange.sample.as_ref() != first_sample),
        };
        let mut room = Room::new();
        let from = (page - 1) * TURNS_PER_PAGE;
        let turns = calls.turns(from, (from + TURNS_PER_PAGE).min(turn_count), &mut room);
        let mut conversation = Self { turns, turn_count, page, page_count, ..Self::default() };
        if page == page_count {
            let finished = finished.unwrap_or_default();
            let samples =
                finished.iter().filter_map(|sample| calls.ending(sample, finished.len() > 1, &mut room));
            conversation.endings = samples.collect();
            let judge = transcript.calls(ModelRole::Judge);
            let judge_calls = Calls {
                lists: judge.among(&[]),
                tools: &[],
                is_live: calls.is_live,
                has_many_samples: false,
            };
            let count = judge.exchanges().len();
            conversation.judge = judge_calls.turns(0, count.min(JUDGE_CALLS_MAX), &mut room);
            conversation.judge_left_out = count.saturating_sub(JUDGE_CALLS_MAX);
        }
        conversation
    }
}

impl<'a> Calls<'a> {
    fn exchanges(&self) -> &'a [Exchange] {
        self.lists.exchanges()
    }

    /// Returns the index of the call before this one of the same sample.
    fn before(&self, place: usize) -> Option<usize> {
        let sample = &self.exchanges()[place].sample;
        self.exchanges()[..place].iter().rposition(|other| other.sample == *sample)
    }

    /// Returns the new part of the request at this index: the messages after those of the previous request and its
    /// reply.
    fn news(&self, place: usize) -> News<'a> {
        let parts = self.lists.messages(&self.exchanges()[place]);
        let Some(before) = self.before(place).map(|place| &self.exchanges()[place]) else {
            return News { messages: parts.iter().flat_map(Part::iter).collect(), warning: None };
        };
        let parts_before = self.lists.messages(before);
        let shared = in_common(&parts_before, &parts);
        let count_before: usize = parts_before.iter().map(|part| part.iter().count()).sum();
        let mut messages: Vec<&str> = parts.iter().flat_map(Part::iter).skip(shared).collect();
        if shared < count_before {
            let warning = format!(
                "the workflow changed the conversation: {shared} of its {count_before} messages stay"
            );
            return News { messages, warning: Some(warning) };
        }
        let reply = before.completion().and_then(|completion| RawMessage::read(completion.message()));
        let repeated = messages.first().and_then(|json| RawMessage::read(json));
        let warning = match (reply, repeated) {
            (Some(reply), Some(repeated)) if repeated.is_assistant() => {
                let differs = !repeated.says_the_same(&reply);
                if !differs {
                    messages.remove(0);
                }
                differs.then(|| {
                    "the workflow's message differs from the reply that the host observed".to_owned()
                })
            }
            _ => None,
        };
        News { messages, warning }
    }

    /// Returns the turns with these indices.
    fn turns(&self, from: usize, to: usize, room: &mut Room) -> Vec<Turn> {
        let mut turns: Vec<Turn> = (from..to).map(|place| self.turn(place, room)).collect();
        // The results of the last turns are in requests after the page.
        let after = (to + TURNS_PER_PAGE).min(self.exchanges().len());
        for place in from..after {
            let Some(before) = self.before(place).filter(|before| (from..to).contains(before)) else {
                continue;
            };
            let news = self.news(place);
            let (head, tail) = turns.split_at_mut(place.min(to) - from);
            let Some(Turn { reply: Reply::Message(reply), .. }) = head.get_mut(before - from) else {
                continue;
            };
            match tail.first_mut() {
                Some(turn) => {
                    let mut sent = news.messages.iter();
                    turn.messages.retain_mut(|message| {
                        let json = sent.next().copied().unwrap_or_default();
                        !add_result(reply, json, |_| std::mem::take(&mut message.text))
                    });
                }
                None => news.messages.iter().for_each(|json| {
                    add_result(reply, json, |text| room.take(text));
                }),
            }
        }
        turns
    }

    /// Returns the turn with this index.
    fn turn(&self, place: usize, room: &mut Room) -> Turn {
        let exchange = &self.exchanges()[place];
        let News { messages, warning } = self.news(place);
        let left_out = messages.len().saturating_sub(MESSAGES_MAX);
        let messages: Vec<Message> =
            messages.iter().take(MESSAGES_MAX).map(|json| shown(json, room)).collect();
        let reply = match &exchange.result {
            Ok(reply) => {
                let mut message = shown(reply.completion.message(), room);
                self.observe(exchange, &mut message);
                Reply::Message(Box::new(message))
            }
            Err(ChatFailure::Abandoned) if self.is_live && exchange.duration == Duration::ZERO => {
                Reply::Awaited
            }
            Err(failure) => Reply::Failed(Text::beginning(&failure.to_string(), 2000).shown),
        };
        Turn {
            number: place + 1,
            sample: self.sample_name(exchange),
            warning,
            messages,
            messages_left_out: left_out,
            reply,
            tokens: exchange.completion().and_then(|reply| shaded_tokens(reply.body(), room)),
            facts: facts(exchange),
            started_at: exchange.started_at,
        }
    }

    fn sample_name(&self, exchange: &Exchange) -> Option<String> {
        exchange.sample.as_ref().filter(|_| self.has_many_samples).map(|id| visible(id.as_str()))
    }

    /// Adds the host's observations of calls of host-provided tools. Ids may repeat, so a call's observation is the
    /// first one with its id after the reply.
    fn observe(&self, exchange: &Exchange, message: &mut Message) {
        let replied_at = exchange.started_at + exchange.duration;
        for call in &mut message.calls {
            let found =
                self.tools.iter().find(|tool| tool.call_id == call.id && tool.started_at >= replied_at);
            call.observed = found.map(|tool| ObservedCall {
                outcome: rollout_transcript::Label::as_str(tool.answer.outcome),
                is_error: tool.answer.is_error(),
                took: tool.duration,
            });
        }
    }

    /// Returns the messages that the workflow registered after the last reply, and a warning if the registered
    /// conversation differs from the one that was sent. Returns `None` if there is neither.
    fn ending(&self, sample: &FinishedSample, is_one_of_many: bool, room: &mut Room) -> Option<Ending> {
        let record = &sample.record;
        let last = self.exchanges().iter().rfind(|exchange| exchange.sample.as_ref() == Some(&record.id));
        let registered = [Part::all(&record.messages)];
        let (shared, warning) = match last {
            None => (0, None),
            Some(last) => {
                let sent = self.lists.messages(last);
                let count: usize = sent.iter().map(|part| part.iter().count()).sum();
                let shared = in_common(&sent, &registered);
                let warning = (shared < count).then(|| {
                    format!("the registered conversation has {shared} of the {count} messages that were sent")
                });
                (shared, warning)
            }
        };
        let mut rest: Vec<&str> = record.messages.iter().skip(shared).collect();
        let reply =
            last.and_then(|last| last.completion()).and_then(|reply| RawMessage::read(reply.message()));
        let first = rest.first().and_then(|json| RawMessage::read(json)).filter(RawMessage::is_assistant);
        let mut differs = None;
        if let (Some(reply), Some(first), None) = (reply, first, &warning) {
            if first.says_the_same(&reply) {
                rest.remove(0);
            } else {
                differs =
                    Some("the registered message differs from the reply that the host observed".to_owned());
            }
        }
        if rest.is_empty() && warning.is_none() {
            return None;
        }
        let left_out = rest.len().saturating_sub(MESSAGES_MAX);
        Some(Ending {
            sample: is_one_of_many.then(|| visible(record.id.as_str())),
            warning: warning.or(differs),
            messages: rest.iter().take(MESSAGES_MAX).map(|json| shown(json, room)).collect(),
            messages_left_out: left_out,
        })
    }
}

/// Adds the result of a tool call to its call. Returns false if the message is not the result of one of these calls.
fn add_result(reply: &mut Message, json: &str, shown: impl FnOnce(&str) -> Text) -> bool {
    let Some(raw) = RawMessage::read(json) else { return false };
    let Some(id) = raw.result_of() else { return false };
    let Some(call) = reply.calls.iter_mut().find(|call| call.id == id && call.result.is_none()) else {
        return false;
    };
    call.result = Some(shown(&raw.text()));
    true
}

/// Returns the duration, the token counts and similar facts of a call.
fn facts(exchange: &Exchange) -> Vec<String> {
    let mut facts = Vec::new();
    if exchange.duration > Duration::ZERO {
        facts.push(duration(exchange.duration));
    }
    let Ok(reply) = &exchange.result else { return facts };
    if let Some(usage) = &reply.completion.usage {
        let (prompt, completion) = (number(usage.prompt_tokens), number(usage.completion_tokens));
        facts.push(format!("{prompt} + {completion} tokens"));
    }
    if let Some(reason) = &reply.completion.finish_reason {
        facts.push(format!("finish: {}", visible(reason)));
    }
    if reply.attempts > 1 {
        facts.push(format!("{} attempts", reply.attempts));
    }
    facts
}

#[cfg(test)]
mod tests {
    use rollout_transcript::SampleRecord;
    use rollout_wire::id::SampleId;
    use rollout_wire::messages::Messages;

    use super::*;

    const CALL: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{}"}}]}"#;
    const RESULT: &str = r#"{"role":"tool","tool_call_id":"c1","content":"5"}"#;
    const DONE: &str = r#"{"role":"assistant","content":"It is 5."}"#;

    fn messages(texts: &[&str]) -> Messages {
        texts.iter().map(|text| rollout_wire::object(text).unwrap()).collect()
    }

    fn main_sample() -> SampleId {
        SampleId::parse("main").unwrap()
    }

    fn call(sent: &[&str], reply: &str) -> Exchange {
        let body = format!(
            r#"{{"choices":[{{"message":{reply},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":1200,"completion_tokens":3}}}}"#
        );
        Exchange::replied(main_sample(), messages(sent), &body)
    }

    fn finished(texts: &[&str]) -> [FinishedSample; 1] {
        let record = SampleRecord { messages: messages(texts), ..SampleRecord::new(main_sample()) };
        [FinishedSample { record, reward: Some(1.0), has_request: true, replied: true }]
    }

    fn read(calls: Vec<Exchange>, samples: Option<&[FinishedSample]>, page: usize) -> Conversation {
        let transcript = Transcript { policy: calls.into_iter().collect(), ..Transcript::default() };
        Conversation::read(&transcript, samples, PageOfTurns { number: page })
    }

    fn reply(turn: &Turn) -> &Message {
        match &turn.reply {
            Reply::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_message_is_shown_once_and_a_result_below_its_call() {
        let user = r#"{"role":"user","content":"2 + 3?"}"#;
        let calls = vec![call(&[user], CALL), call(&[user, CALL, RESULT], DONE)];

        let conversation = read(calls, Some(&finished(&[user, CALL, RESULT, DONE])), 0);

        let [first, second] = &conversation.turns[..] else { panic!("two turns") };
        assert_eq!(first.messages.len(), 1);
        assert_eq!(reply(first).calls[0].result.as_ref().unwrap().shown, "5");
        assert!(second.messages.is_empty() && second.warning.is_none(), "{second:?}");
        assert_eq!(reply(second).text.shown, "It is 5.");
        assert_eq!(second.facts, ["2 ms", "1\u{2009}200 + 3 tokens", "finish: stop"]);
        assert!(conversation.endings.is_empty(), "{:?}", conversation.endings);
    }

    #[test]
    fn claims_that_differ_from_what_the_host_observed_are_marked() {
        let user = r#"{"role":"user","content":"2 + 3?"}"#;
        let forged = r#"{"role":"assistant","content":"It is 6."}"#;
        let more = r#"{"role":"user","content":"Sure?"}"#;
        let calls = || vec![call(&[user], DONE), call(&[user, forged, more], DONE), call(&[more], DONE)];

        let conversation = read(calls(), Some(&finished(&[more, forged])), 0);

        let [_, second, third] = &conversation.turns[..] else { panic!("three turns") };
        assert!(second.warning.as_ref().unwrap().contains("differs from the reply"), "{second:?}");
        assert_eq!(second.messages.len(), 2, "the forged one is shown");
        assert!(third.warning.as_ref().unwrap().contains("0 of its 3 messages stay"), "{third:?}");
        let [ending] = &conversation.endings[..] else { panic!("one ending") };
        assert!(ending.warning.as_ref().unwrap().contains("registered message differs"), "{ending:?}");
        let conversation = read(calls(), Some(&finished(&[user])), 0);
        assert!(conversation.endings[0].warning.as_ref().unwrap().contains("0 of the 1 messages"));
    }

    #[test]
    fn a_long_conversation_has_pages() {
        let sent: Vec<String> = (0..2 * TURNS_PER_PAGE + 3)
            .flat_map(|turn| [format!(r#"{{"role":"user","content":"{turn}"}}"#), DONE.to_owned()])
            .collect();
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        let calls = (0..2 * TURNS_PER_PAGE + 3).map(|turn| call(&sent[..2 * turn + 1], DONE)).collect();
        let transcript = Transcript { policy: calls, ..Transcript::default() };
        let page = |number| Conversation::read(&transcript, None, PageOfTurns { number });

        assert_eq!((page(0).page, page(9).page, page(1).page_count), (3, 3, 3));
        assert_eq!(page(3).turns.len(), 3);
        let second = page(2);
        assert_eq!(second.turns[0].number, TURNS_PER_PAGE + 1);
        assert_eq!(second.turns[0].messages[0].text.shown, TURNS_PER_PAGE.to_string());
        assert_eq!(second.turns[0].messages.len(), 1);
    }
}
