"""Random PyTorch programs: a module as source text, and how a script trains it. See `torch_fuzz.py`.

A program is written line by line; each line is run with what was written before, and stays if eager PyTorch can run and differentiate it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch_fuzz_scripts import Plot

HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.tanh()

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient * b.tanh(), gradient * a * (1 - b.tanh() ** 2)


def region(a):
    return torch.sin(a) * torch.tanh(a * 0.5) + a

"""
#: What every module has.
STATE = (
    'self.register_buffer("count", torch.zeros(()))',
    'self.register_buffer("average", torch.ones(()))',
    "self.calls = 1",
    "self.scale = nn.Parameter(torch.tensor(0.9))",
    "self.square = nn.Parameter(torch.eye(32) + 0.01)",
)
#: Lines that make values {v} and {w} of values {a} and {b}; and how often they are drawn beside others.
MAKING = {
    3: ("torch.sin({a})", "torch.tanh({a})", "F.gelu({a})", "{a} + {b}", "{a} * {b}", "{a} @ {b} * 0.1"),
    2: ("F.relu({a})", "F.dropout({a}, 0.3, self.training)", "{a}.transpose(-1, -2)", "{a} - {b}", "torch.cat([{a}, {b}], -1)"),
    1: (
        *("F.silu({a})", "F.softmax({a}, -1)", "F.log_softmax({a}, 0)", "{a}.cumsum(-1) * 0.1", "{a}.square().tanh()"),
        *("{a}.sigmoid()", "{a}.abs().add(0.1).log()", "F.layer_norm({a}, {a}.shape[-1:])", "{a}.clone()", "{a}.detach()"),
        *("{a}.detach() * {b}", "{a}.double().sin().float()", "{a}.bfloat16().float()", "{a}.flip(0)", "{a}.roll(1, -1)"),
        *("{a}.sort(-1).values", "{a}.topk(3, -1).values", "{a}.cummax(-1).values", "{a}.mean(0, keepdim=True)"),
        *("{a}.sum(-1, keepdim=True) * 0.1", "{a}.amax(-1, keepdim=True)", "{a}.logsumexp(-1, keepdim=True)", "{a}.norm()"),
        *("{a}.transpose(0, -1)", "{a}.reshape({a}.shape[0], -1)", "{a}.unsqueeze(1)", "{a}.squeeze(1)", "{a}.flatten(-2)"),
        *("{a}[..., ::2]", "{a}[..., 1:]", "{a}[: {a}.shape[0] // 2]", "{a}.unflatten(-1, (2, -1))", "{a}.expand(2, *{a}.shape)"),
        *(
            "{a}[None]",
            "{a}[0]",
            "{a}.diagonal(dim1=-2, dim2=-1)",
            "{a}.contiguous()",
            "{a}.unbind(-1)[0]",
            "{a}.view({a}.shape)",
        ),
        *("{a}.tril()", "F.pad({a}, (1, 1))", "{a} / ({b}.abs() + 1)", "{a} @ {b}.transpose(-1, -2) * 0.1"),
        *("torch.where({a} > 0, {a}, {b})", "torch.maximum({a}, {b})", "torch.cat([{a}, {a}], 0)", "torch.stack([{a}, {b}])"),
        *("torch.addcmul({a}, {b}, {b}, value=0.3)", "torch.lerp({a}, {b}, 0.3)", "{a}.masked_fill({b} > 0, 0.0)"),
        *("{a}.gather(-1, {a}.argsort(-1))", "{a}.index_select(0, torch.arange({a}.shape[0] - 1, -1, -1))"),
        *("torch.zeros_like({a}).scatter_add(-1, {a}.argsort(-1), {a})", "checkpoint(region, {a}, use_reentrant=False)"),
        *("Scaled.apply({a}, {b})", "{a} * (2.0 if {a}.mean().item() > 0 else 0.5)", "{a} + torch.randn_like({a}) * 0.1"),
        *("{a} * torch.rand({a}.shape[-1])", "{a} * torch.bernoulli(torch.full_like({a}, 0.5))", "torch.fft.rfft({a}).abs()"),
        *("F.scaled_dot_product_attention({a}[:, None], {b}[:, None], {b}[:, None])[:, 0]", "F.mse_loss({a}, {b})"),
        *('torch.einsum("...i,...j->...ij", {a}[..., :4], {b}[..., :4])', "F.normalize({a}, dim=-1)", "torch.cdist({a}, {b})"),
        *("F.cross_entropy({a}.flatten(0, -2), {a}.flatten(0, -2).argmax(-1))", "F.max_pool1d({a}, 2)", "F.avg_pool1d({a}, 2)"),
        *("{a} * self.average", "{a} + self.count", "{a} * self.scale", "{a} @ self.square * 0.1", "{a} + self.square"),
        *(
            "F.max_pool2d({a}[:, None], 2)[:, 0]",
            "F.interpolate({a}[:, None], scale_factor=2.0)[:, 0]",
            "F.adaptive_avg_pool1d({a}, 8)",
        ),
        *(
            "F.scaled_dot_product_attention({a}[:, None], {a}[:, None], {b}[:, None], is_causal=True)[:, 0]",
            "F.instance_norm({a})",
        ),
        *(
            "F.embedding_bag({a}.detach().abs().long().clamp(max=31).flatten(1), self.square)",
            "F.glu({a})",
            "F.gumbel_softmax({a}, dim=-1)",
        ),
        *(
            "torch.view_as_real(torch.fft.fft({a})).flatten(-2) * 0.1",
            "torch.complex({a}, {b}).abs()",
            "{a}.double()",
            "{a}.float()",
        ),
        *(
            "{a}.unfold(-1, 4, 2)",
            "{a}.movedim(0, -1)",
            "{a}.split(3)[0]",
            "torch.tensor_split({a}, 3)[1]",
            "{a}.mT",
            "{a}.prod(-1)",
        ),
        *(
            "{a}[torch.arange({a}.shape[0]).flip(0)]",
            "{a}[torch.randperm({a}.shape[0])]",
            "{a}[{a} > 0].sum() * 0.1",
            "{a}.std(0)",
        ),
        *("{a}.index_put((torch.zeros(2, dtype=torch.long),), {a}[:2], accumulate=True)", "{a}.median(-1).values", "F.elu({a})"),
        *(
            "F.dropout1d({a}, 0.3, self.training)",
            "F.alpha_dropout({a}, 0.3, self.training)",
            "F.rrelu({a}, training=self.training)",
        ),
        *(
            "{a} + torch.empty_like({a}).normal_() * 0.1",
            "torch.distributions.Normal({a}, 0.1).rsample()",
            "F.cosine_similarity({a}, {b}, -1)",
        ),
        *(
            "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid())",
            "F.smooth_l1_loss({a}, {b}, reduction='none')",
            "{a} * self.calls",
        ),
        *(
            "torch.linalg.vector_norm({a}, dim=-1)",
            "torch.linalg.inv(self.square)",
            "torch.matrix_exp(self.square * 0.1)",
            "{a}.cummin(0).values",
        ),
        *("torch.vmap(torch.sin)({a})", "[torch.tanh({a} + i) for i in range(3)][-1]", "torch.compiler.disable(torch.sin)({a})"),
        *(
            "{a}.as_strided({a}.shape, {a}.stride())",
            "torch.nan_to_num({a} / {b})",
            "{a}.to(torch.float16).float()",
            "{a}.to(torch.bfloat16)",
        ),
    ),
}
#: Whole lines; those that begin with a value write into it.
WHOLE = {
    2: ("{a}.add_({b})", "{a}.mul_(0.7)"),
    1: (
        *("{a}.relu_()", "{a}[..., :1] = 0.5", "{a}[..., :1].mul_(2)", "{a}[0] = {b}[0]", "{a}.copy_({b})", "{a} += {b}"),
        *(
            "{a}.transpose(-1, -2).add_(0.1)",
            "{a}.masked_fill_({a} > 1, 0.2)",
            "{a}.addcmul_({b}, {b}, value=0.1)",
            "{a}.zero_()",
        ),
        *("{a}.sigmoid_()", "{a}.index_add_(0, torch.arange({a}.shape[0]), {b})", "{a}.clamp_(-1, 1)"),
        *("F.relu({a}, inplace=True)", "F.dropout({a}, 0.2, self.training, inplace=True)"),
        *("with torch.no_grad(): {a}.mul_(0.9)", "with torch.no_grad(): {v} = {a}.tanh() * 2", "torch._dynamo.graph_break()"),
        *("{v}, {w} = {a}.chunk(2, -1)", "{v}, {w} = torch.var_mean({a}, -1, keepdim=True)"),
        *("{v} = {a}.clone(); {v}[..., 0].add_({a}[..., -1])", "{v} = {a}.clone(); {v}.view(-1)[:4].zero_()"),
        *("{v} = torch.empty_like({a}); {v}.copy_({b})", "{v} = torch.zeros_like({a}); {v}[..., ::2] = {b}[..., ::2]"),
        'with torch.autocast("cpu", dtype=torch.bfloat16): {v} = {a} @ {b}.transpose(-1, -2) * 0.1',
        *("self.count += 1", "self.average.mul_(0.9).add_({a}.detach().mean() * 0.1)"),
        *(
            "{a}.sub_({b}).div_(2)",
            "{a}.transpose(0, -1)[0].zero_()",
            "{a}.data.mul_(0.5)",
            "{a}.detach().add_(0.1)",
            "{a}.unsqueeze_(0)",
        ),
        *(
            "{a}.uniform_(0, 1)",
            "{a}.bernoulli_(0.5)",
            "{a}[..., 1:] += {a}[..., :-1] * 0.1",
            "{a}.fill_diagonal_(0.5)",
            "{a}.t_()",
        ),
        *(
            "{v} = torch.empty_like({a}); torch.add({a}.detach(), {b}.detach(), out={v})",
            "self.calls += 1",
            "self.scale.data.clamp_(0.1, 1)",
        ),
        *("self.average = self.average * 0.9 + {a}.detach().mean() * 0.1", "with torch.no_grad(): self.square.mul_(0.99)"),
        *("{v} = {a} * 1; {v}.register_hook(lambda g: g * 0.5)", "self.last = {a}.detach()", "{v}, {w} = {a}.unbind(0)[:2]"),
        *("{v} = {a}.clone(); {w} = {v}[..., 1:]; {v}.mul_(2)", "{v} = {a}.clone(); {w} = {v}.view(-1)[::2]; {w}.add_(1)"),
    ),
}
#: Modules and what is computed with them; {d} and {c} are the last and the second dimension of {a}, {k} is a width.
MODULES = (
    *(("nn.Linear({d}, {k})", "self.{m}({a})"),) * 5,
    ("nn.LayerNorm({d})", "self.{m}({a})"),
    ("nn.Conv1d({c}, 8, 3, padding=1)", "self.{m}({a})"),
    *(("nn.BatchNorm1d({c})", "self.{m}({a})"),) * 2,
    ("nn.GroupNorm(1, {c})", "self.{m}({a})"),
    ("nn.MultiheadAttention({d}, 2, dropout=0.1, batch_first=True)", "self.{m}({a}, {a}, {a}, need_weights=False)[0]"),
    ("nn.Embedding(16, {k})", "self.{m}({a}.detach().abs().long().clamp(max=15))"),
    ("nn.Sequential(nn.Linear({d}, {k}), nn.ReLU(inplace=True), nn.Linear({k}, {d}))", "{a} + self.{m}({a})"),
    ("nn.Bilinear({d}, {d}, 8)", "self.{m}({a}, {a})"),
    ("nn.PReLU()", "self.{m}({a})"),
    ("nn.utils.parametrizations.weight_norm(nn.Linear({d}, {k}))", "self.{m}({a})"),
    ("nn.Dropout(0.25)", "self.{m}({a})"),
    ("nn.LSTM({d}, {k}, batch_first=True)", "self.{m}({a})[0]"),
    ("nn.GRU({d}, {k}, 2, batch_first=True, dropout=0.1, bidirectional=True)", "self.{m}({a})[0]"),
    ("nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())", "self.{m}({a}[:, None])"),
    ("nn.ConvTranspose1d({c}, 8, 3, stride=2)", "self.{m}({a})"),
    ("nn.InstanceNorm1d({c}, affine=True, track_running_stats=True)", "self.{m}({a})"),
    ("nn.BatchNorm1d({c}, momentum=None, affine=False)", "self.{m}({a})"),
    ("nn.TransformerEncoderLayer({d}, 2, 32, batch_first=True)", "self.{m}({a})"),
    ("nn.utils.parametrizations.spectral_norm(nn.Linear({d}, {k}))", "self.{m}({a})"),
    ("nn.RMSNorm({d})", "self.{m}({a})"),
    ("nn.EmbeddingBag(16, {k}, mode='max')", "self.{m}({a}.detach().abs().long().clamp(max=15).flatten(1))"),
    ("nn.Linear({d}, {k}).bfloat16()", "self.{m}({a}.bfloat16())"),
    ("nn.Linear({d}, {k}).double()", "self.{m}({a}.double())"),
    ("nn.utils.parametrizations.orthogonal(nn.Linear({d}, {d}))", "self.{m}({a})"),
    ("nn.RNN({d}, {k}, batch_first=True)", "self.{m}({a})[0]"),
    ("nn.GRUCell({d}, {k})", "self.{m}({a}.flatten(0, -2))"),
    ("nn.Linear({d}, {k}, dtype=torch.complex64)", "self.{m}({a}.to(torch.complex64)).abs()"),
)
WIDTHS = (16, 32, 32, 64)
MOST_NUMBERS, MOST = 600_000, 1e3  # in a value, and how large they may be


@dataclass(frozen=True)
class Script:
    """How a program is trained.

    Attributes:
        shape: of an example. batch: examples of a batch. sizes: whether batches differ in size. input_grad: whether the batch gets a
            gradient. budget: percentage of the plain peak. wait: as of `checkmate.torch.compile`. by_name: whether `torch.compile` is
            told the backend. plot: what comes.
    """

    shape: tuple[int, ...]
    batch: int
    sizes: bool
    input_grad: bool
    budget: str
    wait: bool
    by_name: bool
    plot: Plot

    @staticmethod
    def drawn(draw: random.Random) -> Script:
        return Script(
            shape=draw.choice([(32,), (16, 32), (32, 32), (8, 16)]),
            batch=draw.choice([32, 64, 128]),
            sizes=draw.random() < 0.25,
            input_grad=draw.random() < 0.25,
            budget=draw.choice(["40%", "50%", "65%", "80%", "100%"]),
            wait=draw.random() < 0.6,
            by_name=draw.random() < 0.2,
            plot=Plot.drawn(draw),
        )

    def size(self, number: int) -> int:
        """Examples of the batch of a number."""
        return self.batch * (2, 1, 2, 4, 1)[number % 5] // 2 if self.sizes else self.batch

    def inputs(self, seed: int, size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(size or self.size(seed), *self.shape, generator=generator) for _ in range(2))
        return x.requires_grad_(self.input_grad), y


@dataclass
class Program:
    """A module, and how it is trained.

    Attributes:
        init: lines that make its modules. body: lines of `forward(x, y)`. outputs: what it returns, of which `loss` is made of some;
            inside the module, if so, and then its first output. as_dict: whether it returns a dict or a tuple.
    """

    seed: int
    script: Script
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    loss: list[str] = field(default_factory=list)
    inside: bool = False
    as_dict: bool = False

    def with_one_size(self) -> Program:
        return replace(self, script=replace(self.script, sizes=False))

    def source(self) -> str:
        """Of a Python module that has the class `Model`, with methods `forward(x, y)` and `loss(outputs)`."""
        returned = [" + ".join(f"{name}.float().square().mean()" for name in self.loss), *self.outputs][not self.inside :]
        made = (
            ", ".join(f'"{i}": {text}' for i, text in enumerate(returned))
            if self.as_dict
            else "".join(f"{t}, " for t in returned)
        )
        read = " + ".join(f"outputs[{self.outputs.index(name)}].float().square().mean()" for name in self.loss)
        lines = [
            "class Model(nn.Module):",
            *("    def __init__(self):", "        super().__init__()"),
            *(f"        {line}" for line in (*STATE, *self.init)),
            "    def forward(self, x, y):",
            *(f"        {line}" for line in self.body),
            f"        return {{{made}}}" if self.as_dict else f"        return ({made})",
            "    def loss(self, outputs):",
            "        outputs = list(outputs.values()) if isinstance(outputs, dict) else outputs",
            f"        return {'outputs[0]' if self.inside else read}",
        ]
        return HEADER + "\n".join(lines) + "\n"


class _Writer:
    """Writes a program and has what its lines make."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.program = Program(seed, Script.drawn(self.draw))
        self.lines = [*_weighted(MAKING, "{v} = "), *_weighted(WHOLE, "")]
        self.names = ["x", "y"]
        self.values = self._run([], "pass")
        self.modules: list[tuple[str, str]] = []

    def _run(self, init: Sequence[str], line: str, check: Sequence[str] = ()) -> dict[str, Any]:
        """All values, after the lines so far and one more; `check`: names of values of which there has to be a gradient, if any."""
        values: dict[str, Any] = {"self": torch.nn.Module()}
        values["x"], values["y"] = self.program.script.inputs(0, self.program.script.batch)
        torch.manual_seed(0)
        for text in (HEADER, *STATE, *self.program.init, *init, *self.program.body, line):
            exec(text, values)
        losses = [values[name].float().square().mean() for name in check if values[name].requires_grad]
        if losses:
            sum(losses).backward()
        return values

    def add(self) -> None:
        """Draw a line, and write it if it can be run."""
        draw, number = self.draw, len(self.program.body)
        a = draw.choice(self.names[-4:] if draw.random() < 0.7 else self.names)
        alike = [name for name in self.names if self.values[name].shape == self.values[a].shape]
        words = {"a": a, "b": draw.choice(alike if draw.random() < 0.7 else self.names), "v": f"v{number}", "w": f"w{number}"}
        init: list[str] = []
        template = draw.choice(self.lines)
        if draw.random() < 0.25:
            if self.modules and draw.random() < 0.25:
                words["m"], template = draw.choice(self.modules)
            else:
                words["m"] = f"m{number}"
                made, template = draw.choice(MODULES)
                template = "{v} = " + template
                shape = self.values[a].shape
                d, c = (*shape[-1:], 1)[0], (*shape[1:2], 1)[0]
                init = [f"self.{words['m']} = " + made.format(d=d, c=c, k=draw.choice(WIDTHS))]
        line, new = template.format(**words), [words[key] for key in "vw" if f"{{{key}}}" in template]
        writes = [a] if not new and "{a}" in template and "self." not in template else []
        if writes and a in "xy" and draw.random() < 0.8:
            return
        try:
            values = self._run(init, line, [*self.names, *new] if writes or "_(" in line else ())
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            return
        if all(map(_usable, [values[name] for name in (*new, *writes)])):
            self.values = values
            self.program.init += init
            self.program.body.append(line)
            self.names += new
            if init:
                self.modules.append((words["m"], template))

    def finish(self) -> None:
        """Choose outputs and the loss."""
        draw, program = self.draw, self.program
        made = self.names[2:] or self.names
        outputs = list(dict.fromkeys([made[-1], *draw.sample(made, min(len(made), draw.randint(0, 3)))]))
        draw.shuffle(outputs)
        trained = [name for name in self.names if self.values[name].requires_grad]
        candidates = [name for name in outputs if name in trained] or trained[-1:]
        program.loss = draw.sample(candidates, draw.randint(1, len(candidates))) if candidates else []
        outputs += [name for name in program.loss if name not in outputs]
        extra = (outputs[0], "x", "self.scale", f"{outputs[0]}.view({outputs[0]}.shape)", f"{outputs[0]}.detach()")
        program.outputs = outputs + [text for text in extra if draw.random() < 0.1]
        program.inside, program.as_dict = draw.random() < 0.5, draw.random() < 0.5


def _weighted(lines: dict[int, tuple[str, ...]], start: str) -> Iterator[str]:
    for weight, texts in lines.items():
        yield from (start + text for text in texts * weight)


def _usable(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        return False
    return 0 < value.numel() <= MOST_NUMBERS and bool((value.float().abs() <= MOST).all())


def generate(seed: int, longest: int = 28) -> Program:
    """The program of a seed, of some 4 to so many lines; its loss is empty where nothing that it computes has a gradient."""
    writer = _Writer(seed)
    length = writer.draw.randint(4, longest)
    for _ in range(8 * length):
        if len(writer.program.body) < length:
            writer.add()
    writer.finish()
    return writer.program
