//! Returns messages that are not JSON objects. The prompt selects them.

use rollout_test_guests::export_raw_workflow;
use rollout_test_guests::raw_workflow::{Failure, Guest};

struct Nonsense;

impl Guest for Nonsense {
    fn run(mut prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure> {
        let prompt_text = prompt.last().cloned().unwrap_or_default();
        let reply = ["no json", "[1, 2]", "{\"role\": \"assistant\"", ""]
            .into_iter()
            .find(|nonsense| prompt_text.contains(&format!("say <{}>", nonsense.replace('"', "\\\""))))
            .unwrap_or(r#"{"role": "assistant", "content": "I say #### 5"}"#);
        prompt.push(reply.to_owned());
        Ok(Some(prompt))
    }
}

export_raw_workflow!(Nonsense);
