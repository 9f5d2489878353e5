"""A primary that others may replace: behind Sentinels, or in a Cluster whose servers watch it."""

import asyncio
import random
from functools import partial
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory.commands import ReplyError
from tests.nodes.virtual_servers import (
    Server,
    VirtualCluster,
    VirtualService,
    met,
    name_on,
    played_on,
)
from tests.tables.inside import now
from tests.waiting import go_through, until

CONFIRMED = 2.0
"""Seconds for which the word of a majority counts (docs/guarantees.md)."""
NAME = name_on(0)
ODD = ([1], [b"h"], [[b"a", b"b"]], b"", {b"h": b"1"}, [[0, 16383, [b"h"]]], ReplyError("ERR odd"))


class Sentinels:
    """A primary behind three Sentinels."""

    question, question_of_a_look, pause = b"SENTINEL", ("SENTINEL", "MASTER"), (0.75, 1.0)

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made = VirtualService(patch)
        self.url, self.primary = self.made.url, self.made.servers[0]
        self.watchers: list[Server] = list(self.made.sentinels)

    def see(self, replicas: int) -> None:
        """Let the watchers see this many replicas."""
        others = {Server(f"q{n}", 1): "slave" for n in range(replicas)}
        self.made.name(self.primary, epoch=1, replicas=others)  # type: ignore[arg-type]

    def acknowledge(self, count: int) -> None:
        self.made.acknowledge(count)


class Cluster:
    """The first primary of three."""

    question, question_of_a_look, pause = b"CLUSTER", ("CLUSTER", "SLOTS"), (0.8, 1.05)

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made = VirtualCluster(patch, replicas=3)
        self.url, self.primary = self.made.url, self.made.primaries[0]
        self.watchers: list[Server] = list(self.made.servers)
        self.see(0)

    def see(self, replicas: int) -> None:
        (first, last, _), *others = self.made.shards
        shown = [self.made.primaries[0], *self.made.replicas[0][:replicas]]
        self.made.tell([(first, last, shown), *others])

    def acknowledge(self, count: int) -> None:
        for server in self.made.servers:
            server.instead[b"WAIT"] = lambda _words: count


def on_both(scenario: Any) -> Any:
    """Play a test on each of them."""
    return pytest.mark.parametrize("kind", [Sentinels, Cluster])(played_on()(scenario))


def connect(on: Any, **settings: Any) -> asynclock.LockManager:
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False}
    return asynclock.connect(on.url, **{**usual, **settings})


def refuse(on: Any, reply: Any = None) -> dict[Server, Any]:
    """Let the watchers tell nothing, or something odd; return what they told before."""
    before = {one: one.instead[on.question] for one in on.watchers}
    for one in on.watchers:
        one.instead[on.question] = lambda _words: reply or ReplyError("NOPERM no right")
    return before


def looks(on: Any) -> int:
    return len(on.watchers[0].asked_for(*on.question_of_a_look))


@pytest.mark.parametrize(
    ("kind", "connecting"), [(Sentinels, False), (Sentinels, True), (Cluster, False)]
)
@played_on()
async def test_a_primary_is_confirmed_from_the_question_on(on: Any, connecting: bool) -> None:

    async def next_look() -> float:
        before = looks(on)
        await until(lambda: looks(on) > before)
        return now() - 0.4

    async with connect(on, node_timeout=2.0) as locks:
        await met(locks)
        for server in on.watchers:
            server.way.seconds = 0.4
        await asyncio.sleep(10)
        asked = await next_look()
        if connecting:
            await asyncio.sleep(0.45)  # until the answers are here
            on.primary.cut()
            asked = await next_look()
        refuse(on)
        await asyncio.sleep(asked + CONFIRMED - 0.1 - now())
        assert locks.nodes()[0].state == "up"
        await asyncio.sleep(0.2)
        assert locks.nodes()[0].state == "down"
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock(NAME).try_acquire()


@on_both
async def test_a_grant_that_is_told_after_the_confirmation_ended_does_not_count(on: Any) -> None:
    """By then another server may be the primary. What is held can be given back all the same."""
    async with connect(on, node_timeout=8.0, ttl=60, max_ttl=60) as locks:
        await met(locks)
        lease = await locks.lock(NAME).acquire()
        refuse(on)
        on.primary.way.seconds = CONFIRMED
        with pytest.raises(asynclock.QuorumUnavailableError, match="not confirmed"):
            await locks.lock(name_on(0, number=1)).try_acquire()
        on.primary.way.seconds = 0.0
        assert lease.held
        await lease.release()
        assert all(":#" in key for key in await on.primary.command("KEYS", f"*:*{NAME}*"))


@pytest.mark.parametrize("odd", ODD)
@on_both
async def test_an_answer_that_nobody_expected_does_not_end_the_watch(on: Any, odd: Any) -> None:
    async with connect(on) as locks:
        await met(locks)
        before = refuse(on, odd)
        await asyncio.sleep(4)
        assert locks.nodes()[0].state == "down"
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock(NAME).try_acquire()
        for server, told in before.items():
            server.instead[on.question] = told
        await go_through(locks.lock(NAME, timeout=3))


@on_both
async def test_a_dead_primary_is_not_waited_for_long(on: Any) -> None:
    """The watchers may soon name another one."""
    on.primary.freeze()
    async with connect(on, node_timeout=0.25) as locks:
        await asyncio.sleep(20)
        before = len(on.primary.dialled)
        await asyncio.sleep(10)
        # As a source, it is dialled for two seconds each time.
        assert len(on.primary.dialled) - before >= (10 if isinstance(on, Sentinels) else 14)
        place = f"{on.primary.host}:{on.primary.port}"
        assert (
            f"{place}: no answer to the login within node_timeout=0.25 s" in locks.nodes()[0].cause
        )


@on_both
async def test_a_primary_that_does_not_speak_tls_is_told_from_one_that_is_down(on: Any) -> None:
    on.primary.deaf = True
    async with connect(on) as locks:
        if isinstance(on, Cluster):
            await asyncio.sleep(1.1)
        with pytest.raises(asynclock.QuorumUnavailableError, match=r"TLS handshake|speak TLS"):
            await locks.lock(NAME).try_acquire()


@on_both
async def test_clients_look_at_different_moments(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage they all begin at once."""
    for chance, pause in zip((0.0, 1.0), on.pause, strict=True):
        monkeypatch.setattr(random, "random", lambda chance=chance: chance)
        async with connect(on) as locks:
            await met(locks)
            await asyncio.sleep(2)
            before = looks(on)
            await asyncio.sleep(30 * pause)
            assert looks(on) - before == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("acks", "of_three"), [("all", b"3"), ("majority", b"2")])
@on_both
async def test_replicas_that_are_seen_must_acknowledge(on: Any, acks: str, of_three: bytes) -> None:
    """As the watchers see them: the primary itself may have lost some."""
    on.acknowledge(3)
    on.primary.info["connected_slaves"] = 1

    async def waits_for(count: bytes) -> bool:
        async with locks.lock(NAME):
            return bool(on.primary.asked_for("WAIT")[-1][1] == count)

    on.see(1)
    async with connect(on, acks=acks) as locks:
        assert await waits_for(b"1")
        for replicas, count in ((3, of_three), (1, b"1"), (3, of_three)):
            on.see(replicas)
            told = partial(waits_for, count)
            await until(told, timeout=2, every=0.1)
        on.acknowledge(int(of_three) - 1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="replicas acknowledged"):
            await locks.lock(NAME).try_acquire()
        if isinstance(on, Sentinels):  # what an heir needs
            assert bool(on.primary.asked_for("INFO", "replication")) is (acks == "all")
