//! Calls the model with the sample's history, with lists that begin with it, and with unrelated lists, and makes
//! invalid calls. The prompt selects the case.

use rollout_test_guests::export_raw_workflow;
use rollout_test_guests::raw_workflow::models::{self, Conversation, Request, Role};
use rollout_test_guests::raw_workflow::samples::Sample;
use rollout_test_guests::raw_workflow::{Failure, Guest};

struct Conversations;

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn request(conversation: Conversation, keep_reply: bool) -> Request {
    Request { conversation, tools: Vec::new(), params: None, keep_reply }
}

fn ask(sample: &Sample, conversation: Conversation, keep_reply: bool) -> Result<String, Failure> {
    let reply = models::complete(Role::Policy, Some(sample), &request(conversation, keep_reply));
    reply.map(|reply| reply.message).map_err(|error| Failure::Failed(error.to_string()))
}

impl Guest for Conversations {
    fn run(prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        let text = prompt.concat();
        let sample = Sample::open(Some("main")).map_err(|error| Failure::Failed(error.to_string()))?;
        if text.contains("invalid requests") {
            return Ok(Some(vec![wrong(&sample, &prompt)]));
        }
        if text.contains("ask the judge") {
            let request = request(Conversation::Messages(prompt), false);
            let answered = models::complete(Role::Judge, None, &request).is_ok();
            return Err(Failure::Failed(format!("it was answered: {answered}")));
        }
        ask(&sample, Conversation::History(prompt.clone()), true)?;
        ask(&sample, Conversation::History(vec![user("two"), user("three")]), false)?;
        // This call adds no message, and the next one begins with messages that the history has.
        let first = ask(&sample, Conversation::History(Vec::new()), false)?;
        let mut list = vec![format!(" {}\n", prompt[0]), user("four")];
        ask(&sample, Conversation::Messages(list.clone()), false)?;
        list.push(first);
        ask(&sample, Conversation::Messages(list), false)?;
        sample.replace(&[user("five")]).map_err(|error| Failure::Failed(error.to_string()))?;
        let call = models::start(
            Role::Policy,
            Some(&sample),
            &request(Conversation::History(vec![user("six")]), true),
        );
        let call = call.map_err(|error| Failure::Failed(error.to_string()))?;
        // This message is pushed during the call, so it precedes the reply.
        sample.push(&[user("seven")]).map_err(|error| Failure::Failed(error.to_string()))?;
        models::finish(call).map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(None)
    }
}

/// Returns the error of each invalid request.
fn wrong(sample: &Sample, prompt: &[String]) -> String {
    let error_of = |sample: Option<&Sample>, conversation| {
        let answer = models::complete(Role::Policy, sample, &request(conversation, true));
        answer.map_or_else(|error| error.to_string(), |_| "answered".to_owned())
    };
    let errors = [
        error_of(None, Conversation::Messages(prompt.to_vec())),
        error_of(Some(sample), Conversation::Messages(Vec::new())),
        error_of(Some(sample), Conversation::History(Vec::new())),
        error_of(Some(sample), Conversation::History(vec!["[]".to_owned()])),
        error_of(Some(sample), Conversation::Messages(vec![user("x"), "{".to_owned()])),
    ];
    rollout_sdk::json!({"role": "assistant", "content": errors.join("|")}).to_string()
}

export_raw_workflow!(Conversations);
