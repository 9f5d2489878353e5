"""What asynchronous code can do, code that blocks can do, too; each difference has its reason."""

import inspect
import re
from types import FunctionType

import pytest

import asynclock
from asynclock import blocking

PAIRS: dict[str, str] = {
    "ReadLock": "Lock",
    "WriteLock": "Lock",
    "AnyLock": "Lock",
    "AnyLease": "Lease",
    **{name: name for name in blocking.__all__ if hasattr(asynclock, name)},
}
"""The class for code that blocks that takes the place of an asynchronous one."""
SHARED = {
    *("Inspection", "NodeHealth", "NodeView", "Statistics", "Waiter"),
    *(name for name in asynclock.__all__ if name.endswith("Error")),
    "__version__",
}
"""Names that both use: what calls return and raise."""
NO_CLASS = {
    "AcquireContext": "it is what `async with` enters; a thread gets the lease itself",
    "Election": "a leader's body must be interrupted by a loss, and nothing interrupts a thread",
    "Leader": "see Election",
    "Term": "see Election",
}
NO_METHOD = {
    "adopt": "a loss interrupts no thread, so none can be chosen",
    "task": "see adopt",
    "wait_lost": "on_lost calls back in a thread",
    "wanted": "on_wanted calls back in a thread",
    "aclose": "it is called close",
    "election": NO_CLASS["Election"],
}
OTHER_PARAMETERS = {
    ("LockManager", "lock"): "its settings are LockSettings, without `interrupt`",
    ("LockManager", "reentrant_lock"): "`inherit` is for tasks that a task starts",
}
ABOUT_ASYNC_CODE = {"run", "synchronized"}
"""Methods whose docstrings speak of async functions."""


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_each_class_has_a_counterpart() -> None:
    assert set(asynclock.__all__) - SHARED - PAIRS.keys() == NO_CLASS.keys()
    assert set(blocking.__all__) - {*PAIRS.values(), "connect"} == {"LockSettings"}


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - {"connect"}))
def test_each_method_has_a_counterpart(name: str) -> None:
    theirs, ours = getattr(asynclock, name), getattr(blocking, PAIRS[name])
    missing = members(theirs) - members(ours) - NO_METHOD.keys()
    assert not missing, f"blocking.{PAIRS[name]} lacks {missing}"


@pytest.mark.parametrize("name", NO_METHOD)
def test_each_reason_is_needed(name: str) -> None:
    lacking = [
        theirs
        for theirs, ours in PAIRS.items()
        if name in members(getattr(asynclock, theirs)) - members(getattr(blocking, ours))
    ]
    assert lacking


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - {"connect", "AnyLock", "AnyLease"}))
def test_the_parameters_are_the_same(name: str) -> None:
    theirs, ours = getattr(asynclock, name), getattr(blocking, PAIRS[name])
    for member in sorted(members(theirs) & members(ours)):
        method = inspect.getattr_static(theirs, member)
        if not inspect.isfunction(method):
            continue
        wanted, found = (
            [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(getattr(kind, member)).parameters.values()
            ]
            for kind in (theirs, ours)
        )
        assert (wanted == found) is ((name, member) not in OTHER_PARAMETERS), (member, found)


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - {"connect", "AnyLock", "AnyLease"}))
def test_help_says_as_much_in_the_words_of_threads(name: str) -> None:
    theirs, ours = getattr(asynclock, name), getattr(blocking, PAIRS[name])
    for member in sorted(members(ours) - ABOUT_ASYNC_CODE):
        said = inspect.getdoc(getattr(ours, member)) or ""
        assert not re.search(r"\bawait\b|\basync (for|with)|\bcancel", said), (member, said)
        if isinstance(getattr(theirs, member, None), FunctionType | property):
            wanted = inspect.getdoc(getattr(theirs, member)) or ""
            assert len(said) > len(wanted) * 0.6 or member == "lock", (member, said)
