"""Random Keras programs under a budget, against plain training: every number equal to the bit, no crash, no peak that is not told.

A program (`keras_fuzz_programs.py`) is a functional or subclassed model with layers of Keras and of one's own, `keras.ops` and TensorFlow in its
`call`, regularizers, constraints, losses and weights that it changes itself, outputs that no loss uses; a script (`keras_fuzz_script.py`)
trains it with `fit`, `train_on_batch` or `checkmate.tf2.compile` in a loop. Logs, history, all variables, those of the optimizer,
evaluation, predictions and the next random numbers are compared. Where plain training differs from run to run, or the documentation says that
last bits may differ, numbers have to be near.

    python benchmarks/keras_fuzz.py [--programs 300] [--seed 0] [--show] [--output keras_fuzz.json]

A program takes some 10 s, in a process of its own. Ctrl-C stops it and writes what was found so far; `--programs 1 --seed SEED --show` prints
one program and what came of it. Exit code 1 if there is any failure.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from fuzz_report import Outcome, options, survey
from keras_fuzz_programs import Program, generate
from keras_fuzz_script import BATCHES, EPOCHS, Found, Training
from worker import environment, forked

import checkmate.solvers.default
import checkmate.tf2
from checkmate import InfeasibleBudget

#: Budgets that are tried, each the one that the error before asks for: an error knows of the shapes so far alone.
TRIES = 4
TIME_LIMIT, PLAN_SECONDS = 1.0, 4.0  # s, of a search, and of a plan
MOST_SECONDS = 300  # of a program
#: What is no failure. "refused": the budget is, and so are those that the errors name.
FINE = ("same", "near", "not trained", "refused")
#: Numbers are near that differ by no more than such a part of the largest ones: what differs in its last bits goes apart in a few steps.
NEAR = 0.02


def difference(expected: Found, found: Found, same: Callable[[Any, Any], bool]) -> str:
    """The first value that is not as expected; empty if there is none."""
    for (name, value), (other, ours) in zip(expected, found, strict=False):
        if name != other:
            return f"{other} where {name} was expected"
        if not same(value, ours):
            return f"{name}: {_apart(value, ours)}"
    return "" if len(expected) == len(found) else f"{len(found)} values where {len(expected)} were expected"


def _apart(one: np.ndarray, other: np.ndarray) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{other.dtype}{other.shape} where {one.dtype}{one.shape} was expected"
    return f"{np.abs(_numbers(one) - _numbers(other)).max():.1e} apart, of {np.abs(_numbers(one)).max():.1e}"


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    largest = np.abs(_numbers(one)).max(initial=1e-3)
    return bool((np.abs(_numbers(one) - _numbers(other)) <= NEAR * largest).all())


def _numbers(values: np.ndarray) -> np.ndarray:
    return values.astype("float64")


def _plain(program: Program) -> tuple[Found | None, str]:
    """What plain training comes to; None if it fails or there is nothing to train, and why."""
    try:
        training = Training(program).run()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in Keras
        return None, f"{type(error).__name__}: {error}"
    if not training.model.trainable_variables:
        return None, "nothing to train"
    finite = all(np.isfinite(_numbers(value)).all() for name, value in training.found if "loss" in name)
    return (training.found, "") if finite else (None, "a loss is not finite")


def _ours(program: Program, front: Any) -> tuple[Training, list[str]]:
    """What training under the least budget that is not refused comes to, and warnings."""
    budget: str | int = program.script.budget
    for _ in range(TRIES):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                options = {"budget": budget, "time_limit": TIME_LIMIT, "plan_seconds": PLAN_SECONDS}
                training = Training(program, front, options).run()
            return training, [str(one.message) for one in caught if issubclass(one.category, checkmate.tf2.BudgetWarning)]
        except InfeasibleBudget as error:
            budget, refused = error.smallest_found, error
    raise refused


def judge(program: Program, front: Any = checkmate.tf2) -> tuple[str, str]:
    """What came of a program, and details.

    Args:
        front: has `prepare`, `compile` and `plans`.
    """
    expected, reason = _plain(program)
    if expected is None:
        return "not trained", reason
    try:
        training, told = _ours(program, front)
    except InfeasibleBudget as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return "fails", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    if differs := difference(expected, training.found, _equal):
        again = _plain(program)[0]
        loose = program.is_loose or again is None or difference(expected, again, _equal)
        if not loose or (apart := difference(expected, training.found, _near)):
            return "differs", apart if loose else differs
    over = [plan for plan in training.plans if plan.measured_peak is not None and plan.measured_peak > plan.budget]
    if over and not told:
        return "above the budget", f"{over[0].measured_peak} bytes of {over[0].budget}"
    recomputed = sum(plan.schedule.num_recomputations for plan in training.plans)
    return "near" if differs else "same", differs or f"{len(training.plans)} plans, {recomputed} ops computed again"


def _outcome(seed: int) -> Outcome:
    """Of the program of a seed, in a process of its own."""

    def work() -> dict[str, Any]:
        # Of this process, what TensorFlow says on standard error is no part of the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        warnings.simplefilter("ignore")
        # With one thread plain training repeats itself.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        program = generate(seed)
        kind, detail = judge(program)
        return {"kind": kind, "detail": detail, "text": f"{program.script}\n{program.source()}"}

    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKMATE_CACHE_DIR"] = folder
        made = forked(work, MOST_SECONDS, {"kind": "fails", "detail": "", "text": ""})
    return Outcome(made["kind"], made["detail"] or made.get("error", ""), made["text"])


def main() -> int:
    args = options(__doc__ or "").parse_args()
    settings = {"batches": BATCHES, "epochs": EPOCHS, "time_limit": TIME_LIMIT, "plan_seconds": PLAN_SECONDS}
    return survey(args, _outcome, FINE, environment(), settings)


if __name__ == "__main__":
    sys.exit(main())
