"""Sphinx settings; built with warnings as errors by `nox -s docs`."""

import re
from importlib.metadata import version as installed_version
from typing import Any

project = "asynclock"
author = "The asynclock authors"
copyright = "The asynclock authors"
version = release = installed_version("asynclock")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "asynclock"
# Nothing is fetched from elsewhere: the built site reads as well from a folder.
html_static_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"


def plain_text(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Docstrings are written for people in an editor: `code`, paragraphs, indented examples.

    Read as reStructuredText they would need double backticks and `::` before an example; that
    is done here instead of in every docstring.
    """
    found: list[str] = []
    example = False
    for line in lines:
        if line.startswith("    ") and not example and not (found and found[-1].strip()):
            found += ["::", ""]
            example = True
        elif line.strip() and not line.startswith(" "):
            example = False
        if not example:
            line = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line.lstrip())
            line = re.sub(r"(?<![`\w*])\*(?=\w)|(?<=\w)_(?=[\s,.;:)]|$)", r"\\\g<0>", line)
        found.append(line)
    lines[:] = found


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text)
