"""What the scripts do at the very moment at which something ends, and at keys of another type."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._nodes.script import Script
from asynclock._primitives import lock, multi, readwrite, register
from tests.primitives.script_server import DAY, TTL, Server

KEYS = "l c q"
READ, WRITE = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
WRONG = "WRONGTYPE q must be a sorted set .of waiters., but is string"


@pytest.fixture
async def server() -> Server:
    return Server()


# ---- requests that come late ---------------------------------------------------------------------

ACQUIRES: dict[str, tuple[Script, str, tuple[Any, ...]]] = {
    "lock": (lock.SCRIPT, KEYS, ()),
    "slot": (lock.SCRIPT, f"{KEYS} n", ()),
    "multi": (multi.SCRIPT, "l c", ()),
    "read": (*READ, (0, "me", 0)),
    "write": (*WRITE, (0, "me", 0)),
}


async def asked(server: Server, way: str, not_after: int) -> Any:
    """The first word of the reply to a request with this bound."""
    if way == "batch":
        words: tuple[Any, ...] = ("batch", 0, TTL, 5, not_after, DAY, 0, "me")
        _, (reply,) = await server.call(lock.SCRIPT, "q l c", *words)
        return reply[0] if isinstance(reply, list) else 1
    if way in ("prepare", "accept"):
        words = (way, 5, "me", TTL, not_after, *(["value"] if way == "accept" else []))
        return (await server.call(register.SCRIPT, "x", *words))[0]
    script, keys, more = ACQUIRES[way]
    return (await server.acquire(script, keys, "me", *more, not_after=not_after))[0]


@pytest.mark.parametrize("way", [*ACQUIRES, "batch", "prepare", "accept"])
async def test_a_request_is_done_up_to_its_bound_and_not_after_it(way: str) -> None:
    for late, answer in ((0, 1), (1, -1)):
        server = Server()
        assert await asked(server, way, server.now() - late) == answer
        assert bool(server.node.written) == (answer == 1)


# ---- readers that expire -------------------------------------------------------------------------


async def test_a_reader_reads_no_more_at_its_expiry(server: Server) -> None:
    await server.call(*READ, "acquire", "one", 1000, 5, 0, DAY)
    await server.call(*READ, "acquire", "two", TTL, 5, 0, DAY)
    server.node.jump_clock(0.999)
    assert await server.call(*READ, "check", "one") == [1]
    server.node.jump_clock(0.001)
    assert await server.call(*READ, "check", "one") == [0]
    assert (await server.call(*READ, "inspect"))[0][::2] == ["two"]
    assert await server.call(*READ, "release", "one") == [0, []]


@pytest.mark.parametrize("late", [0, 1])
async def test_a_reader_that_has_expired_keeps_nobody_out(server: Server, late: int) -> None:
    """Nobody has removed it: each looks at its expiry."""
    await server.call(*READ, "acquire", "short", 1000, 5, 0, DAY)
    await server.call(*READ, "acquire", "long", TTL, 5, 0, DAY)
    await server.acquire(*WRITE, "writer", TTL, "w1", 0)
    server.node.jump_clock(1 + late)
    assert await server.call(*READ, "release", "long") == [1, ["w1"]], "it is woken"
    assert (await server.acquire(*WRITE, "writer", TTL, "w1", 0))[0] == 1


async def test_an_upgrade_looks_at_the_other_readers_only(server: Server) -> None:
    await server.call(*READ, "acquire", "mine", 1000, 5, 0, DAY)
    await server.call(*READ, "acquire", "other", 9000, 5, 0, DAY)
    reply = await server.acquire(*WRITE, "me", TTL, "t", 0, 0, "mine")
    assert (reply[0], reply[2]) == (0, "other")
    await server.call(*READ, "extend", TTL, DAY, "mine")
    reply = await server.acquire(*WRITE, "me", TTL, "t", 0, 0, "mine")
    assert (reply[0], reply[2]) == (0, "other"), "also if its own reader expires last"
    server.node.jump_clock(9)
    assert (await server.acquire(*WRITE, "me", TTL, "t", 0, 0, "mine"))[0] == 1


# ---- keys of another type ------------------------------------------------------------------------

RELEASES = {"lock": (lock.SCRIPT, KEYS), "read": READ, "write": WRITE}


@pytest.mark.parametrize("kind", RELEASES)
@pytest.mark.parametrize("call", ["acquire", "barge", "leave", "pass", "release"])
async def test_a_queue_that_is_none_is_named_and_what_it_is(
    server: Server, kind: str, call: str
) -> None:
    script, keys = RELEASES[kind]
    if call == "release":
        assert (await server.acquire(script, keys, "me", 0, "t", 0))[0] == 1
    await server.node.command("SET", "q", "text")
    acquire = ("acquire", "me", TTL, 5, 0, DAY)
    words: Any = {
        "acquire": acquire,
        "barge": (*acquire, 0, "t", 0, 1),
        "release": ("release", "me"),
        "leave": ("leave", "t"),
        "pass": ("pass",),
    }[call]
    if (kind, call) == ("read", "pass"):
        return  # no reader sends it
    with pytest.raises(Exception, match=WRONG):
        await server.call(script, keys, *words)
    if call == "release":
        assert await server.call(script, keys, "check", "me") == [0], "it is released all the same"


async def test_a_name_that_is_no_text_is_left_alone(server: Server) -> None:
    await server.node.command("HSET", "b", "field", "value")
    for script, keys in ((multi.SCRIPT, "a ac b bc"), (lock.SCRIPT, "b bc q")):
        with pytest.raises(Exception, match="WRONGTYPE"):
            await server.acquire(script, keys, "me")
    assert await server.node.command("HMGET", "b", "field") == ["value"]


# ---- elections and registers ---------------------------------------------------------------------


async def test_a_register_tells_what_it_accepted_not_what_it_promised(server: Server) -> None:
    call, script = server.call, register.SCRIPT
    await call(script, "x", "accept", 6, "me", 5000, 0, "value")
    assert await call(script, "x", "prepare", 7, "you", TTL, 0) == [1, 6, "value"]
    for look in ("read", "inspect"):
        assert await call(script, "x", look) == [1, 6, "value", TTL], "it lives longer now"
    assert await call(script, "x", "prepare", 8, "me", 5000, 0) == [1, 6, "value"]
    assert await server.left("x") == TTL


async def test_an_accepted_number_belongs_to_its_owner(server: Server) -> None:
    """Even on a node that was not asked to promise it."""
    call, script = server.call, register.SCRIPT
    await call(script, "x", "prepare", 5, "me", 5000, 0)
    await call(script, "x", "accept", 8, "you", 5000, 0, "value")
    for number in (5, 8):
        assert await call(script, "x", "prepare", number, "me", 5000, 0) == [0, 8]
    assert await call(script, "x", "prepare", 8, "you", 5000, 0) == [1, 8, "value"]
