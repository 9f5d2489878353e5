"""Each public name has an entry in the reference."""

import re
from types import ModuleType

import pytest

import asynclock.blocking
import asynclock.contrib.aiohttp
import asynclock.contrib.dashboard
import asynclock.contrib.fastapi
import asynclock.errors
import asynclock.fencing
import asynclock.fleet
import asynclock.observe
import asynclock.testing
from tests.docs.blocks import ROOT

TEXT = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
NAMED = set(re.findall(r"^\.\. (?:autoclass|autofunction):: ([\w.]+)$", TEXT, re.MULTILINE))
MODULES = re.findall(r"^\.\. automodule:: ([\w.]+)\n +:members: ?(.*)$", TEXT, re.MULTILINE)
NAMED |= {f"{module}.{name}" for module, names in MODULES for name in names.split(", ")}
BY_HAND = re.findall(r"^\.\. py:\w+:: (\w+)\n +:module: ([\w.]+)$", TEXT, re.MULTILINE)
NAMED |= {f"{module}.{name}" for name, module in BY_HAND}
WHOLE = {module for module, names in MODULES if not names}
"""Modules whose functions and classes are all in the reference, but not their constants."""


def test_all_pages_name_the_same_pythons() -> None:
    classifiers = (ROOT / "pyproject.toml").read_text("utf-8")
    oldest, *_, newest = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', classifiers)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"![Python {oldest} to {newest}]" in readme
    assert f"badge/python-{oldest}%20to%20{newest}-" in readme
    assert f"Python {oldest}–{newest}," in readme
    versions = (ROOT / "docs" / "versions.md").read_text("utf-8")
    assert f"| Python | {oldest} to {newest} |" in versions


@pytest.mark.parametrize(
    "module",
    [
        asynclock,
        asynclock.blocking,
        asynclock.contrib.aiohttp,
        asynclock.contrib.dashboard,
        asynclock.contrib.fastapi,
        asynclock.fencing,
        asynclock.fleet,
        asynclock.observe,
        asynclock.testing,
    ],
    ids=lambda module: module.__name__,
)
def test_each_public_name_is_in_the_reference(module: ModuleType) -> None:
    missing = []
    for name in sorted({*module.__all__} - {"__version__"}):
        thing = getattr(module, name)
        whole = callable(thing) and {module.__name__, thing.__module__} & WHOLE
        if f"{module.__name__}.{name}" not in NAMED and not whole:
            missing.append(name)
    assert not missing
