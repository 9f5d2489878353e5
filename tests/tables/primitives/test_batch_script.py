"""The operation `batch` of a script does to each name what `release` and `acquire` do alone.

The same random state is made twice on a server, under two sets of names: one batch runs on the
first, single calls on the second. Replies and all that is stored afterwards must be alike.
"""

import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from asynclock._nodes.wire import Script, ServerError, failure
from asynclock._primitives.lock import SCRIPT
from asynclock._primitives.multi import SCRIPT as SEVERAL
from asynclock._primitives.readwrite import READ, WRITE
from asynclock.testing import LocalServer

TTL, WAIT, KEPT = 600_000, 300_000, 6_000_000
SIDES = ("reader", "writer")
PEERS = dict.fromkeys(SIDES, SIDES) | {"several": ("several", "mutex")}
"""The kinds that share a name."""
NAMES = 8
OWNERS = ("a:1", "b:2", "c:3")
ENDS = ("", ":#fence", ":#queue")
KINDS = {
    "mutex": (SCRIPT, ENDS),
    "slot": (SCRIPT, (*ENDS, ":#1", ":#2")),
    "reader": (READ, (":#readers", *ENDS[1:], "")),
    "writer": (WRITE, (*ENDS, ":#readers")),
    "several": (SEVERAL, (*ENDS[:2], "+", "+:#fence")),
}
"""Each script, and the ends of the keys that it takes."""
SEEDS = [
    *range(6),
    *(pytest.param(seed, marks=pytest.mark.once) for seed in range(6, 12)),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 60)),
]


@pytest.fixture
def server(asynclock_nodes: list[LocalServer]) -> Iterator[redis.Redis]:
    with redis.Redis(port=asynclock_nodes[0].port) as client:
        yield client


def keys(side: str, number: int, ends: Sequence[str] = ENDS) -> list[str]:
    return [f"asynclock:{side}{number}{end}" for end in ends]


def batch(
    client: redis.Redis,
    released: Sequence[list[str]],
    acquired: Sequence[list[str]],
    *words: Any,
    script: Script = SCRIPT,
) -> Any:
    """Run a batch; `words` are the floor, `not_after`, the time to wait and the owners."""
    floor, not_after, wait, *owners = words
    locks, counters, *others = zip(*released, *acquired, strict=True)
    names = [*locks, *(key for column in others for key in column), *counters[len(released) :]]
    terms = ("batch", len(released), TTL, floor, not_after, KEPT, wait)
    return client.eval(script.source, len(names), *names, *terms, *owners)


class Side:
    """One of the two sets of names; `base` is a fence near the server's clock."""

    def __init__(self, client: redis.Redis, side: str, base: int, kind: str) -> None:
        self.client, self.side, self.base, self.kind = client, side, base, kind

    def single(self, number: int, *words: Any, kind: str = "") -> Any:
        script, ends = KINDS[kind or self.kind]
        names = keys(self.side, number, ends)
        try:
            return self.client.eval(script.source, len(names), *names, *words)
        except redis.ResponseError as error:
            return error

    def acquire(
        self, number: int, owner: str, floor: int, not_after: int, wait: int, kind: str = ""
    ) -> Any:
        wait = 0 if (kind or self.kind) == "several" else wait  # it has no ticket at first
        words = ("acquire", owner, TTL, floor, not_after, KEPT, wait)
        return self.single(number, *words, kind=kind)

    def prepare(self, draw: random.Random) -> None:
        calm = draw.randrange(3)  # with 1 or 2 nobody is in the way; with 2 nobody has a name
        for number in range(NAMES):
            lock, counter, _, *neighbours = keys(self.side, number, KINDS[self.kind][1])
            if draw.random() < 0.3:
                self.client.set(counter, self.base + draw.randrange(-5, 5), px=KEPT)
            for owner in OWNERS[: draw.choice([[0, 0, 1, 1, 2, 3], [0, 1], [0]][calm])]:
                kind = self.kind if calm else draw.choice(PEERS.get(self.kind, (self.kind,)))
                wait = 0 if calm else draw.choice([0, WAIT])
                self.acquire(number, owner, self.base, 0, wait, kind)
            for other in neighbours if self.kind == "slot" else ():
                if draw.random() < 0.7:
                    self.client.set(other, "other:5", px=TTL)
            wrong = draw.random() + calm
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
            read = {b"string": self.client.get, b"zset": self.members}.get(kind, self.client.type)
            found[key.decode().replace(f":{self.side}", ":", 1)] = read(key)
        return found

    def members(self, key: bytes) -> dict[Any, float]:
        """Return tickets and their numbers, or readers, without what are moments."""
        found: dict[Any, float] = dict(self.client.zrange(key, 0, -1, withscores=True))
        if key.endswith(b"#readers"):
            return {one: moment > self.base // 1000 + TTL // 2 for one, moment in found.items()}
        return {one: 0 if number > 4e15 else number for one, number in found.items()}


def _named_alike(said: Any) -> Any:
    """The keys of tickets without the set of names that they belong to."""
    return [key.replace(b":t", b":s", 1) for key in said] if isinstance(said, list) else said


def comparable(reply: Any) -> Any:
    """A reply without clocks and remaining times; an error without its place in the script."""
    if isinstance(reply, Exception):
        text = str(reply)  # redis-py drops the ERR before it
        return failure(ServerError(f"ERR {text}" if text.startswith("Error ") else text)).cause
    if isinstance(reply, list) and reply[0] == 1:
        return [_named_alike(one) or b"" for one in reply[:-1]]
    if isinstance(reply, list) and reply[0] == 0 and len(reply) > 4:
        return [0, *reply[2:-1]]
    return [_named_alike(one) for one in reply[:-1]] if isinstance(reply, list) else reply


def spread(reply: Any, *, release: bool) -> Any:
    """The short form of a plain reply, as the single command would give it."""
    if not isinstance(reply, int):
        return comparable(reply)
    return [1, b""] if release else [1, reply, b""]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_does_what_single_calls_do(server: redis.Redis, seed: int, kind: str) -> None:
    draw = random.Random(seed)
    base = time.time_ns() // 1000
    together, alone = Side(server, "t", base, kind), Side(server, "s", base, kind)
    script, ends = KINDS[kind]
    state = draw.getrandbits(32)
    for side in (together, alone):
        side.prepare(random.Random(state))
    assert together.stored() == alone.stored()

    # It comes too late if `not_after` is 1.
    terms = base + draw.randrange(-3, 10), draw.choice([0, 0, 0, 1]), draw.choice([0, WAIT])
    count, more = draw.choice([(0, 4), (4, 0), (draw.randrange(1, NAMES), draw.randrange(NAMES))])
    releases = [(number, draw.choice(OWNERS)) for number in draw.sample(range(NAMES), count)]
    acquires = [(draw.randrange(NAMES), f"new{n}:4") for n in range(more)]
    expected = [alone.single(number, "release", owner) for number, owner in releases]
    expected += [alone.acquire(number, owner, *terms) for number, owner in acquires]

    owners = [owner for _, owner in (*releases, *acquires)]
    names = [[keys("t", number, ends) for number, _ in some] for some in (releases, acquires)]
    terms = (*terms[:2], 0) if kind == "several" else terms
    errors = server.info("stats")["total_error_replies"]
    odd, replies, now = batch(server, *names, *terms, *owners, script=script)
    assert odd or server.info("stats")["total_error_replies"] == errors
    assert now > 10**15
    assert odd == any(not isinstance(reply, int) for reply in replies)
    found = [spread(reply, release=n < len(releases)) for n, reply in enumerate(replies)]
    assert found == [comparable(reply) for reply in expected]
    assert together.stored() == alone.stored()


# ---- users who lack a right ----------------------------------------------------------------------
DENIED = r"ACL failure|can't run this command"


def user_without(server: redis.Redis, command: str) -> redis.Redis:
    server.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", f"-{command}")
    port = server.connection_pool.connection_kwargs["port"]
    return redis.Redis(port=port, username="few", password="x")


@pytest.mark.parametrize("waiter", ["1", "go"])
def test_a_batch_of_a_user_who_lacks_a_right(server: redis.Redis, waiter: str) -> None:
    """Without EXISTS it gets the same; each release that the server refuses gets the error."""
    two = [keys("u", number) for number in range(2)]
    floor = time.time_ns() // 1000
    for lock, _, queue in two:
        server.set(lock, "a", px=TTL)
        server.zadd(queue, {"waiter": 1})
        server.set(f"{queue}:#waiter", waiter, px=TTL)
    with user_without(server, "del") as few:
        odd, refused, _ = batch(few, two, [], floor, 0, 0, "a", "a")
        assert odd == 1
        assert all(re.search(DENIED, str(reply)) for reply in refused)
    server.delete(*two[0], two[1][0])
    with user_without(server, "exists") as few:
        odd, (first, second), _ = batch(few, [], two, floor, 0, 0, "a", "b")
        assert (odd, first) == (1, floor)
        assert (second[0], second[2]) == (0, b"waiter")
        few.eval(SEVERAL.source, 2, "v", "vc", "acquire", "me", TTL, floor, 0, KEPT)
        assert few.eval(SEVERAL.source, 2, "v", "vc", "release", "me")[0] == 1
    server.delete(two[0][0], two[1][2])
    server.set(two[1][0], "you")
    with user_without(server, "pttl") as few:  # all queues are asked for at once
        odd, (first, _), _ = batch(few, [], two, floor + 1, 0, 0, "a", "b")
        assert (odd, first) == (1, floor + 1)


def test_a_right_that_is_lacking_is_not_taken_for_a_wrong_type(server: redis.Redis) -> None:
    server.set(keys("z", 0)[0], "you", px=TTL)
    with user_without(server, "zscore") as few:
        words = ("acquire", "me", TTL, 0, 0, KEPT, WAIT)
        with pytest.raises(redis.ResponseError, match=DENIED):
            few.eval(SCRIPT.source, 3, *keys("z", 0), *words)
