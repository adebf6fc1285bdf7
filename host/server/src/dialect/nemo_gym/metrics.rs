//! `POST /aggregate_metrics`: the statistics of a collection's results.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::NemoGym;
use crate::dialect::body::{Body, BodyRefused};
use crate::dialect::row::field;
use rollout_wire::stream;

/// Maximum size of a request in bytes. A result takes some 300 bytes.
const BODY_BYTES_MAX: usize = 256 << 20;

/// Maximum number of different names of numbers in the results. Further names are left out.
const NAMES_MAX: usize = 256;

/// Members of a result that are not measurements.
const NOT_MEASUREMENTS: [&str; 1] = ["mask_sample"];

/// Numbers of a response's usage.
const USAGE: [&str; 3] = ["input_tokens", "output_tokens", "total_tokens"];

/// The numbers in results, by name.
#[derive(Default)]
struct Numbers(BTreeMap<String, Vec<f64>>);

impl Numbers {
    fn add(&mut self, name: &str, number: f64) {
        if !self.0.contains_key(name) && self.0.len() == NAMES_MAX {
            return;
        }
        self.0.entry(name.to_owned()).or_default().push(number);
    }

    /// Returns the statistics of each number. Standard deviations are those of a sample (divisor n - 1).
    fn statistics(&self) -> Map<String, Value> {
        let mut all = Map::new();
        let mut put = |of: &str, name: &str, value: f64| {
            all.insert(format!("{of}/{name}"), value.into());
        };
        for (name, numbers) in &self.0 {
            let count = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / count;
            let mut sorted = numbers.clone();
            sorted.sort_by(f64::total_cmp);
            let middle = sorted.len() / 2;
            let median = match sorted.len() % 2 {
                1 => sorted[middle],
                _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
            };
            put("mean", name, mean);
            put("max", name, sorted[sorted.len() - 1]);
            put("min", name, sorted[0]);
            put("median", name, median);
            if numbers.len() > 1 {
                let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
                put("std", name, (squares / (count - 1.0)).sqrt());
            }
        }
        all
    }
}

/// Answers with the statistics of all results, of each task and of each repeat. Masked results are left out.
pub(super) async fn aggregate(
    State(_gym): State<NemoGym>,
    body: Result<Body<BODY_BYTES_MAX>, BodyRefused>,
) -> Response {
    let mut body = match body {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    match body.parse(statistics) {
        Ok(Ok(statistics)) => Json(statistics).into_response(),
        Ok(Err(why)) => (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"detail": why}))).into_response(),
        Err(refused) => refused.into_response(),
    }
}

/// One group of results.
#[derive(Default)]
struct Group {
    numbers: Numbers,
    count: usize,
    missing: usize,
    infos: Vec<Value>,
}

fn statistics(body: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let results = field(text, "verify_responses").ok_or("'verify_responses' is missing")?;
    let mut all = Numbers::default();
    let (mut tasks, mut repeats) = (BTreeMap::<i64, Group>::new(), BTreeMap::<i64, Group>::new());
    let read = stream::each(results.get(), |result: &RawValue| {
        let index = |name: &str| field(result.get(), name).and_then(|at| at.get().parse::<i64>().ok());
        let (task, repeat) = (index("_ng_task_index").unwrap_or(0), index("_ng_rollout_index").unwrap_or(0));
        let numbers = numbers(result.get())?;
        let has_reward = numbers.iter().any(|(name, _)| name == "reward");
        let is_masked = field(result.get(), "mask_sample").is_some_and(|masked| masked.get() == "true");
        for (group, is_task) in
            [(tasks.entry(task).or_default(), true), (repeats.entry(repeat).or_default(), false)]
        {
            if is_masked || !has_reward {
                group.missing += 1;
                continue;
            }
            group.count += 1;
            let mut info = Map::new();
            for (name, number) in &numbers {
                group.numbers.add(name, *number);
                info.insert(name.clone(), (*number).into());
            }
            if is_task {
                info.insert("_ng_task_index".to_owned(), task.into());
                info.insert("_ng_rollout_index".to_owned(), repeat.into());
                info.insert("rollout_id".to_owned(), format!("{task}:{repeat}").into());
                group.infos.push(info.into());
            }
        }
        if !is_masked && has_reward {
            numbers.iter().for_each(|(name, number)| all.add(name, *number));
        }
        Ok::<(), String>(())
    });
    read.map_err(String::from)?;
    let agent = all.statistics();
    let key: Map<String, Value> = agent
        .iter()
        .filter(|(name, _)| name.starts_with("mean/"))
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect();
    let of_task = |(task, group): (i64, Group)| {
        let mut metrics = group.numbers.statistics();
        metrics.insert("_ng_task_index".to_owned(), task.into());
        metrics.insert("num_rollouts".to_owned(), group.count.into());
        metrics.insert("rollout_infos".to_owned(), group.infos.into());
        Value::from(metrics)
    };
    let of_repeat = |(repeat, group): (i64, Group)| {
        let mut metrics = group.numbers.statistics();
        metrics.insert("_ng_rollout_index".to_owned(), repeat.into());
        metrics.insert("sample_count".to_owned(), group.count.into());
        metrics.insert("missing_count".to_owned(), group.missing.into());
        Value::from(metrics)
    };
    Ok(json!({
        "agent_metrics": agent,
        "key_metrics": key,
        "group_level_metrics": tasks.into_iter().map(of_task).collect::<Vec<_>>(),
        "repeat_level_metrics": repeats.into_iter().map(of_repeat).collect::<Vec<_>>(),
        "perf_summary": null,
    }))
}

/// Returns the numbers of a result, and those of its response's usage.
fn numbers(result: &str) -> Result<Vec<(String, f64)>, String> {
    let mut numbers = Vec::new();
    let read = stream::members(result, |name, value: &RawValue| {
        let is_measurement = !name.starts_with("_ng_") && !NOT_MEASUREMENTS.contains(&&*name);
        let number = match value.get() {
            "true" => Some(1.0),
            "false" => Some(0.0),
            text => text.parse::<f64>().ok().filter(|number| number.is_finite()),
        };
        if let Some(number) = number.filter(|_| is_measurement) {
            numbers.push((name.into_owned(), number));
        }
        Ok::<(), String>(())
    });
    read.map_err(String::from)?;
    for name in USAGE {
        let number =
            field(result, &format!("response.usage.{name}")).and_then(|n| n.get().parse::<f64>().ok());
        numbers.extend(number.filter(|number| number.is_finite()).map(|number| (name.to_owned(), number)));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_leave_out_masked_results_and_those_without_a_reward() {
        let body = json!({"verify_responses": [
            {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "fast": true, "mask_sample": false,
             "response": {"usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}}},
            {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.0},
            {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 7.0, "mask_sample": true},
            {"_ng_task_index": 1, "_ng_rollout_index": 1},
        ]});
        let statistics = statistics(body.to_string().as_bytes()).unwrap();
        let agent = &statistics["agent_metrics"];
        assert_eq!((&agent["mean/reward"], &agent["median/reward"]), (&json!(0.5), &json!(0.5)));
        assert_eq!((&agent["max/reward"], &agent["mean/total_tokens"]), (&json!(1.0), &json!(12.0)));
        assert!(agent["std/reward"].as_f64().is_some_and(|std| (std - 0.5_f64.sqrt()).abs() < 1e-12));
        assert!(agent.get("std/fast").is_none(), "one number has no deviation");
        assert_eq!(statistics["key_metrics"]["mean/reward"], 0.5);
        assert_eq!(statistics["group_level_metrics"][0]["num_rollouts"], 2);
        assert_eq!(statistics["repeat_level_metrics"][1]["missing_count"], 1);
        assert!(self::statistics(b"{}").unwrap_err().contains("verify_responses"));
    }
}
