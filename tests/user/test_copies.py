"""Managers, locks and leases can't be copied or pickled, and say so once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock import blocking

KINDS: dict[str, Callable[[Any], Any]] = {
    "manager": lambda locks: locks,
    "lock": lambda locks: locks.lock("a"),
    "fair": lambda locks: locks.fair_lock("a"),
    "reentrant": lambda locks: locks.reentrant_lock("a"),
    "rwlock": lambda locks: locks.rwlock("a"),
    "write": lambda locks: locks.rwlock("a").write(),
    "semaphore": lambda locks: locks.semaphore("a", 2),
    "several": lambda locks: locks.semaphore("a", 2).several(2),
    "multi": lambda locks: locks.multi_lock("a", "b"),
    "event": lambda locks: locks.event("a"),
    "latch": lambda locks: locks.latch("a", 2),
    "barrier": lambda locks: locks.barrier("a", 2),
}
WAYS = [copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*KINDS, "election"])
async def test_asynchronous(
    kind: str, way: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make = KINDS.get(kind, lambda locks: locks.election("a"))
    async with asynclock.connect("memory://copies") as locks:
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            way(make(locks))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("way", [*WAYS, copy.copy])
@pytest.mark.parametrize("kind", ["lock", "reentrant", "several", "multi"])
async def test_leases(kind: str, way: Callable[[Any], Any]) -> None:
    async with (
        asynclock.connect("memory://copied-leases") as locks,
        KINDS[kind](locks).acquire() as lease,
    ):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            way(lease)
        assert lease.held


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_blocking(kind: str, way: Callable[[Any], Any]) -> None:
    with blocking.connect("memory://copies-blocking") as locks:
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            way(KINDS[kind](locks))
        with locks.lock("held") as lease, pytest.raises(TypeError, match="can't be copied"):
            way(lease)
