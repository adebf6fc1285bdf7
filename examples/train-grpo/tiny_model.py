"""A language model of 113,000 parameters that is created and pre-trained on the spot, in a minute and without a download.

It reads characters, knows a few rows of arithmetic, and has a habit: asked for a sum, it mostly guesses a number, and rarely
calls the calculator. It can write only the texts of its pre-training; training by rewards changes how often it writes each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
SPECIAL = [PAD, END, "<system>", "<user>", "<assistant>", "<tool>", "<call>", "</call>"]

# To keep sequences short, the model reads no system message, only the part of a question after the colon, and only the
# expression in a call of the calculator. TRL checks that calls of other tools can be written, too.
CHAT_TEMPLATE = (
    "{% for message in messages if message.role != 'system' %}<{{ message.role }}>"
    "{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}<call>"
    "{% if call.name == 'calculator' %}{{ call.arguments.expression }}{% else %}{{ call.name }}{{ call.arguments }}{% endif %}</call>"
    "{% else %}{{ message.content.split(': ')[-1] }}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

# The template by which transformers parses the output of the model.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "calculator", "arguments": {"expression": "{content}"}},
            },
        },
        "content": {"close": "<end>", "content": "text"},
    },
}

Turns = list[dict[str, object]]


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token per character."""
    words = SPECIAL + [chr(code) for code in range(32, 127)] + ["\n"]
    characters = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=PAD))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token=PAD, eos_token=END, additional_special_tokens=SPECIAL[2:]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.response_template = RESPONSE_TEMPLATE
    return fast


def model(words: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Returns a model with random weights."""
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def encode(words: PreTrainedTokenizerFast, turns: Turns) -> tuple[list[int], list[int]]:
    """Returns the tokens of a conversation, and as labels those that the assistant writes (-100 for the others)."""
    ids: list[int] = []
    labels: list[int] = []
    for at, turn in enumerate(turns):
        before = len(ids)
        ids = list(words.apply_chat_template(turns[: at + 1], tokenize=True, return_dict=False))
        if turn["role"] != "assistant":
            labels += [-100] * (len(ids) - before)
            continue
        known = words.apply_chat_template(turns[:at], tokenize=True, return_dict=False, add_generation_prompt=True)
        labels += [-100] * (len(known) - before) + ids[len(known) :]
    return ids, labels


def pretrain(
    net: LlamaForCausalLM,
    words: PreTrainedTokenizerFast,
    conversation: Callable[[random.Random], Turns],
    *,
    steps: int,
    batch: int,
    seed: int,
) -> float:
    """Trains on conversations, and returns the last loss."""
    chance = random.Random(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    net.train()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = net(**_batch(words, [encode(words, conversation(chance)) for _ in range(batch)])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def _batch(
    words: PreTrainedTokenizerFast, rows: Sequence[tuple[list[int], list[int]]]
) -> dict[str, torch.Tensor]:
    length = max(len(ids) for ids, _ in rows)
    pad = words.pad_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in rows]),
    }


def habit(rows: Sequence[tuple[str, str, str]], calls: float) -> Callable[[random.Random], Turns]:
    """Returns a function that generates conversations about rows of prompt, expression and answer.

    With probability `calls` the assistant calls the calculator and repeats its result. Otherwise it guesses, and is wrong.
    """

    def conversation(chance: random.Random) -> Turns:
        prompt, expression, answer = chance.choice(rows)
        user = {"role": "user", "content": prompt}
        if chance.random() >= calls:
            guess = answer
            while guess == answer:
                guess = str(chance.randrange(-20, 200))
            return [user, {"role": "assistant", "content": f"#### {guess}"}]
        call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
        return [
            user,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": answer},
            {"role": "assistant", "content": f"#### {answer}"},
        ]

    return conversation
