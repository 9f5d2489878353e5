"""Servers, and processes of one system on them, for the everyday scenes."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asynclock.testing import LocalServer, local_servers
from benchmarks import judged
from benchmarks.install import command, command_here
from benchmarks.nodes import Counters, Nodes
from benchmarks.remote import Remote
from benchmarks.systems import SYSTEMS, System
from tests import patient

READY = 0.5
"""Seconds from the order to begin to the common beginning of all processes."""
QUICK = {"restart_guard": False}
"""For scenes without restarts: their servers are seconds old and would not vote yet."""


@dataclass
class Stage:
    """The processes of a scene."""

    system: System
    servers: Sequence[LocalServer]
    ttl: float
    settings: Mapping[str, Any]
    """Arguments of asynclock.connect; peers do not know them."""
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    opened: list[dict[str, Any]] = field(default_factory=list)
    """How long the processes that were started last took to import and to connect, and in how many
    exchanges of a plain connection."""

    async def processes(
        self, count: int, urls: Sequence[str] = (), *, beside: int = 0, **options: Any
    ) -> list[Remote]:
        """Start processes whose connections are open.

        If `beside` is a port, a plain connection to it counts how many exchanges they take.
        """
        started = [Remote(_command(self.system)) for _ in range(count)]
        entering = (self.stack.enter_async_context(process) for process in started)
        await asyncio.gather(*entering)
        where = list(urls) or [server.url for server in self.servers]
        own = {**self.system.options, **options}
        if self.system.environment == "asynclock":
            own = {**self.settings, **own}
        if beside:
            await asyncio.gather(*(p.ask("beside", host="127.0.0.1", port=beside) for p in started))
        opening = (p.ask("open", urls=where, ttl=self.ttl, options=dict(own)) for p in started)
        self.opened = await asyncio.gather(*opening)
        return started

    @property
    def url(self) -> str:
        """The URL of the first server."""
        return self.servers[0].url


@dataclass(frozen=True)
class Woken:
    """What has ended the waits of some processes."""

    pushed: int
    """Waits that ended because a server told of a release."""
    by_itself: int
    """Waits that ended because it was time to ask again."""


async def woken(processes: Sequence[Remote]) -> Woken:
    """Return what has ended the waits of these processes so far; peers do not count them."""
    counts: Counter[str] = Counter()
    for reply in await asyncio.gather(*(p.ask("wakeups") for p in processes)):
        counts.update(reply)
    return Woken(counts["push"], counts["expiry"] + counts["pacing"])


@dataclass(frozen=True)
class Looped:
    """What looping workers have seen; times in seconds on the monotonic clock."""

    counts: Sequence[int]
    bodies: Sequence[judged.Body]
    errors: int
    seconds: float
    used: Counters
    fences: bool
    woken: Woken
    readers: int = 0
    """Number of processes, the last ones, that read; readers may be inside together."""

    @property
    def violations(self) -> int:
        """Bodies that must not run at once but did, and fences that fell or came twice."""
        if not self.readers:
            return judged.violations(self.bodies, fences=self.fences)
        first = len(self.counts) - self.readers
        pairs = itertools.combinations(self.bodies, 2)
        return sum(
            one[1] < other[2] and other[1] < one[2]
            for one, other in pairs
            if one[4] < first or other[4] < first
        )

    @property
    def longest_gap(self) -> float:
        """The longest time in which nobody began to work."""
        begins = [began for _, began, *_ in self.bodies]
        gaps = (after - before for before, after in itertools.pairwise(begins))
        return max(gaps, default=self.seconds)

    @property
    def overtook(self) -> int:
        """The most bodies that others had while one process waited or was at rest."""
        return judged.longest_wait(self.bodies, len(self.counts))

    @property
    def in_use(self) -> float:
        """The share of the time in which somebody was inside; bodies count as long as they took."""
        return sum(ended - began for _, began, ended, *_ in self.bodies) / self.seconds

    def figures(self) -> dict[str, float]:
        """Return what a user notices."""
        total = sum(self.counts)
        waits = [began - asked for asked, began, *_ in self.bodies]
        return {
            "per_second": total / self.seconds,
            "least_share": min(self.counts) * len(self.counts) / max(total, 1),
            "longest_wait": max(waits, default=self.seconds),
            "bodies_of_others": self.overtook,
            "longest_gap": self.longest_gap,
            "in_use": self.in_use,
            "pushed": self.woken.pushed,
            "by_itself": self.woken.by_itself,
            "scripts": self.used.scripts / max(total, 1) / self.used.nodes,
            "errors": self.errors,
            "violations": self.violations,
        }


def _command(system: System) -> list[str]:
    """Return the command of a process: in the system's own environment, else in ours."""
    argv = command(system, "asyncio") or command_here(system, "asyncio")
    return ["tests.everyday.worker" if word == "benchmarks.worker" else word for word in argv]


@contextlib.asynccontextmanager
async def stage(
    who: str, nodes: int = 1, *, ttl: float = 10.0, **settings: Any
) -> AsyncIterator[Stage]:
    """Start servers and set the stage for a system; all processes end with the scene."""
    async with local_servers(nodes) as servers:
        usual = {"node_timeout": patient.node_timeout(ttl=ttl, **settings)}
        made = Stage(SYSTEMS[who], servers, ttl, {**usual, **(settings or QUICK)})
        async with made.stack:
            yield made


async def looping(
    there: Stage,
    processes: Sequence[Remote],
    *,
    seconds: float,
    body: float,
    meanwhile: Any = None,
    **terms: Any,
) -> Looped:
    """Let each process work in a loop on one name; `meanwhile` is a coroutine that runs beside."""
    warm = (p.ask("warm", name=f"warm:{number}") for number, p in enumerate(processes))
    await asyncio.gather(*warm)
    nodes = Nodes(there.servers, {})
    with TemporaryDirectory(prefix="asynclock-") as place:
        files = [Path(place) / str(number) for number in range(len(processes))]
        told = {"start": time.monotonic() + READY, "seconds": seconds, "body": body, **terms}
        before = await nodes.counters()
        patience = seconds + 60
        asks = (
            p.ask("loop", patience, terms=told, tasks=1, seed=n, record=str(files[n]))
            for n, p in enumerate(processes)
        )
        beside = asyncio.ensure_future(meanwhile) if meanwhile is not None else None
        replies = await asyncio.gather(*asks)
        if beside is not None:
            await beside
        used = await nodes.counters() - before
        causes = await woken(processes)
        bodies = judged.recorded(files)
    counts = [count for reply in replies for count in reply["counts"]]
    errors = sum(sum(reply["errors"].values()) for reply in replies)
    return Looped(counts, bodies, errors, seconds, used, there.system.fences, causes)
