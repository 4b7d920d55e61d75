"""What this front end needs from PyTorch that PyTorch does not document, but for what one topic alone needs: that is in its own module.

Checked against torch 2.11 to 2.13.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from operator import attrgetter
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch

# `aot_module_simplified` is exported by functorch.compile, but its keywords are not documented.
from functorch.compile import aot_module_simplified  # type: ignore[import-untyped]  # no stubs
from torch import fx
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, eval_frame, trace_rules
from torch._dynamo.exc import ObservedException, Unsupported, UserError
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import graph_compile
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput as InputMutationAOTOutput
from torch._functorch._aot_autograd.descriptors import TangentAOTInput as TangentAOTInput
from torch._guards import CompileContext
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import _symbolic_trace
from torch.fx.graph import _BoxedCodeGen
from torch.fx.graph_module import _forward_from_src
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._sympy.printers import PythonPrinter
from torch.utils.checkpoint import _checkpoint_hook

from .autograd_nodes import graph_behind
from .bindings import BINDINGS
from .living import instances
from .logged import without_logging
from .recurrent import whole_layers
from .second_derivative import refuse_second_derivative

Boxed = Callable[[list[Any]], Any]


def trace_and_compile(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]],
    forward: Callable[[fx.GraphModule], Boxed],
    backward: Callable[[fx.GraphModule], Boxed],
    inference: Callable[[fx.GraphModule], Boxed],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """AOT autograd: trace forward and backward of `module` together, split them, and wrap both for autograd.

    It holds `compiling()`: the compilations of other threads wait until it has ended.

    Args:
        partition: (joint module, joint inputs, num_fwd_outputs=..., **rest) -> (forward module, backward module). The module writes new
            contents of inputs itself, where autograd need not know of that.
        forward, backward, inference: turn a graph module into a function of one list of inputs, which it empties.
        decompositions: of ops into others, and the habits of the compiler that they belong to; None: as in eager training.

    Returns:
        A function of the module's inputs.
    """

    def adapt(
        make: Callable[[fx.GraphModule], Boxed], starts_step: bool = True
    ) -> Callable[[fx.GraphModule, Sequence[Any]], Boxed]:
        def compile_pass(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Boxed:
            function = make(graph_module)

            def run(arguments: list[Any]) -> Any:
                if starts_step:
                    _runs.count += 1
                with torch.no_grad() if make is backward else nullcontext():  # create_graph=True would record what is done in it
                    return function(arguments)

            # Python code of a pass runs wherever the script calls for it, also in the middle of a function that PyTorch is
            # compiling (`backward()` inside one): it must not be compiled in its turn.
            boxed_run = torch.compiler.disable(run)
            boxed_run._boxed_call = True  # type: ignore[attr-defined]  # as in `mark_boxed`, which would be compiled
            return boxed_run

        return compile_pass

    # Where PyTorch compiles a model in pieces, one for each bucket of DistributedDataParallel, the first call of each returns fake
    # tensors; it makes that call itself, but only if it can see here that AOT autograd was used. Else the script would get them.
    counters["aot_autograd"]["total"] += 1
    with compiling(), _tracing(), _without_donation(), whole_layers(), nullcontext() if decompositions else _as_eager():
        compiled: Callable[..., Any] = aot_module_simplified(
            module,
            inputs,
            fw_compiler=adapt(forward),
            bw_compiler=adapt(backward, starts_step=False),
            inference_compiler=adapt(inference, starts_step=False),
            partition_fn=partition,
            keep_inference_input_mutations=True,
            decompositions=decompositions or {torch.ops.aten.native_dropout_backward.default: _dropout_backward},
        )

    def call(*arguments: Any) -> Any:
        results = compiled(*arguments)
        tensors = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        node = graph_behind(tensors, arguments)
        if node is not None:
            refuse_second_derivative(node)
            if not any(map(is_wrapper, tensors)):
                node.materialize_grads = False  # for outputs without a gradient the backward pass gets None
        return results

    return call


class _Runs(threading.local):
    count = 0


#: How many forward passes that train this thread has run.
_runs = _Runs()


def is_wrapper(tensor: torch.Tensor) -> bool:
    """It has no memory of its own: a subclass that wraps others, or what stands for a tensor while PyTorch traces."""
    return is_traceable_wrapper_subclass(tensor) or isinstance(tensor, FunctionalTensor) or torch._is_functional_tensor(tensor)


def planned_runs() -> int:
    """How many forward passes of planned graphs the calling thread has run so far, those without a backward pass left out."""
    return _runs.count


#: For releases of PyTorch whose lock has another name: planned models at least do not compile at the same time.
_own_lock = threading.RLock()


def compiling() -> AbstractContextManager[Any]:
    """The lock that PyTorch holds while it compiles.

    Tracing changes things that the whole process shares (`nn.Module.__call__`, settings of the compiler): no other thread may
    compile meanwhile. The lock can be taken again by the thread that holds it.
    """
    lock: AbstractContextManager[Any] = getattr(convert_frame, "compile_lock", _own_lock)
    return lock


#: The thread that traces a graph for a plan.
_tracer: int | None = None


@contextmanager
def _tracing() -> Iterator[None]:
    """Note which thread traces; one at a time, because it holds `compiling()`."""
    global _tracer
    before, _tracer = _tracer, threading.get_ident()
    try:
        yield
    finally:
        _tracer = before


def _let_other_threads_call() -> None:
    """While one thread traces, let the others go on calling what is compiled already.

    PyTorch refuses any call of a compiled function while a trace is under way, to find calls from inside the trace, and does
    not look at which thread calls. The check is asked through a name that `torch.compile` looks up for every model.
    """
    name = "is_fx_symbolic_tracing"
    is_tracing = getattr(_symbolic_trace, name, None)
    if is_tracing is not None:

        @wraps(is_tracing)
        def is_tracing_here() -> bool:
            return _tracer in (None, threading.get_ident()) and is_tracing()

        setattr(_symbolic_trace, name, is_tracing_here)


_let_other_threads_call()


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    """Gradient of dropout, rounded as eager training on the CPU rounds it: the scaled mask has the gradient's type."""
    if gradient.device.type != "cpu" or gradient.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented
    return gradient * (mask.to(gradient.dtype) * scale)


#: How often one model may be compiled: for other sizes, modes or arguments.
_RECOMPILE_LIMIT = 64


def isolation() -> dict[str, Any]:
    """Keywords for `torch.compile` that keep the compilations of one model apart from those of others of its class.

    Without them, PyTorch counts all of them together and, at the eighth, runs the model without any compiler. Releases before 2.13 do not
    know them: see `_keep_apart`.
    """
    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True, "recompile_limit": _RECOMPILE_LIMIT} if "isolate_recompiles" in known else {}


#: What `in_one_call` raises where it is not one graph; unless what the function raised itself is the cause.
NOT_ONE_GRAPH, ITS_OWN = (Unsupported, UserError, DataDependentOutputException, DynamicOutputShapeException), ObservedException


def in_one_call(function: Callable[..., Any], backend: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Compile a function as one graph, call it, and have PyTorch forget it, which would else keep all that belongs to it."""
    function.__code__ = function.__code__.replace()  # its own: that of a nested function is shared by all calls of the outer one
    try:
        with without_logging():
            return torch.compile(function, backend=backend, fullgraph=True, dynamic=False, **isolation())(*inputs)
    finally:
        reset_code(function.__code__)


#: How many times `_keep_apart` was called.
_apart = 0


def _keep_apart(context: Any) -> None:
    """What `isolation` asks for, for releases of PyTorch before 2.13: of what one call of `torch.compile` makes.

    They keep all compilations of a piece of code in one list, and count them together. A compilation is used again for another model
    if the backends are equal, which those by name are where they have equal options.
    """
    global _apart
    _apart += 1
    given: Any = eval_frame.innermost_backend(context.callback)
    if hasattr(given, "dynamic"):
        given.dynamic = object()  # it is read for nothing but this comparison, and equals only itself

    def raise_limits() -> Callable[[], None]:
        names = ("recompile_limit", "accumulated_recompile_limit")
        most = {name: max(getattr(dynamo_config, name), _RECOMPILE_LIMIT * _apart) for name in names}
        lower: Callable[[], None] = dynamo_config._make_closure_patcher(**most)()
        return lower

    context.enter_exit_hooks.append(raise_limits)


def _leave_out_unpacking() -> None:
    """Have PyTorch's compiler go around `pad_packed_sequence`, as releases from 2.13 on do by themselves.

    It cannot trace it, which is an error in older ones as soon as recurrent layers are traced.
    """
    rules: Any = getattr(trace_rules, "manual_torch_name_rule_map", {})
    name, like = "torch.nn.utils.rnn.pad_packed_sequence", "torch.nn.utils.rnn.pack_padded_sequence"
    if like in rules and name not in rules:
        rules[name] = rules[like]
        trace_rules.get_torch_obj_rule_map.cache_clear()


_leave_out_unpacking()


def on_compile(
    is_ours: Callable[[Any], bool],
    replace: Callable[[Any, Any, Any, Any], Any],
    framed: Callable[[Any], Any],
    knows_hooks: Callable[[Any], bool],
) -> None:
    """See to everything that `torch.compile` makes from now on with a backend of this package, by whatever way of calling.

    PyTorch does not ask a backend before the first graph, and not at all where there is none. Other backends notice nothing.

    Args:
        is_ours: of the backend.
        replace: (backend, compiled function, what is to be compiled, what was compiled in its place) -> the function to use instead.
        framed: from what is to be compiled to what PyTorch can compile in its place.
        knows_hooks: what is compiled notices by itself which hooks its modules have.
    """
    context: Any = getattr(eval_frame, "_TorchDynamoContext", None)
    if context is None:
        return
    # PyTorch leaves recurrent layers out unless it is told not to, and does not notice hooks that modules get or lose later.
    recurrent = dynamo_config._make_closure_patcher(allow_rnn=True)
    thorough = dynamo_config._make_closure_patcher(allow_rnn=True, skip_nnmodule_hook_guards=False)
    compile_one = context.__call__

    @wraps(compile_one)
    def compile_with(self: Any, target: Any) -> Any:
        given = eval_frame.innermost_backend(self.callback)
        given = getattr(given, "compiler_fn", given)
        # For a module or a class PyTorch comes back with the function to compile.
        if not is_ours(given) or isinstance(target, torch.nn.Module | type):
            return compile_one(self, target)
        instead = framed(target)
        settings = recurrent if knows_hooks(instead) else thorough
        if settings not in self.enter_exit_hooks:
            self.enter_exit_hooks.append(settings)
            # As in `isolation`: two models of a class, or a copy, would otherwise share graphs, and with them plans and budget.
            if not hasattr(self, "_isolate_recompiles_id"):
                _keep_apart(self)
            elif self._isolate_recompiles_id == -1:
                self._isolate_recompiles_id = next(eval_frame._next_isolate_recompiles_id)
                most = max(_RECOMPILE_LIMIT, dynamo_config.recompile_limit)
                self.enter_exit_hooks.append(dynamo_config._make_closure_patcher(recompile_limit=most))
        return replace(given, compile_one(self, instead), target, instead)

    context.__call__ = compile_with


def around_backward(begin: Callable[[Sequence[Any]], Callable[[bool], None] | None]) -> None:
    """Have `begin` called before every run of autograd's engine with what it begins at, and what that returns, if anything, afterwards.

    It is told whether all went well.
    """
    run: Any = getattr(torch.autograd, "_engine_run_backward", None)
    if run is None:
        return

    @wraps(run)
    def run_engine(*arguments: Any, **keywords: Any) -> Any:
        end = begin(arguments[0]) if arguments and not torch.compiler.is_compiling() else None
        if end is None:
            return run(*arguments, **keywords)
        try:
            results = run(*arguments, **keywords)
        except BaseException:
            end(False)
            raise
        end(True)
        return results

    torch.autograd._engine_run_backward = run_engine  # type: ignore[attr-defined]  # there is no hook


def inside_backward() -> bool:
    """This thread is in a pass of autograd's engine."""
    return bool(torch._C._current_graph_task_id() != -1)


def leave_open(tensor: torch.Tensor, dimensions: Iterable[int]) -> None:
    """Have the first trace with this tensor know these of its sizes as symbols, where it can."""
    dynamo: Any = torch._dynamo
    for dimension in dimensions:
        dynamo.maybe_mark_dynamic(tensor, dimension)


def graph_breaks() -> dict[str, int]:
    """What PyTorch has not compiled so far in this process, as it names it, and how often."""
    found: dict[str, int] = {}
    for kind in ("unimplemented", "graph_break"):
        for message, count in counters[kind].items():
            name = str(message).strip().partition("\n")[0]
            found[name] = found.get(name, 0) + count
    return found


def _without_donation() -> AbstractContextManager[Any]:
    """Keep AOT autograd from marking saved tensors that the backward pass may overwrite: it would refuse retain_graph=True.

    Nothing here overwrites them: say that there are none.
    """
    if hasattr(graph_compile, "collect_bw_donated_buffer_idxs"):
        return patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [])
    return nullcontext()


def _as_eager() -> AbstractContextManager[Any]:
    """Switch off what AOT autograd does differently from eager training, as far as this version of PyTorch has it."""
    # It traces the backward pass under the autocast of the forward pass; eager training runs it under none.
    known = hasattr(functorch_config, "backward_pass_autocast")
    return functorch_config.patch(backward_pass_autocast="off") if known else nullcontext()


def boxed(module: fx.GraphModule) -> Boxed:
    """The module's function with the boxed convention: it takes one list and empties it, so that nothing outlives its use."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    return mark_boxed(_with_direct_calls(module))


#: How generated code calls an operator.
_CALL = re.compile(r"\btorch\.ops\.(\w+\.\w+\.\w+)(?=\()")


def _with_direct_calls(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The module's function, whose calls of operators go straight to what PyTorch's own Python wrapper around each calls.

    Neither that wrapper nor its four attributes are looked up at every call, which takes as long as a third of a tiny op.
    """
    direct: dict[str, Any] = {}

    def found(call: re.Match[str]) -> str:
        operator = attrgetter(call[1])(torch.ops)
        if type(operator) is not torch._ops.OpOverload:
            return call[0]
        name = f"_{call[1].replace('.', '_')}"
        direct[name] = BINDINGS.get(operator, operator._op)
        return name

    source = _CALL.sub(found, module.code)
    function = _forward_from_src(source, {**type(module).forward.__globals__, **direct})
    return MethodType(function, module)


def mark_boxed(function: Callable[[list[Any]], Any]) -> Boxed:
    """Tell AOT autograd that `function` takes one list of inputs, which it may empty."""

    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # the attribute AOT autograd looks for
    return run


#: What the code of `size_as_python` calls.
SIZE_FUNCTIONS = {"math": math, "torch": torch}


def size_as_python(expression: Any) -> str:
    """Python code for an expression of symbolic sizes; its variables are the symbols."""
    return str(PythonPrinter().doprint(expression))


def current_compilation() -> Any:
    """What identifies the compilation of one of the user's functions that is under way in this thread; None if none is."""
    return CompileContext.current_compile_id()


def frees_gradients() -> bool:
    """A backward pass can let go of the gradients that it was given as soon as it has used them; before 2.13 autograd holds them."""
    return hasattr(torch.autograd.Function, "boxed_grads_call")


def saved_tensor_hooks() -> bool:
    """The user has hooks that keep what autograd saves in another form; those of the first pass under `torch.utils.checkpoint` keep nothing."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and not getattr(hooks[0], "__qualname__", "").startswith(_checkpoint_hook.__qualname__ + ".")


def is_tangent(node: fx.Node) -> bool:
    """The placeholder of a gradient that autograd hands to the backward pass."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def effect_tokens(joint: fx.GraphModule) -> list[int]:
    """Which inputs of the forward pass are tensors without elements that only put ops with effects in order, such as `torch.linalg`'s
    checks of what it has found. AOT autograd calls what it compiles with None in their place.
    """
    tokens = {node.args[0] for node in joint.graph.nodes if str(node.target) == "with_effects"}
    placeholders = joint.graph.find_nodes(op="placeholder")
    return [place for place, node in enumerate(placeholders) if node in tokens and not is_tangent(node)]


def forget_version_check(node: fx.Node) -> None:
    """Treat a saved tensor like any other: AOT autograd wants the ones saved without a version check last."""
    node.meta.pop("saved_tensor_with_no_vc_check", None)


def no_modes() -> AbstractContextManager[Any]:
    """Switch off the dispatch modes that are active in this thread, such as those of a trace."""
    return _disable_current_modes()


def convolution_kernel(given: torch.Tensor, weight: torch.Tensor, rest: Sequence[Any]) -> Any:
    """Which kernel a convolution runs. `rest`: stride and all that follows it among the arguments of `aten.convolution`."""
    return torch._C._select_conv_backend(given, weight, None, *rest)


def takes_lists_of_tensors(parameters: Sequence[torch.Tensor], differentiable: bool) -> bool:
    """Whether an optimizer of these parameters works on all of them at once, if the user does not say."""
    return _default_to_fused_or_foreach(list(parameters), differentiable, use_fused=False)[1]


def sharded_groups() -> Iterator[tuple[Any, Any]]:
    """(what all groups of a model have in common, group of parameters) of modules under `fully_shard`, if there are any."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if not hasattr(fsdp, "FSDPModule") or not fsdp.FSDPModule.__subclasses__():  # `fully_shard` makes one for each kind of module
        return
    for module in instances(fsdp.FSDPModule):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for group in groups:
            if group is not None:
                yield group.comm_ctx, group
