"""What the scripts of a mutex do with those who wait, at the edges of each rule."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._engine import waiters
from asynclock._primitives import lock, readwrite
from tests.primitives.script_server import DAY, TTL, Server

KEYS = "l c q"
WRITE = (readwrite.WRITE, "w c q r")


@pytest.fixture
async def server() -> Server:
    return Server()


async def wait(server: Server, ticket: str, *more: Any, ms: int = TTL, **at: int) -> Any:
    """Ask for the lock l as a waiter with this ticket."""
    return await server.acquire(lock.SCRIPT, KEYS, f"owner {ticket}", ms, ticket, *more, **at)


async def held(server: Server) -> None:
    await server.node.command("SET", "l", "holder", "PX", TTL)


async def test_a_newcomer_comes_after_the_last(server: Server) -> None:
    await held(server)
    assert [(await wait(server, f"t{n}", floor=9))[3] for n in range(4)] == [9, 10, 11, 12]


async def test_without_a_floor_the_nodes_clock_gives_the_number(server: Server) -> None:
    await held(server)
    assert (await wait(server, "t1", floor=-1))[3] == server.now()
    await server.node.command("DEL", "q")
    await server.call(*WRITE, "acquire", "holder", TTL, 5, 0, DAY)
    assert (await server.acquire(*WRITE, "me", TTL, "t2", 0, floor=-1))[3] == server.now() // 1000
    await server.node.command("DEL", "q")
    await server.call(lock.SCRIPT, KEYS, "release", "holder", 0, "t3", TTL, 0)
    found = await server.node.command("ZRANGE", "q", 0, -1, "WITHSCORES")
    assert found == ["t3", str(server.now())]


async def test_one_that_only_asks_has_no_number_and_no_rank(server: Server) -> None:
    """Whatever it has settled on, and although its ticket still waits from before."""
    await held(server)
    for ticket in ("t1", "t2"):
        await wait(server, ticket, floor=9)
    for number in (0, 5, 10, 20):
        for ticket in ("t2", "t3"):
            assert await wait(server, ticket, number, ms=0) == [0, TTL, "holder", 0, 0, 0]
    assert await server.node.command("ZRANGE", "q", 0, -1, "WITHSCORES") == ["t1", "9", "t2", "10"]


async def test_a_writer_that_only_asks_has_no_number(server: Server) -> None:
    await server.acquire(*WRITE, "holder")
    await server.acquire(*WRITE, "first", TTL, "t1", 0, floor=9)
    for number in (0, 5, 10):
        reply = await server.acquire(*WRITE, "me", 0, "t2", number)
        assert reply == [0, TTL, "holder", 0, 0, 0, []]
    assert await server.order() == ["t1"]


async def test_a_number_that_others_agreed_on_replaces_ours_before_we_look(server: Server) -> None:
    """Else the first waiter of the name is refused where it is not the first."""
    for kind, key, unit in ((None, "l", 1), (WRITE, "w", 1000)):
        script, keys = kind or (lock.SCRIPT, KEYS)
        for owner, ticket, floor in (("holder", "t0", 5), ("b", "t2", 7), ("a", "t1", 9)):
            await server.acquire(script, keys, owner, TTL, ticket, 0, floor=floor * unit)
        await server.node.command("DEL", key)
        reply = await server.acquire(script, keys, "a", TTL, "t1", 6)
        assert (reply[0], reply[2]) == (1, "t2")
        await server.node.command("DEL", key, "q")


@pytest.mark.parametrize(("taken", "marks"), [("n0", "10"), ("n1", "01")])
async def test_any_free_slot_is_ours_for_the_asking(server: Server, taken: str, marks: str) -> None:
    await held(server)
    await server.node.command("SET", taken, "other", "PX", TTL)
    reply = await server.acquire(lock.SCRIPT, f"{KEYS} n0 n1", "me", TTL, "t1", 0)
    assert reply == [0, TTL, "holder", 0, 0, 0, marks]
    assert await server.order() == []


async def test_leaving_wakes_nobody_who_was_woken_before(server: Server) -> None:
    """It may have been woken for a slot that is taken by now."""
    await held(server)
    for ticket in ("t1", "t2"):
        await wait(server, ticket)
    await server.node.command("SET", "q:#t2", "go", "PX", TTL)
    assert await server.call(lock.SCRIPT, KEYS, "leave", "t1") == [0, ""]


@pytest.mark.parametrize("floor", ["believed", "unknown", "behind"])
async def test_a_process_in_its_turn_is_told_who_waits_first(server: Server, floor: str) -> None:
    await held(server)
    for ticket in ("t1", "t2", "t3"):
        await wait(server, ticket)
    await server.node.command("DEL", "l")
    await server.node.command("SET", "c", server.now() + 5, "PX", TTL)
    at = {"believed": server.now() + 9, "unknown": -1, "behind": server.now()}[floor]
    reply = await server.acquire(lock.SCRIPT, KEYS, "me", TTL, "t2", 0, 1, floor=at)
    assert reply == [1, server.now() + (9 if floor == "believed" else 6), "t1"]
    assert await server.order() == ["t1", "t3"]


@pytest.mark.parametrize(("slots", "woken"), [("", "1"), ("n0 n1", "go")])
async def test_a_turn_wakes_a_waiter_that_asks_about_more_than_the_turn(
    server: Server, slots: str, woken: str
) -> None:
    """It may find one of the others free."""
    await held(server)
    for slot in slots.split():
        await server.node.command("SET", slot, "other", "PX", TTL)
    await server.acquire(lock.SCRIPT, f"{KEYS} {slots}", "waiter", TTL, "t1", 0)
    await server.node.command("DEL", "l")
    assert (await wait(server, "t9", 0, 1))[::2] == [1, "t1"]
    assert await server.get("q:#t1") == woken


async def test_a_batch_overlooks_waiters_that_died(server: Server) -> None:
    """The queue lives on for those who have left it, too."""
    await held(server)
    await wait(server, "t1", ms=1000)
    await wait(server, "t2", ms=9000)
    await server.call(lock.SCRIPT, KEYS, "leave", "t2")
    await server.node.command("DEL", "l", "c")
    server.node.jump_clock(2)
    words = ("batch", 0, TTL, server.now(), 0, DAY, 0, "me")
    odd, (reply,) = await server.call(lock.SCRIPT, "q l c", *words)
    assert (odd, reply[:3]) == (1, [1, server.now(), ""])
    assert (await server.get("l"), await server.get("c")) == ("me", str(server.now()))
    assert (await server.left("l"), await server.left("c")) == (TTL, DAY)


async def test_a_batch_replies_plainly_for_each_name_where_nobody_waits(server: Server) -> None:
    for name in "ab":
        await server.node.command("SET", name, "me", "PX", TTL)
    await server.acquire(lock.SCRIPT, "b bc bq", "other", TTL, "t", 0)
    words = ("batch", 2, TTL, server.now(), 0, DAY, 0, "me", "me")
    odd, replies = await server.call(lock.SCRIPT, "a b aq bq", *words)
    assert (odd, replies[0], replies[1][:2]) == (1, 1, [1, "t"])


async def test_a_writer_is_told_the_time_of_a_reader_rounded_up(server: Server) -> None:
    read = (readwrite.READ, "r c q w")
    await server.call(*read, "acquire", "reader", 9000, 5, 0, DAY)
    server.node.jump_clock(0.0004)
    assert (await server.acquire(*WRITE, "me", 0))[:3] == [0, 9000, "reader"]


async def test_readers_whose_turn_it_is_are_listed_before_the_others(server: Server) -> None:
    """And those that came later after the first writer that waits."""
    for place, ticket in ((-1, "turn"), (5, "first"), (6, "second"), (4 * 10**15, "later")):
        await server.node.command("ZADD", "q", place, ticket)
        await server.node.command("SET", f"q:#{ticket}", 1, "PX", TTL)
    source = waiters.question("q", "w").script.source
    found = await server.node.command("EVAL", source, 2, "q", "w", "inspect", 10)
    numbers = {ticket: float(number) for ticket, number, *_ in found}
    assert sorted(numbers, key=lambda ticket: numbers[ticket]) == [
        "turn",
        "first",
        "later",
        "second",
    ]


async def test_a_release_that_fails_in_a_batch_fails_alone(server: Server) -> None:
    """Another program uses the key of a ticket: the owners of other names are told of theirs."""
    for name in "ab":
        await server.node.command("SET", name, "me", "PX", TTL)
    await server.node.command("ZADD", "aq", 1, "t")
    await server.node.command("HSET", "aq:#t", "x", "y")
    words = ("batch", 2, TTL, 5, 0, DAY, 0, "me", "me")
    odd, (failed, released) = await server.call(lock.SCRIPT, "a b aq bq", *words)
    assert (odd, released) == (1, 1)
    assert "WRONGTYPE" in str(failed)
    assert await server.node.command("EXISTS", "a", "b") == 0
