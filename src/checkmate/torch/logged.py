"""What models log, where Dynamo is to make one graph of them: it would break off there, or refuse them."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager

import torch

#: With what the names of methods begin that log, those that libraries give to `logging.Logger` among them (`warning_once`).
_NAMES = ("debug", "info", "warn", "error", "exception", "critical", "fatal", "log")


def without_logging() -> AbstractContextManager[None]:
    """Leave it out: nothing is run."""
    config = torch._dynamo.config
    # Before 2.13 the setting was of methods alone.
    name = "ignore_logging_functions" if hasattr(config, "ignore_logging_functions") else "ignore_logger_methods"
    methods = [method for called, method in vars(logging.Logger).items() if called.startswith(_NAMES)]
    patched: AbstractContextManager[None] = config.patch({name: {*getattr(config, name), *methods, print, warnings.warn}})
    return patched
