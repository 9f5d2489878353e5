"""Scenarios with one looping worker per process, as a fleet of workers does all day."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynclock.testing.load import quantile

from . import judged
from .remote import Remote
from .results import Sample
from .rounds import Round

READY_SECONDS = 0.3
"""Time from the last warm worker to the common start."""
KEPT = 4
"""Maximum number of processes of a system that stay warm for its next round."""
ASKED_BEFORE_MS = 100
"""Milliseconds by which a waiter must have asked earlier, to count as overtaken: its question must
have reached a quorum, on a busy machine too."""


@dataclass(frozen=True)
class Plan:
    """What the processes of a round do; times in seconds."""

    body: float = 0.002
    pause: tuple[float, float] = (0.0, 0.0)
    names: int = 1
    """Number of names, of which each worker takes one at random each time."""
    kinds: tuple[str, ...] = ("lock",)
    """What the processes use, in turn."""
    managers: int = 1
    """Managers in each process."""
    tasks: int = 1
    """Workers of each manager."""

    @property
    def exclusive(self) -> bool:
        """Whether two bodies of one name must never run at once."""
        return self.names == 1 and {*self.kinds} <= {"lock", "fair_lock", "election", "write"}


@dataclass(frozen=True)
class Seen:
    """What the workers answered, and what the nodes used meanwhile."""

    plan: Plan
    seconds: float
    replies: Sequence[Mapping[str, Any]]
    used: Any
    bodies: Sequence[judged.Body]
    fences: bool

    @property
    def counts(self) -> list[int]:
        return [count for reply in self.replies for count in reply["counts"]]


async def run(round_: Round, plan: Plan, processes: int | None = None) -> Seen:
    """Run one worker per process (`tasks` of the case) for the seconds of the settings."""
    count = processes or round_.case.tasks
    options = [_options(plan, kind) for kind in plan.kinds]
    workers = await round_.workers(count, options=options)
    terms = {
        "seconds": round_.settings.seconds,
        "body": plan.body,
        "pause": plan.pause,
        "names": [f"{round_.name}:{number}" for number in range(plan.names)],
    }
    with tempfile.TemporaryDirectory(prefix="asynclock-") as place:
        files = [Path(place) / str(number) for number in range(count)]
        replies, used = await _together(round_, workers, terms, plan.tasks, files)
        bodies = judged.recorded(files)
    # The connections of an unfinished worker may be in any state.
    kept = 0 if any(reply["unfinished"] for reply in replies) else KEPT
    await asyncio.gather(*(worker.end() for worker in workers[kept:]))
    return Seen(plan, round_.settings.seconds, replies, used, bodies, round_.system.fences)


def _options(plan: Plan, kind: str) -> dict[str, Any]:
    """Return what differs from the defaults: peers know no kinds."""
    own: dict[str, Any] = {} if kind == "lock" else {"kind": kind}
    return own if plan.managers == 1 else {**own, "managers": plan.managers}


async def _together(
    round_: Round,
    workers: Sequence[Remote],
    terms: dict[str, Any],
    tasks: int,
    files: Sequence[Path],
) -> tuple[list[dict[str, Any]], Any]:
    """Start all workers at one moment; count what the nodes use until the end."""
    await asyncio.gather(
        *(worker.ask("warm", name=f"{round_.name}:warm:{n}") for n, worker in enumerate(workers))
    )
    start = time.monotonic() + READY_SECONDS
    asks = [
        asyncio.ensure_future(
            worker.ask(
                "loop",
                patience=terms["seconds"] + 20,
                terms={**terms, "start": start},
                tasks=tasks,
                seed=1000 * number,
                record=str(file),
            )
        )
        for number, (worker, file) in enumerate(zip(workers, files, strict=True))
    ]
    await asyncio.sleep(start - time.monotonic())
    before = await round_.nodes.counters()
    await asyncio.sleep(start + terms["seconds"] - time.monotonic())
    used = await round_.nodes.counters() - before
    return await asyncio.gather(*asks), used


def figures(seen: Seen) -> Sample:
    """Return pace, fairness, waits and costs."""
    counts, total = seen.counts, max(sum(seen.counts), 1)
    waits = sorted(wait for reply in seen.replies for wait in reply["waits"])
    begins = [began for _, began, *_ in seen.bodies]
    gaps = (after - before for before, after in itertools.pairwise(begins))
    sample: Sample = {
        "leases_per_s": sum(counts) / seen.seconds,
        "least_share": min(counts) * len(counts) / total,
        "most_share": max(counts) * len(counts) / total,
        "longest_wait_ms": waits[-1] * 1000,
        "wait_p50_ms": quantile(waits, 0.5) * 1000,
        "wait_p99_ms": quantile(waits, 0.99) * 1000,
        "gap_ms": max(gaps, default=seen.seconds) * 1000,
        "scripts": seen.used.scripts / total / seen.used.nodes,
        "commands": seen.used.commands / total,
        "server_us": seen.used.cpu / total * 1e6,
        "server_cores_percent": seen.used.cpu / seen.seconds * 100,
        "client_us": sum(reply["cpu"] for reply in seen.replies) / total * 1e6,
        "errors": sum(sum(reply["errors"].values()) for reply in seen.replies),
        "unfinished": sum(reply["unfinished"] for reply in seen.replies),
    }
    if seen.plan.exclusive:
        sample["violations"] = judged.violations(seen.bodies, fences=seen.fences)
        sample["overtaken"] = judged.overtaken(seen.bodies, ASKED_BEFORE_MS / 1000)
    return sample


# ---------------------------------------------------------------- one lock


async def workers20(round_: Round) -> Sample:
    """One looping worker per process wants one name, with bodies of 20 ms."""
    return figures(await run(round_, Plan(body=0.020)))


async def workers2(round_: Round) -> Sample:
    """One looping worker per process wants one name, with bodies of 2 ms."""
    return figures(await run(round_, Plan(body=0.002)))


async def workers0(round_: Round) -> Sample:
    """One looping worker per process wants one name and does nothing with it."""
    return figures(await run(round_, Plan(body=0.0)))


async def managers(round_: Round) -> Sample:
    """Managers in one process, each with one looping worker, want one name; bodies of 2 ms."""
    return figures(await run(round_, Plan(body=0.002, managers=round_.case.tasks), processes=1))


async def pauses(round_: Round) -> Sample:
    """One worker per process takes one of 4 names for 5 ms, and pauses for up to 10 ms."""
    return figures(await run(round_, Plan(body=0.005, pause=(0.0, 0.010), names=4)))


# ---------------------------------------------------------------- other primitives


async def permits(round_: Round) -> Sample:
    """One looping worker per process wants one of two permits, with bodies of 10 ms."""
    return figures(await run(round_, Plan(body=0.010, kinds=("semaphore",))))


async def elections(round_: Round) -> Sample:
    """One candidate per process leads for 10 ms, resigns and campaigns again."""
    return figures(await run(round_, Plan(body=0.010, kinds=("election",))))


async def phases(round_: Round) -> Sample:
    """A quarter of the processes write and the others read, in a loop, with bodies of 10 ms.

    `least_turns` is measured against strict phases: all readers, one writer, all readers, the next
    writer.
    """
    plan = Plan(body=0.010, kinds=("write", "read", "read", "read"))
    seen = await run(round_, plan)
    writing, reading = seen.counts[::4], [n for i, n in enumerate(seen.counts) if i % 4]
    rounds = seen.seconds / (2 * plan.body)
    least = min(min(writing) / (rounds / len(writing)), min(reading) / rounds)
    return {
        **figures(seen),
        "least_turns": least,
        "least_writes": min(writing),
        "least_reads": min(reading),
    }


async def ordered(round_: Round) -> Sample:
    """Ten waiters in each process queue for a fair lock; one master is dead, another is frozen."""
    dead, frozen = round_.nodes.servers[-2:]
    plan = Plan(body=0.002, kinds=("fair_lock",), tasks=10)
    try:
        await dead.kill()
        await frozen.freeze()
        return figures(await run(round_, plan))
    finally:
        await frozen.thaw()
        await round_.nodes.restart(round_.case.nodes - 2)
