//! An agent whose conversation is stored only by the host: it reads the conversation back, also after another part of
//! the guest replaced the history.

use rollout_sdk::*;
use rollout_test_guests::Honest;
use schemars::JsonSchema;
use serde::Deserialize;

struct LeftToHost;

#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: String,
}

/// Returns each message as its role and text.
fn lines(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| format!("{}: {}", message.role(), message.text())).collect()
}

fn expect(what: &str, found: &[String], expected: &[String]) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Error::failed(format!("{what}: {found:?} where {expected:?} was expected"))),
    }
}

impl Workflow for LeftToHost {
    fn run(ctx: Context) -> Result<Output> {
        let echo = Tool::new("echo", "Repeats a text.", |Echo { text }: Echo| Ok(text));
        let run = ctx.agent()?.tool(echo).max_turns(3).run()?;
        let mut whole = vec![
            format!("user: {}", ctx.prompt().last().map(Message::text).unwrap_or_default()),
            "assistant: ".to_owned(),
            "tool: one".to_owned(),
            "assistant: ".to_owned(),
            "tool: two".to_owned(),
            "assistant: that is all".to_owned(),
        ];
        expect("after a run", &lines(run.messages()), &whole)?;
        expect("the history", &lines(&run.sample().messages()), &whole)?;

        let run = run.resume().user("once more").run()?;
        whole.extend(["user: once more".to_owned(), "assistant: again".to_owned()]);
        run.sample().replace(&[Message::user("shorter")])?;
        expect("after the history was replaced", &lines(run.messages()), &whole)?;
        expect("the new history", &lines(&run.sample().messages()), &["user: shorter".to_owned()])?;
        run.sample().replace(&[Message::user("shorter still")])?;

        let run = run.resume().user("and now").run()?;
        whole.extend(["user: and now".to_owned(), "assistant: #### 5".to_owned()]);
        expect("after another run", &lines(run.messages()), &whole)?;
        match run.text() == "#### 5" {
            true => Ok(Output::default()),
            false => Err(Error::failed(format!("the text is {:?}", run.text()))),
        }
    }
}

export!(workflow = LeftToHost, grader = Honest);
