"""What tests with public names need of the inside: all of it is here, for a redesign to rewrite."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from asynclock import LockManager, _clock
from asynclock._engine import grant as grants
from asynclock._nodes.cluster import shards
from asynclock._nodes.endpoint import TLS, Endpoint
from asynclock._nodes.replicated import SentinelNode, SentinelView
from asynclock._primitives import lock, multi, readwrite, semaphore
from asynclock._primitives.shared import election
from tests.waiting import until


def now() -> float:
    """Return the library's time, which a virtual loop sets."""
    return _clock.now()


@contextlib.contextmanager
def no_loop() -> Iterator[None]:
    """Let this thread run another loop, while the one that runs in it stands still."""
    running = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


@contextlib.contextmanager
def sentinels_name(host: str, port: int) -> Iterator[None]:
    """Let all Sentinels name this server as the primary of their group, without being asked."""
    view = SentinelView((host, port), epoch=0, replicas=0, known=0)
    with patch.object(SentinelNode, "_ask_sentinels", AsyncMock(return_value=view)):
        yield


async def sleeps(locks: LockManager, tasks: int = 1) -> None:
    """Look until this many tasks of a manager have asked the nodes and wait for a push."""
    watched = locks._engine.multiplexer.wakeups.watched

    def asleep() -> bool:
        watches = {watch for one in watched.values() for watch in one}
        return sum(watch._future is not None for watch in watches) >= tasks

    await until(asleep, f"{tasks} tasks wait for a push")


def seed(locks: LockManager, number: int) -> None:
    """Let all that a manager draws at random follow from a number."""
    chance, engine = random.Random(number), locks._engine
    engine.random, engine.owners.entropy = chance.random, chance.randbytes
    for node in engine.multiplexer.nodes:
        node.random = chance.random


def renew_now(locks: LockManager) -> None:
    """Let the renewals of all leases be due, so that a test of a loss needs no short ttl.

    A lease with a short ttl is lost on a busy machine before the test does anything to it.
    """
    renewals = locks._engine.renewals
    for grant in renewals.grants():
        renewals._set(grant, _clock.now())


def loses_pushes(locks: LockManager) -> None:
    """Let no push reach this client's waiters from now on."""
    for node in locks._engine.multiplexer.nodes:
        node.on_wake = lambda _key: None


def reach(patch: pytest.MonkeyPatch, servers: Mapping[tuple[str, int], Any]) -> None:
    """Let hosts and ports lead to servers in memory, each by its `way`; no name is looked up.

    A server that is `deaf` takes a connection and never finishes a TLS handshake.
    """

    async def known(_self: Endpoint) -> None: ...

    async def by_address(self: Endpoint, make: Callable[[], Any]) -> Any:
        server = servers.get((self.host, self.port))
        if server is None:
            raise ConnectionRefusedError(f"nobody at {self.address}")
        if server.deaf:
            self.phase = TLS
            await asyncio.Event().wait()
        return await server.open(make, server.way)

    patch.setattr(Endpoint, "look_up", known)
    patch.setattr(Endpoint, "open", by_address)


def forget_specs() -> None:
    """Let the specs that are kept for later calls be made anew."""
    mutexes = (lock.spec, lock.fair_spec, election.spec)
    for made in (*mutexes, multi.spec_of_all, readwrite.specs, semaphore.slot):
        made.cache_clear()


def forget_commands() -> None:
    """Forget the commands of the program: each call of `main` adds its own, and typer reads all."""
    if program := sys.modules.get("asynclock.cli._app"):
        program.app.registered_commands.clear()


def unfinished(locks: LockManager) -> tuple[int, list[str]]:
    """Return how many batches have no verdict yet, and which keys are still watched."""
    nodes = locks._engine.multiplexer
    return nodes.undecided, [*nodes.wakeups.watched]


def chance(locks: LockManager, random: Callable[[], float]) -> None:
    """Let all chance of this client be what `random` returns, from 0 to 1."""
    locks._engine.random = random


def keeps_turns(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a process hand a name on for this long, though others want it."""
    patch.setattr(grants, "KEEP_TIME", seconds)


def named_by_watchers(patch: pytest.MonkeyPatch, host: str) -> None:
    """Let Sentinels and the servers of a Cluster name servers by this host."""
    ask = SentinelNode._ask_sentinels

    async def named(self: SentinelNode) -> SentinelView:
        view = await ask(self)
        return replace(view, primary=(host, view.primary[1]))

    patch.setattr(SentinelNode, "_ask_sentinels", named)
    patch.setattr(shards, "_address", lambda one, _asked: (host, int(one[1])))


def names_in_use(locks: LockManager) -> list[str]:
    """Return the names that tasks of a client have or want."""
    return [queue.name for queue in locks._engine.queues.values() if queue.used]


def pictures_last(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the live page show each picture of the locks for at least this long."""
    patch.setattr("asynclock.contrib.dashboard.snapshots.FRESH", seconds)


def pictures(patch: pytest.MonkeyPatch, take: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Let `take` make the live page's pictures; it gets what a viewer has chosen."""

    async def taken(_self: Any, query: Any, **_more: Any) -> Any:
        return await take(dict(asdict(query).items() - asdict(type(query)()).items()))

    patch.setattr("asynclock.contrib.dashboard.snapshots.Snapshots.take", taken)
    patch.setattr("asynclock.contrib.dashboard.ALIVE", 0.05)
    pictures_last(patch, 0.1)
