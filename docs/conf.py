"""The site: the pages of this folder, the interface from docstrings, and a gallery of examples."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import gallery  # noqa: E402

import lapkernels  # noqa: E402

project = "lapkernels"
author = "The lapkernels authors"
version = release = lapkernels.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "lapkernels"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

SHAPE = re.compile(r"\[[^\]`]*\*[^\]`]*\]")
# The table of contents, which the index has in words; other pages come last.
CONTENTS = {
    "Use": [
        "curvature",
        "laplace",
        "choosing",
        "variational",
        "autoencoder",
        "l2m",
        "trainers",
        "processes",
        "files",
    ],
    "Look up": [
        "gallery",
        "papers",
        "coming_from",
        "laplace_torch",
        "compiled",
        "support",
        "ops",
        "glossary",
        "api",
    ],
    "Behind it": ["architecture", "derivations", "kernels", "gpu"],
    "Measured": ["measured/README", "measured/*", "measured/*/*"],
}
LISTED = {page for pages in CONTENTS.values() for page in pages}
CONTENTS["More"] = sorted({page.stem for page in HERE.glob("*.md")} - LISTED - {"index", "gallery"})


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append what the theme's sidebar needs to the index, which is read elsewhere too."""
    if name != "index":
        return
    for caption, pages in CONTENTS.items():
        lines = [
            "",
            "```{toctree}",
            ":hidden:",
            ":glob:",
            f":caption: {caption}",
            "",
            *pages,
            "```",
        ]
        source[0] += "\n".join(lines) + "\n"


def escape_shapes(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """The star of a shape such as [N, *out] starts no emphasis."""
    for k, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [
            SHAPE.sub(lambda found: found.group().replace("*", r"\*"), p) for p in parts[::2]
        ]
        lines[k] = "``".join(parts)


def setup(app: Sphinx) -> None:
    """Hooks of the build."""
    app.connect("builder-inited", lambda app: gallery.write(HERE))
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", escape_shapes)
