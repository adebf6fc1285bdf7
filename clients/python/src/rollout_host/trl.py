"""A `rollout_func` for TRL 1.16: plugins on a host run and grade rollouts, and `GRPOTrainer` learns from the tokens.

    from rollout_host.trl import HostRollouts, rollout_reward

    trainer = GRPOTrainer(
        model=model,
        rollout_func=HostRollouts("http://127.0.0.1:9000"),
        reward_funcs=rollout_reward,
        train_dataset=load_rows("rows.jsonl"),
        …
    )

For each batch of prompts the trainer's process serves its own model as an OpenAI endpoint, starts a rollout per prompt
on the host, generates the replies to the workflows' requests in batches, and returns the tokens that the model wrote.
Tokens of tools and users are masked. The trainer itself generates the tokens, with transformers or vLLM.

**A failed rollout has no reward.** TRL leaves it out of its group's baseline and gives it no advantage; none of its
tokens is trained on. A host that cannot be reached, or that refuses requests, ends the training with an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._conversation import Conversation, Misaligned, TokenSequence, normal
from ._model_server import Call, ModelServer, Refused
from ._optional import need
from .client import (
    AsyncClient,
    LeaseLost,
    NoReward,
    RolloutFailed,
    RolloutHostError,
    RolloutRequest,
    RolloutResult,
    RolloutTimeout,
)
from .rows import Row, read_rows

need("trl", "trl", "rollout_host.trl")
from datasets import Dataset  # noqa: E402
from trl.chat_template_utils import parse_response  # noqa: E402

__all__ = ["HostRollouts", "load_rows", "rollout_reward"]

log = logging.getLogger(__name__)

# Errors of one rollout. All others concern the host and end the training.
OF_A_ROLLOUT = (RolloutFailed, RolloutTimeout, LeaseLost, NoReward)


def load_rows(path: str | Path) -> Dataset:
    """Reads a data set in the host's row format, with the columns `prompt`, `label` and `metadata` (JSON)."""
    rows = [
        {
            "prompt": row.messages,
            "label": row.label,
            "metadata": None if row.metadata is None else json.dumps(row.metadata, ensure_ascii=False),
        }
        for row in read_rows(path)
    ]
    return Dataset.from_list(rows)


def rollout_reward(rollout_rewards: list[float | None], **_: Any) -> list[float | None]:
    """The reward function for `reward_funcs`: the rewards of the host's grader, None for a failed rollout."""
    return rollout_rewards


@dataclass
class _Rollout:
    """One prompt of a batch."""

    row: Row
    conversation: Conversation
    key: str = field(default="", repr=False)
    outcome: RolloutResult | RolloutHostError | None = None


class HostRollouts:
    """Runs the rollouts of a batch on a host.

    Args:
        url: The host's address; `http://HOST/p/NAME` for a plugin of a catalog.
        rows: Rows with the label and metadata of each prompt (`prompt`, `label` or `ground_truth`, `metadata`), because TRL
            passes prompts only. By default those of the trainer's data sets.
        api_key: The host's key, if it requires one.
        timeout: Seconds for a rollout, after which it is cancelled and has no reward.
        max_concurrent: Maximum number of rollouts at once.
        generation_batch_max: Maximum number of completions that are generated together.
        batch_window_secs: Time for which a call waits for others, in order to be generated with them.
        address: Address and `port` at which the trainer's model listens. The host must be able to connect to it.
        model_url: The model's base URL for the host, if that is not `http://ADDRESS:PORT/v1`.
    """

    def __init__(
        self,
        url: str,
        rows: Iterable[Mapping[str, Any]] | None = None,
        *,
        api_key: str | None = None,
        timeout: float | None = 3600.0,
        max_concurrent: int = 512,
        generation_batch_max: int = 512,
        batch_window_secs: float = 0.05,
        address: str = "127.0.0.1",
        port: int = 0,
        model_url: str | None = None,
    ) -> None:
        self.url = url
        self._api_key = api_key
        self._rows = None if rows is None else _by_prompt(rows)
        self._timeout = timeout
        self._max_concurrent = max_concurrent
        self._generation_batch_max = generation_batch_max
        self._batch_window_secs = batch_window_secs
        self._server = ModelServer(address, port)
        self._model_url = model_url or f"http://{address}:{self._server.port}/v1"

    def close(self) -> None:
        """Stops serving the model."""
        self._server.close()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if trainer.accelerator.num_processes > 1:
            raise NotImplementedError("HostRollouts serves the model of one process; run the trainer in one process")
        if self._rows is None:
            self._rows = _by_prompt(_rows_of(trainer))
        model = _Model(trainer)
        rollouts = [_Rollout(self._row(prompt), model.conversation()) for prompt in prompts]
        for rollout in rollouts:
            rollout.key = self._server.open(rollout)
        failure: list[BaseException] = []
        running = threading.Thread(target=self._run, args=(rollouts, failure), name="host-rollouts", daemon=True)
        running.start()
        try:
            while calls := self._server.batch(self._batch_window_secs, self._generation_batch_max):
                model.answer(calls)
        finally:
            for rollout in rollouts:
                self._server.end(rollout.key)
            running.join()
        if failure:
            raise failure[0]
        return self._output(rollouts, model)

    def _row(self, prompt: Any) -> Row:
        assert self._rows is not None
        row = self._rows.get(_key(prompt))
        if row is None:
            raise KeyError(f"no row has this prompt, so its label is unknown; pass `rows`: {str(prompt)[:200]}")
        return row

    def _run(self, rollouts: list[_Rollout], failure: list[BaseException]) -> None:
        """Runs all rollouts. The thread that generates ends when the last of them has ended."""
        try:
            asyncio.run(self._run_all(rollouts))
        except BaseException as error:
            failure.append(error)
        finally:
            for rollout in rollouts:
                self._server.end(rollout.key)

    async def _run_all(self, rollouts: list[_Rollout]) -> None:
        slots = asyncio.Semaphore(self._max_concurrent)

        async def run(client: AsyncClient, rollout: _Rollout) -> None:
            request = RolloutRequest(
                initial_messages=rollout.row.messages,
                chat_completions_url=self._model_url,
                llm_api_key=rollout.key,
                label=rollout.row.label,
                metadata=rollout.row.metadata,
            )
            async with slots:
                try:
                    rollout.outcome = await client.run(request, timeout=self._timeout)
                except OF_A_ROLLOUT as error:
                    rollout.outcome = error
                finally:
                    self._server.end(rollout.key)

        async with AsyncClient(self.url, api_key=self._api_key) as client:
            tasks = [asyncio.ensure_future(run(client, rollout)) for rollout in rollouts]
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise

    def _output(self, rollouts: list[_Rollout], model: _Model) -> dict[str, Any]:
        sequences: list[TokenSequence] = []
        rewards: list[float | None] = []
        errors: list[str | None] = []
        for rollout in rollouts:
            sequence, reward, error = _scored(rollout)
            if error is not None:
                log.warning("a rollout has no reward: %s", error)
            sequences.append(sequence or model.nothing(rollout.row))
            rewards.append(reward)
            errors.append(error)
        if all(error is not None for error in errors):
            raise RolloutHostError(f"all {len(errors)} rollouts of a batch failed; the first: {errors[0]}")
        has_logprobs = all(one.has_logprobs for one in sequences)
        return {
            "prompt_ids": [one.prompt_ids for one in sequences],
            "completion_ids": [one.completion_ids for one in sequences],
            "logprobs": [one.logprobs for one in sequences] if has_logprobs else None,
            "env_mask": [one.mask for one in sequences],
            "rollout_rewards": rewards,
            "rollout_errors": errors,
        }


def _scored(rollout: _Rollout) -> tuple[TokenSequence | None, float | None, str | None]:
    """Returns the tokens and the reward of a rollout, or the reason why the rollout has none."""
    outcome = rollout.outcome
    if not isinstance(outcome, RolloutResult):
        return None, None, str(outcome)
    try:
        reward = outcome.reward
    except NoReward as error:
        return None, None, str(error)
    assert outcome.sample is not None
    sequence = rollout.conversation.of_sample(outcome.sample.messages)
    if sequence is None:
        return None, None, f"rollout {outcome.rollout_id}: its sample does not end with a reply of the model"
    return sequence, reward, None


def _key(prompt: Any) -> str:
    """Returns a prompt as text. Data sets add members that are None to messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return json.dumps([normal(message) for message in messages], sort_keys=True)


def _by_prompt(rows: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for value in rows:
        row = Row.of(value)
        if not isinstance(row.prompt, str):
            row = Row([normal(message) for message in row.prompt], row.system_prompt, row.label, row.metadata)
        known = found.setdefault(_key(row.messages), row)
        if (known.label, known.metadata) != (row.label, row.metadata):
            start = str(row.messages)[:200]
            raise ValueError(f"two rows have the same prompt but different labels or metadata: {start}")
    return found


def _rows_of(trainer: Any) -> Iterable[Mapping[str, Any]]:
    """Returns the rows of a trainer's data sets."""
    eval_dataset = trainer.eval_dataset
    datasets = [trainer.train_dataset, *(eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset])]
    for dataset in datasets:
        if dataset is None:
            continue
        if not isinstance(dataset, Dataset):
            raise TypeError("the labels of a streamed data set are unknown beforehand; pass `rows` to HostRollouts")
        yield from dataset


class _Model:
    """The trainer's model, as an endpoint."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._tokenizer = trainer._tokenizer
        self._can_parse = any(
            getattr(self._tokenizer, name, None) is not None for name in ("response_template", "response_schema")
        )

    def conversation(self) -> Conversation:
        return Conversation(self._render, self._trainer.eos_token_ids)

    def _render(self, messages: list[dict[str, Any]], tools: Any, begins_reply: bool) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=self._trainer.chat_template,
            add_generation_prompt=begins_reply,
            tokenize=True,
            return_dict=False,
            **self._trainer.chat_template_kwargs,
        )
        return list(ids)

    def nothing(self, row: Row) -> TokenSequence:
        """Returns a sequence without a token of the model, for a failed rollout."""
        sequence = TokenSequence(row.messages, None, self._render(row.messages, None, True))
        sequence.add_context([self._tokenizer.eos_token_id])
        return sequence

    def answer(self, calls: list[Call]) -> None:
        """Generates the replies to calls in one batch."""
        admitted: list[tuple[Call, TokenSequence, int]] = []
        for call in calls:
            try:
                admitted.append((call, *self._admit(call)))
            except Refused as refused:
                call.refuse(refused)
        if not admitted:
            return
        try:
            generated = self._trainer._generate_single_turn([one.input_ids() for _, one, _ in admitted], None, {}, 1)
        except BaseException:
            for call, _, _ in admitted:
                call.refuse(Refused(500, "the trainer's model failed"))
            raise
        all_ids, all_logprobs = generated
        for at, (call, sequence, room) in enumerate(admitted):
            ids = list(all_ids[at])[:room]
            prompt_tokens = len(sequence.input_ids())
            message, finish_reason = self._reply(sequence, ids)
            sequence.add(ids, None if all_logprobs is None else list(all_logprobs[at])[:room])
            sequence.messages = [*sequence.messages, normal(message)]
            call.answer(message, finish_reason, prompt_tokens, len(ids))

    def _admit(self, call: Call) -> tuple[TokenSequence, int]:
        """Returns the sequence that a call continues, and the number of tokens that can be added to it."""
        try:
            sequence = call.rollout.conversation.extend(call.messages, call.tools)
        except Misaligned as error:
            raise Refused(400, str(error)) from None
        except Exception as error:
            raise Refused(400, f"the chat template cannot render the messages: {error}") from error
        limit = self._trainer.max_completion_length
        room = limit - len(sequence.completion_ids)
        if room <= 0:
            raise Refused(400, f"the conversation is longer than max_completion_length ({limit}) allows")
        return sequence, room

    def _reply(self, sequence: TokenSequence, ids: list[int]) -> tuple[dict[str, Any], str]:
        """Returns the message that the tokens encode."""
        ended = bool(ids) and ids[-1] in self._trainer.eos_token_ids
        if not self._can_parse:
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            return {"role": "assistant", "content": text}, "stop" if ended else "length"
        parsed = parse_response(self._tokenizer, ids, prefix=sequence.input_ids(), tools=sequence.tools)
        message = {"role": "assistant", "content": None, **parsed}
        calls = message.pop("tool_calls", None)
        if not calls:
            return message, "stop" if ended else "length"
        message["tool_calls"] = [_wire_call(call, at, len(sequence.messages)) for at, call in enumerate(calls)]
        return message, "tool_calls"


def _wire_call(call: Mapping[str, Any], at: int, turn: int) -> dict[str, Any]:
    """Returns a call in OpenAI's form, with its arguments as text."""
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {"id": call.get("id") or f"call_{turn}_{at}", "type": "function", "function": function}
