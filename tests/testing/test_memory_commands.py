"""The commands of a node in memory: what it replies and pushes is what a real server does."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from asynclock.testing import LocalServer
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.commands import ReplyError
from tests.waiting import in_virtual_time, until

from .clients import Client, client_of

Command = Sequence[str | bytes | int]
Both = list[MemoryNode | LocalServer]
Opens = Callable[..., Awaitable[Client]]


@pytest.fixture
def both(asynclock_nodes: list[LocalServer]) -> Both:
    return [MemoryNode(), asynclock_nodes[0]]


@pytest_asyncio.fixture
async def opens() -> AsyncIterator[Opens]:
    """`await opens(node)`: a connection, until the end of the test."""
    made: list[Client] = []

    async def client(node: MemoryNode | LocalServer, **options: bool) -> Client:
        made.append(await client_of(node, **options))
        return made[-1]

    yield client
    for one in made:
        one.transport.abort()
    await until(lambda: all(one.ends for one in made), "all connections end")


STRINGS = """
NONSENSE; set a 1; GET a; SET a 2 NX; SET a 3 px 100000 get; PTTL a; SET a 4 KEEPTTL; PTTL a
SET a 5; PTTL a; SET a 6 XYZ; SET a 6 PX; GET a; SET new 1 NX PX 100000; PTTL new
PTTL missing; PEXPIRE a 100000; PEXPIRE missing 100000; EXISTS missing; PTTL a; HSET h f 1
MGET a h missing; MGET; GET h; SET h 1 GET; HMGET h f; HSET a f 1; TYPE a; TYPE h
TYPE missing; EXISTS a a h missing; DEL a a h missing; EXISTS a h; SET empty {}
HSET empty f 1; ZADD empty 1 m; GET empty; GET
"""
HASHES = """
HSET h f 1 g 2; HSET h f 3 i 4; HMGET h f g i x; HMGET missing f; PEXPIRE h 100000
HSET h j 5; PTTL h; HSET h odd; HMGET h odd j
"""
SORTED_SETS = """
ZADD z 1 b 1 a 2 c; ZADD z 2 a 5 d 2.5 e; ZADD z 2 Z; ZCARD z; ZCARD missing; ZSCORE z e
ZSCORE z d; ZSCORE z x; ZRANK z c; ZRANK z x; ZRANGE z 0 -1 WITHSCORES
ZRANGE z 0 -1 withscores; ZRANGE z -100 1; ZRANGE z -8 1; ZRANGE z 1 100; ZRANGE z -2 -1
ZRANGE z 3 2; ZRANGE z 0 -100; ZRANGE z 0 0 XYZ; ZRANGE z 0 0 WITHSCORES XYZ; ZRANGE z 0
ZREVRANGE z 0 1; ZREVRANGE z -2 -1 WITHSCORES; ZRANGEBYSCORE z 1 2; ZRANGEBYSCORE z (1 2
ZRANGEBYSCORE z 1 (2; ZRANGEBYSCORE z 2 (5 WITHSCORES; ZRANGEBYSCORE z -inf +inf
ZRANGEBYSCORE z low 2; PEXPIRE z 100000; ZADD z 9 f; PTTL z; ZADD z; ZADD z 1; ZADD z much f
ZREM z x; ZREM z f x d; ZREMRANGEBYSCORE z 1 (2; ZREMRANGEBYSCORE z 1 (2
ZRANGE z 0 -1 WITHSCORES; GET z; ZREMRANGEBYSCORE z -inf +inf; EXISTS z; PTTL z
"""
NAMES = """
SET a* 1; SET ab 1; SET abc 1; ZADD B 1 m; KEYS *; KEYS a*; KEYS a?; KEYS [AB]*; KEYS a\\*
KEYS x*; SCAN 0; SCAN 0 MATCH a* COUNT 1000; SCAN 0 match ab COUNT 1000
SCAN 0 COUNT 1000 MATCH x*
"""
SCRIPTS: list[Command] = [
    ("EVAL", script, 1, "key", "word")  # type: ignore[misc]  # a number is a word too
    for script in (
        "return {KEYS[1], ARGV[1], #KEYS, #ARGV}",
        "return {true, false, {true}, 'x', 2.9}",
        "return {redis.pcall('NONSENSE'), {redis.pcall('NONSENSE'), 1}}",
        "return redis.call('NONSENSE')",
        "return redis.call('SET', KEYS[1], 7).ok",
        "return redis.call('set', KEYS[1], 8)['ok'] .. redis.call('get', KEYS[1])",
        "return redis.call('MGET', 'missing')[1] == false",
        "return redis.call('GET', 'missing') == false",
        "return string.sub(redis.pcall('HSET', KEYS[1], 'f', 1).err, 1, 9)",
        "redis.call('SET', KEYS[1], 1/3) return tonumber(redis.call('GET', KEYS[1])) == 1/3",
        "redis.call('ZADD', 'z', 0.25, 'm', 3, 'n') return redis.call('ZSCORE', 'z', 'm')",
        "return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')",
        "return #redis.call('time')",
        "return {err = 'FAULT by hand'}",
        "return {ok = 'FINE'}",
        "return {{ok = 'FINE'}, {}}",
        "return {}",
        "return 'a' == 'b'",
        "return true",
        "return nil",
        "return 3.7",
        "return redis.call",
        "return {1, 'two', {false, 3}, nil, 4}",
        "return redis.sha1hex('v')",
    )
]
BYTES: list[Command] = [
    ("SET", b"\xff\xfe", b"\x00\xff"),
    ("GET", b"\xff\xfe"),
    ("KEYS", b"\xff*"),
    ("HSET", "h", b"\xff", b"\xfe"),
    ("HMGET", "h", b"\xff"),
]
KNOWN = "return ARGV[1]"
SHA = hashlib.sha1(KNOWN.encode()).hexdigest()
KNOWN_SCRIPTS: list[Command] = [
    ("EVALSHA", SHA, 0, "x"),
    ("EVAL", KNOWN, 0, "x"),
    ("EVALSHA", SHA, 0, "y"),
    ("SCRIPT", "FLUSH"),
    ("EVALSHA", SHA, 0, "x"),
    ("script", "load", KNOWN),
    ("EVALSHA", SHA, 0, "z"),
]
EXPIRED = (
    *("KEYS *", "SCAN 0", "DEL k", "EXISTS k", "PEXPIRE k 1000", "PTTL k", "TYPE k", "GET k"),
    *("SET k 2 NX", "SET k 2 GET", "HMGET k f", "HSET k f 1"),
)
ENDS = "SET other 1\n" + "".join(f"DEL k\nSET k 1 PX 1\nPAUSE\n{look}\n" for look in EXPIRED)
"""Each command finds a key gone that has ended, though nothing has looked for it since."""
NEW_LIVES = """
SET k 1 PX 1; HSET h f 1; PEXPIRE h 1; ZADD z 1 m; PEXPIRE z 1; PAUSE; SET k 1; PTTL k
HSET h f 1; PTTL h; ZADD z 1 m; PTTL z; PEXPIRE k 1000; DEL k; SET k 1 KEEPTTL; PTTL k
PEXPIRE k 1000; FLUSHALL; SET k 1 KEEPTTL; PTTL k
"""


def words(lines: str) -> list[Command]:
    """Return the commands between semicolons and line ends; {} is an empty word."""
    return [
        tuple("" if word == "{}" else word for word in command.split())
        for command in re.split("; |\n", lines.strip())
    ]


def comparable(command: Command, reply: Any) -> Any:
    """Return of an error its first word, of a time that is left whether it is."""
    if isinstance(reply, ReplyError):
        return str(reply).partition(" ")[0] + " …"
    if isinstance(reply, list):
        found = [comparable(command, one) for one in reply]
        return sorted(found, key=str) if command[0] in ("KEYS", "SCAN") else found
    return min(reply, 1) if command[0] == "PTTL" else reply


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(words(STRINGS), id="strings"),
        pytest.param(words(HASHES), id="hashes"),
        pytest.param(words(SORTED_SETS), id="sorted sets"),
        pytest.param(words(NAMES), id="names"),
        pytest.param(SCRIPTS, id="scripts"),
        pytest.param(KNOWN_SCRIPTS, id="scripts by their hash"),
        pytest.param(BYTES, id="bytes"),
        pytest.param(words(ENDS), id="keys that have ended"),
        pytest.param(words(NEW_LIVES), id="keys that are written after their end"),
    ],
)
async def test_each_reply_is_that_of_a_server(
    both: Both, opens: Opens, commands: list[Command]
) -> None:
    memory, real = [await opens(node) for node in both]
    for number, command in enumerate(commands):
        if command == ("PAUSE",):
            await asyncio.sleep(0.003)
        else:
            mine, its = [comparable(command, await one.ask(*command)) for one in (memory, real)]
            assert mine == its, (number, command)


@in_virtual_time
async def test_a_key_exists_through_its_last_millisecond() -> None:
    now = 1000.0
    node = MemoryNode(clock=lambda: now)
    await node.command("SET", "k", 1, "PX", 500)
    assert await node.command("PTTL", "k") == 500
    now += 0.5
    assert [await node.command(word, "k") for word in ("PTTL", "GET")] == [0, "1"]
    now += 0.001
    assert [await node.command(word, "k") for word in ("PTTL", "GET")] == [-2, None]


# ---- what is watched, and what is a change -------------------------------------------------------
READS = (
    *("GET k", "get k", "MGET other k", "EXISTS k", "TYPE k", "PTTL k", "HMGET k f", "ZCARD k"),
    *("ZSCORE k m", "ZRANK k m", "ZRANGE k 0 -1", "ZREVRANGE k 0 -1", "ZRANGEBYSCORE k 0 1"),
)
WRITES = (
    *("SET k 1", "DEL k", "PEXPIRE k 1000", "HSET k f 1", "ZADD k 1 m", "ZREM k m"),
    "ZREMRANGEBYSCORE k 1 2",
)


@pytest.mark.parametrize("command", [*READS, *WRITES])
async def test_a_client_watches_what_it_reads(both: Both, opens: Opens, command: str) -> None:
    for node in both:
        await node.command(*command.split())  # the next one may change nothing
        client = await opens(node, watches=True)
        await client.watch(*command.split())
        await node.command("SET", "k", 1)
        assert await client.told() == ["k"] * (command in READS)


@pytest.mark.parametrize(
    ("before", "write", "changes"),
    [
        ("", "SET k 1", True),
        ("SET k 1", "DEL k", True),
        ("SET k 1", "PEXPIRE k 1000", True),
        ("", "HSET k f 1", True),
        ("", "ZADD k 1 m", True),
        ("ZADD k 1 m", "ZREM k m", True),
        ("ZADD k 1 m 2 n", "ZREM k m", True),
        ("ZADD k 1 m 2 n", "ZREMRANGEBYSCORE k 1 1", True),
        ("", "DEL k", False),
        ("", "PEXPIRE k 1000", False),
        ("", "ZREM k x", False),
        ("ZADD k 1 m", "ZREM k x", False),
        ("", "ZREMRANGEBYSCORE k 1 2", False),
    ],
)
async def test_each_change_is_told_to_those_who_watch_and_nothing_else(
    both: Both, opens: Opens, before: str, write: str, changes: bool
) -> None:
    """Each push for nothing wakes a client for nothing; what changes nothing ends no watch."""
    for node in both:
        if before:
            await node.command(*before.split())
        client = await opens(node, watches=True)
        await client.watch("EXISTS", "k")
        await node.command(*write.split())
        assert await client.told() == ["k"] * changes
        await node.command("DEL", "k")
        await node.command("SET", "k", 1)
        assert await client.told() == ["k"] * (not changes)


@pytest.mark.parametrize(
    "session",
    [
        pytest.param("w ? GET a; b SET b 1; b SET a 1 -> a; b SET a 2", id="once, by another"),
        pytest.param("w ? GET a; w SET a 1; w DEL a", id="not its own change"),
        pytest.param(
            "w ? MGET a b; w GET c; b SET c 1; b SET a 1 -> a; b SET b 1 -> b",
            id="the keys of the next command only",
        ),
        pytest.param("w CLIENT TRACKING OFF; w GET a; b SET a 1; b FLUSHALL", id="not when off"),
        pytest.param("w ? GET a; b FLUSHALL -> *; b SET a 1", id="a flush ends all watches"),
        pytest.param("b ? GET a; b FLUSHALL -> *", id="a flush, without a watched key"),
        pytest.param(
            "w ? KEYS k; b SET k 1; w ? SCAN 0; b SET 0 1; w ? SET k 1 NX; b DEL k; w ? DEL k;"
            " w ? PEXPIRE k 1; b SET k 1; w ? ZREM z x; w ? ZREMRANGEBYSCORE z 5 6; b ZADD z 1 m",
            id="not what it looks for, or writes",
        ),
    ],
)
async def test_who_is_told_of_a_change(both: Both, opens: Opens, session: str) -> None:
    """w watches with `?` what it reads, and is told what stands behind the arrow."""
    for node in both:
        clients = {"w": await opens(node, watches=True), "b": await opens(node)}
        for step in session.split("; "):
            asked, _, told = step.partition(" -> ")
            who, *command = asked.split()
            if command[0] == "?":
                await clients[who].watch(*command[1:])
            else:
                await clients[who].ask(*command)
            wanted = {"": [], "*": [None]}.get(told, [told])
            assert await clients["w"].told() == wanted, step
