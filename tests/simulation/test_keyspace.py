"""The in-memory keyspace answers as a real server does: the same random commands for both."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from asynclock.testing.memory.commands import COMMANDS, Keyspace, ReplyError, execute
from asynclock.testing.plugin import StartServers
from asynclock.testing.servers.local import ServerReplyError, ask_all

LONG = "100000"
KEYS = ["s1", "s2", "h", "z"]


def commands(chance: random.Random) -> list[tuple[str, ...]]:
    """Some of each kind; most fit the key's type, some do not."""
    key = chance.choice(KEYS)
    member, low, high = chance.choice("abc"), str(chance.randint(0, 3)), str(chance.randint(2, 5))
    score = str(chance.randint(0, 5))
    return [
        ("GET", key),
        ("MGET", *KEYS),
        ("SET", key, member),
        ("SET", key, member, "PX", LONG),
        ("SET", key, member, "NX", "PX", LONG),
        ("SET", key, member, "PX", LONG, "GET"),
        ("DEL", key),
        ("EXISTS", key),
        ("PEXPIRE", key, LONG),
        ("HSET", "h", member, score),
        ("HMGET", key, member, "d"),
        ("ZADD", "z", score, member),
        ("ZREM", "z", member),
        ("ZSCORE", key, member),
        ("ZCARD", "z"),
        ("ZRANGE", "z", "0", "-1", "WITHSCORES"),
        ("ZRANGE", "z", "-2", "1"),
        ("ZREVRANGE", "z", "0", "0"),
        ("ZRANGEBYSCORE", "z", low, high, "WITHSCORES"),
        ("ZRANGEBYSCORE", "z", "(" + low, "+inf"),
        ("ZREMRANGEBYSCORE", "z", "-inf", low),
    ]


def plain(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [plain(one) for one in reply]
    return reply


async def test_it_answers_as_a_server_does(asynclock_servers: StartServers) -> None:
    (server,) = await asynclock_servers(1)
    chance = random.Random(4)
    said = [chance.choice(commands(chance)) for _ in range(4000)]
    real = await ask_all(server.endpoint, said, timeout=20)
    ours = Keyspace(time.time, lambda _key: None, lambda _key: None)
    for number, (words, reply) in enumerate(zip(said, real, strict=True)):
        try:
            mine: Any = plain(execute(ours, tuple(word.encode() for word in words)))
        except ReplyError as error:
            mine = error
        if isinstance(mine, ReplyError):
            assert isinstance(reply, ServerReplyError), (number, words, str(mine), reply)
        else:
            assert mine == reply, (number, words)


async def test_it_expires_keys_as_a_server_does(asynclock_servers: StartServers) -> None:
    (server,) = await asynclock_servers(1)
    now = time.time()
    ours = Keyspace(lambda: now, lambda _key: None, lambda _key: None)
    script = "redis.call('SET', 'k', 'v', 'PX', 50) return redis.call('PTTL', 'k')"
    assert 45 <= await server.command("EVAL", script, 0) <= 50
    execute(ours, (b"SET", b"k", b"v", b"PX", b"50"))
    assert execute(ours, (b"PTTL", b"k")) == 50
    now += 0.0499
    assert execute(ours, (b"GET", b"k")) == b"v"
    now += 0.01
    assert execute(ours, (b"GET", b"k")) is None
    assert execute(ours, (b"PTTL", b"k")) == -2


@pytest.mark.parametrize("words", ["SET s v EXAT 1", "ZRANGE z 0 -1 REV", "OBJECT s"])
def test_what_is_not_modelled_is_an_error(words: str) -> None:
    """An ignored option would make a script behave differently here without notice."""
    ours = Keyspace(time.time, lambda _key: None, lambda _key: None)
    with pytest.raises(ReplyError):
        execute(ours, tuple(words.encode().split()))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_words_that_are_missing_are_an_error(name: bytes) -> None:
    ours = Keyspace(time.time, lambda _key: None, lambda _key: None)
    if name in (b"DEL", b"EXISTS", b"SCAN"):
        return
    with pytest.raises(ReplyError):
        execute(ours, (name,))
