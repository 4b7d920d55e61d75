"""The kernels of the solvers, compiled ahead of time; all else about the package is in pyproject.toml."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

#: Python's stable interface: one build serves 3.11 and all that follow, but for those without the global lock, which do not have it.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
#: Sums and products are rounded one by one, so that results are the same on every machine.
FLAGS = ["-O3", "-g0", "-ffp-contract=off"]


def extension(path: Path) -> Extension:
    """The module of a file."""
    return Extension(
        ".".join(path.with_suffix("").parts[1:]),
        [path.as_posix()],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
        py_limited_api=STABLE,
        extra_compile_args=FLAGS,
    )


setup(
    ext_modules=cythonize(
        [extension(path) for path in sorted(Path("src").rglob("*.pyx"))],
        build_dir="build",
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    ),
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
