"""Server settings and calls of the published package's programs. They are read as configuration, or do nothing, because
the host serves."""

from __future__ import annotations

from typing import Any

from ._json import JsonObject, is_list, is_object
from ._older import Never
from .config import Settings


class _Model(Settings):
    """Named values with a part of the interface of Pydantic's models."""

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> JsonObject:
        dumped = super().model_dump()
        return _without_none(dumped) if exclude_none else dumped


def _without_none(value: Any) -> Any:
    if is_object(value):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if is_list(value) else value


class OpenAIFunctionPropertySchema(_Model):
    """The schema of one parameter."""

    type: str
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Model):
    """The schema of a function's parameters."""

    type: str = "object"
    properties: dict[str, Any] = {}  # noqa: RUF012
    required: list[str] = []  # noqa: RUF012


class OpenAIFunctionSchema(_Model):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(_Model):
    """A tool, in OpenAI's form."""

    type: str = "function"
    function: OpenAIFunctionSchema


class RolloutClientSettings(_Model):
    """Settings of the original's client. Here the host requests completions and reports results."""


class RolloutServerSettings(_Model):
    """Settings of the original's server."""

    max_concurrent_rollouts: int | None = None


class RolloutSettings(_Model):
    """The original's settings. A plugin can set only the number of concurrent rollouts; the operator sets the
    others."""

    client: RolloutClientSettings = RolloutClientSettings()
    server: RolloutServerSettings = RolloutServerSettings()


class App:
    """Stands for the original's server. Its number of concurrent rollouts becomes the default of the plugin's
    configuration."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent or None


def create_app(
    agent_loop: Any = None, max_concurrent: int | None = None, settings: RolloutSettings | None = None, **_: Any
) -> App:
    """Creates the stand-in for the original's server of an agent loop."""
    del agent_loop
    server = settings.server if settings is not None else RolloutServerSettings()
    return App(max_concurrent or server.max_concurrent_rollouts)


def map_initial_messages_to_content_blocks(messages: list[JsonObject]) -> list[JsonObject]:
    """Converts messages with text content to messages with content blocks, for agents of Strands."""
    return [
        {**each, "content": [{"text": each["content"]}]} if isinstance(each.get("content"), str) else each
        for each in messages
    ]


class LocalBackend:
    """Stands for the original's choice of the workflow. Here the workflow is found by its class."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def create_rollout_server(*_: Any, **__: Any) -> App:
    """Creates the stand-in for the original's server of a backend."""
    return App(None)


def run(*_: Any, **__: Any) -> Never:
    """Stands for the original's function that starts the server."""
    raise RuntimeError("a component does not serve: `rollout-host serve` does")
