"""The read-write lock's scripts on a real server against a model: random calls, the same replies.

Time stands still here: every ttl is far longer than a test, and a rule of its own lets a key
expire. All other scripts are in the tables beside this.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asynclock._nodes.script import Script
from asynclock._primitives import readwrite
from asynclock.testing import LocalServer

TTL = 600_000
OWNERS = ("a:1", "b:2", "c:3", "d:4")
owners = st.sampled_from(OWNERS)
two = st.sampled_from(OWNERS[:2])
floors = st.sampled_from([0, 5, 10**15, -1])


@functools.cache
def server() -> LocalServer:
    made = LocalServer(args=("--save", ""))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(made.start())).result()
    return made


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    server().close()
    server.cache_clear()


class ReadersAndWriter(RuleBasedStateMachine):
    """read.lua and write.lua."""

    READ = ["r", "c", "q", "w"]
    WRITE = ["w", "c", "q", "r"]
    AHEAD = 1

    def __init__(self) -> None:
        super().__init__()
        self.redis = redis.Redis(port=server().port, decode_responses=True)
        self.redis.flushall()
        self.now = self.counter = 0
        """The server's clock in the last reply, and the fence counter; a missing one is 0."""
        self.readers: dict[str, int] = {}
        self.writer: str | None = None
        self.beside: set[str] = set()
        """The readers that may read beside the writer: they were upgraded to it, or it to them."""
        self.ready: set[str] = set()
        """The tickets of readers that go before the next writer."""
        self.writing: dict[str, int] = {}
        """The tickets of writers and of an upgrade, by number."""
        self.later: set[str] = set()
        """The tickets of readers that go after the next writer."""
        self.woken: set[str] = set()

    def teardown(self) -> None:
        self.redis.close()

    def call(self, script: Script, keys: list[str], *args: Any) -> Any:
        *reply, self.now = self.redis.eval(script.source, len(keys), *keys, *args)
        assert self.now > 10**15
        return reply

    def acquire(self, script: Script, keys: list[str], owner: str, floor: int, *more: Any) -> Any:
        return self.call(script, keys, "acquire", owner, TTL, floor, 0, 10 * TTL, *more)

    def fence(self, floor: int) -> int:
        """What a grant must give out; a missing counter counts as one a minute ago."""
        before = self.counter or self.now - 60_000_000
        self.counter = max(before + 1, self.now if floor < 0 else floor)
        return self.counter

    @property
    def order(self) -> list[str]:
        """The tickets of writers."""
        return sorted(self.writing, key=lambda ticket: (self.writing[ticket], ticket))

    @property
    def first(self) -> set[str]:
        """One of these is the first ticket."""
        return {*sorted(self.ready)[:1]} or {*self.order[:1]} or self.later or {""}

    def wake(self) -> set[str]:
        if self.writer is not None:
            return set()
        if self.ready or not self.writing:
            found = self.ready if self.writing else self.ready | self.later
        else:
            upgrade = self.writing[self.order[0]] == self.AHEAD
            found = set() if len(self.readers) > upgrade else {self.order[0]}
        self.woken |= found
        return found

    def drop(self, ticket: str) -> None:
        self.writing.pop(ticket, None)
        for tickets in (self.ready, self.later, self.woken):
            tickets.discard(ticket)

    def wait_to_read(self, ticket: str) -> None:
        if ticket not in self.ready:
            self.later.add(ticket)
        self.woken.discard(ticket)

    def wait_to_write(self, ticket: str, number: int, floor: int) -> None:
        last = max((n for n in self.writing.values() if n != self.AHEAD), default=0)
        self.writing[ticket] = number or self.writing.get(ticket) or max(floor // 1000, last + 1, 2)
        self.woken.discard(ticket)

    def end_turn(self) -> None:
        self.ready |= self.later
        self.later.clear()

    @rule(
        owner=two,
        floor=floors,
        patience=st.sampled_from([0, TTL, TTL]),
        barge=st.sampled_from([0, 0, 0, 1]),
        writer=st.sampled_from([None, None, *OWNERS]),
    )
    def read(self, owner: str, floor: int, patience: int, barge: int, writer: str | None) -> None:
        """With `writer`: its downgrade."""
        ticket = f"{owner}:read"
        more = (patience, ticket, 0, barge, *([writer] if writer else []))
        reply = self.acquire(readwrite.READ, self.READ, owner, floor, *more)
        blocker = self.writer if self.writer != writer else None
        if blocker is None and not barge and not writer and ticket not in self.ready:
            blocker = next(iter(self.order), None)
        if blocker is None:
            self.drop(ticket)
            self.readers[owner] = self.fence(floor)
            self.beside |= {owner} if self.writer else set()
            assert reply == [1, self.readers[owner], ""]
            return
        if patience:
            self.wait_to_read(ticket)
        woken = self.wake()
        assert 0 <= reply[1] <= TTL
        waits = int(patience > 0)
        assert [reply[0], *reply[2:6]] == [0, blocker, waits, 0, int(blocker in woken)]
        assert {*reply[6]} == woken

    @rule(
        owner=owners,
        floor=floors.filter(lambda floor: floor >= 0),  # else a number is the server's clock
        patience=st.sampled_from([0, TTL, TTL]),
        number=st.sampled_from([0, 0, 3, 7]),
        barge=st.sampled_from([0, 0, 0, 1]),
    )
    def write(self, owner: str, floor: int, patience: int, number: int, barge: int) -> None:
        ticket = f"{owner}:write"
        more = (patience, ticket, number, barge)
        reply = self.acquire(readwrite.WRITE, self.WRITE, owner, floor, *more)
        others = self.first != {""}
        if others and number and patience and self.writing.get(ticket) != number:
            self.wait_to_write(ticket, number, floor)
        first = self.first
        ours = barge or first == {ticket} or self.writer == owner
        ours = ours or not (self.ready or self.writing)
        self.judge_writer(reply, owner, ticket, floor, bool(ours), self.readers.keys())
        if reply[0] == 0:
            if patience:
                self.wait_to_write(ticket, number, floor)
            assert reply[3] == (self.writing[ticket] if patience else 0)
            if reply[5]:
                assert reply[2] in first
            self.judge_others_woken(reply, ticket)

    @rule(owner=owners, floor=floors, waits=st.booleans(), reader=two)
    def upgrade(self, owner: str, floor: int, waits: bool, reader: str) -> None:
        ticket = f"{owner}:upgrade"
        more = (TTL if waits else 0, ticket, int(waits), 0, reader)
        reply = self.acquire(readwrite.WRITE, self.WRITE, owner, floor, *more)
        if waits and self.first != {""} and ticket not in self.writing:
            self.wait_to_write(ticket, self.AHEAD, 0)
        self.judge_writer(reply, owner, ticket, floor, True, self.readers.keys() - {reader})
        if reply[0] == 1:
            self.beside = {reader}
            return
        if waits:
            self.wait_to_write(ticket, self.AHEAD, 0)
        self.judge_others_woken(reply, ticket)

    def judge_others_woken(self, reply: Any, ticket: str) -> None:
        """A request that is refused never wakes its own ticket."""
        assert {*reply[6]} == (set() if self.first == {ticket} else self.wake())

    def judge_writer(
        self, reply: Any, owner: str, ticket: str, floor: int, ours: bool, readers: Any
    ) -> None:
        taken = {self.writer} if self.writer not in (None, owner) else readers
        if ours and not taken:
            self.drop(ticket)
            self.writer, self.beside = owner, set()
            assert reply[:2] == [1, self.fence(floor)]
            assert reply[2] in self.first
            return
        assert reply[0] == 0
        assert 0 <= reply[1] <= TTL
        assert reply[5] == (not taken)
        if taken:
            assert reply[2] in taken

    def judge_woken(self, reply: Any) -> None:
        assert reply[0] == 1
        assert {*reply[1]} == self.wake()

    @rule(owner=owners, side=st.sampled_from(["read", "write", "upgrade"]))
    def leave(self, owner: str, side: str) -> None:
        self.drop(f"{owner}:{side}")
        script, keys = (
            (readwrite.READ, self.READ) if side == "read" else (readwrite.WRITE, self.WRITE)
        )
        self.judge_woken(self.call(script, keys, "leave", f"{owner}:{side}"))

    @rule()
    def pass_on(self) -> None:
        self.judge_woken(self.call(readwrite.WRITE, self.WRITE, "pass"))

    @rule(owner=owners, side=st.sampled_from(["read", "write", "upgrade"]))
    def a_waiter_dies(self, owner: str, side: str) -> None:
        """The first one's ticket expires: it is skipped at the next request of anybody."""
        ticket = f"{owner}:{side}"
        if self.first == {ticket} and ticket not in self.later:
            self.redis.delete(f"q:#{ticket}")
            self.drop(ticket)
            self.judge_woken(self.call(readwrite.WRITE, self.WRITE, "leave", "nobody"))

    @rule(owner=two, waits=st.booleans())
    def stop_reading(self, owner: str, waits: bool) -> None:
        """With a ticket: of an attempt that failed elsewhere and goes on waiting."""
        ticket = f"{owner}:read"
        more = (0, ticket, TTL, 1) if waits else ()
        reply = self.call(readwrite.READ, self.READ, "release", owner, *more)
        if self.readers.pop(owner, None) is None:
            assert reply == [0, []]
            return
        if waits:
            self.wait_to_read(ticket)
        self.judge_woken(reply)

    @rule(owner=two)
    def check(self, owner: str) -> None:
        reply = self.call(readwrite.READ, ["r", "c"], "check", owner)
        assert reply == [int(owner in self.readers)]
        reply = self.call(readwrite.WRITE, ["w", "c"], "check", owner)
        assert reply == [int(owner == self.writer)]

    @rule(
        another=st.sampled_from([None, None, None, *OWNERS[:1]]),
        keep=st.sampled_from([0, 0, 1]),
        number=st.sampled_from([0, 3, 7]),
    )
    def stop_writing(self, another: str | None, keep: int, number: int) -> None:
        """With a number: the attempt failed elsewhere, and its ticket goes on waiting."""
        owner = another or self.writer or OWNERS[0]
        ticket = f"{owner}:write"
        more = (0, ticket, TTL, number) if number else (keep,)
        reply = self.call(readwrite.WRITE, self.WRITE, "release", owner, *more)
        if self.writer != owner:
            assert reply == [0, []]
            return
        self.writer = None
        if number:
            self.wait_to_write(ticket, number, 0)
        else:
            self.end_turn()
        if keep and not number:
            assert reply == [1, []]
            return
        self.judge_woken(reply)

    @rule(owner=two)
    def a_reader_expires(self, owner: str) -> None:
        if self.readers.pop(owner, None) is not None:
            self.redis.zadd("r", {owner: 1})

    @rule(some=st.lists(two, min_size=1, unique=True))
    def extend(self, some: list[str]) -> None:
        keys = ["r", "c"] * len(some)
        reply = self.call(readwrite.READ, keys, "extend", TTL, 10 * TTL, *some)
        assert reply == ["".join(str(int(owner in self.readers)) for owner in some)]
        keys = ["w", "c"] * len(some)
        reply = self.call(readwrite.WRITE, keys, "extend", TTL, 10 * TTL, *some)
        assert reply == ["".join(str(int(owner == self.writer)) for owner in some)]

    @rule(owner=two, ahead=st.integers(-2, 5))
    def a_reader_raises(self, owner: str, ahead: int) -> None:
        before = self.counter
        wanted = max(1, before + ahead)
        reply = self.call(readwrite.READ, ["r", "c"], "raise", owner, wanted, 10 * TTL)
        assert reply == [int(owner in self.readers), before]
        if reply[0] == 1:
            self.counter = max(before, wanted)

    @invariant()
    def every_key_has_a_ttl(self) -> None:
        for key in self.redis.keys("*"):
            assert self.redis.pttl(key) > 0

    @invariant()
    def nobody_reads_while_one_writes(self) -> None:
        assert not (self.writer and self.readers.keys() - self.beside)
        assert self.redis.get("w") == self.writer

    @invariant()
    def the_queue_is_in_order(self) -> None:
        pairs: Any = self.redis.zrange("q", 0, -1, withscores=True)
        found = dict(pairs)
        assert {ticket for ticket, score in found.items() if score == -1} == self.ready
        assert {ticket: n for ticket, n in found.items() if 0 <= n < 4e15} == self.writing
        assert {ticket for ticket, score in found.items() if score >= 4e15} == self.later
        for ticket in found:
            assert self.redis.get(f"q:#{ticket}") == ("go" if ticket in self.woken else "1")


QUICK = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)

ReadersAndWriter.TestCase.settings = QUICK

TestReadersAndWriter = ReadersAndWriter.TestCase
