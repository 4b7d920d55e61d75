"""Hooks of modules come and go, and a compiled model has to notice.

PyTorch's compiler either takes it that no module gets or loses hooks once it is compiled, or looks at four tables of every module in
every call, which takes longer than all else that it looks at. Here one text says which modules have which hooks; it is worked out before a
call, and compiled code holds for one text.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


class Hooks:
    """The hooks of a model's modules.

    Attributes:
        text: differs where they do, as far as `look` has seen.
    """

    def __init__(self, model: torch.nn.Module):
        self.text = ""
        self._model = weakref.ref(model)

    def look(self) -> None:
        """Bring `text` up to date. It takes 0.05 ms for the 314 modules of a DenseNet: they are not remembered, for they change."""
        model = self._model()
        modules = {} if model is None else {model: None}
        found = []
        waiting = list(modules)
        for place, module in enumerate(waiting):  # it grows
            known = module.__dict__
            for child in known["_modules"].values():
                if child is not None and child not in modules:
                    modules[child] = None
                    waiting.append(child)
            if known["_forward_hooks"] or known["_forward_pre_hooks"] or known["_backward_hooks"] or known["_backward_pre_hooks"]:
                found.append((place, *(list(known[name]) for name in _TABLES)))
        self.text = repr(found) if found else ""


#: Tables that a module's call looks at.
_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def to_compile(model: Callable[..., Any], hooks: Hooks | None = None) -> Callable[..., Any]:
    """What PyTorch has to compile to run `model`.

    Args:
        hooks: of a module; kept up to date before each call, so that PyTorch need not look at them itself.
    """
    if not isinstance(model, torch.nn.Module):
        return model
    run = model._call_impl

    # PyTorch compiles no frame of its own: a bare nn.Sequential or nn.Transformer needs one around it that is not.
    def call(*arguments: Any, **keywords: Any) -> Any:
        return run(*arguments, **keywords)

    if hooks is None:
        return call

    def call_with(*arguments: Any, **keywords: Any) -> Any:
        len(hooks.text)  # what is compiled holds for this text
        return run(*arguments, **keywords)

    call_with.hooks = hooks  # type: ignore[attr-defined]
    return call_with


def are_watched(target: Callable[..., Any]) -> bool:
    """What is to be compiled knows of its hooks itself."""
    return isinstance(getattr(target, "hooks", None), Hooks)
