//! Tests of the document of a conversation with its calls, and of a report that is merged into it.

#![expect(clippy::disallowed_types, reason = "the tests parse the documents that were written")]

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::conversation::{Conversation, Steps, calls_made};
use super::layout::{self, Marked, Marks};
use super::observed::{Observed, ToolCalls};
use super::replies::{Unmatched, answered};
use super::{
    Amendable, AmendedDocument, Amendment, Member, Original, StepAmendment, TakeStep, TrajectoryFile,
};
use crate::model::Layout;
use rollout_core::telemetry::{ToolKind, ToolOutcome};
use rollout_transcript::{Exchange, ModelCalls, ToolAnswer, ToolUse};
use rollout_wire::atif::{FinalMetrics, Metrics};
use rollout_wire::id::SampleId;
use rollout_wire::messages::Messages;

fn raw(texts: &[&str]) -> Messages {
    texts.iter().map(|text| rollout_wire::object(text).unwrap()).collect()
}

const QUESTION: &str = r#"{"role":"user","content":"q"}"#;

fn replied(body: &str) -> Exchange {
    Exchange::replied(SampleId::parse("main").unwrap(), raw(&[QUESTION]), body)
}

const CALLING: &str = r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"x\":1}"}}]},"finish_reason":"tool_calls","token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}],"prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

/// A document with the steps of a conversation and the usage of unmatched calls.
struct Plain<'a> {
    conversation: &'a Conversation<'a>,
    unmatched: Unmatched<'a>,
    marks: Rc<Marks>,
}

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let marks = &*self.marks;
        let mut map = to.serialize_map(None)?;
        let note = |layout: &mut Layout, place| layout.model_name = place;
        map.serialize_entry("model_name", &Marked { value: "asked", marks, note })?;
        map.serialize_entry("steps", &Steps { conversation: self.conversation, marks })?;
        let sums = FinalMetrics { total_steps: self.conversation.step_count(), ..FinalMetrics::default() };
        let note = |layout: &mut Layout, place| layout.final_metrics = place;
        map.serialize_entry("final_metrics", &Marked { value: sums, marks, note })?;
        for (name, value) in
            [("first", Member::Number(1.0)), ("unmatched", Member::Unmatched(self.unmatched))]
        {
            let start = marks.here();
            map.serialize_entry(name, &value)?;
            marks.note(|layout| layout.members.push((name.into(), start..marks.here())));
        }
        map.end()
    }
}

fn document(messages: &[&str], exchanges: &[&Exchange]) -> (String, Layout) {
    let replies = answered(exchanges);
    let conversation = Conversation::new(messages.to_vec(), &replies);
    let is_matched = conversation.matched();
    let unmatched = Unmatched { replies: &replies, is_matched: &is_matched };
    let mut text = Vec::new();
    let layout = layout::write(&mut text, |marks| Plain { conversation: &conversation, unmatched, marks });
    (String::from_utf8(text).unwrap(), layout.unwrap())
}

fn read(messages: &[&str], exchanges: &[&Exchange]) -> Value {
    serde_json::from_str(&document(messages, exchanges).0).unwrap()
}

#[test]
fn a_tool_message_is_an_observation_of_its_agent_step() {
    let exchange = replied(CALLING);
    let got = read(
        &[
            r#"{"role":"system","content":"s"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"x\":1}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"c1","content":"42"}"#,
            r#"{"role":"tool","tool_call_id":"zz","content":"stray"}"#,
            r#"{"role":"critic","content":"hm"}"#,
            r#"{"role":"tool","content":"nowhere"}"#,
            r#"{"role":7}"#,
        ],
        &[&exchange],
    );
    let expected = json!([
        {"step_id": 1, "source": "system", "message": "s"},
        {"step_id": 2, "source": "user", "message": "a\nb"},
        {"step_id": 3, "source": "agent", "message": "",
         "tool_calls": [{"tool_call_id": "c1", "function_name": "f", "arguments": {"x": 1}}],
         "observation": {"results": [{"source_call_id": "c1", "content": "42"}, {"content": "stray"}]},
         "metrics": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_token_ids": [1, 2, 3],
                     "completion_token_ids": [7, 8], "logprobs": [-0.5, -1],
                     "extra": {"finish_reason": "tool_calls"}},
         "llm_call_count": 1,
         "extra": {"tool_call_id": "zz"}},
        {"step_id": 4, "source": "user", "message": "hm", "extra": {"original_role": "critic"}},
        {"step_id": 5, "source": "system", "message": "", "observation": {"results": [{"content": "nowhere"}]}},
        {"step_id": 6, "source": "user", "message": "{\"role\":7}", "extra": {"original_role": null}},
    ]);
    assert_eq!(got["steps"], expected, "{got:#}");
    assert_eq!(got["unmatched"], json!([]));
}

#[test]
fn a_conversation_without_messages_has_one_empty_step() {
    assert_eq!(read(&[], &[])["steps"], json!([{"step_id": 1, "source": "system", "message": ""}]));
}

#[test]
fn a_reply_that_the_workflow_left_out_is_kept_as_unmatched() {
    let first = replied(
        r#"{"choices":[{"message":{"role":"assistant","content":"first"}}],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#,
    );
    let second = replied(r#"{"choices":[{"message":{"role":"assistant","content":"second"}}]}"#);
    let got = read(&[r#"{"role":"assistant","content":"sec\u006fnd"}"#], &[&first, &second]);
    assert_eq!(got["steps"][0]["llm_call_count"], 1);
    assert_eq!(got["unmatched"], json!([{"prompt_tokens": 1, "completion_tokens": 9}]));
}

#[test]
fn if_no_reply_is_unchanged_each_step_has_the_usage_of_the_reply_at_its_position() {
    let (first, second) = (replied(CALLING), replied(r#"{"choices":[{"message":{"content":"x"}}]}"#));
    let changed = [r#"{"role":"assistant","content":"1"}"#, r#"{"role":"assistant","content":"2"}"#];
    let got = read(&changed, &[&first, &second]);
    assert_eq!(got["steps"][0]["metrics"]["prompt_tokens"], 3, "{got:#}");
    assert_eq!(got["steps"][1]["llm_call_count"], 1);
    assert_eq!(got["unmatched"], json!([]));
}

#[test]
fn a_reply_that_the_host_pushed_belongs_to_the_step_at_its_position() {
    let body = |tokens: u64| {
        format!(
            r#"{{"choices":[{{"message":{{"role":"assistant","content":"x"}}}}],"usage":{{"prompt_tokens":{tokens},"completion_tokens":1}}}}"#
        )
    };
    let (mut first, mut second) = (replied(&body(1)), replied(&body(2)));
    let message = r#"{"role":"assistant","content":"x"}"#;
    let prompts = |exchanges: [&Exchange; 2]| {
        let steps = read(&[message, message], &exchanges)["steps"].clone();
        [steps[0]["metrics"]["prompt_tokens"].clone(), steps[1]["metrics"]["prompt_tokens"].clone()]
    };
    assert_eq!(prompts([&first, &second]), [json!(1), json!(2)], "by content");
    (first.reply_at, second.reply_at) = (Some(1), Some(0));
    assert_eq!(prompts([&first, &second]), [json!(2), json!(1)]);
    // The history was replaced: there is another message at that position.
    (first.reply_at, second.reply_at) = (Some(2), Some(7));
    assert_eq!(prompts([&first, &second]), [json!(1), json!(2)]);
    // The history was shortened between two equal replies: the message is the last one, and later messages have their
    // replies.
    (first.reply_at, second.reply_at) = (Some(0), Some(0));
    let third = replied(&body(3));
    let got = read(&[message, message], &[&first, &second, &third]);
    assert_eq!(got["steps"][0]["metrics"]["prompt_tokens"], 2, "{got:#}");
    assert_eq!(got["steps"][1]["metrics"]["prompt_tokens"], 3, "{got:#}");
    assert_eq!(got["unmatched"][0]["prompt_tokens"], 1, "{got:#}");
}

#[test]
fn a_reply_is_a_message_after_those_of_its_request_and_each_message_is_one_reply() {
    const USER: &str = r#"{"role":"user","content":"q"}"#;
    const FOUR: &str = r#"{"role":"assistant","content":"4"}"#;
    let reply = |request: &[&str], text: &str| {
        let body = format!(r#"{{"choices":[{{"message":{{"role":"assistant","content":"{text}"}}}}]}}"#);
        Exchange::replied(SampleId::parse("main").unwrap(), raw(request), &body)
    };
    let check = |messages: &[&str], exchanges: &[Exchange], expected: &[Option<usize>]| {
        let exchanges: Vec<&Exchange> = exchanges.iter().collect();
        let replies = answered(&exchanges);
        let conversation = Conversation::new(messages.to_vec(), &replies);
        assert_eq!(conversation.message_of_reply, expected);
    };
    // A made-up message, although its step has a call.
    check(&[USER, r#"{"role":"assistant","content":"made up"}"#], &[reply(&[USER], "4")], &[None]);
    // An example in the prompt with the text of the reply.
    let few = [USER, FOUR, USER, FOUR];
    check(&few, &[reply(&few[..3], "4")], &[Some(3)]);
    check(&few, &[reply(&few[..1], "4"), reply(&few[..3], "4")], &[Some(1), Some(3)]);
    check(&[FOUR, FOUR, FOUR], &[reply(&[USER], "4")], &[Some(1)]);
    // A workflow that does not register the question.
    check(&[FOUR], &[reply(&[USER], "4")], &[Some(0)]);
    check(&[FOUR], &[reply(&[USER], "4"), reply(&[USER], "4")], &[Some(0), None]);
}

#[test]
fn arguments_that_are_not_an_object_are_written_as_text() {
    let call = |arguments: &str| {
        let message = format!(
            r#"{{"role":"assistant","content":"","tool_calls":[{{"function":{{"arguments":{arguments}}}}}]}}"#
        );
        let call = read(&[&message], &[])["steps"][0]["tool_calls"][0].clone();
        assert_eq!((&call["tool_call_id"], &call["function_name"]), (&json!("call_0"), &json!("unknown")));
        call["arguments"].clone()
    };
    assert_eq!(call(r#""{oops""#), json!({"_raw": "{oops"}));
    assert_eq!(call("[1, 2]"), json!({"_raw": "[1, 2]"}));
    assert_eq!(call(r#"{"a":1.50}"#), json!({"a": 1.5}));
    assert_eq!(call("null"), json!({}));
}

#[test]
fn tokens_in_an_unknown_form_are_omitted() {
    let odd = replied(
        r#"{"choices":[{"message":{"content":"x"},"token_ids":["token_id:7"],"logprobs":{"content":[{}]}}],"prompt_token_ids":[1.5]}"#,
    );
    let got = read(&[r#"{"role":"assistant","content":"x"}"#], &[&odd]);
    assert_eq!(got["steps"][0]["metrics"], json!({}));
}

#[test]
fn tokens_of_sglang_are_written_to_the_step_like_those_of_vllm() {
    let sampled = replied(
        r#"{"choices":[{"message":{"content":"x"},"meta_info":{"output_token_logprobs":[[-0.50,7,null]]}}],"sglext":{"input_ids":[1,2]}}"#,
    );
    let got = read(&[r#"{"role":"assistant","content":"x"}"#], &[&sampled]);
    let expected = json!({"prompt_token_ids": [1, 2], "completion_token_ids": [7], "logprobs": [-0.5]});
    assert_eq!(got["steps"][0]["metrics"], expected);
}

#[test]
fn observed_requests_are_written_without_the_messages_that_they_repeat() {
    // The reply is nested more deeply than the parsers of callers allow.
    let deep = format!(r#"{{"choices":[{{"message":{{}}}}],"deep":{}{}}}"#, "[".repeat(101), "]".repeat(101));
    let messages = raw(&[QUESTION, r#"{"role":"user","content":"r"}"#]);
    let second = Exchange::replied(SampleId::parse("main").unwrap(), messages, &deep);
    let calls = ModelCalls::from_iter([replied(CALLING), second]);
    let exchanges: Vec<&Exchange> = calls.exchanges().iter().collect();
    let observed =
        Observed { lists: calls.among(&[]), exchanges: &exchanges, message_of_reply: &[Some(4), None] };
    let seen = serde_json::to_value(observed).unwrap();
    assert_eq!(seen[0]["request"]["messages_repeated"], 0);
    assert_eq!(seen[0]["reply"]["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(seen[0]["reply_at"], 4);
    assert_eq!(seen[1].get("reply_at"), None);
    assert_eq!(seen[1]["request"]["messages_repeated"], 1);
    assert_eq!(seen[1]["request"]["messages_new"], json!([{"role": "user", "content": "r"}]));
    assert_eq!(seen[1]["request"]["rest"], json!({"model": "m"}));
    assert_eq!(seen[1]["reply"], Value::Null);
}

#[test]
fn a_call_is_written_with_its_result_or_its_error() {
    let mut call = ToolUse::new("c1".to_owned(), "f".to_owned(), "{}".to_owned(), SystemTime::UNIX_EPOCH);
    call.kind = ToolKind::Component;
    call.duration = Duration::from_micros(1500);
    call.answer = ToolAnswer::answered("42".to_owned());
    assert_eq!(
        json!(ToolCalls(&[&call])),
        json!([{"tool_call_id": "c1", "function_name": "f", "arguments": "{}", "kind": "component",
            "outcome": "answered", "started_at_unix_ms": 0, "duration_ms": 1.5, "content": "42"}])
    );
    call.answer.outcome = ToolOutcome::OverLimit;
    let seen = json!(ToolCalls(&[&call]));
    assert_eq!((seen[0]["error"].as_str(), seen[0].get("content")), (Some("42"), None));
}

#[test]
fn calls_of_tools_are_counted_by_their_results() {
    let prompt = raw(&[r#"{"role":"tool","tool_call_id":"before","content":"1"}"#]);
    let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}","content":""}}"#);
    let check = |conversations: &[&[&str]], made: &[&str], expected: u64| {
        let own = |ids: &&[&str]| {
            let results: Vec<String> = ids.iter().map(|id| result(id)).collect();
            let mut messages = prompt.clone();
            messages.append(raw(&results.iter().map(String::as_str).collect::<Vec<_>>()));
            messages
        };
        let conversations: Vec<_> = conversations.iter().map(own).collect();
        let made = |hasher: &std::hash::RandomState| {
            made.iter().map(|id| std::hash::BuildHasher::hash_one(hasher, *id)).collect()
        };
        assert_eq!(calls_made(conversations.iter(), &prompt, made), expected);
    };
    check(&[], &[], 0);
    check(&[&[]], &["a"], 1);
    check(&[&["a", "b"]], &["a"], 2);
    check(&[&["a", "a"]], &["a"], 2);
    check(&[&["a", "b"], &["a", "c"]], &[], 3);
    check(&[&["", ""]], &[], 2);
}

/// Merges amendments into a document, one after the other. Each replaces the one before.
fn amended(amendments: &[&Amendment<'_>]) -> (Value, Vec<String>) {
    let messages = [
        r#"{"role":"user","content":"q"}"#,
        r#"{"role":"assistant","content":"","tool_calls":[{"id":"c1"}]}"#,
        r#"{"role":"tool","tool_call_id":"c1","content":"42"}"#,
        r#"{"role":"assistant","content":"unknown"}"#,
    ];
    let (calling, left_out) = (
        replied(CALLING),
        replied(r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":5}}"#),
    );
    let (text, layout) = document(&messages, &[&calling, &left_out]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trajectory.json");
    std::fs::write(&path, text).unwrap();
    let original = Original::keep(&path).unwrap();
    let amendable = Amendable { file: TrajectoryFile::new(path.clone(), None, layout), original };
    for amendment in amendments {
        amendable.amend(amendment).unwrap();
    }
    drop(amendable);
    let files = std::fs::read_dir(folder.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    (serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(), names)
}

#[test]
fn a_report_replaces_its_parts_of_a_document_and_leaves_the_rest_unchanged() {
    let before = amended(&[]).0;
    let steps = |take: &mut TakeStep<'_>| {
        let metrics = Metrics { prompt_tokens: Some(11), ..Metrics::default() };
        take(StepAmendment { model_name: Some("engine"), metrics: Some(metrics) })?;
        take(StepAmendment::default())
    };
    let list = RawValue::from_string("[{\"a\":1}]".to_owned()).unwrap();
    let all = Amendment {
        model_name: Some("en\"gine"),
        steps: Some(&steps),
        final_metrics: Some(FinalMetrics { total_cost_usd: Some(0.5), ..FinalMetrics::default() }),
        members: vec![("unmatched", Member::Raw(&list)), ("more", Member::Text("x"))],
    };
    let mut expected = before.clone();
    expected["model_name"] = "en\"gine".into();
    expected["steps"][1]["model_name"] = "engine".into();
    expected["steps"][1]["metrics"] = json!({"prompt_tokens": 11});
    expected["steps"][2]["llm_call_count"] = 1.into();
    expected["final_metrics"] = json!({"total_cost_usd": 0.5, "total_steps": 3});
    expected["unmatched"] = json!([{"a": 1}]);
    expected["more"] = "x".into();

    assert_eq!(amended(&[&all]), (expected, vec!["trajectory.json".to_owned()]));
    let only_name = Amendment { model_name: Some("second"), ..Amendment::default() };
    let mut expected = before;
    expected["model_name"] = "second".into();
    assert_eq!(amended(&[&all, &only_name]).0, expected, "nothing of the first report remains");
}
