"""What `asynclock doctor` asks a server, and what it makes of the answers; the test is the server.

Time is virtual, and a request takes a fifth of a second.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hiredis
import pytest

from asynclock import _clock
from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from asynclock._rules.nodeset import NodeSet
from asynclock._rules.trust import Trust
from asynclock.cli.doctor import probe as probing
from asynclock.cli.doctor.counters import Counters
from asynclock.cli.doctor.probe import Probe, Purpose
from asynclock.testing import run_virtual

PURPOSE = Purpose(1, 10.0, 0.25, "shop:", Acks(), 1.0)
INFO = (
    b"redis_version:7.2.4\r\nrun_id:one\r\nrole:master\r\nuptime_in_seconds:100\r\n"
    b"aof_enabled:1\r\nconnected_slaves:0\r\nmaxmemory_policy:noeviction\r\n"
)
RECORD = NodeSet(3, ("h:6379",)).text()
CONFIG = {
    "aclfile": "/etc/acl",
    "appendfsync": "always",
    "maxclients": "100",
    "min-replicas-to-write": "0",
    "save": "",
    "stop-writes-on-bgsave-error": "yes",
    "timeout": "30",
}
Answer = Callable[[list[str]], Any]


def usual(words: list[str]) -> Any:
    """Answer as a healthy server whose clock is 2 s ahead."""
    match words[:2]:
        case ["INFO", *_]:
            return INFO
        case ["CONFIG", "GET"]:
            return {words[2].encode(): CONFIG[words[2]].encode()}
        case ["HMGET", _]:
            return [b"7", RECORD.encode(), b"h:6379"]
        case ["CLIENT", "LIST"]:
            return b"id=1 name=x"
        case ["SCAN", "0"] if words[3] == "1000":
            return [b"0", [b"shop:a:#fence", b"shop:b", b"other:c:#fence"]]
        case ["MEMORY", "USAGE"]:
            return 72
        case ["TIME"]:
            seconds, micros = divmod(round((_clock.wall() + 2.0) * 1_000_000), 1_000_000)
            return [b"%d" % seconds, b"%d" % micros]
    return b"OK"


class Link:
    """A connection to the server; its answers come half of the way later."""

    def __init__(self, answer: Answer = usual, there: float = 0.1, back: float = 0.1) -> None:
        self.answer, self.there, self.back = answer, there, back
        self.asked: list[str] = []
        self.closed: list[str] = []

    async def ask(self, one: Command) -> Any:
        reader = hiredis.Reader(encoding="utf-8")
        reader.feed(one.packed)
        words: Any = reader.gets()
        shown = re.sub(r"doctor-[0-9a-f]{16}", "KEY", " ".join(words))
        self.asked.append(shown.replace(SCRIPT.source, "SOURCE").replace(SCRIPT.sha, "SHA"))
        await asyncio.sleep(self.there)
        reply = self.answer(words)
        await asyncio.sleep(self.back)
        return reply

    def close(self, why: str) -> None:
        self.closed.append(why)


def examined(
    monkeypatch: pytest.MonkeyPatch, *links: Link | Failure, purpose: Purpose = PURPOSE
) -> Probe:
    """Probe a server over these connections, one after the other."""
    waiting = list(links)

    async def greet(*_: Any) -> Any:
        link = waiting.pop(0)
        if isinstance(link, Failure):
            raise HandshakeError(link)
        return link

    monkeypatch.setattr(probing, "greet", greet)
    url = "redis://ann:secret@h:6379"
    return run_virtual(probing.probe(Endpoint.from_url(url), url, purpose))


def test_a_healthy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Link(), Link()
    purpose = replace(PURPOSE, acks=Acks(1, durable=True))
    found = examined(monkeypatch, first, second, purpose=purpose)
    assert first.asked == [
        "INFO",
        "CONFIG GET appendfsync",
        "CLIENT TRACKING ON OPTIN NOLOOP",
        "CLIENT CACHING YES",
        "HMGET shop::#set accepted value name",
        "CLIENT LIST TYPE NORMAL",
        *(f"CONFIG GET {name}" for name in CONFIG),
        "SET shop:KEY doctor PX 1000",
        "GET shop:KEY",
        "PTTL shop:KEY",
        "PEXPIRE shop:KEY 1000",
        "DEL shop:KEY",
        "TIME",
        "SCRIPT LOAD SOURCE",
        "EVAL return 1 0",
        "EVALSHA SHA 2 shop:KEY shop:KEY-counter inspect",
        "SCAN 0 COUNT 1",
        "WAIT 0 1",
        "WAITAOF 0 0 1",
        "SCAN 0 COUNT 1000",
        "MEMORY USAGE shop:a:#fence",
        *["TIME"] * 4,
    ]
    assert second.asked == ["INFO server"]
    assert (first.closed, second.closed) == (["done"], ["done"])
    assert found.trips == pytest.approx([0.2] * 4, abs=1e-4)
    assert found.offset == pytest.approx(2.0, abs=1e-4)
    assert (found.jumped, found.rate, found.down, found.refused) == (0.0, 0.0, None, {})
    assert (found.url, found.login, found.user) == ("redis://ann:***@h:6379", True, "ann")
    assert found.config == CONFIG
    assert (found.info["run_id"], found.other_run_id) == ("one", "one")
    facts = found.facts
    assert (facts.version, facts.durable, facts.tracking) == ("7.2.4", True, True)
    assert found.counters == Counters(1, 72)
    assert (found.epoch, found.kept.name, found.clients) == (3, "h:6379", b"id=1 name=x")
    assert found.waits == 0.0, "the first contact with a single server is free"


def test_what_a_server_refuses_is_kept_and_the_rest_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no = Failure("NOPERM no", code="NOPERM")
    refused = {"INFO", "CONFIG", "CLIENT", "HMGET", "SCAN", "DEL"}

    def answer(words: list[str]) -> Any:
        return no if words[0] in refused else usual(words)

    first = Link(answer)
    full = Failure("max number of clients")
    found = examined(monkeypatch, first, full, purpose=replace(PURPOSE, nodes=3))
    assert found.refused == {
        "INFO": no,
        "CONFIG GET": no,
        "CLIENT TRACKING": no,
        "SCAN": no,
        "DEL": no,
        "a second connection": full,
    }
    assert "CLIENT CACHING YES" not in first.asked, "it would be refused as well"
    assert (found.down, found.config, found.info, found.counters) == (None, {}, {}, None)
    assert not found.facts.tracking
    assert found.waits > 10.0, "without INFO a node counts as restarted"
    assert found.waits_because
    assert found.offset == pytest.approx(2.0, abs=1e-4)
    assert first.closed == ["done"]


@pytest.mark.parametrize(
    ("nodes", "max_ttl", "uptime", "disks_kept", "waits"),
    [
        (1, 30.0, 5, False, False),
        (3, 30.0, 5, False, True),
        (3, 30.0, 100, False, False),
        (3, 300.0, 100, False, True),
        (3, 300.0, 100, True, False),
    ],
)
def test_whether_a_node_waits_depends_on_what_it_is_used_for(
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    max_ttl: float,
    uptime: int,
    disks_kept: bool,
    waits: bool,
) -> None:
    def answer(words: list[str]) -> Any:
        if words[0] == "INFO":
            return INFO.replace(b"seconds:100", b"seconds:%d" % uptime)
        return usual(words)

    purpose = replace(PURPOSE, nodes=nodes, max_ttl=max_ttl, disks_kept=disks_kept)
    found = examined(monkeypatch, Link(answer), Link(answer), purpose=purpose)
    assert (found.waits > 0) is waits
    assert bool(found.waits_because) is waits


def test_a_server_that_can_not_be_greeted_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def diagnose(endpoint: Endpoint) -> str:
        return f"tls of {endpoint.host}"

    monkeypatch.setattr(probing, "diagnose", diagnose)
    gone = Failure("refused")
    found = examined(monkeypatch, gone)
    assert (found.down, found.tls, found.info) == (gone, "tls of h", {})


def test_two_servers_behind_one_address_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examined(monkeypatch, Link(), Link(lambda _: INFO.replace(b":one", b":two")))
    assert (found.facts.run_id, found.other_run_id) == ("one", "two")


# ---- clocks -------------------------------------------------------------------------------------


def watched(link: Link, seconds: float = 1.0) -> Probe:
    found = Probe(Endpoint.from_url("redis://h"), "redis://h", login=False)
    run_virtual(probing._watch_clock(found, link, Trust(10.0), seconds))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("first", "later"), [((0.4, 0.0), (0.0, 0.2)), ((0.0, 0.4), (0.2, 0.0))], ids=["there", "back"]
)
def test_requests_that_take_different_times_are_no_rate_of_a_clock(
    first: tuple[float, float], later: tuple[float, float]
) -> None:
    """The clock is good: only the way there, or the way back, is longer at first."""

    def answer(words: list[str]) -> Any:
        link.there, link.back = first if len(link.asked) == 1 else later
        return usual(words)

    link = Link(answer, *first)

    async def ask(one: Command) -> Any:
        link.there = first[0] if not link.asked else later[0]
        return await Link.ask(link, one)

    link.ask = ask  # type: ignore[method-assign]
    assert watched(link, 3.0).rate == 0.0


@pytest.mark.parametrize("rate", [0.1, -0.1])
def test_the_rate_of_a_clock_is_what_it_is_at_least(rate: float) -> None:
    began: list[float] = []

    def answer(_: list[str]) -> Any:
        began.append(_clock.wall())
        now = began[0] + (began[-1] - began[0]) * (1 + rate)
        seconds, micros = divmod(round(now * 1_000_000), 1_000_000)
        return [b"%d" % seconds, b"%06d" % micros]

    found = watched(Link(answer), 20.0)
    assert 0.08 < abs(found.rate) < 0.1
    assert found.rate * rate > 0
    assert found.jumped == 0.0


def test_a_clock_is_looked_at_for_as_long_as_asked_and_not_without_a_pause() -> None:
    assert len(watched(Link(there=0.0, back=0.0), 1.0).trips) in (10, 11)
    assert len(watched(Link(there=0.0, back=0.0), 5.0).trips) in (50, 51)
    gone = watched(Link(lambda _: Failure("gone")))
    assert (gone.trips, gone.offset) == ([], None)


@pytest.mark.parametrize(("trips", "median"), [([], None), ([3, 1], 3), ([9, 1, 2], 2)])
def test_the_round_trip_is_the_median(trips: list[float], median: float | None) -> None:
    found = Probe(Endpoint.from_url("redis://h"), "redis://h", login=False, trips=trips)
    assert found.round_trip == median


def test_numbers_of_a_server_that_are_none() -> None:
    info = {"below": "-5", "above": "7", "odd": "7k", "empty": ""}
    found = Probe(Endpoint.from_url("redis://h"), "", login=False, info=info, config=info)
    assert [found.number(key) for key in (*info, "missing")] == [-5, 7, 0, 0, 0]
    assert [found.setting(key) for key in (*info, "missing")] == [0, 7, 0, 0, 0]
