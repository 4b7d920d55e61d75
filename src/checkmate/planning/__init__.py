"""What every front end needs, whatever the framework; `docs/new_front_end.md` says how the parts work together."""

from .budget import Allowance
from .device_models import DeviceModel, device_model
from .environment import available_processors, cost_environment
from .memory import accelerator_budget, host_budget
from .op_costs import FREE, OpCost, Work, device_rates, find_op_costs, quickest, undisturbed
from .options import Options
from .plan import Plan, make_plan, plan_of
from .replan import Margins, note_excess

__all__ = [
    "FREE",
    "Allowance",
    "DeviceModel",
    "Margins",
    "OpCost",
    "Options",
    "Plan",
    "Work",
    "accelerator_budget",
    "available_processors",
    "cost_environment",
    "device_model",
    "device_rates",
    "find_op_costs",
    "host_budget",
    "make_plan",
    "note_excess",
    "plan_of",
    "quickest",
    "undisturbed",
]
