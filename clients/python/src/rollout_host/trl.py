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

**Groups and branches.** With `groups=True`, the generations of a prompt are a group on the host, which a plugin's group
grader rates together. With `branches=Branches(turn, per_parent)`, some generations of a prompt continue others of it from
one of their turns, and only their own tokens are trained on.

**A failed rollout has no reward.** TRL leaves it out of its group's baseline and gives it no advantage; none of its
tokens is trained on. A host that cannot be reached, or that refuses requests, ends the training with an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from ._conversation import Conversation, Misaligned, TokenSequence, normal
from ._model_server import Call, ModelServer, Refused
from ._optional import need
from .client import (
    AdmissionLost,
    AsyncClient,
    AsyncRolloutHandle,
    GroupSeat,
    LeaseLost,
    NoReward,
    RolloutFailed,
    RolloutHostError,
    RolloutRequest,
    RolloutResult,
    RolloutTimeout,
    gather,
)
from .rows import Row, read_rows

need("trl", "trl", "rollout_host.trl")
from datasets import Dataset  # noqa: E402
from trl.chat_template_utils import parse_response  # noqa: E402

__all__ = ["Branches", "HostRollouts", "load_rows", "rollout_reward"]

log = logging.getLogger(__name__)

# Maximum number of members of a group, as on the host.
GROUP_SIZE_MAX = 128


class RolloutFailedBefore(RolloutHostError):
    """The parent of a branch failed."""


# Errors of one rollout. All others concern the host and end the training.
OF_A_ROLLOUT = (AdmissionLost, RolloutFailed, RolloutTimeout, LeaseLost, NoReward)


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


@dataclass(frozen=True)
class Branches:
    """The part of the generations of a prompt that continue others of them.

    Of `num_generations`, one in `1 + per_parent` is a rollout from the beginning, and the others are its branches.
    """

    turn: int = 1
    """Number of the parent's calls of the model that a branch shares. A branch makes at least one call of its own, so a parent
    with as few calls is continued from before its last one."""
    per_parent: int = 1
    """Number of branches of each parent."""

    def __post_init__(self) -> None:
        if self.turn < 0 or self.per_parent < 1:
            raise ValueError("turn is at least 0, and per_parent at least 1")


@dataclass
class _Rollout:
    """One prompt of a batch."""

    row: Row
    conversation: Conversation
    key: str = field(default="", repr=False)
    """The key of its calls of the model. The branches of a parent share one."""
    outcome: RolloutResult | RolloutHostError | None = None
    shared_turns: int | None = None
    """Number of calls that a branch shares with its parent; None for a rollout from the beginning."""
    branches: list[_Rollout] = field(default_factory=list)


class HostRollouts:
    """Runs the rollouts of a batch on a host.

    Args:
        url: The host's address; `http://HOST/p/NAME` for a plugin of a catalog.
        rows: Rows with the label and metadata of each prompt (`prompt`, `label` or `ground_truth`, `metadata`), because TRL
            passes prompts only. By default those of the trainer's data sets.
        api_key: The host's key, if it requires one.
        groups: Whether the generations of a prompt are a group on the host: they are rated by the plugin's group grader, and
            finish together.
        branches: Which generations of a prompt continue others. The host needs a journal.
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
        groups: bool = False,
        branches: Branches | None = None,
        timeout: float | None = 3600.0,
        max_concurrent: int = 512,
        generation_batch_max: int = 512,
        batch_window_secs: float = 0.05,
        address: str = "127.0.0.1",
        port: int = 0,
        model_url: str | None = None,
    ) -> None:
        if groups and branches is not None:
            raise ValueError("the branches of a parent are a group by themselves; leave out groups or branches")
        self.url = url
        self.generated_tokens = 0
        """Number of tokens that the model has generated so far."""
        self._groups = groups
        self._branches = branches
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
        started = self._started(rollouts, trainer)
        failure: list[BaseException] = []
        running = threading.Thread(target=self._run, args=(started, rollouts, failure), name="host-rollouts", daemon=True)
        running.start()
        try:
            while calls := self._server.batch(self._batch_window_secs, self._generation_batch_max):
                self.generated_tokens += model.answer(calls)
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

    def _started(self, rollouts: list[_Rollout], trainer: Any) -> list[list[_Rollout]]:
        """Returns the rollouts that are started together: groups, or rollouts from the beginning, whose branches follow. Each
        receives the key of its calls."""
        # An evaluation measures rollouts from the beginning.
        branches = self._branches if trainer.model.training else None
        if not self._groups and branches is None:
            started = [[rollout] for rollout in rollouts]
        else:
            started = []
            for generations in _by_generation(rollouts, trainer):
                if branches is None:
                    started.append(generations)
                else:
                    started += [[parent] for parent in _parents(generations, branches)]
            most = max(len(one) + len(one[0].branches) for one in started)
            if most > min(self._max_concurrent, GROUP_SIZE_MAX):
                raise ValueError(
                    f"{most} rollouts are one group; a group has at most {GROUP_SIZE_MAX}, which max_concurrent "
                    f"({self._max_concurrent}) must allow at once"
                )
        for rollout in (rollout for together in started for rollout in together):
            rollout.key = self._server.open(rollout)
            if rollout.branches:
                key = self._server.open_tree(rollout.branches)
                for branch in rollout.branches:
                    branch.key = key
        return started

    def _run(
        self, started: list[list[_Rollout]], rollouts: list[_Rollout], failure: list[BaseException]
    ) -> None:
        """Runs all rollouts. The thread that generates ends when the last of them has ended."""
        try:
            asyncio.run(self._run_all(started))
        except BaseException as error:
            failure.append(error)
        finally:
            for rollout in rollouts:
                self._server.end(rollout.key)

    async def _run_all(self, started: list[list[_Rollout]]) -> None:
        room = _Room(self._max_concurrent)

        async def run(client: AsyncClient, together: list[_Rollout]) -> None:
            async with room.of(max(len(together), len(together[0].branches))):
                if len(together) == 1:
                    await self._run_one(client, together[0], None)
                    await self._run_branches(client, together[0])
                else:
                    group = uuid4().hex
                    seats = [GroupSeat(group, len(together), number) for number in range(len(together))]
                    await gather(self._run_one(client, *one) for one in zip(together, seats, strict=True))

        async with AsyncClient(self.url, api_key=self._api_key) as client:
            await gather(run(client, together) for together in started)

    def _request(self, rollout: _Rollout, seat: GroupSeat | None) -> RolloutRequest:
        return RolloutRequest(
            initial_messages=rollout.row.messages,
            chat_completions_url=self._model_url,
            llm_api_key=rollout.key,
            label=rollout.row.label,
            metadata=rollout.row.metadata,
            group=seat,
        )

    async def _run_one(self, client: AsyncClient, rollout: _Rollout, seat: GroupSeat | None) -> None:
        try:
            rollout.outcome = await client.run(self._request(rollout, seat), timeout=self._timeout)
        except OF_A_ROLLOUT as error:
            rollout.outcome = error
        finally:
            self._server.end(rollout.key)

    async def _run_branches(self, client: AsyncClient, parent: _Rollout) -> None:
        """Continues a rollout that has ended."""
        branches, of = parent.branches, parent.outcome
        if not branches or self._branches is None:
            return
        key = branches[0].key
        try:
            if not isinstance(of, RolloutResult):
                raise RolloutFailedBefore(f"the rollout that it continues failed: {of}")
            turn = max(min(self._branches.turn, parent.conversation.turns - 1), 0)
            for branch in branches:
                branch.conversation, branch.shared_turns = parent.conversation.fork(turn), turn
            self._server.begin(key)
            request = self._request(branches[0], None)
            handles = await client.tree(request, of.rollout_id, turn, len(branches), timeout=self._timeout)
        except (*OF_A_ROLLOUT, RolloutFailedBefore) as error:
            for branch in branches:
                branch.outcome = error
            self._server.end(key)
            return
        try:
            ends = enumerate(zip(branches, handles, strict=True))
            await gather(self._end_of_branch(number, branch, handle) for number, (branch, handle) in ends)
        except BaseException:
            await client._abandon(*(handle.rollout_id for handle in handles))
            raise

    async def _end_of_branch(self, number: int, branch: _Rollout, handle: AsyncRolloutHandle) -> None:
        try:
            branch.outcome = await handle.result(timeout=self._timeout)
        except OF_A_ROLLOUT as error:
            branch.outcome = error
            if isinstance(error, RolloutTimeout):
                await handle.cancel()
        finally:
            self._server.end_branch(branch.key, number)

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
            "rollout_shared_turns": [rollout.shared_turns for rollout in rollouts],
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
    if any(_is_group_graded(branch) for branch in rollout.branches):
        return None, None, f"rollout {outcome.rollout_id}: its branches were rated as a group, of which it is not a member"
    assert outcome.sample is not None
    sequence = rollout.conversation.of_sample(outcome.sample.messages)
    if sequence is None:
        return None, None, f"rollout {outcome.rollout_id}: its sample does not end with a reply of the model"
    return sequence, reward, None


def _is_group_graded(rollout: _Rollout) -> bool:
    group = rollout.outcome.group if isinstance(rollout.outcome, RolloutResult) else None
    return group is not None and group.graded


def _by_generation(rollouts: list[_Rollout], trainer: Any) -> Iterable[list[_Rollout]]:
    """Returns the generations of each prompt, which TRL puts next to each other."""
    count = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    for at in range(0, len(rollouts), count):
        generations = rollouts[at : at + count]
        if len(generations) != count or any(one.row is not generations[0].row for one in generations):
            raise ValueError(f"the batch does not have {count} generations of each prompt next to each other")
        yield generations


def _parents(generations: list[_Rollout], branches: Branches) -> list[_Rollout]:
    """Returns the rollouts from the beginning, each of which receives its branches."""
    each = 1 + branches.per_parent
    if len(generations) % each:
        raise ValueError(f"{len(generations)} generations cannot be divided into parents with {branches.per_parent} branches")
    parents = generations[::each]
    for at, parent in enumerate(parents):
        parent.branches = generations[at * each + 1 : (at + 1) * each]
        for branch in parent.branches:
            branch.shared_turns = 0
    return parents


class _Room:
    """Room for rollouts, which those that wait for each other receive at once."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def of(self, count: int) -> AsyncIterator[None]:
        taken = 0
        try:
            # Two that have a part of their room each would wait for each other.
            async with self._turn:
                while taken < count:
                    await self._slots.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._slots.release()


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

    def answer(self, calls: list[Call]) -> int:
        """Generates the replies to calls in one batch, and returns their number of tokens."""
        admitted: list[tuple[Call, TokenSequence, int]] = []
        for call in calls:
            try:
                admitted.append((call, *self._admit(call)))
            except Refused as refused:
                call.refuse(refused)
        if not admitted:
            return 0
        generated_tokens = 0
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
            logprobs = None if all_logprobs is None else list(all_logprobs[at])[:room]
            call.rollout.conversation.add_reply(sequence, message, ids, logprobs)
            generated_tokens += len(ids)
            call.answer(message, finish_reason, prompt_tokens, len(ids))
        return generated_tokens

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
