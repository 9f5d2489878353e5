"""Managers, locks and leases can't be copied or pickled, and say so once."""

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
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
    "once": lambda locks: locks.once("a"),
    "barrier": lambda locks: locks.barrier("a", 2),
}
WAYS = [copy.deepcopy, pickle.dumps]


def refused(one: object) -> AbstractContextManager[object]:
    """Expect an error that names what was to be copied."""
    return pytest.raises(TypeError, match=f"^{type(one).__name__} can't be copied or pickled")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*KINDS, "election"])
async def test_asynchronous(
    kind: str, way: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make = KINDS.get(kind, lambda locks: locks.election("a"))
    async with asynclock.connect("memory://copies") as locks:
        with refused(one := make(locks)):
            way(one)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("way", [*WAYS, copy.copy])
@pytest.mark.parametrize("kind", ["lock", "reentrant", "several", "multi"])
async def test_leases(kind: str, way: Callable[[Any], Any]) -> None:
    async with (
        asynclock.connect("memory://copied-leases") as locks,
        KINDS[kind](locks).acquire() as lease,
    ):
        with refused(lease):
            way(lease)
        assert lease.held


@pytest.mark.parametrize("way", WAYS)
async def test_a_term(way: Callable[[Any], Any]) -> None:
    async with (
        asynclock.connect("memory://copied-terms") as locks,
        await locks.election("a").campaign() as term,
    ):
        with refused(term):
            way(term)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_blocking(kind: str, way: Callable[[Any], Any]) -> None:
    with blocking.connect("memory://copies-blocking") as locks:
        with refused(one := KINDS[kind](locks)):
            way(one)
        with locks.lock("held") as lease, refused(lease):
            way(lease)
