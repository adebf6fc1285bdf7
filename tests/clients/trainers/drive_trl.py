"""Tests `rollout_host.trl` with TRL's `GRPOTrainer` on a CPU, against real servers.

    ROLLOUT_HOST_BIN=… ROLLOUT_GUESTS_DIR=… python drive_trl.py [--scenario NAME]…

Every scenario prints one line, {"scenario", "ok", "detail"}. The exit code is 1 if one failed. The models are those of the
example `train-grpo`, created on the spot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import hosting
from cases import Scenarios, asking, expect, holding

EXAMPLE = hosting.PROJECT / "examples/train-grpo"
sys.path.insert(0, str(EXAMPLE))

import tiny_model
import torch
from datasets import Dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from rollout_host._conversation import Conversation
from rollout_host.client import HostRefused, RolloutHostError
from rollout_host.trl import Branches, HostRollouts, load_rows, rollout_reward

SCENARIOS = Scenarios({})

GENERATIONS = 4

# More threads than free cores make a small model slow.
torch.set_num_threads(1)


class Recording(HostRollouts):
    """Records what the trainer receives."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outputs: list[dict[str, Any]] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        output = super().__call__(prompts, trainer)
        # The trainer removes members.
        self.outputs.append(dict(output))
        return output


def train(
    url: str, dataset: Dataset, net: Any, words: Any, *, temperature: float = 1.0, **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trains, and returns the batches that the trainer received and what it logged."""
    return trained(Recording(url, **options), dataset, net, words, temperature)


def trained(
    host: Recording, dataset: Dataset, net: Any, words: Any, temperature: float = 1.0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trains with the rollouts of a host, which are stopped at the end."""
    trainer = GRPOTrainer(
        model=net,
        processing_class=words,
        rollout_func=host,
        reward_funcs=rollout_reward,
        train_dataset=dataset,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="drive-trl-"),
            max_steps=1,
            temperature=temperature,
            per_device_train_batch_size=GENERATIONS * len(dataset),
            num_generations=GENERATIONS,
            max_completion_length=40,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            shuffle_dataset=False,
        ),
    )
    try:
        # Standard output is the report's.
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
    finally:
        host.close()
    return host.outputs, [entry for entry in trainer.state.log_history if "reward" in entry]


async def failing(kind: type[BaseException], text: str, *arguments: Any, **options: Any) -> None:
    """Checks that a training ends with this error."""
    try:
        await asyncio.to_thread(train, *arguments, **options)
    except kind as error:
        expect("error", str(error), holding(text))
        return
    raise AssertionError(f"the training did not end with {kind.__name__}")


def of_rows(*rows: dict[str, Any]) -> Dataset:
    return Dataset.from_list([{"label": None, **row} for row in rows])


@SCENARIOS.add
async def the_tokens_of_a_tool_loop_are_those_that_the_model_wrote(_: None) -> dict[str, Any]:
    set_seed(1)
    words = tiny_model.tokenizer()
    net = tiny_model.model(words)
    rows = load_rows(EXAMPLE / "rows.jsonl").select([0])
    facts = [(rows[0]["prompt"][-1]["content"], "44 - 42", "2")]
    # Every conversation that it has seen calls the calculator, so every one that it writes does.
    await asyncio.to_thread(
        tiny_model.pretrain, net, words, tiny_model.habit(facts, calls=1.0), steps=120, batch=8, seed=1
    )
    async with hosting.serve("example_calculator") as server:
        [output], [logged] = await asyncio.to_thread(
            train, server.url, rows, net, words, temperature=0.1
        )
    expect("rewards", output["rollout_rewards"], [1.0] * GENERATIONS)
    expect("logged reward", float(logged["reward"]), 1.0)
    for prompt, ids, mask in zip(output["prompt_ids"], output["completion_ids"], output["env_mask"], strict=True):
        expect("prompt", words.decode(prompt), "<user>44 - 42 =<end><assistant>")
        expect("text", words.decode(ids), "<call>44 - 42</call><end><tool>2<end><assistant>#### 2<end>")
        own = words.decode([token for token, is_models in zip(ids, mask, strict=True) if is_models])
        expect("text of the model", own, "<call>44 - 42</call><end>#### 2<end>")
    return {"tokens": [len(ids) for ids in output["completion_ids"]]}


@SCENARIOS.add
async def a_failed_rollout_has_no_reward(_: None) -> dict[str, Any]:
    set_seed(1)
    words = tiny_model.tokenizer()
    rows = of_rows(
        {"prompt": asking("Calculate 2 + 3."), "label": "5"},
        {"prompt": asking("please fail"), "label": "5"},
        {"prompt": asking("Calculate 3 + 3."), "label": "please remove"},
    )
    async with hosting.serve("conform") as server:
        [output], [logged] = await asyncio.to_thread(train, server.url, rows, tiny_model.model(words), words)
        kinds = [None if reward is None else "number" for reward in output["rollout_rewards"]]
        expect("rewards", kinds, ["number"] * GENERATIONS + [None] * 2 * GENERATIONS)
        expect("reason", output["rollout_errors"][GENERATIONS], holding("the workflow was told to fail"))
        expect("reason", output["rollout_errors"][2 * GENERATIONS], holding("withdrew"))
        expect("trained tokens", [sum(mask) for mask in output["env_mask"][GENERATIONS:]], [0] * 2 * GENERATIONS)
        expect("loss", float(logged["loss"]), math.isfinite)
        scored = [reward for reward in output["rollout_rewards"] if reward is not None]
        expect("logged reward", float(logged["reward"]), sum(scored) / len(scored))

        fails = of_rows({"prompt": asking("please fail"), "label": "5"})
        text = f"all {GENERATIONS} rollouts of a batch failed"
        await failing(RolloutHostError, text, server.url, fails, tiny_model.model(words), words)
    return {}


@SCENARIOS.add
async def a_wrong_host_key_or_row_ends_the_training(_: None) -> dict[str, Any]:
    words = tiny_model.tokenizer()
    row = {"prompt": asking("Calculate 2 + 3."), "label": "5"}
    key = "secret-of-the-server"
    async with hosting.serve("conform", "--server-key-env", "KEY", KEY=key) as server:
        arguments = (server.url, of_rows(row), tiny_model.model(words), words)
        await failing(HostRefused, "401", *arguments)
        await failing(KeyError, "no row has this prompt", *arguments, rows=[{"prompt": "another"}], api_key=key)
        both = [row, {**row, "label": "6"}]
        await failing(ValueError, "two rows have the same prompt", server.url, of_rows(*both), *arguments[2:], api_key=key)
        outputs, _logged = await asyncio.to_thread(train, *arguments, api_key=key)
        expect("rewards", None in outputs[0]["rollout_rewards"], False)
    return {}


def adding(*numbers: int) -> list[tuple[str, str, str]]:
    """Returns facts for the pre-training: prompts, expressions and answers."""
    return [(f"Calculate: {number} + 1 =", f"{number} + 1", str(number + 1)) for number in numbers]


def asked(facts: list[tuple[str, str, str]]) -> Dataset:
    return of_rows(*({"prompt": asking(prompt), "label": answer} for prompt, _, answer in facts))


@SCENARIOS.add
async def the_generations_of_a_prompt_are_rated_as_a_group(_: None) -> dict[str, Any]:
    set_seed(1)
    words = tiny_model.tokenizer()
    net = tiny_model.model(words)
    facts = adding(1, 2)
    # It never calls a tool, and guesses a number.
    await asyncio.to_thread(tiny_model.pretrain, net, words, tiny_model.habit(facts, calls=0.0), steps=150, batch=8, seed=1)
    async with hosting.serve("grouped") as server:
        [output], _logged = await asyncio.to_thread(train, server.url, asked(facts), net, words, groups=True)
        texts = [words.decode(ids) for ids in output["completion_ids"]]
        for group in (slice(0, GENERATIONS), slice(GENERATIONS, 2 * GENERATIONS)):
            numbers = [float(text.removeprefix("#### ").removesuffix("<end>")) for text in texts[group]]
            # The group grader rates each by its rank.
            ranks = [sum(other < one for other in numbers) / (GENERATIONS - 1) for one in numbers]
            expect("rewards", output["rollout_rewards"][group], ranks)
        expect("shared turns", output["rollout_shared_turns"], [None] * 2 * GENERATIONS)
        text = f"{GENERATIONS} rollouts are one group"
        await failing(ValueError, text, server.url, asked(facts), net, words, groups=True, max_concurrent=GENERATIONS - 1)
    return {"texts": texts}


@SCENARIOS.add
async def branches_continue_their_parents_and_only_their_own_tokens_are_trained_on(_: None) -> dict[str, Any]:
    set_seed(1)
    words = tiny_model.tokenizer()
    net = tiny_model.model(words)
    facts = adding(*range(1, 9))
    # Half of what it writes are calls, and the other half are guesses, which have no first turn to share.
    await asyncio.to_thread(tiny_model.pretrain, net, words, tiny_model.habit(facts, calls=0.5), steps=250, batch=8, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        async with hosting.serve("example_calculator", "--journal", "journal", directory=Path(folder)) as server:
            host = Recording(server.url, branches=Branches(turn=1, per_parent=GENERATIONS - 1))
            [output], _logged = await asyncio.to_thread(trained, host, asked(facts), net, words)
            await failing(ValueError, "cannot be divided", server.url, asked(facts), net, words, branches=Branches(1, 2))
    continued = 0
    turn = words.convert_tokens_to_ids("<assistant>")
    for at, (ids, mask) in enumerate(zip(output["completion_ids"], output["env_mask"], strict=True)):
        parent = at - at % GENERATIONS
        shared = output["rollout_shared_turns"][at]
        if at == parent:
            expect("shared turns", shared, None)
        elif output["rollout_errors"][parent] is None and output["rollout_errors"][at] is None:
            before = output["completion_ids"][parent]
            # The second reply begins here.
            cut = before.index(turn) + 1 if turn in before else 0
            expect("shared turns", shared, int(cut > 0))
            expect("shared tokens", ids[:cut], before[:cut])
            expect("shared tokens that are trained on", sum(mask[:cut]), 0)
            expect("own tokens", sum(mask[cut:]), lambda count: count > 0)
            continued += cut > 0
    expect("branches after a call", continued, lambda count: count > 0)
    expect("tokens", host.generated_tokens, lambda count: count >= sum(map(sum, output["env_mask"])))
    return {"continued": continued}


@SCENARIOS.add
async def a_request_continues_a_conversation_or_begins_one(_: None) -> dict[str, Any]:
    words = tiny_model.tokenizer()

    def render(messages: Any, tools: Any, begins_reply: bool) -> list[int]:
        return list(
            words.apply_chat_template(messages, add_generation_prompt=begins_reply, tokenize=True, return_dict=False)
        )

    def reply(sequence: Any, text: str) -> dict[str, str]:
        message = {"role": "assistant", "content": text.removesuffix("<end>")}
        conversation.add_reply(sequence, message, words(text).input_ids, None)
        return message

    conversation = Conversation(render, [words.eos_token_id])
    first = [{"role": "user", "content": "one"}]
    one = conversation.extend(first, None)
    # The model did not end its turn, so the template's end is not its token.
    answer = reply(one, "uno")
    again = conversation.extend([*first, answer, {"role": "user", "content": "two", "name": None}], None)
    expect("the same sequence", again is one, True)
    expect("text", words.decode(one.completion_ids), "uno<end><user>two<end><assistant>")
    expect("mask", one.mask[:4], [1, 1, 1, 0])
    last = reply(one, "dos<end>")
    other = conversation.extend([{"role": "user", "content": "other"}], None)
    reply(other, "otro<end>")
    expect("sequences", len(conversation.sequences), 2)
    expect("of the sample", conversation.of_sample([*first, last]) is one, True)
    expect("of no reply", conversation.of_sample([{"role": "assistant", "content": "tres"}]), None)
    expect("of no assistant", conversation.of_sample(first), None)
    # The same request twice, as after a lost connection, must not extend the reply to the first one.
    conversation.extend([{"role": "user", "content": "other"}], None)
    expect("sequences", len(conversation.sequences), 3)

    expect("turns", conversation.turns, 3)
    forked = conversation.fork(1)
    shared = forked.extend([*first, answer, {"role": "user", "content": "three"}], None)
    expect("text", words.decode(shared.completion_ids), "uno<end><user>three<end><assistant>")
    expect("mask", sum(shared.mask), 0)
    expect("the parent", words.decode(one.completion_ids), "uno<end><user>two<end><assistant>dos<end>")
    expect("the last turn", len(conversation.fork(3).sequences), 2)
    expect("no turn", conversation.fork(0).sequences, [])
    return {}


@SCENARIOS.add
async def the_example_of_the_page_learns(_: None) -> dict[str, Any]:
    command, _ = hosting.blocks("## TRL", "sh")
    with tempfile.TemporaryDirectory() as folder:
        async with hosting.serve("example_calculator", directory=Path(folder)) as server:
            script = hosting.page_script([command], server.url, "")
            code, output = await hosting.shell(script, hosting.PROJECT)
    expect("exit code", (code, output[-2000:]), lambda ran: ran[0] == 0)
    summary = json.loads(output.splitlines()[-1])
    expect("rise of the mean reward", summary["last"] - summary["first"], lambda rise: rise >= 0.3)
    return summary


@SCENARIOS.add
async def the_example_learns_through_openenv(_: None) -> dict[str, Any]:
    _, command = hosting.blocks("## TRL", "sh")
    with tempfile.TemporaryDirectory() as folder:
        async with hosting.serve("example_train_grpo", directory=Path(folder)) as server:
            script = hosting.page_script([command], server.url, "")
            code, output = await hosting.shell(script, hosting.PROJECT)
    expect("exit code", (code, output[-2000:]), lambda ran: ran[0] == 0)
    summary = json.loads(output.splitlines()[-1])
    expect("rise of the mean reward", summary["last"] - summary["first"], lambda rise: rise >= 0.3)
    return summary


if __name__ == "__main__":
    sys.exit(asyncio.run(SCENARIOS.run(None, hosting.arguments(SCENARIOS, __doc__, 600.0))))
