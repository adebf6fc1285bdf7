"""What programs for the published package say to its server, read as settings or as what
it is for this host: nothing to do."""

from __future__ import annotations

from typing import Any

from ._json import JsonObject, is_list, is_object
from ._older import Never
from .config import Settings


class _Model(Settings):
    """Named values, with what Pydantic's models have of them."""

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
    """How the original asks for completions and reports. Here the host does that."""


class RolloutServerSettings(_Model):
    """How the original serves."""

    max_concurrent_rollouts: int | None = None


class RolloutSettings(_Model):
    """The original's settings. Of these the number of rollouts at once is a plugin's to
    say; the others are the operator's."""

    client: RolloutClientSettings = RolloutClientSettings()
    server: RolloutServerSettings = RolloutServerSettings()


class App:
    """Stands where the original has its server. The number of rollouts at once that it is
    told is the default of the plugin's configuration."""

    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent or None


def create_app(
    agent_loop: Any = None, max_concurrent: int | None = None, settings: RolloutSettings | None = None, **_: Any
) -> App:
    """The original's server of an agent loop."""
    del agent_loop
    server = settings.server if settings is not None else RolloutServerSettings()
    return App(max_concurrent or server.max_concurrent_rollouts)


def map_initial_messages_to_content_blocks(messages: list[JsonObject]) -> list[JsonObject]:
    """Messages with a text as their content as ones with a block of it, as agents of Strands take them."""
    return [
        {**each, "content": [{"text": each["content"]}]} if isinstance(each.get("content"), str) else each
        for each in messages
    ]


class LocalBackend:
    """Stands where the original says what it runs. Here that is found by its class."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def create_rollout_server(*_: Any, **__: Any) -> App:
    """The original's server of a backend."""
    return App(None)


def run(*_: Any, **__: Any) -> Never:
    """Where the original begins to serve."""
    raise RuntimeError("a component does not serve: `rollout-host serve` does")
