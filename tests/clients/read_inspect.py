"""Reads a log as the package inspect_ai does, and prints what it found as JSON."""

import json
import sys

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

path = sys.argv[1]
log = read_eval_log(path)
header = read_eval_log(path, header_only=True)


def message(message):
    calls = getattr(message, "tool_calls", None) or []
    return [message.role, message.text, [[call.function, call.arguments] for call in calls]]


def event(event):
    if event.event == "model":
        choice = event.output.choices[0] if event.output.choices else None
        logprobs = choice.logprobs.content if choice and choice.logprobs else []
        return ["model", [message(one) for one in event.input], choice and choice.stop_reason,
                [one.logprob for one in logprobs], [tool.name for tool in event.tools], event.error]
    return [event.event, event.function, event.arguments, event.result]


print(json.dumps({
    "status": header.status,
    "model": header.eval.model,
    "results": [[score.name, score.metrics["mean"].value] for score in header.results.scores],
    "counts": [header.results.total_samples, header.results.completed_samples],
    "usage": {name: usage.total_tokens for name, usage in header.stats.model_usage.items()},
    "summaries": len(read_eval_log_sample_summaries(path)),
    "samples": [
        {
            "id": sample.id,
            "epoch": sample.epoch,
            "input": [message(one) for one in sample.input],
            "target": sample.target,
            "messages": [message(one) for one in sample.messages],
            "scores": {name: score.value for name, score in sample.scores.items()},
            "events": [event(one) for one in sample.events],
            "error": sample.error and sample.error.message,
            "output": sample.output.completion,
        }
        for sample in log.samples
    ],
}))
