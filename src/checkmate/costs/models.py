"""The cost models, by name: "profile" runs every distinct op on the device, "flops" runs nothing."""

from __future__ import annotations

from ..errors import UnknownMethod

COST_MODELS = ("profile", "flops")


def check_cost_model(name: str) -> None:
    """Accept the name of a cost model.

    Raises:
        UnknownMethod: there is none of that name.
    """
    if name not in COST_MODELS:
        raise UnknownMethod(f"unknown cost model {name!r}: choose one of {', '.join(COST_MODELS)}")
