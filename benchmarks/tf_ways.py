"""One way to train a network, in a process of its own: what tf_peers.py compares.

The process reads requests as lines of JSON, the way first, and answers each with a line: the peak of the way's steps,
and then for every further request the seconds of a step, which follows one that is not timed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from worker import environment

#: Steps until a peak is known, and those of them that only prepare: the first makes the function, and ours may plan again after it.
STEPS, PREPARING = 12, 3


class Training:
    """A network, a batch and an optimizer in this process; each way to train gives its step, and what is known of it."""

    def __init__(self, network: str, size: str, batch: int | None):
        import keras
        import tensorflow as tf
        from tf_models import task

        self.task = task(network, size, batch)
        # Copies: a constant may lie outside of the allocator's memory.
        self.x, self.y = (tf.raw_ops.DeepCopy(x=tf.constant(array)) for array in self.task.batch(0))
        self.optimizer = keras.optimizers.SGD(0.01)
        self.keras = keras

    def meter(self, model: Any) -> Any:
        """For the training of a model that has only just been built."""
        from tf_meter import Meter

        self.optimizer.build(model.trainable_variables)
        return Meter([v.value for v in (*model.variables, *self.optimizer.variables)], (self.x, self.y))

    def measured(self, step: Callable[[Any, Any], Any], meter: Any) -> dict[str, int]:
        """The peak of the steps behind those that prepare, in bytes.

        Each has a batch of its own, somewhere else in the allocator's memory, which changes what blocks the step finds there.
        """
        import tensorflow as tf

        from checkmate.tf2 import measure

        peaks = []
        for _ in range(STEPS):
            self.x, self.y = (tf.raw_ops.DeepCopy(x=tensor) for tensor in (self.x, self.y))
            gc.collect()
            with measure("CPU:0") as seen:
                step(self.x, self.y)
            peaks.append(meter.peak(seen))
        return {"peak": max(peaks[PREPARING:])}

    def trained(
        self, model: Any, forward: Callable[[Any], Any] | None = None
    ) -> tuple[Callable[[Any, Any], Any], dict[str, Any]]:
        from tf_models import plain_step

        meter = self.meter(model)
        step = plain_step(model, self.task.loss, self.optimizer, forward)
        return step, self.measured(step, meter)

    def plain(self) -> tuple[Callable[[Any, Any], Any], dict[str, Any]]:
        return self.trained(self.task.build())

    def segments(self, cuts: list[int]) -> tuple[Callable[[Any, Any], Any], dict[str, Any]]:
        from tf_segments import Layered

        model = self.task.build()
        return self.trained(model, Layered.read(model, len(self.x)).recomputed(cuts))

    def remat(self, scope: dict[str, Any]) -> tuple[Callable[[Any, Any], Any], dict[str, Any]]:
        with self.keras.RematScope(**scope):
            model = self.task.build()
        return self.trained(model)

    def ours(self, budget: int, time_limit: float) -> tuple[Callable[[Any, Any], Any], dict[str, Any]]:
        import checkmate.tf2

        model = self.task.build()
        meter = self.meter(model)
        step = checkmate.tf2.compile(model, self.task.loss, self.optimizer, self.x, self.y, budget=budget, time_limit=time_limit)
        measured = self.measured(step, meter)
        (plan,) = checkmate.tf2.plans(step)
        return step, {**measured, "predicted_peak": plan.predicted_peak, "overhead": plan.schedule.overhead}

    def facts(self, counts: list[int]) -> dict[str, Any]:
        """Where to cut for these numbers of segments, the smallest budget of ours (None if every one would do), and versions."""
        from tf_segments import Layered

        import checkmate.tf2

        model = self.task.build()
        layered = Layered.read(model, len(self.x))
        cuts = [layered.cuts(count, len(self.x)) for count in counts]
        graph = checkmate.tf2.capture(model, self.task.loss, self.x, self.y, self.optimizer)
        smallest = None
        try:
            checkmate.solve(graph, 1, method="greedy")
        except checkmate.InfeasibleBudget as error:
            smallest = error.smallest_found
        return {"cuts": cuts, "smallest": smallest, "environment": environment()}


def main() -> int:
    # Whatever else is printed here must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    network, size, batch, kind, arguments = json.loads(sys.stdin.readline())
    training = Training(network, size, batch)
    if kind == "facts":
        answer(training.facts(*arguments))
        return 0
    try:
        step, about = getattr(training, kind)(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a way of training cannot do is a result: it goes into the table
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        answer({"error": message, "infeasible": getattr(error, "smallest_found", None)})
        return 0
    answer(about)
    for _ in sys.stdin:
        step(training.x, training.y)  # the processors' caches hold another process's numbers
        started = time.perf_counter()
        step(training.x, training.y)
        answer({"seconds": time.perf_counter() - started})
    return 0


if __name__ == "__main__":
    sys.exit(main())
