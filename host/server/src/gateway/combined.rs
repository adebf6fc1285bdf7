//! Answers that are made of all workers' answers.

use serde_json::{Map, Value, json};

use super::workers::Worker;
use std::sync::Arc;

/// Status of a gateway without a worker that answers. It is alive: only `GET /ready` fails.
pub(super) const NO_WORKERS: &str = "no_workers";

/// Returns the answer to `GET /health`: the fields of all workers, [added up](add), and a list of the workers.
pub(super) fn health(workers: &[Arc<Worker>]) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut list = Vec::new();
    let mut running_and_queued = 0;
    let (mut is_accepting, mut has_worker) = (false, false);
    for worker in workers {
        let (status, is_up) = worker.status();
        let mut entry = json!({"worker": worker.name(), "url": worker.base, "is_up": is_up});
        if let Some(status) = status {
            entry["version"] = status.version.clone().into();
            entry["logs"] = json!(status.logs);
            if is_up {
                has_worker = true;
                add(&mut fields, status.health.clone());
                running_and_queued += status.running + status.queued;
                is_accepting |= status.accepting;
                entry["running"] = status.running.into();
                entry["queued"] = status.queued.into();
                entry["accepting"] = status.accepting.into();
                entry["max_concurrent"] = status.max_concurrent.into();
            }
        }
        if let Some(problem) = worker.problem() {
            entry["problem"] = problem.into();
        }
        list.push(entry);
    }
    fields.insert("status".to_owned(), if has_worker { "ok" } else { NO_WORKERS }.into());
    let lifecycle = json!({"accepting_rollouts": is_accepting, "active_rollouts": running_and_queued});
    fields.insert("lifecycle".to_owned(), lifecycle);
    fields.insert("workers".to_owned(), list.into());
    fields
}

/// Adds the fields of a worker to those of others. Whole numbers are added up, a boolean is true if any of them is, and
/// of other values the first one stays.
pub(super) fn add(to: &mut Map<String, Value>, fields: Map<String, Value>) {
    for (name, value) in fields {
        match (to.get_mut(&name), value) {
            (None, value) => {
                to.insert(name, value);
            }
            (Some(Value::Object(to)), Value::Object(fields)) => add(to, fields),
            (Some(Value::Bool(any)), Value::Bool(one)) => *any |= one,
            (Some(Value::Number(sum)), Value::Number(more)) => {
                if let (Some(a), Some(b)) = (sum.as_u64(), more.as_u64()) {
                    *sum = a.saturating_add(b).into();
                }
            }
            _ => {}
        }
    }
}

/// Adds the label `worker` to all series in the text format of Prometheus, and merges the texts: each metric has its help and
/// type once.
pub(super) fn metrics(texts: &[(String, String)]) -> String {
    // In the order in which the metrics first appear.
    let mut order: Vec<String> = Vec::new();
    let mut by_metric: std::collections::HashMap<String, (String, String)> = std::collections::HashMap::new();
    for (worker, text) in texts {
        let mut current = String::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let name = comment.split(' ').nth(1).unwrap_or_default();
                if name != current {
                    current = name.to_owned();
                }
                let (head, _) = by_metric.entry(current.clone()).or_insert_with(|| {
                    order.push(current.clone());
                    Default::default()
                });
                if !head.lines().any(|known| known == line) && head.lines().count() < 2 {
                    head.push_str(line);
                    head.push('\n');
                }
            } else if !line.is_empty()
                && let Some((_, series)) = by_metric.get_mut(&current)
            {
                series.push_str(&labelled(line, worker));
                series.push('\n');
            }
        }
    }
    order
        .iter()
        .filter_map(|name| by_metric.get(name))
        .fold(String::new(), |text, (head, series)| text + head + series)
}

/// Adds the label `worker` to a series.
pub(super) fn labelled(line: &str, worker: &str) -> String {
    let worker = worker.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    match (line.find('{'), line.find(' ')) {
        (Some(brace), space) if space.is_none_or(|space| brace < space) => {
            format!("{}{{worker=\"{worker}\",{}", &line[..brace], &line[brace + 1..])
        }
        (_, Some(space)) => format!("{}{{worker=\"{worker}\"}}{}", &line[..space], &line[space..]),
        _ => line.to_owned(),
    }
}

/// Merges the answers of workers to a cancellation. Returns the dispositions in the order in which the workers name
/// them. A rollout is missing only if no worker has it.
pub(super) fn dispositions(answers: &[Value]) -> Map<String, Value> {
    let mut merged = Map::new();
    for answer in answers {
        for (id, disposition) in answer["dispositions"].as_object().into_iter().flatten() {
            let is_better = merged.get(id).is_none_or(|known: &Value| known == NOT_FOUND);
            if is_better {
                merged.insert(id.clone(), disposition.clone());
            }
        }
    }
    merged
}

/// Disposition of a rollout that a worker does not have.
pub(super) const NOT_FOUND: &str = "not_found";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_workers_have_their_help_once_and_a_label_each() {
        let text = |n: u32| {
            format!(
                "# HELP a_total Counts a.\n# TYPE a_total counter\na_total{{kind=\"x\"}} {n}\n# HELP b Shows b.\n# TYPE b \
                 gauge\nb {n}\n"
            )
        };
        let merged = metrics(&[("w1".to_owned(), text(1)), ("w\"2".to_owned(), text(2))]);
        let expected = "# HELP a_total Counts a.\n# TYPE a_total counter\na_total{worker=\"w1\",kind=\"x\"} 1\n\
            a_total{worker=\"w\\\"2\",kind=\"x\"} 2\n# HELP b Shows b.\n# TYPE b gauge\nb{worker=\"w1\"} 1\n\
            b{worker=\"w\\\"2\"} 2\n";
        assert_eq!(merged, expected);
    }

    #[test]
    fn a_rollout_that_one_worker_has_is_not_missing() {
        let answers = [
            json!({"dispositions": {"a": "not_found", "b": "cancelled_running", "c": "not_found"}}),
            json!({"dispositions": {"a": "cancelled_queued", "b": "not_found", "c": "not_found"}}),
        ];
        let merged = Value::Object(dispositions(&answers));
        assert_eq!(merged, json!({"a": "cancelled_queued", "b": "cancelled_running", "c": "not_found"}));
    }

    #[test]
    fn numbers_are_summed_and_texts_stay() {
        let mut sum = Map::new();
        for n in [2, 3] {
            let fields = json!({"agent_loop": "calc", "concurrency": {"running": n}, "active_rollouts": n});
            add(&mut sum, fields.as_object().unwrap().clone());
        }
        let expected = json!({"agent_loop": "calc", "concurrency": {"running": 5}, "active_rollouts": 5});
        assert_eq!(Value::Object(sum), expected);
    }
}
