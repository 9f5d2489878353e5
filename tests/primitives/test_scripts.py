"""Each script on a real server against a model in a few lines: random calls, the same replies.

Time stands still here: every ttl is far longer than a test, and a rule of its own lets a key
expire. The mutex itself is in tests/model.
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
from asynclock._primitives import election, lock, multi, readwrite, register
from asynclock.testing import LocalServer

TTL = 600_000
OWNERS = ("a:1", "b:2", "c:3", "d:4")
owners = st.sampled_from(OWNERS)
two = st.sampled_from(OWNERS[:2])
floors = st.sampled_from([0, 5, 10**15, -1])


def texts(least: int = 0) -> st.SearchStrategy[str]:
    """Text in characters of one to four bytes; a table of all others takes seconds to make."""
    return st.text("a\0é€😀", min_size=least, max_size=5)


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


def unpacked(reply: Any) -> Any:
    """Text for bytes, without the clock at the end."""

    def text(part: Any) -> Any:
        if isinstance(part, list):
            return [text(one) for one in part]
        return part.decode() if isinstance(part, bytes) else part

    assert reply[-1] > 10**15
    return [text(part) for part in reply[:-1]]


class Machine(RuleBasedStateMachine):
    """Calls scripts; the model is in the subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.redis = redis.Redis(port=server().port)
        self.redis.flushall()
        self.counters: dict[str, int] = {}
        self.now = 0
        """The server's clock in the last reply."""

    def teardown(self) -> None:
        self.redis.close()

    def call(self, script: Script, keys: list[str], *args: Any) -> Any:
        reply = self.redis.eval(script.source, len(keys), *keys, *args)
        self.now = reply[-1]
        return unpacked(reply)

    def acquire(self, script: Script, keys: list[str], owner: str, floor: int, *more: Any) -> Any:
        return self.call(script, keys, "acquire", owner, TTL, floor, 0, 10 * TTL, *more)

    def fence(self, counter: str, floor: int) -> int:
        """What a grant must give out; a missing counter counts as one a minute ago."""
        before = self.counters.get(counter, self.now - 60_000_000)
        self.counters[counter] = max(before + 1, self.now if floor < 0 else floor)
        return self.counters[counter]

    def kept(self, key: str) -> str | None:
        """What stands under a key."""
        value = self.redis.get(key)
        return value.decode() if isinstance(value, bytes) else None

    @invariant()
    def every_key_has_a_ttl(self) -> None:
        for key in self.redis.keys("*"):
            assert self.redis.pttl(key) > 0


class Slots(Machine):
    """lock.lua with neighbours: the slots of a semaphore."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, str] = {}

    @rule(owner=owners, slot=st.integers(0, 2), floor=floors)
    def take(self, owner: str, slot: int, floor: int) -> None:
        others = [(slot + i) % 3 for i in (1, 2)]
        keys = [f"s{slot}", f"c{slot}", "q", *(f"s{other}" for other in others)]
        reply = self.acquire(lock.SCRIPT, keys, owner, floor)
        holder = self.held.get(slot, owner)
        if holder == owner:
            self.held[slot] = owner
            assert reply == [1, self.fence(f"c{slot}", floor), ""]
        else:
            assert 0 < reply[1] <= TTL
            taken = "".join("01"[other in self.held] for other in others)
            assert [reply[0], *reply[2:]] == [0, holder, 0, 0, 0, taken]

    @rule(owner=owners, slot=st.integers(0, 2))
    def give_back(self, owner: str, slot: int) -> None:
        reply = self.call(lock.SCRIPT, [f"s{slot}", f"c{slot}", "q"], "release", owner)
        assert reply == [int(self.held.get(slot) == owner), ""]
        if reply[0] == 1:
            del self.held[slot]


class ReadersAndWriter(Machine):
    """read.lua and write.lua."""

    READ = ["r", "c", "w", "i"]
    WRITE = ["w", "c", "r", "i"]

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[str, int] = {}
        self.writer: str | None = None
        self.intent: str | None = None
        self.beside: set[str] = set()
        """The readers that may read beside the writer: they were upgraded to it, or it to them."""

    @rule(owner=two, floor=floors, writer=st.sampled_from([None, *OWNERS]))
    def read(self, owner: str, floor: int, writer: str | None) -> None:
        """With `writer`: its downgrade."""
        more = () if writer is None else (writer,)
        reply = self.acquire(readwrite.READ, self.READ, owner, floor, *more)
        blocker = self.writer or self.intent
        if writer is not None:
            blocker = None if self.writer == writer else self.writer
            self.beside |= {owner} if self.writer == writer else set()
        if blocker is not None:
            assert [reply[0], reply[2]] == [0, blocker]
        else:
            self.readers[owner] = self.fence("c", floor)
            assert reply == [1, self.readers[owner]]

    @rule(
        owner=owners,
        floor=floors,
        patience=st.sampled_from([0, TTL]),
        reader=st.sampled_from([None, *OWNERS[:2]]),
    )
    def write(self, owner: str, floor: int, patience: int, reader: str | None) -> None:
        """With `reader`: its upgrade."""
        ticket = f"{owner}:ticket"
        more = (ticket, patience) if reader is None else (ticket, patience, reader)
        reply = self.acquire(readwrite.WRITE, self.WRITE, owner, floor, *more)
        if self.writer not in (None, owner) or self.readers.keys() - {reader}:
            if patience and self.intent is None:
                self.intent = ticket
            assert reply[0] == 0
            assert 0 <= reply[1] <= TTL
            others = self.readers.keys() - {reader}
            assert reply[2] in ({self.writer} if self.writer not in (None, owner) else others)
        else:
            if self.intent == ticket:
                self.intent = None
            self.writer, self.beside = owner, {reader} if reader else set()
            assert reply == [1, self.fence("c", floor)]

    @rule(owner=two)
    def leave(self, owner: str) -> None:
        ticket = f"{owner}:ticket"
        ours = self.intent == ticket
        assert self.call(readwrite.WRITE, self.WRITE, "leave", ticket) == [int(ours)]
        if ours:
            self.intent = None

    @rule(owner=two)
    def stop_reading(self, owner: str) -> None:
        reply = self.call(readwrite.READ, ["r", "c"], "release", owner)
        assert reply == [int(self.readers.pop(owner, None) is not None)]

    @rule(owner=two)
    def check(self, owner: str) -> None:
        reply = self.call(readwrite.READ, ["r", "c"], "check", owner)
        assert reply == [int(owner in self.readers)]
        reply = self.call(readwrite.WRITE, ["w", "c"], "check", owner)
        assert reply == [int(owner == self.writer)]

    @rule(owner=owners)
    def stop_writing(self, owner: str) -> None:
        reply = self.call(readwrite.WRITE, ["w", "c"], "release", owner)
        assert reply == [int(self.writer == owner)]
        if reply == [1]:
            self.writer = None

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
        before = self.counters.get("c", 0)
        wanted = max(1, before + ahead)
        reply = self.call(readwrite.READ, ["r", "c"], "raise", owner, wanted, 10 * TTL)
        assert reply == [int(owner in self.readers), before]
        if reply[0] == 1:
            self.counters["c"] = max(before, wanted)

    @invariant()
    def nobody_reads_while_one_writes(self) -> None:
        assert not (self.writer and self.readers.keys() - self.beside)
        assert self.kept("w") == self.writer
        assert self.kept("i") == self.intent


class Several(Machine):
    """multi.lua beside lock.lua, on the same keys."""

    names = st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(sorted)

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, str] = {}

    @staticmethod
    def keys(names: list[str]) -> list[str]:
        return [key for name in names for key in (name, f"{name}c")]

    @rule(owner=owners, names=names, floor=floors)
    def take(self, owner: str, names: list[str], floor: int) -> None:
        reply = self.acquire(multi.SCRIPT, self.keys(names), owner, floor)
        holders = [self.held[name] for name in names if self.held.get(name, owner) != owner]
        if holders:
            assert reply[0] == 0
            assert 0 <= reply[1] <= TTL
            assert reply[2] in holders
        else:
            fence = max(self.fence(name, floor) for name in names)
            for name in names:
                self.held[name], self.counters[name] = owner, fence
            assert reply == [1, fence]

    @rule(owner=owners, name=st.sampled_from("xyz"), floor=floors)
    def take_one(self, owner: str, name: str, floor: int) -> None:
        reply = self.acquire(lock.SCRIPT, [*self.keys([name]), f"{name}:#queue"], owner, floor)
        if self.held.get(name, owner) == owner:
            self.held[name] = owner
            assert reply == [1, self.fence(name, floor), ""]
        else:
            assert [reply[0], reply[2]] == [0, self.held[name]]

    @rule(owner=owners, names=names)
    def give_back(self, owner: str, names: list[str]) -> None:
        reply = self.call(multi.SCRIPT, self.keys(names), "release", owner)
        assert reply == [int(all(self.held.get(name) == owner for name in names)), []]
        for name in names:
            if self.held.get(name) == owner:
                del self.held[name]

    @rule(owner=owners, names=names, ahead=st.integers(-1, 5))
    def raise_(self, owner: str, names: list[str], ahead: int) -> None:
        before = max(self.counters.get(name, 0) for name in names)
        wanted = max(1, before + ahead)
        reply = self.call(multi.SCRIPT, self.keys(names), "raise", owner, wanted, 10 * TTL)
        ours = all(self.held.get(name) == owner for name in names)
        assert reply == [int(ours and before <= wanted), before]
        if reply[0] == 1:
            self.counters.update(dict.fromkeys(names, wanted))

    @rule(owner=owners, names=names)
    def check(self, owner: str, names: list[str]) -> None:
        reply = self.call(multi.SCRIPT, self.keys(names), "check", owner)
        assert reply == [int(all(self.held.get(name) == owner for name in names))]

    @rule(one=owners, other=owners, names=st.permutations("xyz"))
    def extend(self, one: str, other: str, names: list[str]) -> None:
        groups = [[names[0], names[1]], [names[1], names[2]]]
        keys = [key for group in groups for key in self.keys(group)]
        reply = self.call(multi.SCRIPT, keys, "extend", TTL, 10 * TTL, one, other)
        wanted = [
            all(self.held.get(name) == owner for name in group)
            for owner, group in zip((one, other), groups, strict=True)
        ]
        assert reply == ["".join(str(int(ours)) for ours in wanted)]

    @rule(name=st.sampled_from("xyz"))
    def expire(self, name: str) -> None:
        self.held.pop(name, None)
        self.redis.delete(name)


class Queue(Machine):
    """lock.lua with waiters."""

    KEYS = ["l", "c", "q"]
    numbers = st.sampled_from([0, 0, 3, 7])

    def __init__(self) -> None:
        super().__init__()
        self.holder: str | None = None
        self.tickets: dict[str, int] = {}
        self.woken: set[str] = set()

    @property
    def order(self) -> list[str]:
        return sorted(self.tickets, key=lambda ticket: (self.tickets[ticket], ticket))

    @property
    def first(self) -> str:
        return next(iter(self.order), "")

    def wake(self) -> str:
        self.woken |= {*self.order[:1]}
        return self.first

    def join(self, ticket: str, number: int, floor: int) -> None:
        last = max(self.tickets.values(), default=0)
        self.tickets[ticket] = number or self.tickets.get(ticket) or max(floor, last + 1)
        self.woken.discard(ticket)

    def drop(self, ticket: str) -> None:
        self.tickets.pop(ticket, None)
        self.woken.discard(ticket)

    @rule(
        owner=owners,
        floor=floors.filter(lambda floor: floor >= 0),  # else a number is the server's clock
        patience=st.sampled_from([0, TTL, TTL]),
        number=numbers,
        barge=st.sampled_from([0, 0, 1]),
    )
    def take(self, owner: str, floor: int, patience: int, number: int, barge: int) -> None:
        ticket = f"{owner}:ticket"
        more = (patience, ticket, number, barge)
        reply = self.acquire(lock.SCRIPT, self.KEYS, owner, floor, *more)
        settled = self.first == ticket and self.tickets.get(ticket) == number
        joined = bool(self.first and number and patience and not settled)
        if joined:
            self.join(ticket, number, floor)
        head = self.first
        ours = barge or head in ("", ticket)
        if self.holder == owner or (ours and self.holder is None):
            self.holder = owner
            self.drop(ticket)
            assert reply == [1, self.fence("c", floor), self.first]
            return
        if patience and not joined:
            self.join(ticket, number, floor)
        free = self.holder is None
        if free:
            self.wake()
        number = self.tickets[ticket] if patience else 0
        rank = self.order.index(ticket) if patience else 0
        assert 0 <= reply[1] <= TTL
        assert [reply[0], *reply[2:]] == [0, self.holder or head, number, rank, int(free)]

    @rule(owner=owners)
    def leave(self, owner: str) -> None:
        self.drop(f"{owner}:ticket")
        reply = self.call(lock.SCRIPT, self.KEYS, "leave", f"{owner}:ticket")
        assert reply == ([1, self.wake()] if self.holder is None else [0, ""])

    @rule()
    def pass_on(self) -> None:
        reply = self.call(lock.SCRIPT, self.KEYS, "pass")
        assert reply == ([1, self.wake()] if self.holder is None else [0, ""])

    @rule(owner=owners)
    def crash(self, owner: str) -> None:
        """The first one's ticket expires: it is skipped at the next request of anybody."""
        if self.first == f"{owner}:ticket":
            self.redis.delete(f"q:#{owner}:ticket")
            self.call(lock.SCRIPT, self.KEYS, "release", "nobody")
            self.drop(f"{owner}:ticket")
            self.redis.zrem("q", f"{owner}:ticket")

    @rule(owner=owners, keep=st.sampled_from([0, 1]), waits=st.booleans(), number=numbers)
    def give_back(self, owner: str, keep: int, waits: bool, number: int) -> None:
        """With a ticket: of an attempt that failed elsewhere and goes on waiting."""
        ticket = f"{owner}:ticket"
        waits = waits and (number > 0 or ticket in self.tickets)  # else the clock gives the number
        more = (keep, ticket, TTL, number) if waits else (keep,)
        reply = self.call(lock.SCRIPT, self.KEYS, "release", owner, *more)
        if self.holder != owner:
            assert reply == [0, ""]
            return
        self.holder = None
        if waits:
            self.join(ticket, number, 0)
        assert reply == [1, self.first if keep else self.wake()]

    @invariant()
    def the_queue_is_in_order(self) -> None:
        assert self.kept("l") == self.holder
        found: list[Any] = list(self.redis.zrange("q", 0, -1))
        assert [ticket.decode() for ticket in found] == self.order
        for ticket in self.order:
            assert self.kept(f"q:#{ticket}") == ("go" if ticket in self.woken else "1")


class Value(Machine):
    """register.lua."""

    numbers = st.integers(1, 6)

    def __init__(self) -> None:
        super().__init__()
        self.promised = (0, "")
        self.accepted: tuple[int, str | None] = (0, None)

    def allowed(self, number: int, by: str) -> bool:
        return number > self.promised[0] or (number, by) == self.promised

    @rule(number=numbers, by=owners)
    def prepare(self, number: int, by: str) -> None:
        reply = self.call(register.SCRIPT, ["x"], "prepare", number, by, TTL, 0)
        if self.allowed(number, by):
            self.promised = (number, by)
            assert reply == [1, *self.accepted]
        else:
            assert reply == [0, self.promised[0]]

    @rule(number=numbers, by=owners, value=texts())
    def accept(self, number: int, by: str, value: str) -> None:
        reply = self.call(register.SCRIPT, ["x"], "accept", number, by, TTL, 0, value.encode())
        if self.allowed(number, by):
            self.promised, self.accepted = (number, by), (number, value)
            assert reply == [1]
        else:
            assert reply == [0, self.promised[0]]

    @rule()
    def inspect(self) -> None:
        reply = self.call(register.SCRIPT, ["x"], "inspect")
        assert reply[:3] == [1, *self.accepted]

    @rule(number=numbers, by=owners)
    def too_late(self, number: int, by: str) -> None:
        for op in ("prepare", "accept"):
            assert self.call(register.SCRIPT, ["x"], op, number, by, TTL, 1, "late") == [-1]


class Leading(Machine):
    """election.lua beside the mutex that it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: str | None = None
        self.record: str | None = None

    @rule(owner=owners)
    def lead(self, owner: str) -> None:
        reply = self.acquire(lock.SCRIPT, ["l", "c", "q"], owner, 0)
        if self.leader in (None, owner):
            self.leader = owner
            assert reply == [1, self.fence("c", 0), ""]

    @rule(owner=owners, record=texts(1))
    def publish(self, owner: str, record: str) -> None:
        args = ("publish", owner, record.encode(), TTL)
        reply = self.call(election.SCRIPT, ["l", "v"], *args)
        assert reply == [int(self.leader == owner)]
        if reply == [1]:
            self.record = record

    @rule(owner=owners)
    def resign(self, owner: str) -> None:
        if self.call(lock.SCRIPT, ["l", "c", "q"], "release", owner) == [1, ""]:
            assert self.leader == owner
            self.leader = None

    @rule()
    def observe(self) -> None:
        reply = self.call(election.SCRIPT, ["l", "v", "c"], "observe")
        assert [reply[0], *reply[2:]] == [self.leader, self.counters.get("c", 0), self.record]


QUICK = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

for machine in (Slots, ReadersAndWriter, Several, Queue, Value, Leading):
    machine.TestCase.settings = QUICK

TestSlots = Slots.TestCase
TestReadersAndWriter = ReadersAndWriter.TestCase
TestSeveral = Several.TestCase
TestQueue = Queue.TestCase
TestValue = Value.TestCase
TestLeading = Leading.TestCase
