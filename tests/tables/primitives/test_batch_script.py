"""The operation `batch` of lock.lua does to each name what `release` and `acquire` do alone.

The same random state is made twice on a server, under two sets of names: one batch runs on the
first, single calls on the second. Replies and all that is stored afterwards must be alike.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from asynclock._nodes.replies import ServerError, failure
from asynclock._primitives.lock import SCRIPT
from asynclock.testing import LocalServer

TTL, WAIT, KEPT = 600_000, 300_000, 6_000_000
NAMES = 8
OWNERS = ("a:1", "b:2", "c:3")


@pytest.fixture
async def server(asynclock_nodes: list[LocalServer]) -> AsyncIterator[redis.Redis]:
    client = redis.Redis(port=asynclock_nodes[0].port)
    yield client
    client.close()


def keys(side: str, number: int) -> list[str]:
    lock = f"asynclock:{side}{number}"
    return [lock, f"{lock}:#fence", f"{lock}:#queue"]


class Side:
    """One of the two sets of names."""

    def __init__(self, client: redis.Redis, side: str, base: int) -> None:
        self.client = client
        self.side = side
        self.base = base
        """A fence near the server's clock: a missing counter counts as one a minute ago."""

    def single(self, number: int, *words: Any) -> Any:
        names = keys(self.side, number)
        try:
            return self.client.eval(SCRIPT.source, len(names), *names, *words)
        except redis.ResponseError as error:
            return error

    def acquire(self, number: int, owner: str, floor: int, not_after: int, wait: int) -> Any:
        return self.single(number, "acquire", owner, TTL, floor, not_after, KEPT, wait)

    def prepare(self, draw: random.Random) -> None:
        for number in range(NAMES):
            lock, counter, _ = keys(self.side, number)
            if draw.random() < 0.3:
                self.client.set(counter, self.base + draw.randrange(-5, 5), px=KEPT)
            for owner in OWNERS[: draw.choice([0, 0, 1, 1, 2, 3])]:
                self.acquire(number, owner, self.base, 0, draw.choice([0, WAIT]))
            wrong = draw.random()
            if wrong < 0.1:  # another program uses these keys
                self.client.delete(lock)
                self.client.hset(lock, "x", "y")
            elif wrong < 0.2:
                self.client.hset(f"{lock}:other", "x", "y")
                self.client.delete(counter)
                self.client.rename(f"{lock}:other", counter)

    def stored(self) -> dict[str, Any]:
        """Everything under the names, but for remaining times."""
        found = {}
        for key in sorted(self.client.keys(f"asynclock:{self.side}*")):
            kind = self.client.type(key)
            if kind == b"string":
                value: Any = self.client.get(key)
            elif kind == b"zset":
                value = self.client.zrange(key, 0, -1, withscores=True)
            else:
                value = kind
            assert kind == b"hash" or self.client.pttl(key) > 0
            found[key.decode().replace(f":{self.side}", ":", 1)] = value
        return found


def comparable(reply: Any) -> Any:
    """A reply without clocks and remaining times; an error without its place in the script."""
    if isinstance(reply, Exception):
        text = str(reply)  # redis-py drops the ERR before it
        return failure(ServerError(f"ERR {text}" if text.startswith("Error ") else text)).cause
    if isinstance(reply, list) and reply[0] == 0 and len(reply) > 4:
        return [0, *reply[2:-1]]
    return reply[:-1] if isinstance(reply, list) else reply


def spread(reply: Any, *, release: bool) -> Any:
    """The short form of a plain reply, as the single command would give it."""
    if not isinstance(reply, int):
        return comparable(reply)
    return [1, b""] if release else [1, reply, b""]


@pytest.mark.parametrize("seed", range(60))
async def test_a_batch_does_what_single_calls_do(server: redis.Redis, seed: int) -> None:
    draw = random.Random(seed)
    server.flushall()
    base = time.time_ns() // 1000
    together, alone = Side(server, "t", base), Side(server, "s", base)
    state = draw.getrandbits(32)
    for side in (together, alone):
        side.prepare(random.Random(state))
    assert together.stored() == alone.stored()

    floor = base + draw.randrange(-3, 10)
    not_after = draw.choice([0, 0, 0, 1])  # 1: it comes too late
    wait = draw.choice([0, WAIT])
    count = draw.randrange(1, NAMES)
    releases = [(number, draw.choice(OWNERS)) for number in draw.sample(range(NAMES), count)]
    acquires = [(draw.randrange(NAMES), f"new{n}:4") for n in range(draw.randrange(NAMES))]

    expected = [alone.single(number, "release", owner) for number, owner in releases]
    expected += [alone.acquire(n, owner, floor, not_after, wait) for n, owner in acquires]

    released = [keys("t", number) for number, _ in releases]
    acquired = [keys("t", number) for number, _ in acquires]
    names = [one[0] for one in released] + [one[2] for one in released]
    names += [one[i] for i in (2, 0, 1) for one in acquired]
    owners = [owner for _, owner in (*releases, *acquires)]
    words = ["batch", len(releases), TTL, floor, not_after, KEPT, wait, *owners]
    odd, replies, now = server.eval(SCRIPT.source, len(names), *names, *words)

    assert now > 10**15
    assert odd == any(not isinstance(reply, int) for reply in replies)
    found = [spread(reply, release=n < len(releases)) for n, reply in enumerate(replies)]
    assert found == [comparable(reply) for reply in expected]
    assert together.stored() == alone.stored()


async def test_a_user_without_exists_gets_the_same(
    server: redis.Redis, asynclock_nodes: list[LocalServer]
) -> None:
    server.execute_command("ACL", "SETUSER", "old", "on", ">x", "~*", "+@all", "-exists")
    old = redis.Redis(port=asynclock_nodes[0].port, username="old", password="x")
    names = [key for number in range(2) for key in keys("u", number)]
    queues, locks, counters = names[2::3], names[0::3], names[1::3]
    server.zadd(queues[1], {"waiter": 1})
    server.set(f"{queues[1]}:#waiter", "1", px=TTL)
    floor = time.time_ns() // 1000
    words = ("batch", 0, TTL, floor, 0, KEPT, 0, "a", "b")
    odd, replies, _ = old.eval(SCRIPT.source, 6, *queues, *locks, *counters, *words)
    assert odd == 1
    assert replies[0] == floor
    assert replies[1][0] == 0
    assert replies[1][2] == b"waiter"
    old.close()


@pytest.mark.parametrize("waiter", ["1", "go"])
async def test_a_release_that_the_server_refuses_is_not_done(
    server: redis.Redis, asynclock_nodes: list[LocalServer], waiter: str
) -> None:
    server.execute_command("ACL", "SETUSER", "kept", "on", ">x", "~*", "+@all", "-del")
    kept = redis.Redis(port=asynclock_nodes[0].port, username="kept", password="x")
    names = [key for number in range(2) for key in keys("d", number)]
    queues, locks = names[2::3], names[0::3]
    for lock, queue in zip(locks, queues, strict=True):
        server.set(lock, "a", px=TTL)
        server.zadd(queue, {"waiter": 1})
        server.set(f"{queue}:#waiter", waiter, px=TTL)
    odd, replies, _ = kept.eval(
        SCRIPT.source, 4, *locks, *queues, "batch", 2, TTL, 0, 0, 0, 0, "a", "a"
    )
    assert odd == 1
    assert all(isinstance(reply, redis.ResponseError) for reply in replies)
    kept.close()


async def test_a_right_that_is_lacking_is_not_taken_for_a_wrong_type(
    server: redis.Redis, asynclock_nodes: list[LocalServer]
) -> None:
    server.execute_command("ACL", "SETUSER", "blind", "on", ">x", "~*", "+@all", "-zscore")
    lock, counter, queue = keys("z", 0)
    server.set(lock, "you", px=TTL)
    with redis.Redis(port=asynclock_nodes[0].port, username="blind", password="x") as blind:
        words = ("acquire", "me", TTL, 0, 0, KEPT, WAIT)
        with pytest.raises(redis.ResponseError, match=r"ACL failure|can't run this command"):
            blind.eval(SCRIPT.source, 3, lock, counter, queue, *words)
