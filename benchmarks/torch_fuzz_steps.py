"""Steps of training scripts: each function of `STEPS` is one. See `torch_fuzz.py`."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

#: What training came to: names and values.
Found = list[tuple[str, torch.Tensor | None]]


OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "foreach": True}),
    ("SGD", {"fused": True}),
    ("Adam", {"foreach": False}),
    ("AdamW", {"fused": True}),
    ("AdamW", {}),
    ("RMSprop", {}),
    ("Adagrad", {}),
)
WITHOUT_GRADIENTS: tuple[Callable[[], Any], ...] = (torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False))


class Stop(Exception):
    """What a script raises, and catches."""


class Training:
    """A script that trains a model.

    Attributes:
        model: the module. call: what is called in its place. compile: makes of a module what is called in its place.
        batch: the inputs of a number. draw: random numbers of the script, the same ones for all that train the program.
        found: what was noted. kept: what the script keeps from one step to the next.
    """

    def __init__(
        self, model: Any, compile: Callable[[Any], Any], batch: Callable[[int], tuple[torch.Tensor, ...]], draw: random.Random
    ):
        self.model, self.compile, self.batch, self.draw = model, compile, batch, draw
        self.call = compile(model)
        self.found: Found = []
        self.kept: dict[str, Any] = {}
        self._number = 0
        self.renew_optimizer()

    def run(self, steps: Iterable[Sequence[Callable[[Training], None]]]) -> Found:
        """Everything that a script can see, which does these things in each step."""
        for step in steps:
            for number, part in enumerate(step):
                self.note(f"{'after' if number else 'step'} {part.__name__}", None)
                part(self)
        for name, value in self.model.state_dict().items():
            self.note(name, value)
        self.note("next random number", torch.rand(1))
        return self.found

    def renew_optimizer(self) -> None:
        name, options = self.draw.choice(OPTIMIZERS)
        self.optimizer = getattr(torch.optim, name)(list(self.model.parameters()), lr=1e-3, **options)

    def note(self, name: str, values: Any) -> None:
        self.found += [(name, None if value is None else value.detach().clone()) for value in tree_leaves(values)]

    def note_gradients(self, model: Any = None) -> None:
        for name, parameter in (model or self.model).named_parameters():
            self.note(f"gradient of {name}", parameter.grad)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        self._number += 1
        return self.batch(self._number)

    def outputs(self) -> list[torch.Tensor]:
        """Those of a call that have gradients."""
        found = tree_leaves(self.call(*self.inputs()))
        self.note("output", found)
        return [x for x in found if x.requires_grad]

    def forward(self) -> torch.Tensor:
        """The loss."""
        self.kept["inputs"] = inputs = self.inputs()
        outputs = self.call(*inputs)
        self.note("output", outputs)
        loss = self.model.loss(outputs)
        self.note("loss", loss)
        return loss

    def end(self) -> None:
        """Of a step: the optimizer's."""
        self.note_gradients()
        self.note("gradient of inputs", [x.grad for x in self.kept.get("inputs", ()) if x.is_leaf])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.draw.random() < 0.8)


# --- steps ---


def plain(t: Training) -> None:
    t.forward().backward()
    t.end()


def retained(t: Training) -> None:
    loss = t.forward()
    loss.backward(retain_graph=True)
    t.note_gradients()
    loss.backward()
    t.end()


def retained_for_nothing(t: Training) -> None:
    loss = t.forward()
    loss.backward(retain_graph=True)
    t.kept["loss"] = loss
    t.end()


def by_grad(t: Training) -> None:
    loss = t.forward()
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    t.end()


def grad_of_some(t: Training) -> None:
    loss = t.forward()
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    some = t.draw.sample(parameters, min(2, len(parameters)))
    t.note("some gradients", torch.autograd.grad(loss, some, allow_unused=True, retain_graph=True))
    loss.backward()
    t.end()


def scaled(t: Training) -> None:
    scaler = t.kept.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=128.0))
    loss = t.forward()
    scaler.scale(loss).backward()
    scaler.unscale_(t.optimizer)
    t.note("norm", torch.nn.utils.clip_grad_norm_(t.model.parameters(), 0.5))
    scaler.step(t.optimizer)
    scaler.update()
    t.optimizer.zero_grad()


def autocast(t: Training) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = t.forward()
    loss.backward()
    t.end()


def clipped(t: Training) -> None:
    t.forward().backward()
    t.note("norm", torch.nn.utils.clip_grad_norm_(t.model.parameters(), 0.1, foreach=t.draw.random() < 0.5))
    t.end()


def closure(t: Training) -> None:
    def run() -> torch.Tensor:
        t.optimizer.zero_grad()
        loss = t.forward()
        loss.backward()
        return loss

    t.optimizer.step(run)
    t.note_gradients()


def accumulated(t: Training) -> None:
    for _ in range(t.draw.choice([2, 3])):
        (t.forward() / 2).backward()
    t.end()


def never_zeroed(t: Training) -> None:
    t.forward().backward()
    t.note_gradients()
    t.optimizer.step()


def skipped(t: Training) -> None:
    t.kept["skipped"] = t.forward()
    plain(t)


def dropped(t: Training) -> None:
    t.forward()


def fails_in_loss(t: Training) -> None:
    with suppress(Stop):
        outputs = t.call(*t.inputs())
        t.note("output", outputs)
        raise Stop
    plain(t)


def _stop(*_: Any) -> None:
    raise Stop


def fails_in_forward(t: Training) -> None:
    handle = t.model.register_forward_pre_hook(_stop)
    with suppress(Stop):
        t.call(*t.inputs())
    handle.remove()
    plain(t)


def fails_inside(t: Training) -> None:
    """In a module inside: what ran before has run."""
    inner = [module for module in t.model.modules() if module is not t.model]
    if inner:
        handle = t.draw.choice(inner).register_forward_pre_hook(_stop)
        with suppress(Stop):
            t.call(*t.inputs())
        handle.remove()


def fails_in_backward(t: Training) -> None:
    loss = t.forward()
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    handle = t.draw.choice(parameters).register_hook(_stop)
    with suppress(Stop):
        loss.backward()
    handle.remove()
    t.optimizer.zero_grad()
    plain(t)


def of_one_output(t: Training) -> None:
    trained = t.outputs()
    t.draw.choice(trained).float().square().mean().backward()
    t.end()


def of_outputs_in_turn(t: Training) -> None:
    outputs = tree_leaves(t.call(*t.inputs()))
    trained = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    t.draw.shuffle(trained)
    for number, output in enumerate(trained):
        output.float().square().mean().backward(retain_graph=number + 1 < len(trained))
        t.note_gradients()
    t.end()


def of_outputs_at_once(t: Training) -> None:
    outputs = tree_leaves(t.call(*t.inputs()))
    trained = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.autograd.backward(trained, [torch.ones_like(x) * 0.01 for x in trained])
    t.end()


def two_calls(t: Training) -> None:
    losses = [t.forward(), t.forward()]
    t.draw.shuffle(losses)
    for loss in losses:
        loss.backward()
    t.end()


def one_loss_of_two_calls(t: Training) -> None:
    (t.forward() + t.forward()).backward()
    t.end()


def evaluated_meanwhile(t: Training) -> None:
    loss = t.forward()
    mode = t.draw.choice(WITHOUT_GRADIENTS)
    with mode():
        t.note("meanwhile", t.call(*(x.detach() for x in t.inputs())))
    loss.backward()
    t.end()


def functional(t: Training) -> None:
    values = {name: (p * 1.01).detach().requires_grad_(p.requires_grad) for name, p in t.model.named_parameters()}
    outputs = torch.func.functional_call(t.model, values, t.inputs()) if t.call is t.model else t.call(*t.inputs())
    t.note("output", outputs)
    t.model.loss(outputs).backward()
    t.note("gradient", [value.grad for value in values.values()])
    t.end()


def in_eval_mode(t: Training) -> None:
    t.model.eval()
    plain(t)
    t.model.train()


def graph_kept_over_steps(t: Training) -> None:
    """The backward pass comes after the next forward pass, as in a pipeline."""
    first = t.forward()
    second = t.forward()
    first.backward()
    t.note_gradients()
    third = t.forward()
    second.backward()
    third.backward()
    t.end()


def hooks_on_parameters(t: Training) -> None:
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    seen: list[torch.Tensor] = []
    handles = [p.register_hook(lambda g: g * 0.5) for p in parameters[::2]]
    handles += [p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum())) for p in parameters[1::2]]
    loss = t.forward()
    loss.backward()
    t.note("seen by hooks", sum(x.double() for x in seen))
    for handle in handles:
        handle.remove()
    t.end()


def steps_in_hooks(t: Training) -> None:
    def step(p: Any) -> None:
        if p.grad is not None:
            with torch.no_grad():
                p.add_(p.grad, alpha=-1e-3)
        p.grad = None

    handles = [p.register_post_accumulate_grad_hook(step) for p in t.model.parameters() if p.requires_grad]
    t.forward().backward()
    for handle in handles:
        handle.remove()
    t.note("parameters", list(t.model.parameters()))


def hooks_on_outputs(t: Training) -> None:
    outputs = t.call(*t.inputs())
    trained = [x for x in tree_leaves(outputs) if x.requires_grad]
    for output in trained:
        output.register_hook(lambda g: None if g is None else g * 2)
        output.retain_grad()
    t.model.loss(outputs).backward()
    t.note("gradient of output", [x.grad for x in trained])
    t.end()


def hooks_on_modules(t: Training) -> None:
    inner = [module for module in t.model.modules() if not list(module.children())]
    if not inner:
        return plain(t)
    module = t.draw.choice(inner)
    handles = [
        module.register_forward_hook(lambda m, i, o: o * 1.5 if isinstance(o, torch.Tensor) else None),
        t.draw.choice(inner).register_full_backward_hook(lambda m, i, o: tuple(None if x is None else x * 0.5 for x in i)),
    ]
    t.forward().backward()
    for handle in handles:
        handle.remove()
    t.end()


def hook_on_model(t: Training) -> None:
    seen: list[Any] = []
    handle = t.model.register_full_backward_hook(lambda m, i, o: seen.extend(o))
    t.forward().backward()
    t.note("gradients of outputs", [x for x in seen if x is not None])
    handle.remove()
    t.end()


def critic(t: Training) -> None:
    """Another model reads what this one makes; each has an optimizer."""
    if "critic" not in t.kept:
        outputs = t.call(*t.inputs())
        width = _first(outputs).shape[-1]
        other = torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        t.kept["critic"] = other, t.compile(other), torch.optim.Adam(other.parameters(), lr=1e-3)
    other, call, optimizer = t.kept["critic"]
    fake = _first(t.call(*t.inputs())).float()
    optimizer.zero_grad()
    (call(fake.detach()).mean() - call(torch.ones_like(fake)).mean()).backward()
    t.note_gradients(other)
    optimizer.step()
    t.optimizer.zero_grad()
    (-call(fake).mean()).backward()
    t.note("critic", list(other.parameters()))
    t.end()


def _first(outputs: Any) -> torch.Tensor:
    return [x for x in tree_leaves(outputs) if x.requires_grad and x.dim()][-1]


def teacher(t: Training) -> None:
    if "teacher" not in t.kept:
        other = copy.deepcopy(t.model).requires_grad_(False)
        t.kept["teacher"] = t.compile(other) if t.draw.random() < 0.5 else other
    inputs = t.inputs()
    outputs = t.call(*inputs)
    with torch.no_grad():
        expected = t.kept["teacher"](*inputs)
    pairs = zip(tree_leaves(outputs), tree_leaves(expected), strict=True)
    losses = [(a.float() - b.float()).square().mean() for a, b in pairs]
    sum(losses).backward()
    t.end()


def _penalty(t: Training) -> Any:
    return sum(p.float().square().sum() for p in t.model.parameters()) * 1e-3


def penalty_outside(t: Training) -> None:
    # In one run with the loss it adds nothing: a compiled graph adds its shares of a gradient up first, eager training in another order.
    (t.forward() + 0 * _penalty(t)).backward()
    _penalty(t).backward()
    t.end()


def other_inputs(t: Training) -> None:
    """As views of something else, or the same tensor twice."""
    x, y, *more = t.inputs()
    x = x.detach()
    kind = t.draw.choice(["transposed", "same", "view", "expanded", "slice", "leaf"])
    if kind == "transposed":
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif kind == "same":
        y = x
    elif kind == "view":
        y = x.view(x.shape)
    elif kind == "expanded":
        x = x[:1].expand(x.shape)
    elif kind == "slice":
        both = torch.cat([x, y])
        x, y = both[: len(x)], both[len(x) :]
    else:
        x = x.clone().requires_grad_()
    outputs = t.call(x, y, *more)
    t.note("output", outputs)
    t.model.loss(outputs).backward()
    t.note("x", [x, y, x.grad])
    t.end()


def fed_back(t: Training) -> None:
    """An output is the input of the next call, where it has its shape."""
    inputs = t.inputs()
    outputs = t.call(*inputs)
    alike = [x for x in tree_leaves(outputs) if x.shape == inputs[0].shape and x.dtype == inputs[0].dtype]
    loss = t.model.loss(outputs)
    if alike:
        again = t.call(alike[0], *inputs[1:])
        t.note("again", again)
        loss = loss + t.model.loss(again)
    loss.backward()
    t.end()


def frozen_all(t: Training) -> None:
    required = [p.requires_grad for p in t.model.parameters()]
    t.model.requires_grad_(False)
    t.note("output", t.call(*t.inputs()))
    for parameter, requires in zip(t.model.parameters(), required, strict=True):
        parameter.requires_grad_(requires)


def noise_on_parameters(t: Training) -> None:
    """As sharpness-aware minimization: a step to and fro between two passes."""
    t.forward().backward()
    gradients = [(p, p.grad.clone()) for p in t.model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p, g in gradients:
            p.add_(g, alpha=0.01)
    t.optimizer.zero_grad()
    t.forward().backward()
    with torch.no_grad():
        for p, g in gradients:
            p.sub_(g, alpha=0.01)
    t.end()


#: The more common ones more often.
STEPS = (
    *((plain,) * 6),
    *(retained, retained_for_nothing, by_grad, grad_of_some, scaled, autocast, clipped, closure, accumulated, never_zeroed),
    *(skipped, dropped, fails_in_loss, fails_in_forward, fails_inside, fails_in_backward, of_one_output, of_outputs_in_turn),
    *(of_outputs_at_once, two_calls, one_loss_of_two_calls, evaluated_meanwhile, functional, in_eval_mode),
    *(graph_kept_over_steps, hooks_on_parameters, steps_in_hooks, hooks_on_outputs, hooks_on_modules, hook_on_model, critic),
    *(teacher, penalty_outside, other_inputs, other_inputs, fed_back, frozen_all, noise_on_parameters),
)
