"""Calls for the tests whose attempts end as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import acquire_loop
from asynclock._engine.acquire_loop import AcquireLoop
from asynclock._engine.attempt import Attempt
from asynclock._engine.said import Refused, acquired
from asynclock._engine.spec import LockSpec
from asynclock._engine.vote import CUT
from asynclock._nodes.replies import Failure
from asynclock._primitives import lock
from tests.engine.virtual_nodes import TTL, Nodes

DOWN = Failure("down")
NO_RIGHT = Failure("no right", permanent=True)
QUEUED = lock.spec("p:", "a")
UNQUEUED = replace(QUEUED, queue="", ticket_ttl=0.0)


@dataclass
class Vote:
    """One attempt: the answer of each node (a fence, a holder or a Failure), after `took`."""

    answers: Sequence[int | str | Failure]
    took: float = 0.0
    slots: tuple[Any, ...] = ()
    numbers: tuple[int, int, int] = (0, 0, 0)
    rank: int = 0


WON = Vote((7, 7, 7))
HELD = Vote(("x", "x", "x"))
SPLIT = Vote((7, "x", "y"))
OUT = Vote((DOWN, DOWN, "x"))
SHORT = Vote((CUT, CUT, CUT), took=0.3)


@dataclass
class Asked:
    """One attempt that was made."""

    at: float
    armed: bool
    limit: float | None
    waits: tuple[Any, ...]
    spec: LockSpec


@contextmanager
def answered(*votes: Vote) -> Iterator[list[Asked]]:
    """Let attempts end like this, the last one for ever."""
    asked: list[Asked] = []

    class Scripted(Attempt):
        async def decide(self, *, armed: bool, limit: float | None) -> bool:
            assert len(asked) < 1000, "it asks without end"
            vote = votes[min(len(asked), len(votes) - 1)]
            asked.append(Asked(_clock.now(), armed, limit, self._waits, self.spec))
            await asyncio.sleep(vote.took)
            for index, answer in enumerate(vote.answers):
                if isinstance(answer, Failure):
                    self._failed(index, answer)
                elif isinstance(answer, int):
                    self.ballot.granted(index, answer)
                else:
                    told = (answer.encode(), vote.numbers[index], vote.rank, 0, *vote.slots, 0)
                    said = acquired([0, 60_000, *told])
                    assert isinstance(said, Refused)
                    self._refused(index, said)
            return self.conclude()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop, "Attempt", Scripted)
        yield asked


def ask(
    on: Nodes,
    *,
    spec: LockSpec = QUEUED,
    timeout: float | None = None,
    once: bool = False,
    barge: bool = False,
) -> Coroutine[Any, Any, Attempt]:
    now = _clock.now()
    deadline = None if timeout is None else now + timeout
    loop = AcquireLoop(on.locks._engine, spec, TTL, deadline, once=once, asked=now, barge=barge)
    return loop.run()


async def error_of(call: Coroutine[Any, Any, Attempt]) -> tuple[type[Exception], float]:
    """The error that a call ends with, and the seconds that it took."""
    began = _clock.now()
    with pytest.raises(asynclock.AsyncLockError) as caught:
        await call
    return type(caught.value), _clock.now() - began
