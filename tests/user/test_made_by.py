"""Anyone who calls the class of a lock by hand reads which call makes it."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

import asynclock
from asynclock import blocking

MADE_BY = {
    "LockManager": "connect(...)",
    "Lock": "connect(...).lock(name)",
    "ReentrantLock": "connect(...).reentrant_lock(name)",
    "MultiLock": "connect(...).multi_lock(*names)",
    "FairLock": "connect(...).fair_lock(name)",
    "ReadWriteLock": "connect(...).rwlock(name)",
    "Semaphore": "connect(...).semaphore(name, permits)",
    "SemaphorePermits": "connect(...).semaphore(name, permits).several(permits)",
    "SharedEvent": "connect(...).event(name)",
    "Latch": "connect(...).latch(name, count)",
    "Barrier": "connect(...).barrier(name, parties)",
}
ALONE = {
    "Election": "connect(...).election(name)",
    "ReadLock": "connect(...).rwlock(name).read()",
    "WriteLock": "connect(...).rwlock(name).write()",
}
CASES = [
    *((asynclock, name, call) for name, call in {**MADE_BY, **ALONE}.items()),
    *((blocking, name, call) for name, call in MADE_BY.items()),
]


@pytest.mark.parametrize(("module", "name", "call"), CASES)
@pytest.mark.parametrize(
    ("args", "settings"),
    [((), {}), (("x",), {}), (("x", 2), {}), (("x",), {"timeout": 5}), ((), {"name": "x"})],
)
def test_a_lock_made_by_hand(
    module: ModuleType, name: str, call: str, args: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    hint = f"{name} is made by {call}: {name}.__init__() "
    with pytest.raises(TypeError, match="^" + re.escape(hint)):
        getattr(module, name)(*args, **settings)
    if "." in call:  # and that call works
        given = {"name": "a", "permits": 2, "count": 2, "parties": 2, "names": ["a", "b"]}
        made = eval(call, given, {"connect": lambda _: module.connect("memory://made-by")})
        assert type(made).__name__ == name
