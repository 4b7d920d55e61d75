"""Settings that all tests share."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same kernels on every x86 processor: where the environment says nothing, TensorFlow decides by what the processor can do.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# No time limit per example: compiling on first use and busy machines would make tests fail by chance.
settings.register_profile("checkmate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("checkmate")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Python's collector leaves the frameworks alone, which stay: torch/rounds/test_scripts.py and test_rounds.py take 103 s instead of 118."""
    if "torch" in sys.modules:
        for name in ("torch._dynamo", "torch._inductor", "sympy"):  # which it loads when it compiles
            importlib.import_module(name)
        # pytest listens to loggers that hand nothing on. To this one PyTorch then describes every graph at length, in every compilation.
        logging.getLogger("torch.__trace").propagate = True
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Nor does it search what earlier tests left alive, mostly PyTorch's caches: torch/rounds/test_orders.py takes 17 s of processor time, not 88.

    Later tests do not find models of earlier ones, nor of fixtures that those made.
    """
    if "torch" in sys.modules:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What earlier sessions measured and planned must not matter, and what this one does must not stay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        # What is tested must not depend on when a search in another process ends.
        patch.setenv("CHECKMATE_WAIT", "1")
        yield
