"""What training does in which no plan has a part: it is told if it takes more than the budget.

That is the work of optimizers, and backward passes through no compiled graph, such as a penalty on gradients computed with
`model.forward`, which goes around plans, or a loss of what the model has returned without gradients.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..memory.held import Held
from ..memory.outside_graphs import leaves_behind, nodes_outside
from ..memory.script_memory import ScriptMemory, looked_at
from ..plan import Plan
from ..pytorch.internals import around_backward, inside_backward
from .watch import backward_beyond_plans, beyond_plans

#: Steps of optimizers whose peaks are worked out: several may take turns. It takes a copy of the optimizer, once, and milliseconds.
_OPTIMIZER_STEPS = 8
#: Backward passes of so many kinds are looked at.
_KINDS = 32


class OutsidePlans:
    """Of one group.

    Args:
        held: what training holds. plan: for its budget; None while there is none. tell: warns, once for each kind of message.
        beside: storages that the script holds besides, by identity.
    """

    def __init__(
        self,
        held: Held,
        plan: Callable[[], Plan | None],
        tell: Callable[[str, str], None],
        beside: Callable[[], Mapping[int, torch.UntypedStorage]],
    ) -> None:
        self._held, self._plan, self._tell, self._beside = held, plan, tell, beside
        self._optimizer_steps = 0  # that were looked at
        self._alone: dict[tuple[str, ...], bool] = {}  # by the nodes of a backward pass: no graph runs in it, as far as is known
        self._runs, self._trains = 0, True  # of graphs; the last one has a backward pass
        held.on_step(self._optimizer_stepped)

    def begins_anew(self) -> None:
        """A plan was made: other parameters may train now."""
        self._optimizer_steps = 0

    def runs(self, trains: bool) -> None:
        """This thread runs a graph of the group, one with a backward pass or one without."""
        self._runs, self._trains, _last.at = self._runs + 1, trains, weakref.ref(self)

    def _optimizer_stepped(self) -> None:
        """An optimizer has made a step: the first ones say whether its work fits the budget."""
        plan = self._plan()
        if plan is None or self._optimizer_steps == _OPTIMIZER_STEPS:
            return
        self._optimizer_steps += 1
        peak = self._held.now(plan.device) + self._held.step_peak(plan.device)
        if peak > plan.budget:
            self._tell("optimizer", beyond_plans(plan, peak))

    def backward_begins(self, roots: Sequence[Any]) -> Callable[[bool], None] | None:
        """Autograd's engine is about to run while no round looks at it: what is to be called when it has run."""
        plan = self._plan()
        if plan is None or plan.device.type != "cpu":
            return None
        leaves = leaves_behind(roots)
        if leaves is None:
            return None  # a planned graph has a part in it
        if not any(map(self._held.knows, leaves)) and (self._trains or any(isinstance(x, torch.nn.Parameter) for x in leaves)):
            return None  # another model, which has a budget of its own or none, or what has nothing to do with this one
        kind = nodes_outside(roots)
        if kind not in self._alone:  # graphs may run in it, as in that of a `torch.autograd.Function`, and see to it themselves
            return partial(self._first_ended, kind, self._runs) if len(self._alone) < _KINDS else None
        if not self._alone[kind]:
            return None
        self._alone[kind] = False  # once is enough
        script = ScriptMemory(self._held.storages, beside=self._beside)
        return partial(self._ended, plan, self._held.now(plan.device), script)

    def _first_ended(self, kind: tuple[str, ...], runs: int, well: bool) -> None:
        self._alone[kind] = well and runs == self._runs

    def _ended(self, plan: Plan, held: int, script: ScriptMemory, well: bool) -> None:
        script.leave()
        peak = held + max(script.seen.gaps.values(), default=0)
        if well and peak > plan.budget:
            self._tell("backward", backward_beyond_plans(plan, peak))


class _Last(threading.local):
    """Of the group whose graph this thread has run last."""

    at: weakref.ref[OutsidePlans] | None = None


_last = _Last()


def _engine_begins(roots: Sequence[Any]) -> Callable[[bool], None] | None:
    last = _last.at() if _last.at is not None else None
    return None if last is None or looked_at() or inside_backward() else last.backward_begins(roots)


#: After `script_memory` has done so: what looks at the engine must be there when that begins.
around_backward(_engine_begins)
