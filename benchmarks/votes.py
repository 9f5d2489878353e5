"""Scenarios of moments: many ask at once, and a process that waits or holds dies.

The processes that ask at once reach each node over a link of their own, whose delay changes from
round to round, as on a network. Otherwise the first one would win on all nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from asynclock.testing import FaultProxy

from .results import Sample
from .rounds import Round

JITTER = 0.005
"""Maximum delay of a link in each direction (seconds)."""
GAP = 0.12
"""Seconds from one round to the next: all have decided long before."""
HELD = 0.75
"""Part of a gap after which the winner releases; a process that is as late as this stays out."""


async def together(round_: Round) -> Sample:
    """All processes call try_acquire on a free name at one moment, over links with jitter."""
    count, turns = round_.case.tasks, round_.settings.votes
    async with contextlib.AsyncExitStack() as stack:
        links = [
            [await stack.enter_async_context(FaultProxy(node)) for node in round_.nodes.servers]
            for _ in range(count)
        ]
        workers = await round_.workers(count)
        opening = zip(workers, links, strict=True)
        await asyncio.gather(*(round_.open(w, [link.url for link in own]) for w, own in opening))
        asks = (worker.ask("warm", name=f"{round_.name}:{n}") for n, worker in enumerate(workers))
        await asyncio.gather(*asks)
        start = time.monotonic() + 0.5
        moments = [start + GAP * turn for turn in range(turns)]
        shaking = asyncio.create_task(_shake([link for own in links for link in own], moments))
        patience = turns * GAP + 30
        asks = (
            w.ask("race", patience, name=round_.name, moments=moments, hold=GAP * HELD)
            for w in workers
        )
        replies = await asyncio.gather(*asks)
        await shaking
    await asyncio.gather(*(worker.end() for worker in workers[4:]))
    return outcome([reply["won"] for reply in replies])


async def _shake(links: Sequence[FaultProxy], moments: Sequence[float]) -> None:
    """Give each link another delay shortly before each moment."""
    chance = random.Random(22)
    for moment in moments:
        await asyncio.sleep(moment - GAP / 10 - time.monotonic())
        for link in links:
            link.delay(chance.uniform(0, JITTER), chance.uniform(0, JITTER))


def outcome(won: Sequence[Sequence[bool | None]]) -> Sample:
    """Return the percentage of rounds with one winner, with none and with more.

    `won` holds a list for each process; None where it was too late to take part.
    """
    turns = [turn for turn in zip(*won, strict=True) if sum(one is not None for one in turn) > 1]
    winners = [sum(bool(one) for one in turn) for turn in turns]
    share = 100 / max(len(winners), 1)
    return {
        "one_percent": share * winners.count(1),
        "nobody_percent": share * winners.count(0),
        "violations": sum(count > 1 for count in winners),
        "rounds": len(winners),
        "took_part": sum(one is not None for turn in turns for one in turn) / max(len(turns), 1),
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
