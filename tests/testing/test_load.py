"""The load of the benchmarks counts what happened: cycles, overlaps, errors, endless calls."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest

from asynclock.testing.history.load import Load, quantile, run_load

ENOUGH = 200
"""Cycles after which a subject ends a load, so that no test depends on the machine's speed."""


@dataclass
class Fenced:
    """A lease with a number."""

    fence: int


class Counting:
    """Locks that count their acquires, and end the load after ENOUGH of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.free = asyncio.Lock()
        self.ended = False
        monkeypatch.setattr("asynclock.testing.history.load.time.perf_counter", self.clock)

    def clock(self) -> float:
        """An hour has passed after ENOUGH acquires, and a millisecond after each of the others."""
        return self.count / 1000 + 3600 * (self.count >= ENOUGH)

    async def acquire(self, _name: str) -> Fenced:
        await self.free.acquire()
        self.count += 1
        return Fenced(self.count)

    async def release(self, _lease: Fenced) -> None:
        self.free.release()
        await asyncio.sleep(0)


class NoLock(Counting):
    """Grants at once to anyone."""

    async def acquire(self, _name: str) -> Fenced:
        self.count += 1
        return Fenced(self.count)

    async def release(self, _lease: Fenced) -> None:
        await asyncio.sleep(0)


class Failing(NoLock):
    """Refuses every second call."""

    async def acquire(self, name: str) -> Fenced:
        lease = await super().acquire(name)
        if self.count % 2:
            raise TimeoutError
        return lease


class Stuck(NoLock):
    """Never answers."""

    async def acquire(self, name: str) -> Fenced:
        await asyncio.Event().wait()
        return await super().acquire(name)


async def of(subject: Counting, *names: str) -> Load:
    return await run_load(subject, names, 1800.0, grace=0.05, record=True)


async def test_a_lock_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    load = await of(Counting(monkeypatch), "a", "a", "a")
    assert load.overlaps == 0
    assert load.unfinished == 0
    assert not load.errors
    assert len(load.waits) == len(load.cycles) == len(load.bodies) >= ENOUGH
    fences = [fence for *_, fence in load.bodies]
    assert sorted(fences) == list(range(1, len(fences) + 1))


async def test_bodies_that_overlap_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await of(NoLock(monkeypatch), "a", "a")).overlaps > 0
    assert (await of(NoLock(monkeypatch), "a", "b")).overlaps == 0


async def test_errors_are_counted_by_type_and_no_task_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = await of(Failing(monkeypatch), "a")
    assert load.errors == {"TimeoutError": ENOUGH // 2}
    assert len(load.cycles) == ENOUGH // 2


async def test_a_call_that_never_ends_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    load = await run_load(Stuck(monkeypatch), ["a", "b"], 0.01, grace=0.01)
    assert load.unfinished == 2
    assert load.count == 0


def test_quantiles() -> None:
    assert math.isnan(quantile([], 0.5))
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
