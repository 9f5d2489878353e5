"""A worker that loops: acquire one name, work, release, pause, again. Each process has one.

The processes of a run start at the same moment of the monotonic clock, which all processes of a
machine share. The time that a worker has waited when the run ends counts as a wait too: a worker
that never got the name has waited all the time. This file imports only the standard library,
because peers run it in their own environments.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

GRACE = 5.0
"""Seconds that workers that wait at the end have left: a cancelled peer may leave its lock."""


class Subject(Protocol):
    """Anything that can be locked by name."""

    async def acquire(self, name: str) -> Any:
        """Wait until the name is held, and return the argument for ``release``."""

    async def release(self, lease: Any) -> None:
        """Release the lock."""


@dataclass(frozen=True)
class Terms:
    """What the workers of one run do; times in seconds."""

    start: float
    """The moment on the monotonic clock at which all workers begin."""
    seconds: float
    body: float = 0.0
    pause: tuple[float, float] = (0.0, 0.0)
    """A worker pauses for a random time between these after each release."""
    names: tuple[str, ...] = ("one",)
    """A worker takes one of these at random each time."""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(slots=True)
class Turns:
    """What one worker has seen; times in seconds on the monotonic clock."""

    bodies: list[tuple[float, float, float, int]] = field(default_factory=list)
    """When each acquire was called, when its body began and ended, and its fence (0 without)."""
    last_wait: float = 0.0
    """How long the worker had waited when the run ended."""
    unfinished: bool = False
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def waits(self) -> list[float]:
        waits = [began - asked for asked, began, _, _ in self.bodies]
        return [*waits, self.last_wait] if self.last_wait else waits


async def work(subject: Subject, terms: Terms, seed: int) -> Turns:
    """Run one worker until the end of the run, and at most `GRACE` longer."""
    turns = Turns()
    await asyncio.sleep(terms.start - time.monotonic())
    task = asyncio.create_task(_loop(subject, terms, random.Random(seed), turns))
    await asyncio.wait([task], timeout=terms.end + GRACE - time.monotonic())
    turns.unfinished = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return turns


async def _loop(subject: Subject, terms: Terms, chance: random.Random, turns: Turns) -> None:
    while (asked := time.monotonic()) < terms.end:
        try:
            # The end comes while it waits or in its body; both are then known.
            turns.last_wait = terms.end - asked
            lease = await subject.acquire(chance.choice(terms.names))
            began = time.monotonic()
            if began < terms.end:
                turns.last_wait = 0.0
                if terms.body:
                    await asyncio.sleep(terms.body)
                fence = getattr(lease, "fence", 0)
                turns.bodies.append((asked, began, time.monotonic(), fence))
            await subject.release(lease)
        except Exception as error:
            turns.errors[type(error).__name__] += 1
            await asyncio.sleep(0.001)
        if terms.pause[1]:
            await asyncio.sleep(chance.uniform(*terms.pause))


async def work_all(subjects: list[Any], terms: Terms, seed: int) -> tuple[list[Turns], float]:
    """Run a worker for each subject; return what they saw and the CPU seconds of this process."""
    used = _cpu()
    turns = await asyncio.gather(
        *(work(one, terms, seed + number) for number, one in enumerate(subjects))
    )
    return turns, _cpu() - used


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
