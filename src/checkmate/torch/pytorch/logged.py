"""What models log, where Dynamo is to make one graph of them: it would break off there, or refuse them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

#: With what the names of methods begin that log, those that libraries give to `logging.Logger` among them (`warning_once`).
_NAMES = ("debug", "info", "warn", "error", "exception", "critical", "fatal", "log")


@contextmanager
def without_logging() -> Iterator[None]:
    """Leave it out: nothing is run."""
    config = torch._dynamo.config
    methods = [method for called, method in vars(logging.Logger).items() if called.startswith(_NAMES)]
    ignored = {*config.ignore_logging_functions, *methods, print, warnings.warn}
    with ExitStack() as stack:
        stack.enter_context(config.patch(ignore_logging_functions=ignored))
        if torch.__version__ < "2.12":  # it would note its settings, cannot put functions in order, and log an error
            stack.enter_context(patch.object(torch._dynamo.utils, "_get_dynamo_config_for_logging", lambda: None))
        yield
