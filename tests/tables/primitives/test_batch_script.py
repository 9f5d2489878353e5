"""The operation `batch` of lock.lua does to each name what `release` and `acquire` do alone.

The same random state is made twice on a server, under two sets of names: one batch runs on the
first, single calls on the second. Replies and all that is stored afterwards must be alike.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
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
def server(asynclock_nodes: list[LocalServer]) -> Iterator[redis.Redis]:
    with redis.Redis(port=asynclock_nodes[0].port) as client:
        yield client


def keys(side: str, number: int) -> list[str]:
    lock = f"asynclock:{side}{number}"
    return [lock, f"{lock}:#fence", f"{lock}:#queue"]


def batch(
    client: redis.Redis, released: Sequence[list[str]], acquired: Sequence[list[str]], *words: Any
) -> Any:
    """Run a batch; `words` are the floor, `not_after`, the time to wait and the owners."""
    floor, not_after, wait, *owners = words
    names = [one[i] for i in (0, 2) for one in released]
    names += [one[i] for i in (2, 0, 1) for one in acquired]
    terms = ("batch", len(released), TTL, floor, not_after, KEPT, wait)
    return client.eval(SCRIPT.source, len(names), *names, *terms, *owners)


class Side:
    """One of the two sets of names; `base` is a fence near the server's clock."""

    def __init__(self, client: redis.Redis, side: str, base: int) -> None:
        self.client, self.side, self.base = client, side, base

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
            if wrong < 0.2:  # another program uses one of these keys
                foreign = lock if wrong < 0.1 else counter
                self.client.delete(foreign)
                self.client.hset(foreign, "x", "y")

    def stored(self) -> dict[str, Any]:
        """Everything under the names, but for remaining times."""
        found: dict[str, Any] = {}
        for key in sorted(self.client.keys(f"asynclock:{self.side}*")):
            kind = self.client.type(key)
            assert kind == b"hash" or self.client.pttl(key) > 0
            read = {
                b"string": self.client.get,
                b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
            }.get(kind, self.client.type)
            found[key.decode().replace(f":{self.side}", ":", 1)] = read(key)
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
def test_a_batch_does_what_single_calls_do(server: redis.Redis, seed: int) -> None:
    draw = random.Random(seed)
    base = time.time_ns() // 1000
    together, alone = Side(server, "t", base), Side(server, "s", base)
    state = draw.getrandbits(32)
    for side in (together, alone):
        side.prepare(random.Random(state))
    assert together.stored() == alone.stored()

    # It comes too late if `not_after` is 1.
    terms = base + draw.randrange(-3, 10), draw.choice([0, 0, 0, 1]), draw.choice([0, WAIT])
    count = draw.randrange(1, NAMES)
    releases = [(number, draw.choice(OWNERS)) for number in draw.sample(range(NAMES), count)]
    acquires = [(draw.randrange(NAMES), f"new{n}:4") for n in range(draw.randrange(NAMES))]
    expected = [alone.single(number, "release", owner) for number, owner in releases]
    expected += [alone.acquire(number, owner, *terms) for number, owner in acquires]

    owners = [owner for _, owner in (*releases, *acquires)]
    names = [[keys("t", number) for number, _ in some] for some in (releases, acquires)]
    odd, replies, now = batch(server, *names, *terms, *owners)

    assert now > 10**15
    assert odd == any(not isinstance(reply, int) for reply in replies)
    found = [spread(reply, release=n < len(releases)) for n, reply in enumerate(replies)]
    assert found == [comparable(reply) for reply in expected]
    assert together.stored() == alone.stored()


# ---- users who lack a right ----------------------------------------------------------------------


def user_without(server: redis.Redis, command: str) -> redis.Redis:
    server.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", f"-{command}")
    port = server.connection_pool.connection_kwargs["port"]
    return redis.Redis(port=port, username="few", password="x")


@pytest.mark.parametrize("waiter", ["1", "go"])
def test_a_batch_of_a_user_who_lacks_a_right(server: redis.Redis, waiter: str) -> None:
    """Without EXISTS it gets the same; a release that the server refuses is not done."""
    two = [keys("u", number) for number in range(2)]
    floor = time.time_ns() // 1000
    for lock, _, queue in two:
        server.set(lock, "a", px=TTL)
        server.zadd(queue, {"waiter": 1})
        server.set(f"{queue}:#waiter", waiter, px=TTL)
    with user_without(server, "del") as few:
        odd, replies, _ = batch(few, two, [], floor, 0, 0, "a", "a")
        assert odd == 1
        assert all(isinstance(reply, redis.ResponseError) for reply in replies)
    server.delete(*two[0], two[1][0])
    with user_without(server, "exists") as few:
        odd, (first, second), _ = batch(few, [], two, floor, 0, 0, "a", "b")
        assert (odd, first) == (1, floor)
        assert (second[0], second[2]) == (0, b"waiter")


def test_a_right_that_is_lacking_is_not_taken_for_a_wrong_type(server: redis.Redis) -> None:
    server.set(keys("z", 0)[0], "you", px=TTL)
    with user_without(server, "zscore") as few:
        words = ("acquire", "me", TTL, 0, 0, KEPT, WAIT)
        with pytest.raises(redis.ResponseError, match=r"ACL failure|can't run this command"):
            few.eval(SCRIPT.source, 3, *keys("z", 0), *words)
