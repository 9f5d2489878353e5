"""The commands of a node in memory: each reply is that of a real server, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from asynclock.testing import LocalServer
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from asynclock.testing.servers.resp import ServerReplyError, ask_all
from tests.waiting import in_virtual_time

from .test_memory_connections import client_of, gone, settled

Command = tuple[str | bytes, ...]

STRINGS = """
set a 1
GET a
SET a 2 NX
SET a 3 px 100000 get
PTTL a
SET a 4 KEEPTTL
PTTL a
SET a 5
PTTL a
SET a 6 XYZ
SET a 6 PX
GET a
SET new 1 NX PX 100000
PTTL new
PTTL missing
PEXPIRE a 100000
PEXPIRE missing 100000
EXISTS missing
PTTL a
HSET h f 1
MGET a h missing
MGET
GET h
SET h 1 GET
HMGET h f
HSET a f 1
TYPE a
TYPE h
TYPE missing
EXISTS a a h missing
DEL a a h missing
EXISTS a h
SET empty {}
HSET empty f 1
ZADD empty 1 m
GET empty
GET
"""
HASHES = """
HSET h f 1 g 2
HSET h f 3 i 4
HMGET h f g i x
HMGET missing f
PEXPIRE h 100000
HSET h j 5
PTTL h
HSET h odd
HMGET h odd j
"""
SORTED_SETS = """
ZADD z 1 b 1 a 2 c
ZADD z 2 a 5 d 2.5 e
ZADD z 2 Z
ZCARD z
ZCARD missing
ZSCORE z e
ZSCORE z d
ZSCORE z x
ZRANK z c
ZRANK z x
ZRANGE z 0 -1 WITHSCORES
ZRANGE z 0 -1 withscores
ZRANGE z -100 1
ZRANGE z -8 1
ZRANGE z 1 100
ZRANGE z -2 -1
ZRANGE z 3 2
ZRANGE z 0 -100
ZRANGE z 0 0 XYZ
ZRANGE z 0 0 WITHSCORES XYZ
ZRANGE z 0
ZREVRANGE z 0 1
ZREVRANGE z -2 -1 WITHSCORES
ZRANGEBYSCORE z 1 2
ZRANGEBYSCORE z (1 2
ZRANGEBYSCORE z 1 (2
ZRANGEBYSCORE z 2 (5 WITHSCORES
ZRANGEBYSCORE z -inf +inf
ZRANGEBYSCORE z low 2
PEXPIRE z 100000
ZADD z 9 f
PTTL z
ZADD z
ZADD z 1
ZADD z much f
ZREM z x
ZREM z f x d
ZREMRANGEBYSCORE z 1 (2
ZREMRANGEBYSCORE z 1 (2
ZRANGE z 0 -1 WITHSCORES
ZREMRANGEBYSCORE z -inf +inf
EXISTS z
PTTL z
"""
NAMES = """
SET a* 1
SET ab 1
SET abc 1
ZADD B 1 m
KEYS *
KEYS a*
KEYS a?
KEYS [AB]*
KEYS a\\*
KEYS x*
SCAN 0
SCAN 0 MATCH a* COUNT 1000
SCAN 0 match ab COUNT 1000
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
    )
]
BYTES: list[Command] = [
    ("SET", b"\xff\xfe", b"\x00\xff"),
    ("GET", b"\xff\xfe"),
    ("KEYS", b"\xff*"),
    ("HSET", "h", b"\xff", b"\xfe"),
    ("HMGET", "h", b"\xff"),
]


def words(lines: str) -> list[Command]:
    """Return a command per line; {} is an empty word."""
    return [
        tuple("" if word == "{}" else word for word in line.split())
        for line in lines.strip().splitlines()
    ]


def told(command: Command, reply: Any) -> Any:
    """Return what is comparable: of an error its first word, of a time that is left that it is."""
    if isinstance(reply, ReplyError | ServerReplyError):
        return str(reply).partition(" ")[0] + " …"
    if isinstance(reply, list):
        found = [told(command, one) for one in reply]
        return sorted(found, key=str) if command[0] in ("KEYS", "SCAN") else found
    return min(reply, 1) if command[0] == "PTTL" else reply


@pytest.mark.parametrize(
    "commands",
    [words(STRINGS), words(HASHES), words(SORTED_SETS), words(NAMES), SCRIPTS, BYTES],
    ids=["strings", "hashes", "sorted-sets", "names", "scripts", "bytes"],
)
async def test_each_reply_is_that_of_a_server(
    asynclock_nodes: list[LocalServer], commands: list[Command]
) -> None:
    node = MemoryNode()
    real = await ask_all(asynclock_nodes[0].endpoint, commands, timeout=30)
    for number, (command, reply) in enumerate(zip(commands, real, strict=True)):
        try:
            mine = await node.command(*command)
        except ReplyError as error:
            mine = error
        assert told(command, mine) == told(command, reply), (number, command)


@in_virtual_time
async def test_a_script_that_was_sent_whole_is_known_by_its_hash() -> None:
    node, source = MemoryNode(), "return ARGV[1]"
    sha = hashlib.sha1(source.encode()).hexdigest()
    with pytest.raises(ReplyError, match="NOSCRIPT"):
        await node.command("EVALSHA", sha, 0, "x")
    assert await node.command("EVAL", source, 0, "x") == "x"
    assert await node.command("EVALSHA", sha, 0, "y") == "y"
    await node.command("SCRIPT", "FLUSH")
    with pytest.raises(ReplyError, match="NOSCRIPT"):
        await node.command("EVALSHA", sha, 0, "x")
    assert await node.command("script", "load", source) == sha
    assert await node.command("EVALSHA", sha, 0, "z") == "z"


# ---- keys that end -------------------------------------------------------------------------------


@in_virtual_time
async def test_a_key_that_has_ended_counts_nowhere() -> None:
    """Each command finds it gone, though nothing has looked for it since."""
    looks: dict[Command, Any] = {
        ("KEYS", "*"): ["other"],
        ("SCAN", "0"): ["0", ["other"]],
        ("DEL", "k"): 0,
        ("EXISTS", "k"): 0,
        ("PEXPIRE", "k", "1000"): 0,
        ("PTTL", "k"): -2,
        ("TYPE", "k"): "none",
        ("GET", "k"): None,
        ("SET", "k", "2", "NX"): "OK",
        ("SET", "k", "2", "GET"): None,
        ("HMGET", "k", "f"): [None],
        ("HSET", "k", "f", "1"): 1,
    }
    for look, wanted in looks.items():
        node = MemoryNode()
        await node.command("SET", "k", 1, "PX", 1000)
        await node.command("SET", "other", 1)
        await asyncio.sleep(1.1)
        assert await node.command(*look) == wanted, look


@in_virtual_time
async def test_a_key_that_is_written_after_its_end_has_a_life_of_its_own() -> None:
    node = MemoryNode()
    for write in (("SET", "k", 1), ("HSET", "h", "f", 1), ("ZADD", "z", 1, "m")):
        await node.command(*write)
        await node.command("PEXPIRE", write[1], 1000)
        await asyncio.sleep(1.1)
        await node.command(*write)
        assert await node.command("PTTL", write[1]) == -1
    await node.command("PEXPIRE", "k", 1000)
    await node.command("DEL", "k")
    await node.command("SET", "k", 1, "KEEPTTL")
    assert await node.command("PTTL", "k") == -1, "what was deleted left no end"
    await node.command("PEXPIRE", "k", 1000)
    node.flush()
    await node.command("SET", "k", 1, "KEEPTTL")
    assert await node.command("PTTL", "k") == -1, "what was flushed left no end"


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

READS: list[Command] = [
    ("GET", "k"),
    ("MGET", "other", "k"),
    ("EXISTS", "k"),
    ("TYPE", "k"),
    ("PTTL", "k"),
    ("HMGET", "k", "f"),
    ("ZSCORE", "k", "m"),
    ("ZRANK", "k", "m"),
    ("ZCARD", "k"),
    ("ZRANGE", "k", "0", "-1"),
    ("ZREVRANGE", "k", "0", "-1"),
    ("ZRANGEBYSCORE", "k", "0", "1"),
    ("get", "k"),
]


@pytest.mark.parametrize("read", READS, ids=lambda read: str(read[0]))
@in_virtual_time
async def test_a_client_watches_what_it_reads(read: Command) -> None:
    node = MemoryNode()
    client = await client_of(node)
    await client.ask("client", "tracking", "on", "OPTIN")
    await client.ask("client", "caching", "YES")
    await client.ask(*read)
    await client.told()
    await node.command("SET", "k", 1)
    assert await client.told() == gone(b"k")


WRITES: list[tuple[Command, Command | None]] = [
    (("SET", "k", "1"), None),
    (("DEL", "k"), ("SET", "k", "1")),
    (("PEXPIRE", "k", "1000"), ("SET", "k", "1")),
    (("HSET", "k", "f", "1"), None),
    (("ZADD", "k", "1", "m"), None),
    (("ZREM", "k", "m"), ("ZADD", "k", "1", "m")),
    (("ZREM", "k", "m"), ("ZADD", "k", "1", "m", "2", "n")),
    (("ZREMRANGEBYSCORE", "k", "1", "1"), ("ZADD", "k", "1", "m", "2", "n")),
]


@pytest.mark.parametrize(("write", "before"), WRITES, ids=lambda one: "-".join(one or ["nothing"]))
@in_virtual_time
async def test_each_write_is_told_to_those_who_watch(
    write: Command, before: Command | None
) -> None:
    node = MemoryNode()
    if before:
        await node.command(*before)
    client = await watching_any(node, "k")
    await node.command(*write)
    assert await client.told() == gone(b"k")


@pytest.mark.parametrize(
    "words",
    [
        ("DEL", "k"),
        ("PEXPIRE", "k", "1000"),
        ("ZREM", "k", "x"),
        ("ZREMRANGEBYSCORE", "k", "1", "2"),
    ],
    ids=lambda one: str(one[0]),
)
@in_virtual_time
async def test_what_changes_nothing_is_told_to_nobody(words: Command) -> None:
    """Each push wakes a client for nothing."""
    node = MemoryNode()
    client = await watching_any(node, "k")
    await node.command(*words)
    assert await client.told() == []
    await node.command("ZADD", "k", 5, "m")
    assert await client.told() == gone(b"k")


async def watching_any(node: MemoryNode, key: str) -> Any:
    """Return a client that watches a key, whatever its type is."""
    client = await client_of(node)
    await client.ask("CLIENT", "TRACKING", "ON", "OPTIN")
    await client.ask("CLIENT", "CACHING", "YES")
    await client.ask("EXISTS", key)
    await client.told()
    return client


@in_virtual_time
async def test_a_change_in_place_of_nothing_keeps_the_watch() -> None:
    node = MemoryNode()
    await node.command("ZADD", "k", 1, "m")
    client = await watching_any(node, "k")
    await node.command("ZREM", "k", "x")
    await settled()
    assert await client.told() == []
    await node.command("ZREM", "k", "m")
    assert await client.told() == gone(b"k")
    assert await node.command("EXISTS", "k") == 0
