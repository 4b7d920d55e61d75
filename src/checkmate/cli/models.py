"""A user's own model: from the name of a factory to the graph of a training step.

The factory is found, called and captured here. PyTorch models are made of fake tensors where that works: these have shapes and no
data, so that a model of any size fits this machine. Frameworks are imported by the user's module, or when one of its models is captured.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import CheckmateError
from ..graph import Graph
from ..planning.device_models import DeviceModel
from ..text import printable
from .parser import BadUsage
from .user_code import FailedInUserCode

#: Characters of a name in a message.
_NAME = 200
_CONTRACT = "a factory returns (model, batch) or (model, batch, loss), as `checkmate trace --help` says"


@dataclass(frozen=True)
class Watch:
    """How the work is shown.

    Attributes:
        say: prints a line. doing: says what is being done.
    """

    say: Callable[[str], None]
    doing: Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """What a factory returned."""

    model: Any
    batch: Any
    loss: Any


class ModelFactory:
    """A function of the user's that makes a model and a batch.

    Args:
        word: "module:factory" or "file.py:factory".

    Raises:
        BadUsage: there is no such module, file or function. FailedInUserCode: the module failed.
    """

    def __init__(self, word: str, watch: Watch):
        self.word = printable(word, _NAME)
        self._watch = watch
        where, _, name = word.rpartition(":")
        self._fake, self._needs_batch = True, False
        watch.doing(f"importing {printable(where, _NAME)}")
        with self._users_code():
            module = _module_of(where)
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            what = "is nothing that can be called" if found is not None else "is not there"
            raise BadUsage(f"{printable(name, _NAME)} {what} in {printable(where, _NAME)}: name a function; {_CONTRACT}")
        self._function = found
        self.takes_batch = self._check_parameters()

    def _check_parameters(self) -> bool:
        try:
            parameters = inspect.signature(self._function).parameters
        except (TypeError, ValueError):  # some that are written in C do not tell
            return False
        missing = [
            one.name
            for one in parameters.values()
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        if set(missing) - {"batch"}:
            raise BadUsage(f"{self.word} needs {', '.join(missing)}: a factory is called with nothing, or with batch")
        self._needs_batch = bool(missing)
        return "batch" in parameters

    def graph(self, batch: int | None, device: DeviceModel | None) -> Graph:
        """The graph of a training step of what it makes.

        Args:
            batch: None: what the factory takes by itself. device: as in `checkmate.torch.capture`.

        Raises:
            BadUsage: the factory does not take a batch, or needs one, or returns something else than it should.
            FailedInUserCode: the factory or the model failed. CheckmateError: the step has nothing to plan.
        """
        if batch is not None and not self.takes_batch:
            raise BadUsage(f"{self.word} has no parameter named batch: give it one, and --batch goes there")
        if batch is None and self._needs_batch:
            raise BadUsage(f"{self.word} has to be told the batch size: give --batch")
        keywords = {} if batch is None else {"batch": batch}
        shown = self.word if batch is None else f"{self.word} at batch {batch}"
        if "torch" not in sys.modules or not self._fake:
            return self._captured(keywords, device, shown, fake=False)
        try:
            return self._captured(keywords, device, shown, fake=True)
        except FailedInUserCode as error:
            first = error
        try:
            graph = self._captured(keywords, device, shown, fake=False)
        except FailedInUserCode as second:
            raise (first if first.is_own else second) from None
        self._fake = False
        self._watch.say(f"{self.word} was made with all its data, for it cannot be made of tensors without ({first.summary})")
        return graph

    def _captured(self, keywords: Mapping[str, Any], device: DeviceModel | None, shown: str, fake: bool) -> Graph:
        self._watch.doing(f"making {shown}")
        fake_mode = _fake_tensors() if fake else nullcontext()
        with fake_mode, self._users_code():
            made = self._read(self._function(**keywords))
        self._watch.doing(f"tracing {shown}")

        def progress(done: int, count: int) -> None:
            self._watch.doing(f"measuring the ops of {shown}: {done} of {count}")

        with self._users_code():
            if _is_keras(made.model):
                return _keras_graph(made, device, progress)
            return _torch_graph(made, device, progress, fake_mode)

    def _read(self, made: Any) -> Made:
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            what = f"{len(made)} things" if isinstance(made, tuple) else f"a {type(made).__name__}"
            raise BadUsage(f"{self.word} returned {what}: {_CONTRACT}")
        model, batch, loss = (*made, None)[:3]
        if not (_is_keras(model) or ("torch" in sys.modules and callable(model))):
            raise BadUsage(f"{self.word} returned a {type(model).__name__} for a model: it should be one of PyTorch or Keras")
        if loss is None and _is_keras(model):
            loss = getattr(model, "loss", None)
            if loss is None:
                raise BadUsage(f"{self.word} returned a Keras model without a loss: return (model, (x, y), loss), or compile it")
        if _is_keras(model) and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise BadUsage(f"{self.word} returned a Keras model with a batch that is not a pair (x, y)")
        return Made(model, batch, loss)

    @contextmanager
    def _users_code(self) -> Iterator[None]:
        """What it prints is not the result of the command, and what it raises is told from what this package raises."""
        try:
            with _Lines(self._watch.say) as lines, redirect_stdout(lines):
                yield
        except CheckmateError:
            raise
        except SystemExit as error:
            raise BadUsage(
                f"{self.word} ended the program (sys.exit): put what is not needed under if __name__ == '__main__'"
            ) from error
        except Exception as error:
            raise FailedInUserCode(self.word, error) from error


class _Lines(io.TextIOBase):
    """A file whose lines are said one by one."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)

    def close(self) -> None:
        if self._rest:
            self._say(self._rest)
            self._rest = ""
        super().close()


def _module_of(where: str) -> ModuleType:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise BadUsage(f"cannot read {printable(where, _NAME)}: there is no such file")
        sys.path.insert(0, str(path.resolve().parent))  # as where it is run as a script
        name = path.stem
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise BadUsage(f"cannot import {printable(where, _NAME)}")
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            if before is not None:
                sys.modules[name] = before
        return module
    if not all(part.isidentifier() for part in where.split(".")):
        raise BadUsage(f"{printable(where, _NAME)} is neither the name of a module nor of a .py file (models are module:factory)")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as in `python -m`
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise BadUsage(
                f"there is no module {printable(error.name, _NAME)} here: check the name, or write file.py:factory"
            ) from None
        raise


def _is_keras(model: Any) -> bool:
    kinds = [(kind.__name__, kind.__module__.partition(".")[0]) for kind in type(model).__mro__]
    return any(name == "Model" and package in ("keras", "tf_keras") for name, package in kinds)


def _fake_tensors() -> AbstractContextManager[object]:
    from ..torch.pytorch.fake_tensors import FakeTensors

    return FakeTensors()


def _torch_graph(
    made: Made,
    device: DeviceModel | None,
    progress: Callable[[int, int], None],
    fake_mode: AbstractContextManager[object],
) -> Graph:
    from ..torch import capture
    from ..torch.pytorch.fake_tensors import without_meta

    model, batch = without_meta(made.model, made.batch)
    if isinstance(batch, Mapping):
        names = list(batch)

        def step(*tensors: Any) -> Any:
            return model(**dict(zip(names, tensors, strict=True)))

        call, inputs = step, tuple(batch.values())
    else:
        call, inputs = model, tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    try:
        with _without_log():
            graph = capture(call, *inputs, loss=made.loss, device=device, progress=progress)
    except CheckmateError:
        raise
    except Exception:
        if not isinstance(fake_mode, nullcontext):
            with fake_mode, _without_log():
                output = call(*inputs)  # if the model itself fails, it does so here, and says it without the compiler's words
                if made.loss is not None:
                    made.loss(output)
        raise
    name = getattr(model, "__name__", type(model).__name__)
    return Graph(graph.ops, graph.values, graph.fixed_memory, name)


def _keras_graph(made: Made, device: DeviceModel | None, progress: Callable[[int, int], None]) -> Graph:
    from ..tf2 import capture

    x, y = made.batch
    return capture(made.model, made.loss, x, y, device=device, progress=progress)


@contextmanager
def _without_log() -> Iterator[None]:
    """PyTorch logs at length what it then raises."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
