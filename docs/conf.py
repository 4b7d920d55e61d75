"""How Sphinx builds the pages: `make docs`."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from checkmate.version import __version__  # noqa: E402 - found by the line above

project = "checkmate"
author = "The checkmate developers"
copyright = "The checkmate developers, Apache-2.0"
release = version = __version__

extensions = [
    "myst_nb",  # pages in Markdown, and the tutorials with the outputs that they were saved with
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# --- pages ---
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]  # progress bars of notebooks
# A test runs the tutorials and looks at what they leave behind; the pages show what is saved in them.
nb_execution_mode = "off"
_tutorials = HERE / "tutorials"
_tutorials.mkdir(exist_ok=True)
for _notebook in sorted((HERE.parent / "tutorials").glob("*.ipynb")):
    shutil.copyfile(_notebook, _tutorials / _notebook.name)

# --- the reference ---
# Front ends are read without their frameworks: a gigabyte less to install.
autodoc_mock_imports = ["functorch", "keras", "lightning", "tensorflow", "tf_keras", "torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures say it, in docstrings nothing is said twice
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
smartquotes = False
default_role = "code"  # one backtick in docstrings is code

# --- looks ---
html_theme = "furo"
html_title = f"checkmate {release}"
html_static_path: list[str] = []
html_show_sphinx = False

# Links to other sites are not followed when the pages are built: `make docs` needs no network. `make docs-links` follows them.
linkcheck_timeout = 20
linkcheck_workers = 4

# --- docstrings ---
# They are written for reading in the source: indented lines after a full stop are code, and one line may hold several arguments.
_SECTIONS = ("Args:", "Attributes:", "Raises:")
_NEXT = re.compile(r"(?<=[^.]\.) ((?:\w+, )*[A-Za-z_]\w*): (?=\S)")


def _lines(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    made: list[str] = []
    section = ""
    for number, line in enumerate(lines):
        text = line.strip()
        if text in _SECTIONS:
            section = text
        elif text and not line.startswith(" "):
            section = ""
        if section and line.startswith("    ") and not line.startswith("     "):
            known = _arguments(obj) if section != "Raises:" else None
            for part in _parted(text, known):
                names, _, rest = part.partition(":")
                several = names.split(", ") if section == "Attributes:" and ", " in names else [names]
                made += [f"    {one}:{rest}" for one in several]
            continue
        before = lines[number - 1].strip() if number else "-"
        if not section and line.startswith("    ") and not before and not made[-2].startswith("    "):
            made += ["::", ""]
        made.append(line)
    lines[:] = made


def _arguments(obj: object) -> set[str]:
    named = set(getattr(obj, "__annotations__", {}))
    with suppress(TypeError, ValueError):
        named |= set(inspect.signature(obj).parameters)  # type: ignore[arg-type]
    return named


def _parted(text: str, known: set[str] | None) -> list[str]:
    """`a: this. b: that.` as two lines, where both are names of arguments, or of errors."""
    for found in _NEXT.finditer(text):
        names = found[1].split(", ")
        if (known is None and names[0][0].isupper()) or (known is not None and set(names) <= known):
            return [text[: found.start()], *_parted(text[found.start() + 1 :], known)]
    return [text]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _lines, priority=100)  # before napoleon reads sections
