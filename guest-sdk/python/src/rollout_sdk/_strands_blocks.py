"""Messages of agents in the shape of the Strands framework: content is a list of blocks, `{"text": …}`, `{"toolUse":
…}` and `{"toolResult": …}`. Converts between these and chat messages."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from ._json import JsonObject, is_list, is_mapping
from .message import Message, ToolCall, text_of

Block: TypeAlias = dict[str, Any]


def use_of(call: ToolCall) -> JsonObject:
    """Returns the inner object of a `toolUse` block."""
    return {"toolUseId": call.id, "name": call.name, "input": _input_of(call.arguments)}


def tool_result(use: JsonObject, status: str, content: list[Block]) -> JsonObject:
    """Returns the inner object of a `toolResult` block."""
    return {"toolUseId": use["toolUseId"], "status": status, "content": content}


def _input_of(arguments: str) -> Any:
    """Returns the arguments in the framework's form: parsed if they are valid JSON."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


def in_blocks(message: Message) -> Message:
    """Returns a message in the framework's form. One that is already in this form stays as it is."""
    content = message.get("content")
    if is_list(content) and all(is_mapping(block) and "type" not in block for block in content):
        return message
    if message.get("role") == "tool":
        text = text_of(message)
        result = {"toolUseId": message.get("tool_call_id", ""), "status": "success", "content": [{"text": text}]}
        return {"role": "user", "content": [{"toolResult": result}]}
    blocks: list[Block] = []
    if text := text_of(message):
        blocks.append({"text": text})
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        use = {
            "toolUseId": call.get("id", ""),
            "name": function.get("name", ""),
            "input": _input_of(function.get("arguments") or ""),
        }
        blocks.append({"toolUse": use})
    return {**{k: v for k, v in message.items() if k not in ("content", "tool_calls")}, "content": blocks}


def as_chat(message: Message) -> list[Message]:
    """Returns the chat messages for a message in the framework's form."""
    parts: list[JsonObject] = []
    calls: list[JsonObject] = []
    results: list[Message] = []
    for block in message.get("content", []):
        if "text" in block:
            parts.append({"type": "text", "text": block["text"]})
        elif use := block.get("toolUse"):
            given = use["input"]
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            function = {"name": use["name"], "arguments": arguments}
            calls.append({"id": use["toolUseId"], "type": "function", "function": function})
        elif result := block.get("toolResult"):
            text = "\n".join(_result_text(piece) for piece in result["content"])
            results.append({"role": "tool", "tool_call_id": result["toolUseId"], "content": text})
    if not parts and not calls:
        return results
    chat: Message = {"role": message["role"]}
    if parts:
        chat["content"] = parts
    if calls:
        chat["tool_calls"] = calls
    return [*results, chat]


def _result_text(piece: Block) -> str:
    if "text" in piece:
        return str(piece["text"])
    return json.dumps(piece.get("json", piece), ensure_ascii=False)
