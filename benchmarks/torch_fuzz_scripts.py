"""Random training scripts: steps, and what is done between them. See `torch_fuzz.py`."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch.optim.swa_utils import AveragedModel
from torch_fuzz_steps import STEPS, WITHOUT_GRADIENTS, Training


def evaluation(t: Training) -> None:
    mode = t.draw.choice(WITHOUT_GRADIENTS)
    training = t.draw.random() < 0.3
    t.model.train(training)
    with mode():
        t.note("evaluated", t.call(*(x.detach() for x in t.inputs())))
    t.model.train()


def freezing(t: Training) -> None:
    for parameter in t.draw.sample(list(t.model.parameters()), 1):
        parameter.requires_grad_(not parameter.requires_grad)
        parameter.grad = None


def saved(t: Training) -> None:
    t.kept["state"] = copy.deepcopy(t.model.state_dict()), copy.deepcopy(t.optimizer.state_dict())


def loaded(t: Training) -> None:
    if "state" in t.kept:
        t.model.load_state_dict(t.kept["state"][0], assign=False)
        if t.draw.random() < 0.5:
            with suppress(ValueError):
                t.optimizer.load_state_dict(t.kept["state"][1])


def assigned(t: Training) -> None:
    t.model.load_state_dict({k: v.clone() for k, v in t.model.state_dict().items()}, assign=True)
    t.renew_optimizer()


def averaged(t: Training) -> None:
    if "average" not in t.kept:
        t.kept["average"] = AveragedModel(t.model)
    t.kept["average"].update_parameters(t.model)
    t.note("average", list(t.kept["average"].parameters()))


def average_evaluated(t: Training) -> None:
    if "average" in t.kept:
        with torch.no_grad(), torch.random.fork_rng():  # PyTorch compiles no copies: they draw what nothing reads, ours do not
            t.note("of the average", t.kept["average"](*t.inputs()))


def copied(t: Training) -> None:
    twin = copy.deepcopy(t.model)
    with torch.random.fork_rng():  # as above
        t.model.loss(twin(*t.inputs())).backward()
    t.note_gradients(twin)


def rates(t: Training) -> None:
    for group in t.optimizer.param_groups:
        group["lr"] *= 0.5


def renewed(t: Training) -> None:
    t.renew_optimizer()


def written(t: Training) -> None:
    with torch.no_grad():
        for parameter in t.draw.sample(list(t.model.parameters()), 1):
            if parameter.is_contiguous():
                parameter.view(-1)[:2].mul_(0.9)
            parameter.data.add_(0.01)


def data_replaced(t: Training) -> None:
    for parameter in t.draw.sample(list(t.model.parameters()), 1):
        parameter.data = parameter.data.clone()


def buffers_written(t: Training) -> None:
    for buffer in t.model.buffers():
        if buffer.is_floating_point():
            buffer.mul_(0.9)


def buffers_replaced(t: Training) -> None:
    t.model.count = torch.zeros(())


def tied(t: Training) -> None:
    linears = [m for m in t.model.modules() if type(m) is torch.nn.Linear]
    for one in linears:
        for other in linears:
            if one is not other and one.weight.shape == other.weight.shape:
                one.weight = other.weight
                t.renew_optimizer()
                return


def parameter_replaced(t: Training) -> None:
    t.model.scale = torch.nn.Parameter(torch.tensor(1.1))
    t.renew_optimizer()


def compiled_again(t: Training) -> None:
    t.call = t.compile(t.model)


def seeded(t: Training) -> None:
    torch.manual_seed(5)


def drawn(t: Training) -> None:
    t.note("drawn", torch.rand(3))


def reset(t: Training) -> None:
    t.optimizer.zero_grad(set_to_none=False)


def part_called(t: Training) -> None:
    """A module inside, by itself."""
    for module in t.model.modules():
        if isinstance(module, torch.nn.Linear):
            out = module(torch.ones(4, module.in_features))
            out.sum().backward()
            t.note("part", out)
            t.note_gradients()
            return


def plain_forward(t: Training) -> None:
    """The module's own method."""
    outputs = t.model.forward(*t.inputs())
    t.model.loss(outputs).backward()
    t.note_gradients()


def batch_of_gradients(t: Training) -> None:
    """Plain training computes them one by one: in a batch its kernels add numbers up in another order."""
    output = t.draw.choice(t.outputs())
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    many = torch.stack([torch.full_like(output, 0.01 * number) for number in (1, 2)])
    if t.call is t.model:
        rows = [torch.autograd.grad(output, parameters, one, retain_graph=True, allow_unused=True) for one in many]
        found = [None if x is None else torch.stack([x, y]) for x, y in zip(*rows, strict=True)]
    else:
        found = list(torch.autograd.grad(output, parameters, many, is_grads_batched=True, allow_unused=True))
    t.note("gradients", found)


def rows_of_jacobian(t: Training) -> None:
    """Many backward passes over one forward pass."""
    output = t.draw.choice(t.outputs())
    parameters = [p for p in t.model.parameters() if p.requires_grad]
    for number in output.flatten()[:20]:
        t.note("row", torch.autograd.grad(number, parameters, retain_graph=True, allow_unused=True))


def moved(t: Training) -> None:
    t.model.to("cpu").float()


BETWEEN = (
    *(evaluation, evaluation, freezing, saved, loaded, loaded, assigned, averaged, average_evaluated, copied, rates, renewed),
    *(written, data_replaced, buffers_written, buffers_replaced, tied, parameter_replaced, compiled_again, seeded, drawn, reset),
    *(part_called, plain_forward, batch_of_gradients, rows_of_jacobian, moved),
)


@dataclass(frozen=True)
class Plot:
    """Which steps come, and what lies between."""

    steps: tuple[tuple[Callable[[Training], None], ...], ...]

    @staticmethod
    def drawn(draw: random.Random) -> Plot:
        kinds = draw.sample(STEPS, draw.choice([1, 2, 3]))
        return Plot(
            tuple((draw.choice(kinds), *draw.sample(BETWEEN, draw.choice([0, 0, 1, 2]))) for _ in range(draw.randint(4, 7)))
        )

    def names(self) -> str:
        return ", ".join(" + ".join(part.__name__ for part in step) for step in self.steps)
