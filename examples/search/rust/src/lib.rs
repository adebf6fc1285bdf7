//! An agent that searches documents over several turns and rates itself.
//!
//! The agent has two tools over a small built-in corpus, a typed configuration, and a reward that only the
//! loop can compute. It depends on the correctness of the answer, on the documents that were read before it,
//! and on the number of tool calls.

mod corpus;

use std::collections::BTreeSet;
use std::time::Duration;

use corpus::Corpus;
use rollout_sdk::*;
use schemars::JsonSchema;
use serde::Deserialize;

const MARKER: &str = "Answer:";

/// Configuration of the plugin.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Maximum number of documents in a search result.
    results_max: usize,
    /// Share of the reward for reading the right documents, 0 to 1.
    evidence_weight: f64,
    /// Number of free tool calls; each further call costs `call_cost`.
    free_calls: u32,
    /// Cost of each further tool call.
    call_cost: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { results_max: 3, evidence_weight: 0.4, free_calls: 4, call_cost: 0.05 }
    }
}

/// Metadata of a row.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Row {
    /// The right answer. Without it the rollout has no reward.
    answer: Option<String>,
    /// Ids of the documents that contain the answer.
    sources: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Query {
    /// Search terms, a few words.
    query: String,
}

#[derive(Deserialize, JsonSchema)]
struct Id {
    /// A document's id, as the search shows it.
    id: String,
}

struct Search;

/// Returns the tools of the model. Their functions are empty, because only the schemas are used: the loop
/// makes the calls itself to record which documents were read.
fn tools() -> [Tool; 2] {
    [
        Tool::new("search", "Finds documents; shows their ids, titles and beginnings.", |_: Query| Ok(())),
        Tool::new("read", "Shows a whole document.", |_: Id| Ok(())),
    ]
}

/// State of one rollout: the corpus and the documents that were read.
struct Desk {
    corpus: Corpus,
    results_max: usize,
    read: BTreeSet<String>,
    calls: u32,
}

impl Desk {
    /// Executes a call. The model receives a mistake as text.
    fn call(&mut self, call: &ToolCallInfo) -> String {
        self.calls += 1;
        let result = match call.name.as_str() {
            "search" => arguments(call).map(|Query { query }| self.search(&query)),
            "read" => arguments(call).and_then(|Id { id }| self.read(&id)),
            other => Err(format!("there is no tool `{other}`; there are: search, read")),
        };
        result.unwrap_or_else(|mistake| format!("Error: {mistake}"))
    }

    fn search(&self, query: &str) -> String {
        let found = self.corpus.search(query, self.results_max);
        let shown = found.iter().map(|document| {
            let beginning: String = document.text.chars().take(60).collect();
            json!({"id": document.id, "title": document.title, "beginning": beginning})
        });
        serialize_tool_result(shown.collect::<Vec<_>>())
    }

    fn read(&mut self, id: &str) -> Result<String, String> {
        let document =
            self.corpus.read(id).ok_or_else(|| format!("there is no document `{id}`; search first"))?;
        self.read.insert(document.id.clone());
        Ok(format!("{}\n\n{}", document.title, document.text))
    }
}

fn arguments<T: serde::de::DeserializeOwned>(call: &ToolCallInfo) -> Result<T, String> {
    serde_json::from_value(Value::Object(call.arguments.clone())).map_err(|error| error.to_string())
}

/// Computes the reward. A right answer without its documents is a guess and earns less.
fn worth(config: &Config, row: &Row, truth: &str, solution: &str, desk: &Desk) -> f64 {
    let answer = answer_after(solution, MARKER).unwrap_or("").trim_end_matches('.');
    if !answer.eq_ignore_ascii_case(truth) && !same_number(answer, truth) {
        return 0.0;
    }
    let read = row.sources.iter().filter(|source| desk.read.contains(*source)).count();
    let evidence = if row.sources.is_empty() { 1.0 } else { read as f64 / row.sources.len() as f64 };
    let cost = f64::from(desk.calls.saturating_sub(config.free_calls)) * config.call_cost;
    (1.0 - config.evidence_weight * (1.0 - evidence) - cost).max(0.0)
}

impl AgentLoop<Config> for Search {
    fn name() -> String {
        "search".to_owned()
    }

    fn get_tools(_: &LoopRequest, _: &Config) -> Result<Vec<Value>> {
        Ok(tools().iter().map(|tool| tool.schema().clone()).collect())
    }

    fn run(ctx: LoopContext<Config>) -> Result<LoopOutput> {
        let (config, request) = (ctx.config(), ctx.request());
        if !(0.0..=1.0).contains(&config.evidence_weight) {
            return Err(Error::invalid("config: field `evidence_weight`: not between 0 and 1"));
        }
        let row: Row = request.metadata()?;
        let (results_max, read) = (config.results_max, BTreeSet::new());
        let mut desk = Desk { corpus: Corpus::built_in()?, results_max, read, calls: 0 };
        let how = format!(
            "Look the answer up: search, then read what you rely on. End with a line that begins with {MARKER}"
        );
        let mut messages = vec![Message::system(how)];
        messages.extend(request.messages().iter().cloned());

        let mut finish_reason = "max_turns";
        for turn in 1..=request.max_turns() {
            let reply = ctx.chat(&messages).send()?.into_message();
            let calls = reply.raw_tool_calls().to_vec();
            messages.push(reply);
            if calls.is_empty() {
                finish_reason = "stop";
                break;
            }
            messages.extend(execute_tool_calls(&calls, |call| {
                ctx.record_tool_call(Duration::from_millis(1));
                Ok(desk.call(call).into())
            })?);
            ctx.log_event("tool_results", json!({"turn": turn, "read": desk.read}));
        }

        let output = ctx
            .complete(messages.clone())
            .finish_reason(finish_reason)
            .metric("documents_read", desk.read.len() as f64)
            .metric("tool_calls", desk.calls.into());
        let Some(truth) = &row.answer else { return Ok(output) };
        let reward = reward(&messages, truth, None, |solution, truth, _| {
            Ok(worth(config, &row, truth, solution, &desk))
        })?;
        ctx.log_event("rollout_complete", json!({"finish_reason": finish_reason, "reward": reward}));
        Ok(output.reward(reward))
    }
}

export!(agent_loop = Search);

#[cfg(test)]
mod tests {
    use super::*;

    fn desk() -> Desk {
        Desk { corpus: Corpus::built_in().unwrap(), results_max: 2, read: BTreeSet::new(), calls: 0 }
    }

    fn call(desk: &mut Desk, name: &str, arguments: Value) -> String {
        let call = json!({"id": "1", "function": {"name": name, "arguments": arguments}});
        desk.call(&get_tool_call_info(&call).unwrap())
    }

    #[test]
    fn read_documents_are_recorded_and_mistakes_are_reported() {
        let mut desk = desk();
        assert!(call(&mut desk, "search", json!({"query": "goats"})).contains("\"id\":\"goats\""));
        assert!(call(&mut desk, "read", json!({"id": "goats"})).starts_with("The goats of Skarrow\n\n"));
        assert_eq!(
            call(&mut desk, "read", json!({"id": "sheep"})),
            "Error: there is no document `sheep`; search first"
        );
        assert_eq!(call(&mut desk, "search", json!({})), "Error: missing field `query`");
        assert_eq!(
            call(&mut desk, "find", json!({})),
            "Error: there is no tool `find`; there are: search, read"
        );
        assert_eq!((desk.read.len(), desk.calls), (1, 5));
    }

    #[test]
    fn an_answer_earns_most_with_its_documents_and_few_calls() {
        let row = Row { answer: None, sources: vec!["goats".to_owned(), "ferry".to_owned()] };
        let check = |solution: &str, read: &[&str], calls: u32, expected: f64| {
            let read = read.iter().map(|id| (*id).to_owned()).collect();
            let desk = Desk { read, calls, ..desk() };
            let worth = worth(&Config::default(), &row, "90", solution, &desk);
            assert!((worth - expected).abs() < 1e-9, "{solution} {calls}: {worth}");
        };
        check("Answer: 90", &["goats", "ferry"], 4, 1.0);
        check("Answer: 90.", &["goats"], 4, 0.8);
        check("Answer: 90", &[], 0, 0.6);
        check("Answer: 90", &["goats", "ferry"], 6, 0.9);
        check("Answer: 91", &["goats", "ferry"], 4, 0.0);
        check("I think it is 90", &["goats", "ferry"], 4, 0.0);
    }
}
