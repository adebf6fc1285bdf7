"""The placeholder that stands where other frameworks take a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What belongs to the host: a guest has no model, address or key to choose.
_THE_HOSTS = ("model", "model_id", "api_key", "base_url", "api_base", "client_args", "headers", "extra_headers")


class RolloutModel:
    """The model that the host provides. It takes sampling parameters only, as one `params`
    or by name: which model it is, where it is and how it is paid for is the host's."""

    def __init__(self, params: Mapping[str, Any] | None = None, **more: Any) -> None:
        given = {**(params or {}), **more}
        for name in _THE_HOSTS:
            if name in given:
                raise TypeError(f"`{name}` is the host's to choose; the model takes sampling parameters only")
        self.params: dict[str, Any] = given

    def __repr__(self) -> str:
        return f"RolloutModel({self.params!r})"


def params_of(model: Any) -> dict[str, Any]:
    """The sampling parameters of what was given as a model."""
    if model is None:
        return {}
    if isinstance(model, RolloutModel):
        return dict(model.params)
    raise TypeError(
        f"the model is the host's: give a RolloutModel with sampling parameters, or none, not {model!r}"
    )
