"""Scenarios of moments: many ask at once, a process that waits dies, a node fails meanwhile.

The processes that ask at once reach each node over a link of their own, whose delay changes from
round to round, as on a network. Otherwise the first one would win on all nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from asynclock.testing import FaultProxy, LocalServer

from .remote import Remote
from .results import Sample
from .rounds import Round
from .workers import READY_SECONDS, Plan, figures, run

JITTER = 0.005
"""Maximum delay of a link in each direction (seconds)."""
ZONE = 0.003
"""Delay of a link between zones in each direction (seconds)."""
GAP = 0.12
"""Seconds from one round to the next: all have decided long before, unless the machine is busy."""
KEPT = 20
"""Rounds for which a winner keeps its name, so that a process that is late loses."""

Links = Sequence[Sequence[FaultProxy]]
"""For each process its links to all nodes."""
Delays = Callable[[Links, Sequence[float]], Coroutine[Any, Any, None]]
"""Sets the delays of the links, for the moments at which all processes ask."""


async def together(round_: Round) -> Sample:
    """All processes call try_acquire on a free name at one moment, over links with jitter."""
    return await _at_once(round_, _shake)


async def zones(round_: Round) -> Sample:
    """The same where each process has one node beside it, and the others are further away."""
    return await _at_once(round_, _spread)


async def _at_once(round_: Round, delays: Delays) -> Sample:
    async with jittery(round_.nodes.servers, round_.case.tasks) as links:
        workers = await round_.workers(round_.case.tasks)
        opening = zip(workers, links, strict=True)
        await asyncio.gather(*(round_.open(w, [link.url for link in own]) for w, own in opening))
        sample = await race(workers, links, round_.name, round_.settings.votes, delays)
    # They have been connected to links that are gone.
    await asyncio.gather(*(worker.end() for worker in workers))
    return sample


@contextlib.asynccontextmanager
async def jittery(servers: Sequence[LocalServer], processes: int) -> AsyncIterator[Links]:
    """Make a link from each process to each server."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            [await stack.enter_async_context(FaultProxy(server)) for server in servers]
            for _ in range(processes)
        ]


async def _shake(links: Links, moments: Sequence[float]) -> None:
    """Give each link another delay shortly before each moment."""
    chance = random.Random(22)
    for moment in moments:
        await asyncio.sleep(moment - GAP / 10 - time.monotonic())
        for link in itertools.chain(*links):
            link.delay(chance.uniform(0, JITTER), chance.uniform(0, JITTER))


async def _spread(links: Links, _moments: Sequence[float]) -> None:
    """Leave one node beside each process."""
    for number, own in enumerate(links):
        for index, link in enumerate(own):
            link.delay(0.0 if index == number % len(own) else ZONE)


async def race(
    workers: Sequence[Remote], links: Links, name: str, turns: int, delays: Delays = _shake
) -> Sample:
    """Let all workers try at once, `turns` times, each time for a name that is new."""
    asks = (worker.ask("warm", name=f"{name}:warm:{n}") for n, worker in enumerate(workers))
    await asyncio.gather(*asks)
    start = time.monotonic() + 0.5
    moments = [start + GAP * turn for turn in range(turns)]
    shaking = asyncio.create_task(delays(links, moments))
    patience = turns * GAP + 60
    asks = (w.ask("race", patience, name=name, moments=moments, kept=KEPT) for w in workers)
    replies = await asyncio.gather(*asks)
    await shaking
    await asyncio.gather(*(worker.ask("free") for worker in workers))
    # The worker of Node.js counts no errors: there a refused try is an error, too.
    counts = {what: sum(reply.get(what, 0) for reply in replies) for what in ("errors", "late")}
    return {**outcome([reply["won"] for reply in replies]), **counts}


def outcome(won: Sequence[Sequence[bool]]) -> Sample:
    """Return how many rounds had one winner, none, or more; `won` holds a list per process."""
    winners = [sum(turn) for turn in zip(*won, strict=True)]
    share = 100 / len(winners)
    return {
        "one_percent": share * winners.count(1),
        "nobody_percent": share * winners.count(0),
        "violations": sum(count > 1 for count in winners),
    }


async def quitter(round_: Round) -> Sample:
    """The first waiter is killed, then another one freezes: from the release to the next body."""
    holder, survivor = await round_.workers(2)
    sample: Sample = {}
    for figure, freeze in (("late_ms", False), ("frozen_late_ms", True)):
        name = f"{round_.name}:{figure}"
        victim = await round_.fresh()
        await round_.open(victim)
        await holder.ask("take", name=name)
        lost = asyncio.create_task(victim.ask("take", patience=60, name=name))
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(survivor.ask("take", patience=60, name=name))
        await asyncio.sleep(0.2)
        if freeze:
            victim.freeze()
        else:
            await victim.end()
        released = (await holder.ask("drop"))["at"]
        sample[figure] = ((await waiting)["at"] - released) * 1000
        await survivor.ask("drop")
        await victim.end()
        await asyncio.gather(lost, return_exceptions=True)
    return sample


async def failing(round_: Round) -> Sample:
    """Looping workers with bodies of 2 ms; the last node freezes, comes back, dies and restarts."""
    victim = round_.nodes.servers[-1]
    part = round_.settings.seconds / 6

    async def fail() -> None:
        await asyncio.sleep(READY_SECONDS + part)
        await victim.freeze()
        await asyncio.sleep(part)
        await victim.thaw()
        await asyncio.sleep(part)
        await victim.kill()
        await asyncio.sleep(part)
        await round_.nodes.restart(round_.case.nodes - 1)

    task = asyncio.create_task(fail())
    sample = figures(await run(round_, Plan(body=0.002)))
    await task
    # The counters of the last node began anew.
    kept = {"leases_per_s", "least_share", "longest_wait_ms", "gap_ms", "errors", "violations"}
    return {name: value for name, value in sample.items() if name in kept}
