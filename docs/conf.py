"""Sphinx settings; built with warnings as errors by `nox -s docs`."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version as installed_version
from typing import Any, cast

project = "asynclock"
author = "The asynclock authors"
copyright = "The asynclock authors"
version = release = installed_version("asynclock")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "asynclock"
# Nothing is fetched from elsewhere: the built site reads as well from a folder.
html_static_path = ["_static"]
html_theme_options = {"navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
MANY = 8  # parameters, from which on a table is easier to read

# Every reference must lead somewhere (`-n`), except into what has no pages of ours.
nitpick_ignore_regex = [
    # The standard library and other projects: their pages are elsewhere, and nothing is fetched.
    ("py:class", r"(collections\.abc|pathlib|os|ssl|logging|weakref|_?asyncio|contextlib)\..*"),
    ("py:class", r"(starlette|aiohttp|web|fastapi|opentelemetry|redis|Redis|FastAPI)(\..*)?"),
    ("py:class", r"AbstractAsyncContextManager|Path"),
    # What the nodes keep, which FleetState describes.
    ("py:class", r"asynclock\._rules\.nodeset\..*"),
    # Variables of types.
    ("py:class", r"(asynclock\..*\.)?[A-Z](_co)?"),
    # What a signature names and a reader need not call.
    ("py:class", r"NodeAddress|ConnectSettings|RestartGuard"),
    ("py:class", r"asynclock\._(primitives|engine|settings)\..*"),
    ("py:class", r"asynclock\.(blocking|contrib|testing)\..*"),
    ("py:class", r"AsyncLockManager|AnyLock|AnyLease"),
]
# Lease, Lock and LockManager are names in two modules; each page is about one of them.
suppress_warnings = ["ref.python"]


def made_elsewhere(
    app: Any, what: str, name: str, thing: object, options: Any, signature: str | None, result: Any
) -> tuple[str, Any] | None:
    """Hide how an object is made that another one makes, and the mark of an argument not given."""
    factory_made = what == "class" and re.match(r"asynclock\.(blocking\.)?[A-Z]", name)
    data = dataclasses.is_dataclass(thing)
    if factory_made and not data and not issubclass(cast(type, thing), Exception):
        return "", None
    if signature is None or "_Unset" not in signature:
        return None
    shown = re.sub(r" \| ~?[\w.]*_Unset", "", signature)
    return re.sub(r" = <[^>]*_Unset[^>]*>", " = ...", shown), result


def arguments(lines: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split off the section `Args:`, which comes last: a name and its text per parameter."""
    if "Args:" not in lines:
        return lines, []
    begin = lines.index("Args:")
    found: list[tuple[str, str]] = []
    for line in lines[begin + 1 :]:
        if parameter := re.match(r" {4}(\w+): (.*)", line):
            found.append((parameter[1], parameter[2]))
        elif line.strip():
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
    return lines[:begin], found


def marked(text: str) -> str:
    """Return the text with reStructuredText's marks for code, and none by accident."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
    return re.sub(r"(?<![`\w*])\*(?=\w)|(?<=\w)_(?=[\s,.;:)]|$)", r"\\\g<0>", text)


def described(thing: object, parameters: list[tuple[str, str]]) -> list[str]:
    """Return a field per parameter, or a table with the defaults where there are many."""
    if len(parameters) <= MANY:
        return [f":param {name}: {marked(text)}" for name, text in parameters]
    known = inspect.signature(cast(Callable[..., Any], thing)).parameters
    found = [".. list-table::", "   :header-rows: 1", "   :widths: 20 16 64", ""]
    for name, default, text in [("argument", "default", ""), *_rows(known, parameters)]:
        found += [f"   * - {name}", f"     - {default}", f"     - {text}"]
    return found


def _rows(
    known: Mapping[str, inspect.Parameter], parameters: list[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    for name, text in parameters:
        default = known[name].default
        shown = "" if default is inspect.Parameter.empty else f"``{default!r}``"
        yield f"``{name}``", shown, marked(text)


def plain_text(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Docstrings are written for people in an editor: `code`, paragraphs, indented examples.

    Read as reStructuredText they would need double backticks and `::` before an example; that
    is done here instead of in every docstring.
    """
    text_lines, parameters = arguments(lines)
    found: list[str] = []
    example = False
    for line in text_lines:
        text = line
        if line.startswith("    ") and not example and not (found and found[-1].strip()):
            found += ["::", ""]
            example = True
        elif line.strip() and not line.startswith(" "):
            example = False
        if not example:
            text = marked(line.lstrip())
        found.append(text)
    lines[:] = [*found, "", *described(thing, parameters), ""]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("autodoc-process-signature", made_elsewhere)
