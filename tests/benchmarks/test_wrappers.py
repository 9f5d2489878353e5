"""What a scenario puts around a lock does what its table says."""

import asyncio
from typing import Any

from benchmarks.adapters import Adapter
from benchmarks.adapters.wrappers import EverNew, Queued


class Recorder(Adapter):
    """Notes the names, and how many calls of `acquire` and bodies there are at once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.busy = self.peak = 0

    async def open(self) -> None:
        """Nothing to open."""

    async def acquire(self, name: str) -> Any:
        self.names.append(name)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        await asyncio.sleep(0)
        return name

    async def release(self, lease: Any) -> None:
        await asyncio.sleep(0)
        self.busy -= 1

    async def close(self) -> None:
        """Nothing to close."""


async def cycle(lock: Any, name: str) -> None:
    lease = await lock.acquire(name)
    await asyncio.sleep(0)
    await lock.release(lease)


async def test_behind_a_local_lock_one_task_at_a_time_asks() -> None:
    alone, together = Recorder(), Recorder()
    queued = Queued(alone)
    await asyncio.gather(*(cycle(queued, "a") for _ in range(5)))
    await asyncio.gather(*(cycle(together, "a") for _ in range(5)))
    assert (alone.peak, together.peak) == (1, 5)
    assert alone.names == ["a"] * 5


async def test_ever_new_names_are_all_different() -> None:
    recorder = Recorder()
    fresh = EverNew(recorder)
    await asyncio.gather(*(cycle(fresh, name) for name in "aab"))
    assert len(set(recorder.names)) == 3
