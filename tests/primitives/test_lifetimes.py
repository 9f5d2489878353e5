"""How long the keys of a lease live on a server, and what the scripts make of the time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock._nodes.script import FAILED, Command, Script
from asynclock._primitives import lock, multi, readwrite, register
from asynclock._rules.retention import fence_retention
from asynclock.testing import LocalServer
from tests import patient
from tests.primitives.script_server import DAY, TTL, Server


@pytest_asyncio.fixture
async def locks(asynclock_nodes: list[LocalServer]) -> AsyncIterator[asynclock.LockManager]:
    url = asynclock_nodes[0].url
    async with patient.connect(url, ttl=60, max_ttl=60, restart_guard=False) as locks:
        yield locks


Acquire = Callable[[asynclock.LockManager], Awaitable[Any]]
KINDS: dict[str, tuple[str, Acquire]] = {
    "lock": ("a:#fence", lambda locks: locks.lock("a").acquire()),
    "multi": ("b:#fence", lambda locks: locks.multi_lock("a", "b").acquire()),
    "slot": ("a:#0:#fence", lambda locks: locks.semaphore("a", 1).acquire()),
    "read": ("a:#write:#fence", lambda locks: locks.rwlock("a").read().acquire()),
    "write": ("a:#write:#fence", lambda locks: locks.rwlock("a").write().acquire()),
    "fair": ("a:#fair:#fence", lambda locks: locks.fair_lock("a").acquire()),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_counter_outlives_its_last_use_by_the_retention(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager, kind: str
) -> None:
    """Each renewal counts as use: a lease may be held for longer than that."""
    node = asynclock_nodes[0]
    name, acquire = KINDS[kind]
    kept = 1000 * fence_retention(locks._defaults.max_ttl)
    lease = await acquire(locks)
    key = f"asynclock:{name}"
    assert kept - 10_000 < await node.command("PTTL", key) <= kept + 1000
    await node.command("PEXPIRE", key, 5000)
    await lease.extend()
    assert kept - 10_000 < await node.command("PTTL", key) <= kept + 1000
    await lease.release()
    assert kept - 10_000 < await node.command("PTTL", key) <= kept + 1000


async def test_a_short_reader_shortens_no_others(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager
) -> None:
    """Neither when it comes nor when it is extended: the others' leases are in the same key."""
    node, key = asynclock_nodes[0], "asynclock:a:#readers"
    slow = await locks.rwlock("a").read().acquire()
    hasty = await locks.rwlock("a", ttl=5).read().acquire()
    assert await node.command("PTTL", key) > 50_000
    await hasty.extend(5)
    assert await node.command("PTTL", key) > 50_000
    await hasty.release()
    assert await node.command("ZSCORE", key, slow.owner) is not None


@pytest.fixture
async def server() -> Server:
    return Server()


LATE: dict[str, tuple[Script, str, tuple[Any, ...]]] = {
    "lock": (lock.SCRIPT, "l c q", ()),
    "multi": (multi.SCRIPT, "l c", ()),
    "read": (readwrite.READ, "r c q w", ()),
    "write": (readwrite.WRITE, "w c q r", (1000, "ticket", 0)),
    "queue": (lock.SCRIPT, "l c q", (1000, "ticket")),
}


@pytest.mark.parametrize("kind", LATE)
async def test_a_late_acquire_changes_nothing(server: Server, kind: str) -> None:
    script, keys, more = LATE[kind]
    not_after = server.now() - 1000
    assert await server.acquire(script, keys, "me", *more, not_after=not_after) == [-1]
    assert await server.node.command("EXISTS", *keys.split()) == 0
    in_time = server.now() + 1_000_000
    assert (await server.acquire(script, keys, "me", *more, not_after=in_time))[0] == 1


async def test_a_late_change_of_a_register_changes_nothing(server: Server) -> None:
    not_after = server.now() - 1000
    for change in ("prepare", "accept"):
        args = (change, 7, "me", TTL, not_after, "value")
        assert await server.call(register.SCRIPT, "r", *args) == [-1]
    assert await server.node.command("EXISTS", "r") == 0


async def test_a_fair_queue_keeps_its_order_when_the_clock_is_set_back(server: Server) -> None:
    keys = "l c q"
    await server.acquire(lock.SCRIPT, keys, "holder", TTL, "t0")
    await server.acquire(lock.SCRIPT, keys, "one", TTL, "t1", floor=-1)
    server.node.jump_clock(-3600)
    await server.acquire(lock.SCRIPT, keys, "two", TTL, "t2", floor=-1)
    assert await server.node.command("ZRANGE", "q", 0, -1) == ["t1", "t2"]


async def test_a_waiter_that_is_told_to_only_ask_is_not_queued(server: Server) -> None:
    keys = "l c q"
    await server.acquire(lock.SCRIPT, keys, "holder", 0, "t0")
    await server.acquire(lock.SCRIPT, keys, "one", 0, "t1")
    assert await server.node.command("EXISTS", "q", "q:#t1") == 0


async def test_a_crashed_waiter_is_skipped_when_its_patience_is_over(server: Server) -> None:
    keys = "l c q"
    await server.acquire(lock.SCRIPT, keys, "holder", TTL, "t0")
    await server.acquire(lock.SCRIPT, keys, "crashed", 1000, "t1")
    await server.acquire(lock.SCRIPT, keys, "alive", TTL, "t2")
    await server.call(lock.SCRIPT, keys, "release", "holder")
    assert (await server.acquire(lock.SCRIPT, keys, "alive", TTL, "t2"))[0] == 0
    server.node.jump_clock(2)
    assert (await server.acquire(lock.SCRIPT, keys, "alive", TTL, "t2"))[0] == 1


async def test_a_reader_that_has_expired_neither_reads_nor_is_in_the_way(server: Server) -> None:
    await server.node.command("SET", "c", 4)
    await server.call(readwrite.READ, "r c q w", "acquire", "old", 1000, 5, 0, DAY)
    await server.acquire(readwrite.READ, "r c q w", "other")
    server.node.jump_clock(2)
    assert await server.call(readwrite.READ, "r c", "extend", TTL, DAY, "old") == ["0"]
    assert await server.call(readwrite.READ, "r c", "raise", "old", 90, DAY) == [0, 6]
    assert await server.call(readwrite.READ, "r c q w", "release", "old") == [0, []]
    assert await server.call(readwrite.READ, "r c q w", "release", "other") == [1, []]


async def test_a_reader_that_has_expired_keeps_no_writer_out(server: Server) -> None:
    """It is still in the key, which lives as long as the reader who came with the longest ttl."""
    await server.call(readwrite.READ, "r c q w", "acquire", "old", 1000, 5, 0, DAY)
    await server.acquire(readwrite.READ, "r c q w", "other")
    await server.call(readwrite.READ, "r c q w", "release", "other")
    server.node.jump_clock(2)
    assert await server.node.command("EXISTS", "r") == 1
    assert (await server.acquire(readwrite.WRITE, "w c q r", "writer", 1000, "t", 0))[0] == 1


async def test_a_waiting_writer_keeps_new_readers_out_and_no_old_ones(server: Server) -> None:
    await server.acquire(readwrite.READ, "r c q w", "reader")
    await server.acquire(readwrite.WRITE, "w c q r", "writer", 1000, "t", 0)
    assert (await server.acquire(readwrite.READ, "r c q w", "newcomer"))[0] == 0
    # A lease that is put back on a node which forgot it.
    assert (await server.acquire(readwrite.READ, "r c q w", "reader", 0, "reader", 0, 1))[0] == 1
    await server.call(readwrite.WRITE, "w c q r", "leave", "another")
    assert (await server.acquire(readwrite.READ, "r c q w", "newcomer"))[0] == 0
    server.node.jump_clock(1.5)
    assert (await server.acquire(readwrite.READ, "r c q w", "newcomer"))[0] == 1


async def test_a_crashed_reader_holds_the_next_writer_up_until_its_ticket_expires(
    server: Server,
) -> None:
    """A writer has released, so both readers go before the next one; one of them is no more."""
    read, write = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
    await server.acquire(*write, "first")
    for reader, ms in (("alive", TTL), ("crashed", 1000)):
        await server.acquire(*read, reader, ms, reader, 0)
    await server.acquire(*write, "second", TTL, "second", 0)
    released = await server.call(*write, "release", "first")
    assert [released[0], sorted(released[1])] == [1, ["alive", "crashed"]]
    assert (await server.acquire(*read, "alive", TTL, "alive", 1))[0] == 1
    assert await server.call(*read, "release", "alive") == [1, ["crashed"]]
    assert (await server.acquire(*write, "second", TTL, "second", 0))[0] == 0
    server.node.jump_clock(1.5)
    assert (await server.acquire(*write, "second", TTL, "second", 0))[0] == 1


async def test_the_last_reader_wakes_a_writer_that_goes_before_readers(server: Server) -> None:
    read, write = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
    for reader in ("one", "two"):
        await server.acquire(*read, reader)
    await server.acquire(*write, "writer", TTL, "writer", 0)
    await server.acquire(*read, "late", TTL, "late", 0)
    assert await server.call(*read, "release", "one") == [1, []]
    assert await server.call(*read, "release", "two") == [1, ["writer"]]
    assert (await server.acquire(*write, "writer", TTL, "writer", 0))[0] == 1
    await server.call(*write, "release", "writer", 1)
    assert await server.node.command("GET", "q:#late") == "1", "no reader was woken"


async def test_readers_go_before_a_writer_that_asks_while_the_name_is_kept(
    server: Server,
) -> None:
    """Its own request may come between a release that wakes nobody and the pass."""
    read, write = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
    await server.acquire(*write, "first")
    await server.acquire(*read, "reader", TTL, "reader", 0)
    await server.acquire(*write, "second", TTL, "second", 0)
    assert await server.call(*write, "release", "first", 1) == [1, []]
    assert (await server.acquire(*write, "second", TTL, "second", 0))[0] == 0
    # Its process goes on while its turn lasts, and then passes the name on.
    assert (await server.acquire(*write, "again", TTL, "again", 0, 1))[0] == 1
    assert await server.call(*write, "release", "again", 1) == [1, []]
    assert await server.call(*write, "pass") == [1, ["reader"]]
    assert (await server.acquire(*write, "second", TTL, "second", 0))[0] == 0
    assert (await server.acquire(*read, "reader", TTL, "reader", 0))[0] == 1


async def test_a_writer_is_not_held_up_by_readers_that_go_after_it(server: Server) -> None:
    read, write = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
    await server.acquire(*write, "crashed")
    assert (await server.acquire(*read, "reader", 2 * TTL, "reader", 0))[0] == 0
    server.node.jump_clock(TTL / 1000 + 1)  # no release: that would have let the reader go first
    assert (await server.acquire(*write, "writer", 0, "writer", 0))[0] == 1


async def test_a_writers_attempt_that_failed_elsewhere_ends_no_turn(server: Server) -> None:
    """Of a try_acquire, of a call that was cancelled, or a release that is sent again."""
    read, write = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
    for more in ((FAILED,), (0, "try", TTL, 0)):
        failed = Command.release(readwrite.WRITE, "w c q r".split(), "try", 0, 1, more).again()
        await server.acquire(*write, "try")
        await server.acquire(*read, "reader", TTL, "reader", 0)
        await server.acquire(*write, "writer", TTL, "writer", 0)
        assert await server.call(*write, *failed.args) == [1, ["writer"]]
        assert (await server.acquire(*write, "writer", TTL, "writer", 0))[0] == 1
        assert await server.call(*write, "release", "writer") == [1, ["reader"]]
        await server.call(*read, "leave", "reader")


async def test_an_upgrade_sees_another_reader_on_a_node_that_forgot_its_own(
    server: Server,
) -> None:
    await server.acquire(readwrite.READ, "r c q w", "other")
    upgrade = await server.acquire(readwrite.WRITE, "w c q r", "writer", 0, "t", 0, 0, "mine")
    assert (upgrade[0], upgrade[2]) == (0, "other")


async def test_a_downgrade_sees_another_writer_on_a_node_that_forgot_its_own(
    server: Server,
) -> None:
    await server.acquire(readwrite.WRITE, "w c q r", "other")
    downgrade = await server.acquire(readwrite.READ, "r c q w", "reader", 0, "t", 0, 0, "mine")
    assert (downgrade[0], downgrade[2]) == (0, "other")


async def test_a_readers_raise_lowers_no_counter(server: Server) -> None:
    await server.node.command("SET", "c", 4)
    for owner in ("one", "two", "three"):
        await server.acquire(readwrite.READ, "r c q w", owner)
    assert await server.call(readwrite.READ, "r c", "raise", "one", 6, DAY) == [1, 7]
    assert await server.node.command("GET", "c") == "7"


@pytest.mark.parametrize("script", [lock.SCRIPT, multi.SCRIPT], ids=["lock", "multi"])
async def test_a_renewal_extends_what_is_ours_and_nothing_else(
    server: Server, script: Script
) -> None:
    await server.acquire(script, "l c q" if script is lock.SCRIPT else "l c", "me")
    server.node.jump_clock(30)
    assert await server.call(script, "l c", "extend", TTL, DAY, "me") == ["1"]
    assert await server.node.command("PTTL", "l") > TTL - 1000
    server.node.jump_clock(30)
    assert await server.call(script, "l c", "extend", TTL, DAY, "you") == ["0"]
    assert await server.node.command("PTTL", "l") <= TTL / 2


async def test_of_several_names_the_one_that_is_free_last_is_waited_for(server: Server) -> None:
    for key, owner, ttl in (("a", "one", 1000), ("b", "two", 9000), ("c", "three", 5000)):
        await server.node.command("SET", key, owner, "PX", ttl)
    refused, left, *_ = await server.acquire(multi.SCRIPT, "a af b bf c cf", "me")
    assert refused == 0
    assert 8000 < left <= 9000


async def test_a_winner_stands_in_no_queue(server: Server) -> None:
    keys = "l c q"
    await server.acquire(lock.SCRIPT, keys, "holder", TTL, "t0")
    await server.acquire(lock.SCRIPT, keys, "one", TTL, "t1")
    await server.call(lock.SCRIPT, keys, "release", "holder")
    assert (await server.acquire(lock.SCRIPT, keys, "one", TTL, "t1"))[0] == 1
    assert await server.node.command("EXISTS", "q", "q:#t1") == 0
    assert 0 < await server.node.command("PTTL", "l") <= TTL


async def test_a_newcomer_gets_no_free_name_that_somebody_waits_for(server: Server) -> None:
    keys = "l c q"
    await server.acquire(lock.SCRIPT, keys, "holder", TTL, "t0")
    await server.acquire(lock.SCRIPT, keys, "one", TTL, "t1")
    assert await server.call(lock.SCRIPT, keys, "release", "holder") == [1, "t1"]
    assert await server.node.command("GET", "q:#t1") == "go"
    for patience in (0, TTL):
        assert (await server.acquire(lock.SCRIPT, keys, "two", patience, "t2"))[0] == 0
    assert (await server.acquire(lock.SCRIPT, keys, "one", TTL, "t1"))[0] == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "free", "woken"),
    [
        (2, 2, "", False),
        (2, 2, "n0", True),
        (2, 0, "", True),
        (62, 62, "", False),
        (63, 63, "", True),
    ],
)
async def test_a_winner_wakes_the_next_one_if_that_may_find_a_slot(
    server: Server, ours: int, theirs: int, free: str, woken: bool
) -> None:
    """One that asks about fewer slots may, and one that asks about as many as a request can."""
    others = [f"n{number}" for number in range(ours)]
    mine, next_one = (" ".join(["l", "c", "q", *others[:count]]) for count in (ours, theirs))
    for key in ("l", *others):
        await server.node.command("SET", key, "holder", "PX", TTL)
    assert (await server.acquire(lock.SCRIPT, mine, "t1", TTL, "t1"))[0] == 0
    assert (await server.acquire(lock.SCRIPT, next_one, "t2", TTL, "t2"))[0] == 0
    await server.node.command("DEL", "l", free)
    assert (await server.acquire(lock.SCRIPT, mine, "t1", TTL, "t1"))[0] == 1
    assert (await server.node.command("GET", "q:#t2") == "go") == woken


async def test_a_raise_lowers_no_counter(server: Server) -> None:
    """Somebody who holds a node's lock may know a lower fence than the node has given out."""
    assert (await server.acquire(lock.SCRIPT, "l c q", "me"))[0] == 1
    await server.node.command("SET", "c", 9)
    assert await server.call(lock.SCRIPT, "l c", "raise", "me", 7, DAY) == [0, 9]
    assert await server.node.command("GET", "c") == "9"


async def test_a_floor_far_ahead_is_ignored_and_an_unknown_one_is_the_servers(
    server: Server,
) -> None:
    ahead = server.now() + 120_000_000
    await server.node.command("SET", "c", 0)
    reply = await server.call(lock.SCRIPT, "l c q", "acquire", "me", TTL, ahead, 0, DAY)
    assert reply == [1, 1, ""]
    reply = await server.call(lock.SCRIPT, "m d q", "acquire", "me", TTL, -1, 0, DAY)
    assert abs(reply[1] - server.now()) < 5_000_000


async def test_a_register_is_kept_for_as_long_as_anybody_asked(server: Server) -> None:
    await server.call(register.SCRIPT, "r", "prepare", 1, "me", TTL, 0)
    await server.call(register.SCRIPT, "r", "prepare", 2, "you", 1000, 0)
    assert await server.node.command("PTTL", "r") > 50_000
    assert await server.call(register.SCRIPT, "r", "prepare", 2, "me", TTL, 0) == [0, 2]
