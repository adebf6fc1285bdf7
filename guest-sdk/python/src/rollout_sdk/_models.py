"""The placeholder for a model in the shapes of other frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Arguments that the host decides: a guest cannot choose a model, an address or a key.
_THE_HOSTS = ("model", "model_id", "api_key", "base_url", "api_base", "client_args", "headers", "extra_headers")


class RolloutModel:
    """The model that the host provides. It accepts only sampling parameters, in `params` or by name: the host decides
    which model it is, its address and its key."""

    def __init__(self, params: Mapping[str, Any] | None = None, **more: Any) -> None:
        given = {**(params or {}), **more}
        for name in _THE_HOSTS:
            if name in given:
                raise TypeError(f"`{name}` is chosen by the host; the model accepts only sampling parameters")
        self.params: dict[str, Any] = given

    def __repr__(self) -> str:
        return f"RolloutModel({self.params!r})"


def params_of(model: Any) -> dict[str, Any]:
    """Returns the sampling parameters of a model argument."""
    if model is None:
        return {}
    if isinstance(model, RolloutModel):
        return dict(model.params)
    raise TypeError(
        f"the model is the host's: give a RolloutModel with sampling parameters, or none, not {model!r}"
    )
