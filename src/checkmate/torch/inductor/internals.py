"""Everything this front end needs from Inductor, PyTorch's compiler, none of which is documented: imported here and nowhere else.

Importing Inductor takes seconds: nothing here does before it is needed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..ops.nodes import COMPUTATION, GROUP, Computation, depends_on_tangents, look_at_what_they_read, tensors_of
from ..ops.sizes import storage_key
from ..pytorch.internals import Boxed, compiling, mark_boxed


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The ops that Inductor wants to see written out in others. Recurrent layers stay whole: plain Inductor leaves them to eager training,
    and cannot run its own writing-out of `nn.LSTM`."""
    from torch._inductor import lowering  # noqa: F401 - of which decompositions make use without importing it (PyTorch 2.11)
    from torch._inductor.decomposition import select_decomp_table

    whole = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
    return {op: written_out for op, written_out in select_decomp_table().items() if op not in whole}


def joint_passes(module: fx.GraphModule) -> fx.GraphModule:
    """What Inductor changes in a graph before it is split in passes: patterns, constants, and random ops that follow from seeds."""
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    placeholders = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    tensors = [value for value in placeholders if isinstance(value, torch.Tensor)]
    mode = detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
    passes: Any = compile_fx._recursive_joint_graph_passes
    known = inspect.signature(passes).parameters
    device = next((x.device for x in tensors if x.device.type != "cpu"), torch.device("cpu"))
    given = {"skip_invoke_subgraph": True, "input_device": device}
    with V.set_fake_mode(mode):
        changed = passes(module, **{name: value for name, value in given.items() if name in known})
    changed = module if changed is None else changed
    look_at_what_they_read(changed, mode)  # what takes the place of another op gets the fake tensor of that, views too
    return changed


def write_out_layouts(module: fx.GraphModule) -> None:
    """Where Inductor will have convolutions read their inputs in channels-last, and copies those that are not: write the copies out.

    What is in the graph is planned; and a backward pass that is given the copies need not make its own. From here on the graph is for
    Inductor alone: strides that follow from the copies are not in it.
    """
    from torch._inductor.graph import GraphLowering

    if not GraphLowering.decide_layout_opt(module, is_inference=False):
        return
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        first = {_aten.convolution.default: 0, _aten.convolution_backward.default: 1}.get(node.target)
        for place in () if first is None else (first, first + 1):
            source = node.args[place]
            if source.op == "placeholder" and _is_copied(source.meta["val"]):
                if source not in copies:
                    with module.graph.inserting_before(node):
                        copies[source] = module.graph.call_function(_aten.clone.default, (source,), _CHANNELS_LAST)
                    copies[source].meta = {"val": source.meta["val"].clone(**_CHANNELS_LAST), _LAYOUT: True}
                node.update_arg(place, copies[source])
    module.recompile()


def leave_layouts_to_inductor(module: fx.GraphModule) -> None:
    """Let it choose the layouts of the copies, as it would without them: told, it lets all ops behind follow, results that the caller sees
    too, which it then copies back. It chooses the same, and what is handed to the backward pass has it."""
    for node in module.graph.nodes:
        if _LAYOUT in node.meta:
            node.kwargs = {}


_CHANNELS_LAST: dict[str, Any] = {"memory_format": torch.channels_last}
#: Marks the copies.
_LAYOUT = "checkmate_layout"


def _is_copied(value: torch.Tensor) -> bool:
    return value.dim() == 4 and not value.is_contiguous(**_CHANNELS_LAST)


def is_library_call(target: Any) -> bool:
    """Inductor makes no kernel of its own for the op: inputs and outputs are in memory."""
    from torch._inductor import lowering

    return target in _PRODUCTS or target in lowering.fallbacks or target not in lowering.lowerings


def can_be_added_to(dtype: torch.dtype) -> bool:
    """Kernels can add to a number of this type in memory while others do."""
    from torch._inductor.utils import needs_fallback_due_to_atomic_add_limitations

    return not needs_fallback_due_to_atomic_add_limitations(dtype)


_aten = torch.ops.aten
#: What has a lowering, which calls a library all the same.
_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    _aten.convolution_backward.default,
}


class Lowered:
    """A graph that Inductor has written as a program, whose kernels are not compiled yet.

    Attributes:
        source: the program. constants: what it reads besides its inputs. output_strides: of its outputs, as the program makes them.
    """

    def __init__(self, compiled: Any):
        self._compiled = compiled
        self.source: str | None = getattr(compiled, "source_code", None)
        self.constants: dict[str, Any] = dict(getattr(compiled, "constants", None) or {})
        strides = getattr(compiled, "output_strides", None) or []
        self.output_strides = [None if one is None else tuple(int(number) for number in one) for one in strides]

    def load(self) -> Boxed:
        """Compile its kernels: the function of one list of inputs, which it empties."""
        if self.source is None:  # nothing is computed: the graph itself
            return mark_boxed(self._compiled)
        from torch._inductor.output_code import CompiledFxGraphConstants

        constants = CompiledFxGraphConstants()
        with compiling():
            self._compiled.after_deserialization(constants)
            self._compiled.post_compile([], constants, self._compiled.fx_kwargs)
        return mark_boxed(self._compiled.current_callable)


def sized_mode() -> FakeTensorMode:
    """For fake tensors of given sizes. Without an environment for other sizes Inductor does not look up programs that it has on disk."""
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)


def lower(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    visible: int,
    *,
    backward: bool = False,
    inference: bool = False,
    apart: Collection[Computation] | None = None,
) -> Lowered:
    """Have Inductor write a program for a graph.

    Args:
        module: it is changed. inputs: fake tensors of one mode, and numbers.
        visible: so many of its outputs, the first ones, keep the strides that the graph says; the others may have any.
        backward, inference: which pass it is.
        apart: if not None, the program is to take what is planned: kernels run in the order of the graph, no buffer waits to be used once
            more, and no kernel joins these computations of groups with others, or it needs the memory of all of them at a time.
    """
    from torch._inductor import compile_fx
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import BoxedBool
    from torch._inductor.virtualized import V

    module.recompile()  # it may have been changed, and programs are kept on disk by its code
    (output,) = module.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = [
        number for number, node in enumerate(output.args[0][:visible]) if isinstance(node, fx.Node)
    ]
    mode = detect_fake_mode([x for x in inputs if isinstance(x, torch.Tensor)]) or sized_mode()
    # The code of a graph does not say how many outputs are visible, nor which layouts the others have; see `_following_convolutions`.
    compiler: Any = torch.compiler.config
    tag = f"{compiler.cache_key_tag} {visible} following, gradients not"
    if apart is not None:  # nor which groups there are
        groups = str(([_group(node) for node in module.graph.nodes], sorted(apart)))
        tag += hashlib.sha256(groups.encode()).hexdigest()
    # What is fixed in memory matters to CUDA graphs alone, which plans do not use.
    with (
        compiling(),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
        inductor_config.patch(fx_graph_remote_cache=False, freezing=False, cpp_wrapper=False),
        compiler.patch(cache_key_tag=tag),
        _following_convolutions(),
        nullcontext() if apart is None else _as_planned(apart),
        _not_loaded(),
    ):
        compiled = compile_fx.compile_fx_inner(
            module,
            list(inputs),
            cudagraphs=BoxedBool(False),
            is_backward=backward,
            is_inference=inference,
        )
    return Lowered(compiled)


@contextmanager
def _as_planned(apart: Collection[Computation]) -> Iterator[None]:
    """Programs take what is planned; see `lower`."""
    from torch._inductor import config as inductor_config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.virtualized import V

    class Choices(InductorChoices):
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            first, second = _made_in(node1), _made_in(node2)
            if first and second and first.isdisjoint(second) and not (first | second).isdisjoint(apart):
                return False
            return bool(InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score))

    def is_complete(scheduling: Any) -> bool:
        """Kernels for CPUs that were not fused are one function all the same, up to the next call of a library, unless it is said to
        be complete."""
        scheduler = scheduling.scheduler
        place = scheduler.nodes.index(scheduler.current_node)
        return any(not _made_in(kernel).isdisjoint(apart) for kernel in scheduler.nodes[place : place + 2])

    with (
        V.set_choices_handler(Choices()),
        # Inductor, which does not count what libraries take for themselves, may hold a buffer for one that comes later.
        inductor_config.patch(reorder_for_locality=False, reorder_for_peak_memory=False, allow_buffer_reuse=False),
        patch.object(CppScheduling, "ready_to_flush", is_complete),
    ):
        yield


def _made_in(kernel: Any) -> set[Computation]:
    """The computations of groups that make what a kernel makes: those of ops that it computes on the way have lower numbers."""
    known = [
        [group for one in part.node.origins if (group := _group(one)) is not None] for part in kernel.get_nodes() if part.node
    ]
    return {max(groups) for groups in known if groups}


def _group(node: fx.Node) -> Computation | None:
    """The group of a node, and which computation of it the node belongs to."""
    return (node.meta[GROUP], node.meta[COMPUTATION]) if GROUP in node.meta and COMPUTATION in node.meta else None


@contextmanager
def _following_convolutions() -> Iterator[None]:
    """Which results are in the layout that convolutions read: as in plain Inductor, whatever is computed again.

    What is saved is in the layout of the convolution that it is computed from, element by element. Inductor lets nothing after the last
    convolution follow it, for the sake of vision transformers, and transposes what is saved there: that takes time, and sums over it
    are rounded differently from those over what is not saved.

    What is computed from gradients follows no convolution that a backward pass computes again: in plain Inductor none is there, and sums
    over what follows it are rounded differently.
    """
    from torch._inductor.graph import GraphLowering

    as_ever: Any = GraphLowering.find_nodes_prefer_channels_last

    def found(graph: Any) -> Any:
        late = depends_on_tangents(graph.module)
        alone = SimpleNamespace(nodes=[node for node in graph.module.graph.nodes if node in late])
        # A gradient may have convolutions of its own: those of a gradient penalty.
        following = set(as_ever(graph)) - late | set(as_ever(SimpleNamespace(module=SimpleNamespace(graph=alone))))
        reached = set(following)
        for node in graph.module.graph.nodes:
            element_by_element = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
            sources = [source for source in node.all_input_nodes if source in reached]
            if element_by_element and node not in late and _shape(node) in map(_shape, sources):
                reached.add(node)
                # A view of it, such as the input of a linear layer, may need the other layout, and would be a copy.
                storages = set(map(storage_key, tensors_of(node)))
                users = [user for user in node.users if user.op != "output"]
                if not any(storage_key(tensor) in storages for user in users for tensor in tensors_of(user)):
                    following.add(node)
        return following

    with patch.object(GraphLowering, "find_nodes_prefer_channels_last", found):
        yield


def _shape(node: fx.Node) -> torch.Size | None:
    return getattr(node.meta.get("val"), "shape", None)


@contextmanager
def _not_loaded() -> Iterator[None]:
    """Programs are written and not loaded: loading one compiles its kernels."""
    from torch._inductor.codecache import PyCodeCache

    def unready(arguments: list[Any]) -> Any:
        raise NotImplementedError  # `Lowered.load` takes its place

    def written(key: str, path: str, *arguments: Any, **keywords: Any) -> Any:
        return SimpleNamespace(__file__=path, call=unready)  # 2.11 wants something to call there

    with patch.object(PyCodeCache, "load_by_key_path", written):
        yield


@contextmanager
def without_kernels() -> Iterator[None]:
    """Programs that are executed here get kernels that do nothing."""
    from torch._inductor import async_compile

    with patch.object(async_compile, "AsyncCompile", _NoKernels):
        yield


class _NoKernels:
    """In place of what compiles the kernels of a program."""

    def wait(self, scope: dict[str, Any]) -> None:
        """All kernels are there."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **keywords: _NoKernel()


class _NoKernel:
    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """As kernels for the CPU are called."""

    def run(self, *arguments: Any, **keywords: Any) -> None:
        """As Triton's kernels are called."""
