"""The load of the benchmarks counts what happened: cycles, overlaps, errors, endless calls."""

import asyncio
import math
from dataclasses import dataclass

import pytest

from asynclock.testing.load import Load, processor_seconds, quantile, run_load
from tests.waiting import in_virtual_time

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
        monkeypatch.setattr("asynclock.testing.load.time.perf_counter", self.clock)

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
    assert (await of(NoLock(monkeypatch), "a", "a")).overlaps == ENOUGH // 2
    assert (await of(NoLock(monkeypatch), "a", "b")).overlaps == 0


async def test_where_no_names_are_equal_a_body_is_not_interrupted() -> None:
    """The processor's time, of the load alone, is measured without the tasks that would run."""
    others: list[object] = []

    class Alone:
        async def acquire(self, name: str) -> None:
            asyncio.get_running_loop().call_soon(others.append, name)

        async def release(self, _lease: None) -> None:
            assert not others
            await asyncio.sleep(0)
            others.clear()

    before = processor_seconds()
    load = await run_load(Alone(), ["a"], 0.01)
    assert (load.errors, load.bodies) == ({}, [])
    assert 0 < load.cpu <= processor_seconds() - before


async def test_errors_are_counted_by_type_and_no_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    load = await of(Failing(monkeypatch), "a")
    assert load.errors == {"TimeoutError": ENOUGH // 2}
    assert len(load.cycles) == ENOUGH // 2


class Broken(NoLock):
    """Fails for one name at once, without a moment in which others could go on."""

    async def acquire(self, name: str) -> Fenced:
        lease = await super().acquire(name)
        if name == "broken":
            raise TimeoutError
        return lease


async def test_a_lock_that_fails_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    load = await of(Broken(monkeypatch), "broken", "a")
    assert load.errors["TimeoutError"] >= 1
    assert len(load.cycles) >= 1


async def test_a_call_that_never_ends_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    load = await run_load(Stuck(monkeypatch), ["a", "b"], 0.01, grace=0.01)
    assert load.unfinished == 2
    assert load.count == 0


def test_quantiles() -> None:
    assert math.isnan(quantile([], 0.5))
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
    assert [quantile(list(range(100)), share) for share in (0.5, 0.99)] == [50, 99]


class Timed:
    """A lock whose calls take as long as they say, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waits = [1.0, 4.0]
        monkeypatch.setattr("asynclock.testing.load.time.perf_counter", lambda: self.now)

    async def acquire(self, _name: str) -> None:
        self.now += self.waits.pop(0) if self.waits else 5.0
        if not self.waits and self.now > 111.0:
            raise ValueError

    async def release(self, _lease: None) -> None:
        self.now += 0.5


async def test_waits_cycles_and_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of 1 and 4 seconds, releases of a half one; then only errors until the end."""
    load = await run_load(Timed(monkeypatch), ["a"], 20.0, grace=0.5, record=True)
    assert load.waits == [1.0, 4.0, 5.0]
    assert load.cycles == [1.5, 4.5, 5.5]
    assert load.bodies == [
        (100.0, 101.0, 101.0, 0),
        (101.5, 105.5, 105.5, 0),
        (106.0, 111.0, 111.0, 0),
    ]
    assert (load.count, load.errors) == (3, {"ValueError": 2})
    assert load.gap == 10.0, "from the last cycle to the end"
    assert load.seconds == 21.5


@pytest.mark.parametrize(("seconds", "unfinished"), [(2.0, 0), (2.1, 1)])
@in_virtual_time
async def test_a_call_that_ends_in_the_grace_is_finished(seconds: float, unfinished: int) -> None:
    class Slow:
        async def acquire(self, _name: str) -> None:
            await asyncio.sleep(seconds)

        async def release(self, _lease: None) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", asyncio.get_running_loop().time)
        load = await run_load(Slow(), ["a"], 0.05)
    assert (load.unfinished, len(load.cycles), load.count) == (unfinished, 1 - unfinished, 0)
    assert load.seconds < 2.0
