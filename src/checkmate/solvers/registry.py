"""The methods by name, and the one function that starts them."""

from __future__ import annotations

from importlib import import_module

from .interface.running_search import Search

#: name -> "folder.module:function" under this package; imported when first used, so that `import checkmate` stays fast.
_METHODS = {
    "auto": "default.auto:auto",
    "greedy": "heuristics.greedy_eviction:greedy",
    "milp": "paper.checkmate_milp:milp",
    "milp-cbc": "paper.checkmate_milp:milp_cbc",
    "milp-gurobi": "paper.checkmate_milp:milp_gurobi",
    "lp-rounding": "paper.two_phase_rounding:lp_rounding",
    "lp-rounding-randomized": "paper.two_phase_rounding:lp_rounding_randomized",
    "keep-all": "baselines.keep_all:keep_all",
    "keep-all-forward": "baselines.keep_all:keep_all_forward",
    "griewank": "baselines.griewank:griewank",
    "griewank-ap": "baselines.griewank:griewank",
    "chen-sqrt": "baselines.chen:chen_sqrt",
    "chen-sqrt-ap": "baselines.chen:chen_sqrt",
    "chen-sqrt-linear": "baselines.chen:chen_sqrt_linear",
    "chen-greedy": "baselines.chen:chen_greedy",
    "chen-greedy-ap": "baselines.chen:chen_greedy",
    "chen-greedy-linear": "baselines.chen:chen_greedy_linear",
}
#: Used instead when ops may be reordered; the other methods keep the graph's order, which is one of them.
_ANY_ORDER = {"auto": "default.any_order:any_order"}


def methods() -> list[str]:
    """Names that `solve` accepts as `method`."""
    return list(_METHODS)


def run(search: Search, method: str) -> None:
    """Let the method of that name work on a search until it is done."""
    target = _ANY_ORDER.get(method, _METHODS[method]) if search.order == "any" else _METHODS[method]
    module, function = target.split(":")
    getattr(import_module(f".{module}", __package__), function)(search)
