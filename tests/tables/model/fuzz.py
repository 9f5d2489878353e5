"""The real scripts on real servers, the real ballot, and a network that does what it likes.

A `World` delivers, delays, reorders, repeats and drops requests and replies, lets lock keys vanish
at any moment, runs several attempts at once, lets every holder (however stale) write to a checking
store, extend, release, and take blocks of fences. After each request the reply is compared with
what `ExpectedName` says it must be: the scripts' meaning in a dozen lines of Python. A `Violation`
names what went wrong; the same seed replays it.

Some acquires and releases reach their node in a batch (batch.lua), beside requests for other names.
The batch must do to each name what its own command would do.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hiredis import Reader, pack_command

from asynclock._engine.outbox import parts_of, plain
from asynclock._keys import FENCE, derived
from asynclock._nodes.replies import Failure, ServerError
from asynclock._nodes.script import Script
from asynclock._primitives.lock import QUEUE
from asynclock._rules.quorum import Ballot, Verdict, majority

HOUR = 3_600_000  # ms; no key expires by itself, keys vanish when the world says so
DAY = 24 * HOUR
AHEAD = 2
"""Milliseconds that a floor may be ahead of the clock; the counter is kept for longer by these."""
LOCK, SEEN = "l:r", "l:r:#seen"
OTHERS = ("l:s", "l:t")
"""Locks that only batches use, beside the one under test."""
WAITS, GO = "1", "go"

Terms = tuple[int, int, int]
"""What all acquires of a batch have in common: floor, `not_after`, and the ms of a ticket."""


class Violation(Exception):
    """The protocol was broken: by a reply, or by what followed from all of them."""


class Wire:
    """A blocking connection to a server, small and fast."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = Reader(encoding="utf-8", replyError=ServerError)

    def __call__(self, *words: str | int) -> Any:
        packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub says 1-tuple
        self.socket.sendall(packed)
        while (reply := self.reader.gets()) is False:
            self.reader.feed(self.socket.recv(65536))
        if isinstance(reply, Exception):
            raise reply
        return reply


@dataclass
class ExpectedName:
    """What a node's scripts must answer for a name (without its clock and remaining ttl)."""

    owner: str | None = None
    counter: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of each ticket in the queue."""
    live: dict[str, str] = field(default_factory=dict)
    """The value of each ticket's key, unless it has expired."""

    def acquire(
        self,
        now: int,
        owner: str,
        floor: int,
        not_after: int,
        ms: int = 0,
        ticket: str = "",
        number: int = 0,
        barge: int = 0,
    ) -> list[object]:
        if not_after and now > not_after:
            return [-1]
        ticket = ticket or owner
        if ms and number and self.first():
            self.join(ticket, number, floor)
        head = self.first()
        free, ours = self.owner is None, barge or head in (None, ticket)
        if self.owner == owner or (free and ours):
            usable = floor if floor <= now + 60_000_000 else 0
            self.owner, self.counter = owner, max(self.counter + 1, usable)
            if head:
                self.remove(ticket)
            return [1, self.counter, self.first() or ""]
        told = self.join(ticket, number, floor) if ms else 0
        if free:
            self.wake()
        rank = sorted(self.numbers, key=self.place).index(ticket) if ms else 0
        return [0, self.owner or head, told, rank, int(free)]

    def raise_(self, owner: str, fence: int) -> list[object]:
        before = self.counter
        if self.owner != owner or before > fence:
            return [0, before]
        self.counter = fence
        return [1, before]

    def extend(self, owner: str) -> list[object]:
        return ["1" if self.owner == owner else "0"]

    def release(
        self, now: int, owner: str, keep: int = 0, ticket: str = "", ms: int = 0, number: int = 0
    ) -> list[object]:
        if self.owner != owner:
            return [0, ""]
        self.owner = None
        if ms:
            self.join(ticket, number, now)
        if keep:
            return [1, ""]
        return [1, self.wake()]

    def leave(self, ticket: str) -> list[object]:
        was_first = self.first() == ticket
        self.remove(ticket)
        if was_first:
            self.first()
        return self.pass_()

    def pass_(self) -> list[object]:
        return [0, ""] if self.owner else [1, self.wake()]

    # ---- the queue -----------------------------------------------------------------------------

    def place(self, ticket: str) -> tuple[int, str]:
        return self.numbers[ticket], ticket

    def first(self) -> str | None:
        """Return the first live ticket; forget the dead ones before it."""
        for ticket in sorted(self.numbers, key=self.place):
            if ticket in self.live:
                return ticket
            del self.numbers[ticket]
        return None

    def join(self, ticket: str, number: int, floor: int) -> int:
        highest = max(self.numbers.values(), default=0)
        given = number or self.numbers.get(ticket) or max(floor, highest + 1)
        self.numbers[ticket], self.live[ticket] = given, WAITS
        return given

    def remove(self, ticket: str) -> None:
        self.numbers.pop(ticket, None)
        self.live.pop(ticket, None)

    def wake(self) -> str:
        first = self.first()
        if first:
            self.live[first] = GO
        return first or ""


class Name:
    """The keys of a name on one node, and what they should contain."""

    def __init__(self, lock: str) -> None:
        self.lock, self.counter, self.queue = lock, derived(lock, FENCE), derived(lock, QUEUE)
        self.expected = ExpectedName()

    def expect(self, op: str, now: int, owner: str, *words: Any) -> list[object]:
        name = self.expected
        if op == "acquire":
            return name.acquire(now, owner, *words)
        if op == "raise":
            return name.raise_(owner, *words)
        if op == "release":
            return name.release(now, owner, *words)
        if op == "pass":
            return name.pass_()
        return name.leave(owner) if op == "leave" else name.extend(owner)

    def compare(self, op: str, reply: list[Any], now: int, owner: str, *words: Any) -> None:
        """Remove the remaining time from the reply, which must then be the expected one."""
        expected = self.expect(op, now, owner, *words)
        if op == "acquire" and reply[0] == 0:
            del reply[1]  # the remaining ttl of the holder, or of the first ticket
        if reply != expected:
            raise Violation(f"{op}{(owner, *words)} answered {reply}, not {expected}")

    def check(self, wire: Wire, sha: str) -> None:
        """Compare what a node stores; assert that every key has a ttl."""
        owner, pttl, fence, _ = wire("EVALSHA", sha, 2, self.lock, self.counter, "inspect")
        stored, expected = (owner, fence), (self.expected.owner, self.expected.counter)
        if stored != expected:
            raise Violation(f"the node stores {stored}, not {expected}")
        if (owner and not 0 < pttl <= HOUR) or (
            fence and not 0 < wire("PTTL", self.counter) <= DAY + AHEAD
        ):
            raise Violation("a key without its ttl")
        self.check_queue(wire)

    def check_queue(self, wire: Wire) -> None:
        words = wire("ZRANGE", self.queue, 0, -1, "WITHSCORES")
        queue = {ticket: int(float(words[i + 1])) for i, ticket in enumerate(words) if i % 2 == 0}
        if queue != self.expected.numbers:
            raise Violation(f"the queue is {queue}, not {self.expected.numbers}")
        live = {ticket: wire("GET", derived(self.queue, ticket)) for ticket in queue}
        live = {ticket: value for ticket, value in live.items() if value}
        if live != self.expected.live:
            raise Violation(f"the tickets are {live}, not {self.expected.live}")
        keys = [self.queue, *(derived(self.queue, ticket) for ticket in live)] if queue else []
        if not all(0 < wire("PTTL", key) <= HOUR for key in keys):
            raise Violation("a ticket without its ttl")


@dataclass(frozen=True)
class Part:
    """One release or acquire in a batch."""

    name: Name
    op: str
    owner: str
    request: Request | None = None
    """None for another name than the one under test."""


class Node:
    """A server and what it should be doing."""

    def __init__(self, wire: Wire, script: Script) -> None:
        self.wire, self.script = wire, script
        self.name = Name(LOCK)
        self.others = [Name(lock) for lock in OTHERS]

    def reset(self, counter: int) -> None:
        self.wire("FLUSHALL")
        self.wire("SCRIPT", "LOAD", self.script.source)
        for name in (self.name, *self.others):
            name.expected = ExpectedName(counter=counter if name is self.name else 0)
            # Not missing, because a missing counter counts as one near the clock
            # (test_retention.py).
            self.wire("SET", name.counter, name.expected.counter, "PX", DAY)

    def vanish(self) -> None:
        self.wire("DEL", LOCK)
        self.name.expected.owner = None

    def vanish_ticket(self, ticket: str) -> None:
        self.wire("DEL", derived(self.name.queue, ticket))
        self.name.expected.live.pop(ticket, None)

    def run(self, op: str, owner: str, *words: str | int) -> list[Any]:
        """Execute one script and return its checked reply without the clock."""
        keys: tuple[str, ...] = (LOCK, self.name.counter, self.name.queue)
        sent: Sequence[str | int] = (owner, *words)
        if op == "acquire":
            floor, not_after, *more = words
            sent = (owner, HOUR, floor, not_after, DAY, *more)
        elif op == "raise":
            keys, sent = keys[:2], (owner, *words, DAY)
        elif op == "extend":
            keys, sent = keys[:2], (HOUR, DAY, owner)
        elif op == "pass":
            sent = ()
        *reply, now = self.wire("EVALSHA", self.script.sha, len(keys), *keys, op, *sent)
        self.name.compare(op, reply, now, owner, *words)
        if op == "release":  # its reply doesn't say whether the first ticket was woken
            self.name.check_queue(self.wire)
        return reply

    def batch(self, parts: Sequence[Part], terms: Terms) -> list[list[Any]]:
        """Execute releases and then acquires as one command; return their checked replies."""
        released = [part.name for part in parts if part.op == "release"]
        acquired = [part.name for part in parts if part.op == "acquire"]
        keys = [name.lock for name in (*released, *acquired)]
        keys += [name.queue for name in (*released, *acquired)]
        keys += [name.counter for name in acquired]
        floor, not_after, wait = terms
        words = ("batch", len(released), HOUR, floor, not_after, DAY, wait)
        owners = [part.owner for part in parts]
        reply = self.wire("EVALSHA", self.script.sha, len(keys), *keys, *words, *owners)
        replies, now = one_by_one(reply, len(released), len(acquired)), reply[-1]
        for part, one in zip(parts, replies, strict=True):
            more = terms if part.op == "acquire" else ()
            part.name.compare(part.op, one, now, part.owner, *more)
        return replies

    def check(self) -> None:
        for name in (self.name, *self.others):
            name.check(self.wire, self.script.sha)


def one_by_one(reply: Any, releases: int, acquires: int) -> list[list[Any]]:
    """Return for each name of a batch the reply to its own command, without the clock.

    The library decides all names at once if it can, and each alone otherwise.
    """
    fences = plain(reply, releases, acquires)
    if fences is not None:
        return [[1, ""] for _ in range(releases)] + [[1, fence, ""] for fence in fences[releases:]]
    parts = parts_of(reply, releases, acquires)
    if failed := [part for part in parts if type(part) is Failure]:
        raise Violation(f"a name in a batch failed: {failed}")
    return [["" if word == b"" else word for word in part[:-1]] for part in parts]


@dataclass(eq=False)
class Ticket:
    """A waiter's place: its id, and the number that its client has settled on."""

    ident: str
    number: int = 0


@dataclass(eq=False)
class Holding:
    """An attempt, and what became of it."""

    owner: str
    ballot: Ballot
    seen: int
    """The highest fence given out before it began."""
    began: int
    fence: int = 0
    got: int = 0
    """When it was given its fence."""
    local: bool = False
    """Whether that was by hand-over."""
    target: int = 0
    answers: list[int] = field(default_factory=list)
    """Previous counters, from the raise to `target`."""
    block: list[int] = field(default_factory=list)
    ticket: Ticket | None = None
    told: list[int] = field(default_factory=list)
    """The numbers that nodes gave to its ticket."""


@dataclass(frozen=True)
class Request:
    """One script call on its way to one node; `kind` says what it is for."""

    who: Holding
    node: int
    kind: str
    words: tuple[str | int, ...] = ()
    again: bool = False
    """Sent a second time by something on the way: nobody waits for the reply."""

    @property
    def batched(self) -> bool:
        """Whether this may be part of a batch: it speaks of no ticket but the owner's own."""
        most = {"release": 0, "acquire": 3}
        return len(self.words) <= most.get(self.kind, -1)

    @property
    def terms(self) -> Terms | None:
        """What the acquires of its batch have in common with this one; None for a release."""
        if self.kind != "acquire":
            return None
        floor, not_after, wait = (int(word) for word in (*self.words, 0)[:3])
        return floor, not_after, wait


@dataclass
class Stats:
    held: int = 0
    lost: int = 0
    written_back: int = 0
    handed_over: int = 0
    stale_refused: int = 0
    batches: int = 0
    exchanges: int = 0
    """Batches that release and acquire the name under test."""


class World:
    """One seed's worth of trouble."""

    def __init__(
        self,
        wires: Sequence[Wire],
        script: Script,
        guard: str,
        seed: int,
        ballot: Callable[[int, int], Ballot] = Ballot,
    ) -> None:
        self.random = random.Random(seed)
        self.nodes = [Node(wire, script) for wire in wires]
        self.guard = guard
        self.ballot = ballot
        self.quorum = majority(len(wires))
        self.stats = Stats()
        # Floors are near the servers' clocks, but among themselves the same in each run of a seed.
        seconds, micros = wires[0]("TIME")
        self.epoch = int(seconds) * 1_000_000 + int(micros)

    def round(self, steps: int) -> None:
        """Start anew, with counters that differ for an unknown reason, and make trouble."""
        rng = self.random
        self.loss = rng.choice([0.0, 0.05, 0.3])
        vanishing = rng.choice([0.01, 0.05, 0.2])
        self.floors = rng.choice(["none", "wild", "clock"])
        for node in self.nodes:
            node.reset(rng.randint(1, 6) if rng.random() < 0.2 else 0)
        self.clock = self.highest = 0
        self.given: set[int] = set()
        self.trying: list[Holding] = []
        self.holding: list[Holding] = []
        self.waiting: list[Ticket] = []
        self.requests: list[Request] = []
        self.replies: list[tuple[Request, list[Any]]] = []
        self.last_write: Holding | None = None
        kinds = [self.begin, self.deliver, self.answer, self.vanish, self.give_up, self.use]
        weights = [0.04, 0.4, 0.4, vanishing, 0.01, 0.2]
        for self.clock in range(1, steps + 1):
            rng.choices(kinds, weights)[0]()
        for node in self.nodes:
            node.check()

    # ---- what may happen -----------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.trying) >= 4:
            return
        ballot = self.ballot(len(self.nodes), self.quorum)
        attempt = Holding(f"owner-{self.clock}", ballot, self.highest, self.clock)
        self.trying.append(attempt)
        floor = self.floor()
        too_late = self.random.random() < 0.02
        self.ask(attempt, "acquire", floor, int(too_late), *self.queue(attempt))

    def floor(self) -> int:
        return {
            "none": 0,
            "wild": self.random.choice([0, 7, 30, self.epoch + 10**9]),
            "clock": self.epoch + 20 * self.clock + self.random.randint(-1000, 1000),
        }[self.floors]

    def queue(self, attempt: Holding) -> tuple[str | int, ...]:
        """Choose how the attempt queues; return the words that say so."""
        kind = self.random.random()
        if kind < 0.5:
            return ()
        if kind < 0.75 and self.waiting:
            attempt.ticket = self.waiting.pop()
            return HOUR, attempt.ticket.ident, attempt.ticket.number
        attempt.ticket = Ticket(attempt.owner)
        return (HOUR,) if kind < 0.9 else (HOUR, attempt.owner, 0, 1)

    def deliver(self) -> None:
        """Some request is executed, its reply on the way; or either is lost."""
        if not self.requests:
            return
        request = self.take(self.requests)
        batch = request.batched and self.random.random() < 0.5
        sent = [request, *self.beside(request)] if batch else [request]
        lost = self.random.random()
        done: list[tuple[Request, list[Any]]] = [(one, [None]) for one in sent]
        if lost >= self.loss:
            done = self.execute_batch(sent) if batch else [(request, self.execute(request))]
        for one, reply in done:
            self.executed(one, reply, lost)

    def execute(self, request: Request) -> list[Any]:
        op = "raise" if request.kind == "reserve" else request.kind
        return self.nodes[request.node].run(op, request.who.owner, *request.words)

    def executed(self, request: Request, reply: list[Any], lost: float) -> None:
        if self.random.random() < 0.05:
            self.requests.append(replace(request, again=True))
        if request.again:
            return
        if lost >= 2 * self.loss:
            self.replies.append((request, reply))
        elif self.random.random() < 0.5:
            self.replies.append((request, [None]))  # the connection broke, and we know it

    def beside(self, first: Request) -> list[Request]:
        """Take some requests that may be in one batch with this one."""
        terms, beside, left = first.terms, [], []
        for other in self.requests:
            alike = other.terms is None or terms is None or other.terms == terms
            if other.node == first.node and other.batched and alike and self.random.random() < 0.3:
                beside.append(other)
                terms = terms or other.terms
            else:
                left.append(other)
        self.requests = left
        return beside

    def execute_batch(self, requests: Sequence[Request]) -> list[tuple[Request, list[Any]]]:
        """Execute all in one command, with others for other names; return their replies."""
        node, rng = self.nodes[requests[0].node], self.random
        parts = [Part(node.name, one.kind, one.who.owner, one) for one in requests]
        for _ in range(rng.randint(1, 3)):
            op, owner = rng.choice(["release", "acquire"]), rng.choice(["one", "two", "three"])
            parts.append(Part(rng.choice(node.others), op, owner))
        rng.shuffle(parts)
        parts.sort(key=lambda part: part.op == "acquire")
        given = next((one.terms for one in requests if one.terms), None)
        replies = node.batch(parts, given or (self.floor(), 0, rng.choice([0, HOUR])))
        self.stats.batches += 1
        self.stats.exchanges += len({one.kind for one in requests}) > 1
        found = zip(parts, replies, strict=True)
        return [(part.request, reply) for part, reply in found if part.request]

    def answer(self) -> None:
        """Some reply arrives."""
        if not self.replies:
            return
        request, reply = self.take(self.replies)
        if request.kind == "reserve":
            self.reserved(request, reply)
        elif request.who in self.trying and request.kind in ("acquire", "raise"):
            self.vote(request, reply)

    def vote(self, request: Request, reply: list[Any]) -> None:
        who, ballot = request.who, request.who.ballot
        if reply[0] == 1 and request.kind == "acquire":
            ballot.granted(request.node, reply[1])
        elif reply[0] == 1:
            ballot.raised(request.node)
        elif reply[0] == 0:
            ballot.refuse()
            if request.kind == "acquire" and reply[2]:
                who.told.append(reply[2])
        else:
            ballot.abstain()
        raises = ballot.take_behind()
        self.stats.written_back += bool(raises)
        for node in raises:
            self.requests.append(Request(who, node, "raise", (ballot.fence,)))
        if ballot.verdict is Verdict.WON:
            self.trying.remove(who)
            self.holding.append(who)
            self.give(who, ballot.fence)
            self.stats.held += 1
        elif ballot.verdict is Verdict.LOST:
            self.abandon(who)

    def vanish(self) -> None:
        node = self.random.choice(self.nodes)
        tickets = sorted(node.name.expected.live)
        if tickets and self.random.random() < 0.7:
            node.vanish_ticket(self.random.choice(tickets))
        else:
            node.vanish()
        if self.random.random() < 0.2:
            node.check()

    def give_up(self) -> None:
        if self.trying:
            self.abandon(self.random.choice(self.trying))

    def use(self) -> None:
        """Some holder, stale or not, does something."""
        if not self.holding:
            return
        who = self.random.choice(self.holding)
        kinds = [self.write, self.extend, self.release, self.reserve, self.hand_over]
        self.random.choices(kinds, [3, 1, 2, 3, 3])[0](who)

    # ---- what holders do -----------------------------------------------------------------------

    def write(self, who: Holding) -> None:
        """To a checking store: the script of FencedRedis, on the first server."""
        words = (self.guard, 2, SEEN, SEEN, "claim", who.fence, 0, 1)
        accepted, highest = self.nodes[0].wire("EVAL", *words)
        last = self.last_write
        if not accepted:
            self.stats.stale_refused += 1
            if last is None or highest != last.fence or who.fence >= highest:
                raise Violation(f"the store refused {who} after {last}")
            return
        if last is not None and not last.local and who.got < last.began:
            raise Violation(f"a stale write was accepted: {who} after {last}")
        self.last_write = replace(who)

    def extend(self, who: Holding) -> None:
        self.ask(who, "extend")

    def release(self, who: Holding) -> None:
        """Within a turn, others are woken only if the process doesn't ask again."""
        self.holding.remove(who)
        if self.random.random() < 0.3:
            self.ask(who, "release", 1)
            if self.random.random() < 0.5:
                self.ask(who, "pass")
        else:
            self.ask(who, "release")
        if who.ticket:
            self.leave(who.ticket)

    def reserve(self, who: Holding) -> None:
        """A block of fences, for hand-over inside a process."""
        if not who.target and not who.block:
            who.target = who.fence + self.random.randint(1, 4)
            who.answers = []
            self.ask(who, "reserve", who.target)

    def reserved(self, request: Request, reply: list[Any]) -> None:
        who = request.who
        if reply[0] != 1 or request.words != (who.target,):
            return  # refused, lost, or of an older raise
        who.answers.append(reply[1])
        if len(who.answers) == self.quorum:
            who.block = list(range(max(who.answers) + 1, who.target + 1))
            who.target = 0

    def hand_over(self, who: Holding) -> None:
        """Unique always; that a successor's fence rises is owed only while the lease holds."""
        if who.block:
            who.began, who.local = self.clock, True
            self.give(who, who.block.pop(0))
            self.stats.handed_over += 1

    # ---- helpers -------------------------------------------------------------------------------

    def give(self, who: Holding, fence: int) -> None:
        if fence in self.given:
            raise Violation(f"fence {fence} was given out twice, now to {who}")
        if not who.local and fence <= who.seen:
            raise Violation(f"fence {fence} does not rise above {who.seen}: {who}")
        self.given.add(fence)
        self.highest = max(self.highest, fence)
        who.fence, who.got = fence, self.clock

    def abandon(self, who: Holding) -> None:
        self.trying.remove(who)
        self.stats.lost += 1
        ticket, ballot = who.ticket, who.ballot
        if ticket is None:
            self.ask(who, "release")
            return
        answers = len(ballot.claims) + ballot.refused
        if not ticket.number and who.told and answers + self.quorum > len(self.nodes):
            ticket.number = max(who.told)
        self.ask(who, "release", 0, ticket.ident, HOUR, ticket.number)
        if self.random.random() < 0.5:
            self.waiting.append(ticket)
        elif self.random.random() < 0.8:
            self.leave(ticket)

    def leave(self, ticket: Ticket) -> None:
        gone = Holding(ticket.ident, self.ballot(len(self.nodes), self.quorum), 0, self.clock)
        self.ask(gone, "leave")

    def ask(self, who: Holding, kind: str, *words: str | int) -> None:
        for index in range(len(self.nodes)):
            self.requests.append(Request(who, index, kind, words))

    def take(self, messages: list[Any]) -> Any:
        """Any of them: order is not kept."""
        index = self.random.randrange(len(messages))
        messages[index], messages[-1] = messages[-1], messages[index]
        return messages.pop()
