"""Docstrings for code that blocks, made of those for asynchronous code."""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import Any

WORDS = {
    r"(?s)With `inherit`, tasks .*? own holds\. ": "",
    r"(?s) With `interrupt` \(the default\) .*? LeaseLostError\.": "",
    r" +(inherit|interrupt): .*\n": "",
    r"(?s)\sThe request is queued .*? than the manager's\.": "",
    r" an async function": " a function",
    r"can never succeed": r"\g<0>, or if an event loop runs in this thread",
    r"cancelled or closed call": "call that was interrupted",
    r"`await` it, or enter it with `async with`": "use it with `with`, or call its `release`",
    r": `await` it, or use `async with`": ", which stays",
    r"`aclose`": "`close`",
    r" in the\s+next\s+event\s+loop": "",
    r"closed: make new ones\.": "\\g<0>\n\n"
    "All threads of a process may share it. The exit of the process closes it, too. It belongs to\n"
    "the process that used it first: in a forked child it raises ConfigurationError, so call\n"
    "`connect` there again.",
    r"(connections open on first use and reconnect by themselves); `async with` waits for\s+the "
    r"first ones\.": "\\1, and no thread starts before that;\n`with` waits for the first ones. So "
    "a manager may be made at the import of a module, before a\nserver forks its workers. "
    "Observers are called in the thread of the event loop and must be quick.",
    r"an `async\s": "a `",
    r"async\s": "",
    r"An `asyncio\.": "A `threading.",
    r"asyncio\.(?!Redis)": "threading.",
    r"\(await\s": "(",
    r"task(s?)\b": r"thread\1",
    r"cancelled": "interrupted",
    r"a\s+cancellation": "an interruption",
    r"Cancelling": "Interrupting",
    r"yields": "returns",
    r"with every event from now on": r"\g<0>, in the thread of the event loop",
}
"""What is left out or said in other words for threads. This runs at the import, and patterns that
begin with plain characters are found several times as fast as those that begin with a boundary."""


def for_threads(doc: str) -> str:
    """Return a docstring in the words for threads."""
    for pattern, words in WORDS.items():
        doc = re.sub(pattern, words, doc)
    return doc


def describe(ours: Any, theirs: Any) -> None:
    """Give a class or a function, with its methods, the whole docstrings of the asynchronous one.

    The generated source has their first lines. Here the rest follows, for `help()`.
    """
    if theirs.__doc__ is not None:  # it is, with -OO
        ours.__doc__ = for_threads(inspect.cleandoc(theirs.__doc__))
    for name, member in vars(ours).items() if isinstance(ours, type) else ():
        if isinstance(member, FunctionType):  # the docstring of a property is one line
            describe(member, getattr(theirs, name))
