"""TensorFlow 2 / Keras front end: train a model under a memory budget.

train_iteration_fn = checkmate.tf2.compile(model, loss, optimizer, input_spec=x0, label_spec=y0, budget="4GiB")
prediction, loss_value = train_iteration_fn(x, y)

checkmate.tf2.prepare(model, budget="4GiB")       # afterwards model.fit(...) trains under the budget
"""

from __future__ import annotations

from ..errors import BudgetWarning
from .api import TrainIteration, capture, compile, plans
from .execution.plan import Plan
from .keras.fit import prepare
from .memory.measure import Measurement, count_on_cpu, measure
from .options import Options
from .step import PlannedStep

__all__ = [
    "BudgetWarning",
    "Measurement",
    "Options",
    "Plan",
    "PlannedStep",
    "TrainIteration",
    "capture",
    "compile",
    "measure",
    "plans",
    "prepare",
]

count_on_cpu()
