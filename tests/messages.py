"""Every error and warning that the code can raise, read off its source: what the page on troubleshooting has to explain.

A message is a template: the text of the source, with `…` for what is filled in. Names are followed to what is assigned to them in
the same function, and calls to what the called function returns. What cannot be followed has to be said in `PASSED_ON`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import checkmate

SOURCE = Path(checkmate.__file__).parent
HOLE = "…"

#: (file, expression) of messages that are made elsewhere: by another call that is collected, or by somebody else's code.
PASSED_ON = {
    ("cli/checks.py", "str(error)"): "an error of `parse_bytes`, as bad usage",
    ("cli/inspect.py", "str(error)"): "an error of `start_pictures`, as bad usage",
    ("planning/background.py", "self._failure"): "collected where it is set: `cannot start another process`",
    ("planning/background.py", "answer['contradiction']"): "a Contradiction of the other process",
    ("solvers/mixed_integer/highs_process.py", "content"): "what the process of HiGHS says: `HiGHS failed: ...`",
}
#: Functions that hand their argument to the user, besides constructors of errors; and which argument that is.
_SINKS = {"warn": 0, "_warn": 0, "tell": 0, "_tell": 1, "_fail": 0}
#: Functions of the same name that do something else: tell progress, and hand on.
_NOT_ABOUT_TROUBLE = {("torch/largest.py", "tell"), ("torch/steps_without_plan.py", "_tell")}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Message:
    """What a user may be told, and where."""

    template: str
    kind: str
    file: str
    line: int


@cache
def error_classes() -> set[str]:
    """Names of the classes of errors, and of what looks like one to the user."""
    found: set[str] = {"CheckmateError"}
    classes = [node for _, tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(3):
        found |= {one.name for one in classes if any(isinstance(base, ast.Name) and base.id in found for base in one.bases)}
    return found


@cache
def messages() -> tuple[Message, ...]:
    """All of them, in the order of the files.

    Raises:
        LookupError: one is made in a way that is not followed here, and is not in `PASSED_ON`.
    """
    kinds, functions = error_classes(), _functions()
    found = [one for file, tree in _trees() for one in _in_file(file, tree, kinds, functions)]
    return tuple(dict.fromkeys(found))


@cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple((path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def _functions() -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                found.setdefault(node.name, []).append(node)
    return found


def _in_file(file: str, tree: ast.Module, kinds: set[str], functions: dict[str, list]) -> Iterator[Message]:  # type: ignore[type-arg]
    for scope in [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]:
        for call in [node for node in _own_nodes(scope) if isinstance(node, ast.Call)]:
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            if name not in kinds and name not in _SINKS:
                continue
            if (file, name) in _NOT_ABOUT_TROUBLE:
                continue
            argument = _message_argument(name, call)
            if argument is None:
                continue
            for template in _templates(argument, scope, functions, file):
                if template.strip(HOLE + " :;,"):
                    yield Message(" ".join(template.split()), name, file, call.lineno)


def _message_argument(name: str, call: ast.Call) -> ast.expr | None:
    if name == "InfeasibleBudget":
        said = [keyword.value for keyword in call.keywords if keyword.arg == "message"]
        return call.args[3] if len(call.args) > 3 else said[0] if said else None
    position = _SINKS.get(name, 0)
    if name == "FailedInUserCode" or len(call.args) <= position:
        return None
    return call.args[position]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _FUNCTIONS):
            yield from _own_nodes(child)


def _templates(node: ast.expr, scope: ast.AST, functions: dict[str, list], file: str) -> list[str]:  # type: ignore[type-arg]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)]  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_templates(side, scope, functions, file) or [HOLE] for side in (node.left, node.right))
        return [a + b for a in left for b in right]
    if isinstance(node, ast.IfExp):
        return [text for branch in (node.body, node.orelse) for text in _templates(branch, scope, functions, file)]
    if isinstance(node, ast.Name):
        return _of_name(node.id, scope, functions, file)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "join":
            return [HOLE]
        if name in functions and (file, ast.unparse(node)) not in PASSED_ON:
            returned = [
                text
                for function in functions[name]
                if isinstance(function.returns, ast.Name) and function.returns.id == "str"
                for one in _own_nodes(function)
                if isinstance(one, ast.Return) and one.value is not None
                for text in _templates(one.value, function, functions, file)
            ]
            if returned:
                return returned
    if (file, ast.unparse(node)) in PASSED_ON:
        return []
    raise LookupError(f"{file}: a message is made by {ast.unparse(node)!r}: say in PASSED_ON what that is")


def _of_name(name: str, scope: ast.AST, functions: dict[str, list], file: str) -> list[str]:  # type: ignore[type-arg]
    assert isinstance(scope, _FUNCTIONS)
    found = []
    for node in _own_nodes(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            assert isinstance(node, ast.Assign | ast.AugAssign)
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                found += _templates(node.value, scope, functions, file)
    if any(isinstance(node, ast.ExceptHandler) and node.name == name for node in _own_nodes(scope)):
        return []  # an error that was collected where it was raised
    arguments = scope.args
    parameters = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if found or name in parameters:  # what is handed in is collected where that is done
        return found
    if (file, name) in PASSED_ON:
        return []
    raise LookupError(f"{file}: the message {name!r} is not assigned in {scope.name}: say in PASSED_ON what that is")
