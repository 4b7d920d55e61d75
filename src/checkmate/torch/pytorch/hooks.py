"""Hooks of modules come and go, and a compiled model has to notice.

PyTorch's compiler either takes it that no module gets or loses hooks once it is compiled, or looks at four tables of every module in
every call, which takes longer than all else that it looks at. Here one text says which modules have how many hooks; it is worked out
before a call, and compiled code holds for one text. What a hook does PyTorch looks at itself: a script may add the same one in every step.
With PyTorch 2.11 the text also says which parameters need gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import count
from operator import itemgetter
from typing import Any

import torch

_numbers = count()

#: What a module's call looks at, and which of these hooks it calls in other ways.
_tables = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ways = itemgetter("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
#: This release goes on with the gradients of its first call where parameters are frozen or unfrozen later.
_PARAMETERS_TOO = torch.__version__ < "2.12"
#: Of values that become a part of compiled code.
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


class Hooks:
    """The hooks of a model's modules, and what else compiled code would not notice.

    Attributes:
        text: differs where they do, as far as `look` has seen.
    """

    def __init__(self, model: torch.nn.Module):
        self.text = ""
        self._model = model

    def look(self) -> None:
        """Bring `text` up to date. It takes 0.07 ms for the 314 modules of a DenseNet: they are not remembered, for they change."""
        waiting, seen, found, learns = [self._model], {self._model}, [], []
        for place, module in enumerate(waiting):  # it grows
            known = module.__dict__
            for child in known["_modules"].values():
                if child is not None and child not in seen:
                    seen.add(child)
                    waiting.append(child)
            if _PARAMETERS_TOO:
                learns += [parameter is not None and parameter.requires_grad for parameter in known["_parameters"].values()]
            if any(tables := _tables(known)):
                ways = _ways(known)
                found.append((place, [[_told(hook, key, ways) for key, hook in table.items()] for table in tables]))
        self.text = repr((found, learns)) if found or learns else ""


def _told(hook: Callable[..., Any], key: int, ways: Iterable[Container[int]]) -> tuple[Any, ...]:
    """What compiled code is to notice of a hook. PyTorch 2.11 does not look at the defaults of its arguments."""
    constants = [value for value in getattr(hook, "__defaults__", None) or () if isinstance(value, _CONSTANTS)]
    return (*(key in way for way in ways), *constants)


def to_compile(model: Callable[..., Any], hooks: Hooks | None = None) -> Callable[..., Any]:
    """What PyTorch has to compile to run `model`.

    Args:
        hooks: of a module; kept up to date before each call, so that PyTorch need not look at them itself.
    """
    return framed(model._call_impl, hooks) if isinstance(model, torch.nn.Module) else model


def framed(run: Callable[..., Any], hooks: Hooks | None = None) -> Callable[..., Any]:
    """The same function, with a code of its own around it; `hooks` as in `to_compile`.

    PyTorch learns from the calls of one code which sizes vary, and compiles it for so many models and no more: each model has its own. Nor
    does it compile a frame of its own modules: a bare nn.Sequential or nn.Transformer needs one around it that is not.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        if hooks is not None:
            len(hooks.text)  # what is compiled holds for this text
        return run(*arguments, **keywords)

    call.__code__ = call.__code__.replace(co_name=f"call_{next(_numbers)}")
    call.hooks = hooks  # type: ignore[attr-defined]  # for `hooks_of`
    return call


def hooks_of(target: Callable[..., Any]) -> Hooks | None:
    """The hooks that what is to be compiled looks at itself."""
    hooks = getattr(target, "hooks", None)
    return hooks if isinstance(hooks, Hooks) else None
