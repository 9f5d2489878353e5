"""The end of a `with` whose thread is interrupted: what the block has taken ends all the same.

Python runs signal handlers between two steps of the main thread, also before the first line of an
`__exit__`, where no `try` of ours can catch what a handler raises. But `with` looks `__exit__` up
before it enters, and drops what it has found when it is over, however that comes. So a `with` that
has dropped it before the block was left has been interrupted.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_looked_up = threading.local()


class _Exit:
    """An `__exit__` that remembers which object the thread has got by its last look-up."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: object = None) -> Callable[..., None]:
        bound = () if instance is None else (instance,)  # an exit stack asks the class
        found = functools.partial(self._function, *bound)
        _looked_up.exit = weakref.ref(found)
        return found


def noticed(function: F) -> F:
    """Decorate an `__exit__`, so that `Block.watch` can tell when its `with` is over."""
    return cast("F", _Exit(function))


class Block:
    """The block of a `with` that this thread is about to enter."""

    def __init__(self, entered: object) -> None:
        found = vars(_looked_up).pop("exit", lambda: None)()
        ours = found is not None and all(one is entered for one in found.args)
        self._exit = found if ours else None

    def watch(self, end: Callable[[], None]) -> weakref.ref[Any] | None:
        """Call `end` when the `with` is over, unless the result has been dropped until then."""
        return None if self._exit is None else weakref.ref(self._exit, lambda _: end())
