//! Checks an environment: its description, its tasks, and two equal episodes with made-up actions.

use std::collections::{BTreeSet, HashSet};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::report::Report;
use super::tools;
use rollout_core::limits::SessionLimits;
use rollout_eval::Row;
use rollout_rollout::{
    EnvironmentFacts, EpisodeAction, Host, Observed, Reset, Session, SessionError, take_label,
};
use rollout_wire::id::RolloutId;
use rollout_wire::text::beginning;

/// Maximum number of bytes of a value in a report.
const SHOWN_BYTES_MAX: usize = 120;

/// Minimum number of bytes of a label that is searched in observations. Shorter ones occur by chance.
const LABEL_BYTES_MIN: usize = 4;

/// Checks the environment of a host. `row` has the arguments of the reset, if the user gave any.
pub(super) async fn check(
    host: &Host,
    limits: SessionLimits,
    row: Option<&Row>,
    report: &mut Report,
) -> Result<()> {
    let facts = match host.environment().await {
        Ok(facts) => facts,
        Err(error) => {
            let advice = "`describe` runs in an instance of its own and must return schemas and tools that are JSON objects";
            report.failed("environment", error.to_string(), advice);
            return Ok(());
        }
    };
    describe(&facts, report);
    let task = tasks(host, &facts, report).await;
    // The same name for both episodes, because it is part of the state.
    let episode_id = || Some("validate".to_owned());
    let (reset, source) = match (row, task) {
        (Some(row), _) => (Reset { episode_id: episode_id(), ..row.reset() }, "the row"),
        (None, Some(arguments)) => {
            (Reset { arguments, seed: None, episode_id: episode_id() }, "the first task")
        }
        (None, None) => {
            (Reset { seed: Some(1), episode_id: episode_id(), ..Reset::default() }, "seed 1 and no arguments")
        }
    };
    let mut session = host.open_session(RolloutId::parse("validate")?, limits).await?;
    let Some(first) = episode(&mut session, &facts, &reset, source, report, true).await else {
        return Ok(());
    };
    let Some(second) = episode(&mut session, &facts, &reset, source, report, false).await else {
        return Ok(());
    };
    // Both have one text for each step.
    match first.iter().zip(&second).find(|(one, other)| one != other) {
        None => report.passed("deterministic", "two episodes with the same actions were identical"),
        Some((one, other)) => report.failed(
            "deterministic",
            format!("first {}, then {}", shown(one), shown(other)),
            "make random choices from the seed of the reset, and depend on nothing outside of the episode",
        ),
    }
    Ok(())
}

/// Reports name, schemas, tools and splits.
fn describe(facts: &EnvironmentFacts, report: &mut Report) {
    if facts.name.trim().is_empty() {
        report.failed("environment", "its name is empty", "callers find the environment by its name");
    } else {
        let version =
            facts.version.as_deref().map_or(String::new(), |version| format!(", version {version}"));
        report.passed("environment", format!("{}{version}", facts.name));
    }
    if facts.description.trim().is_empty() {
        report.warned(
            "description",
            "it is empty",
            "the model reads it before the first observation; in Python it is the docstring of the class",
        );
    }
    let listed: Vec<Value> =
        facts.tools.iter().map(|function| json!({"type": "function", "function": function})).collect();
    match (&facts.action, listed.is_empty()) {
        (None, true) => report.failed(
            "tools",
            "it has neither tools nor a schema of actions",
            "write tools, or a `step` that takes an action",
        ),
        (_, false) => tools::check(report, "tools", &listed),
        (Some(_), true) => {}
    }
    if let Some(action) = &facts.action {
        schema("action", action, report);
    }
    schema("observation", &facts.observation, report);
    match &facts.state {
        Some(state) => schema("state", state, report),
        None => report.skipped("state", "it has no schema; callers may read any object"),
    }
}

/// Reports the fields of a schema.
fn schema(name: &str, schema: &Map<String, Value>, report: &mut Report) {
    let title = schema.get("title").and_then(Value::as_str).unwrap_or("an object");
    let fields = schema.get("properties").and_then(Value::as_object);
    match fields.filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            let fields: Vec<&str> = fields.keys().map(String::as_str).collect();
            report.passed(name, format!("{title} with {}", fields.join(", ")));
        }
        None if name == "state" => report.passed(name, title),
        None => report.warned(
            name,
            "its schema names no fields, so callers do not know what is in it",
            "give it a type with fields; in Python, a hint such as a dataclass",
        ),
    }
}

/// Reports the splits and asks for the first and the last task of each. Returns the first task of the first split.
async fn tasks(host: &Host, facts: &EnvironmentFacts, report: &mut Report) -> Option<Map<String, Value>> {
    if facts.splits.is_empty() {
        report.warned(
            "splits",
            "it has none, so `eval --split` and the task API of OpenEnv find no tasks",
            "return splits and tasks, or give rows with --data",
        );
        return None;
    }
    let mut names = HashSet::new();
    if let Some(twice) = facts.splits.iter().find(|split| !names.insert(&split.name)) {
        let detail = format!("it has two splits named '{}'", twice.name);
        report.failed("splits", detail, "give each split a name of its own");
        return None;
    }
    let listed: Vec<String> =
        facts.splits.iter().map(|split| format!("{} ({} tasks)", split.name, split.tasks)).collect();
    report.passed("splits", listed.join(", "));
    let mut found = None;
    let mut labels = None;
    for split in &facts.splits {
        if split.tasks == 0 {
            report.warned("tasks", format!("the split '{}' has no tasks", split.name), "");
        }
        let first_and_last = BTreeSet::from([0, split.tasks.saturating_sub(1)]);
        for index in first_and_last.into_iter().filter(|_| split.tasks > 0) {
            match host.environment_task(&split.name, index).await {
                Ok(task) => {
                    if take_label(&mut task.clone()).is_some() {
                        labels.get_or_insert_with(|| split.name.clone());
                    }
                    if index == 0 {
                        found.get_or_insert(task);
                    }
                }
                Err(error) => {
                    let detail = format!("task {index} of the split '{}': {error}", split.name);
                    report.failed(
                        "tasks",
                        detail,
                        "`task` must return a task for each index below the split's number",
                    );
                    return None;
                }
            }
        }
    }
    match labels {
        Some(split) if host.grader().is_none() => report.warned(
            "tasks",
            format!("a task of the split '{split}' has its label, which callers read"),
            "keep the label in the component, and find it in `reset` by the task's name",
        ),
        Some(_) => report.passed("tasks", "the label of a task goes to the grader"),
        None => report.passed("tasks", "the first and the last of each split"),
    }
    found
}

/// Plays an episode with one made-up action of each kind, and returns what was observed. Reports it if `is_first`. Returns
/// `None` after a failure.
async fn episode(
    session: &mut Session,
    facts: &EnvironmentFacts,
    reset: &Reset,
    source: &str,
    report: &mut Report,
    is_first: bool,
) -> Option<Vec<String>> {
    let label = take_label(&mut reset.arguments.clone()).filter(|label| label.len() >= LABEL_BYTES_MIN);
    let first = reset_session(session, reset, source, report).await?;
    if is_first {
        let lacks = facts.observation.get("required").and_then(Value::as_array).into_iter().flatten();
        let observation: Value = serde_json::from_str(first.observation.get()).unwrap_or_default();
        let lacks = lacks.filter_map(Value::as_str).find(|field| observation.get(field).is_none());
        match lacks {
            Some(field) => report.failed(
                "reset",
                format!("its observation has no field '{field}', which the schema requires"),
                "return an observation of the type that the environment declares",
            ),
            None => report.passed("reset", format!("with {source}: {}", shown(&first.text()))),
        }
    }
    let mut seen = vec![line(&first)];
    let mut is_done = first.done;
    for (name, action) in made_up_actions(facts) {
        if is_done {
            let again = reset_session(session, reset, source, report).await?;
            is_done = again.done;
            seen.push(line(&again));
        }
        match session.step(action).await {
            Ok(turn) => {
                if is_first {
                    let reward = turn.reward.map_or(String::new(), |reward| format!(", reward {reward}"));
                    let done = if turn.done { ", done" } else { "" };
                    report.passed("step", format!("{name}: {}{reward}{done}", shown(&turn.text())));
                }
                is_done = turn.done;
                seen.push(line(&turn));
            }
            Err(error @ (SessionError::EpisodeOver { .. } | SessionError::SessionOver(_))) => {
                let advice = "return an error for an action that does not fit; a trap or a reward that is no number ends the episode";
                report.failed("step", format!("{name}: {error}"), advice);
                return None;
            }
            Err(error) => {
                if is_first {
                    report.passed(
                        "step",
                        format!("{name} refused a made-up action: {}", shown(&error.to_string())),
                    );
                }
                seen.push(error.to_string());
            }
        }
    }
    match session.state().await {
        Ok(state) => seen.push(Value::Object(state).to_string()),
        Err(error) => {
            report.failed("state", error.to_string(), "`state` must return an object at any time");
            return None;
        }
    }
    if let Some(label) =
        label.filter(|label| is_first && seen.iter().any(|text| text.contains(label.as_str())))
    {
        report.warned(
            "label",
            format!("an observation or the state contains the label, {}", shown(&label)),
            "the caller's model reads both; keep the label for the reward",
        );
    }
    Some(seen)
}

/// Resets the environment. Reports a failure and returns `None`.
async fn reset_session(
    session: &mut Session,
    reset: &Reset,
    source: &str,
    report: &mut Report,
) -> Option<Observed> {
    let advice = "if the environment needs other arguments, give a row with --data FILE";
    let result = session.reset(reset.clone()).await;
    result.inspect_err(|error| report.failed("reset", format!("with {source}: {error}"), advice)).ok()
}

/// Returns all of a result as text.
fn line(Observed { observation, reward, done, metadata }: &Observed) -> String {
    let metadata = metadata.as_deref().map_or("", |metadata| metadata.get());
    let reward = reward.map_or("no reward".to_owned(), |reward| format!("the reward {reward}"));
    let done = if *done { ", done" } else { "" };
    format!("{} with {reward}{done} {metadata}", observation.get())
}

/// Returns one action of each tool, and one value of the schema of actions.
fn made_up_actions(facts: &EnvironmentFacts) -> Vec<(String, EpisodeAction)> {
    let mut actions = Vec::new();
    if let Some(action) = &facts.action {
        let value = made_up(&Value::Object(action.clone())).to_string();
        actions.push(("an action".to_owned(), EpisodeAction::Value(value)));
    }
    for tool in &facts.tools {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let arguments = tool.get("parameters").map_or_else(|| json!({}), made_up).to_string();
        actions.push((name.clone(), EpisodeAction::Call { name, arguments }));
    }
    actions
}

/// Returns a value of a schema, with the fields that it requires.
fn made_up(schema: &Value) -> Value {
    let first = |name: &str| schema.get(name).and_then(Value::as_array).and_then(|values| values.first());
    if let Some(value) = schema.get("default").or_else(|| schema.get("const")).or_else(|| first("enum")) {
        return value.clone();
    }
    if let Some(one) = first("anyOf").or_else(|| first("oneOf")).or_else(|| first("allOf")) {
        return made_up(one);
    }
    let kind =
        schema.get("type").and_then(|kind| kind.as_str().or_else(|| kind.get(0).and_then(Value::as_str)));
    let least = schema.get("minimum").cloned();
    match kind {
        Some("object") => {
            let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            let fields = required.filter_map(Value::as_str).map(|name| {
                let field = schema.get("properties").and_then(|properties| properties.get(name));
                (name.to_owned(), field.map_or(Value::Null, made_up))
            });
            Value::Object(fields.collect())
        }
        Some("string") => "a".into(),
        Some("integer" | "number") => least.unwrap_or_else(|| 1.into()),
        Some("boolean") => true.into(),
        Some("array") => json!([]),
        _ => Value::Null,
    }
}

fn shown(text: &str) -> String {
    beginning(text, SHOWN_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_values_have_the_required_fields() {
        let check = |schema: Value, expected: Value| assert_eq!(made_up(&schema), expected, "{schema}");
        let fields =
            json!({"a": {"type": "string"}, "b": {"type": "integer", "minimum": 3}, "c": {"type": "number"}});
        check(
            json!({"type": "object", "properties": fields, "required": ["a", "b"]}),
            json!({"a": "a", "b": 3}),
        );
        check(json!({"type": ["integer", "null"]}), json!(1));
        check(json!({"enum": ["x", "y"]}), json!("x"));
        check(json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]}), json!(true));
        check(json!({}), Value::Null);
    }
}
