"""What is made of the Sentinels' opinions. The servers themselves are in tests/replicated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio.sentinel import Sentinel

import asynclock
from asynclock import _clock
from asynclock._nodes import mark, primary, roster
from asynclock._nodes.acks import Acks
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.link import Link
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.replies import Failure
from asynclock._nodes.roster import Heirs
from asynclock._nodes.sentinel import SentinelNode, SentinelView, Service, agreed_primary
from asynclock._nodes.server import ServerNode
from asynclock._nodes.watched import CONFIRMED, POLL, WatchedNode
from asynclock._rules.trust import Facts
from asynclock.events import Observers
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryNode

SETTINGS = NodeSettings(0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True)
DOWN = Failure("no answer")


def told(port: int, epoch: int, replicas: tuple[str, ...] = ("slave",)) -> list[Any]:
    """What one Sentinel replies to the three questions."""
    address = [b"10.0.0.1", str(port).encode()]
    flags = [[b"flags", flag.encode()] for flag in replicas]
    return [address, [b"config-epoch", str(epoch).encode()], flags]


def verdict(*answers: list[Any] | None) -> SentinelView:
    """What a poll of three Sentinels makes of them; None: no answer."""
    return agreed_primary("s", [answer or [DOWN] * 3 for answer in answers])


def test_the_newest_opinion_of_those_who_agree_counts() -> None:
    """A failover back to an old primary is told by its epoch alone."""
    newest = verdict(told(1, 4), told(1, 7, ("slave", "slave")), told(1, 6))
    assert newest == SentinelView("10.0.0.1", 1, 7, 2, 2)
    assert not newest.agrees(SentinelView("10.0.0.1", 1, 4, 2, 2))


def test_a_majority_of_those_configured_is_needed() -> None:
    assert verdict(told(1, 1), None, told(1, 1)).port == 1
    assert verdict(told(2, 1), told(1, 1), told(1, 1)).port == 1
    for answers in ((told(1, 1), None, None), (told(1, 1), told(2, 2), told(3, 3))):
        with pytest.raises(HandshakeError):
            verdict(*answers)


def test_a_sentinel_may_tell_of_what_is_no_text() -> None:
    odd = told(1, 4)
    odd[1] += [b"runid", b"\xff"]
    odd[2] = [[b"name", b"\xfe", b"flags", b"slave"]]
    assert verdict(odd, odd, None) == SentinelView("10.0.0.1", 1, 4, 1, 1)


def test_replicas_that_are_down_acknowledge_nothing() -> None:
    flags = ("slave", "slave,s_down", "slave,disconnected", "slave,o_down")
    assert verdict(*[told(1, 1, flags)] * 3).replicas == 1


class Ends:
    """The part of a link that a watcher uses."""

    stalled_since = 0.0

    def __init__(self) -> None:
        self.causes: list[str] = []

    def close(self, cause: str) -> None:
        """Keep why."""
        self.causes.append(cause)


class Watched(SentinelNode):
    """Its Sentinels say what a test tells them to."""

    def __init__(self, said: SentinelView) -> None:
        WatchedNode.__init__(self, "s@here", nowhere, SETTINGS, Observers())
        self.said: SentinelView | None = said
        self._current = said
        self._heirs = Heirs()
        self.end = Ends()
        self._link = self.end  # type: ignore[assignment]
        self.confirm(_clock.now())

    async def _ask_sentinels(self) -> SentinelView:
        if self.said is None:
            raise HandshakeError(DOWN)
        return self.said


async def nowhere(_node: ServerNode, _limit: float) -> Any:
    raise OSError


@pytest.mark.parametrize(
    "changed", [SentinelView("other", 1, 7, 1, 1), SentinelView("here", 1, 8, 1, 1)]
)
def test_a_primary_that_was_replaced_is_left(changed: SentinelView) -> None:
    """Also one that was named again: in between another one granted leases."""

    async def scenario() -> None:
        node = Watched(SentinelView("here", 1, 7, 1, 1))
        looking = asyncio.create_task(node._look_after())
        await asyncio.sleep(3 * POLL)
        assert node.end.causes == []
        assert node.obstacle(_clock.now()) is None
        node.said = changed
        await asyncio.sleep(POLL + 0.01)
        # Two polls fit into the time, and this link stays.
        assert set(node.end.causes) == {"the Sentinels name another primary"}
        looking.cancel()

    run_virtual(scenario())


def test_a_primary_that_nobody_confirms_is_asked_no_more() -> None:
    async def scenario() -> None:
        node = Watched(SentinelView("here", 1, 7, 1, 1))
        looking = asyncio.create_task(node._look_after())
        await asyncio.sleep(2 * POLL)
        node.said = None
        await asyncio.sleep(CONFIRMED + 0.01)
        assert node.state(_clock.now()) == "down"
        obstacle = node.obstacle(_clock.now())
        assert obstacle is not None
        assert "no answer" in obstacle.cause
        looking.cancel()

    run_virtual(scenario())


def test_a_confirmation_counts_from_the_question() -> None:
    async def scenario() -> None:
        node = Watched(SentinelView("here", 1, 7, 1, 1))
        await asyncio.sleep(10)
        node.confirm(_clock.now() - CONFIRMED / 2)
        await asyncio.sleep(CONFIRMED / 2 + 0.01)
        assert node.obstacle(_clock.now()) is not None

    run_virtual(scenario())


def test_a_reply_that_comes_after_the_confirmation_does_not_count() -> None:
    """The link asks before it passes a grant on."""

    async def scenario() -> None:
        node = Watched(SentinelView("here", 1, 7, 1, 1))
        link = Link(node, 1.0)
        _, facts = node.watched(link, Facts())
        assert facts.lag == CONFIRMED
        assert link.doubted is not None
        assert link.doubted(_clock.now()) is None
        await asyncio.sleep(CONFIRMED + 0.01)
        assert isinstance(link.doubted(_clock.now()), Failure)
        with pytest.raises(HandshakeError):  # nor is a new connection used
            node.watched(link, Facts())

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("left", "marked", "promoted"),
    [
        (mark.Mark(True, 5.0, "-"), 5.0, False),
        (mark.Mark(False, 0.0, "x"), 0.0, True),
        (None, 0.0, True),
    ],
)
async def test_a_primary_has_on_its_disk_only_what_it_did_not_miss(
    monkeypatch: pytest.MonkeyPatch, left: mark.Mark | None, marked: float, *, promoted: bool
) -> None:
    processes = []

    async def leave(_link: object, _key: str, process: str, _roster: str) -> mark.Mark | None:
        processes.append(process)
        return left

    monkeypatch.setattr(primary, "leave_mark", leave)
    primaries = primary.PrimaryDialer(SETTINGS, (), Acks(), "mark")
    link: Any = None
    facts, _ = await primaries._marked(link, Facts(run_id="one", durable=True), "mark", 3, "")
    assert (facts.durable, facts.marked, facts.promoted) == (False, marked, promoted)
    assert processes == ["one.3"], "named again after a failover, it is not the same primary"


async def test_a_mark_names_the_process_that_clients_know() -> None:
    node = MemoryNode()

    async def leave(process: str) -> list[Any]:
        reply: list[Any] = await node.command(
            "EVAL", mark.SCRIPT.source, 1, "m", process, 60_000, ""
        )
        return [reply[0], reply[2]]

    assert await leave("one") == [0, "-"]
    assert await leave("one") == [1, "-"]
    assert await leave("two") == [0, "one"]
    assert await leave("two") == [1, "one"]


async def test_a_mark_tells_since_when_clients_know_the_process() -> None:
    node = MemoryNode()

    async def age(process: str, begins: str = "") -> int:
        script, words = mark.SCRIPT.source, (1, "m", process, 60_000, begins)
        reply: list[Any] = await node.command("EVAL", script, *words)
        assert 50_000 < await node.command("PTTL", "m") <= 60_000
        return int(reply[4] - reply[1]) // 1_000_000

    assert await age("one") == 0
    node.jump_clock(40)
    assert await age("one") == 40
    node.jump_clock(40)
    assert await age("one") == 80, "with each connection, the mark lives on"
    assert await age("two") == 0
    assert await age("three", "0;9;") == 0
    node.jump_clock(40)
    assert await age("three", "0;9;") == 40


async def test_a_mark_keeps_the_roster_of_its_term() -> None:
    node = MemoryNode()

    async def leave(process: str, begins: str) -> list[Any]:
        script, words = mark.SCRIPT.source, (1, "m", process, 60_000, begins)
        reply: list[Any] = await node.command("EVAL", script, *words)
        return [reply[0], reply[3]]

    async def change(seen: str, newer: str) -> str:
        await node.command("EVAL", roster.SCRIPT.source, 1, "m", seen, newer, 60_000)
        found: str = await node.command("GET", "m")
        return found

    assert await leave("one", "0;9.5;") == [0, "0;9.5;"]
    seen = await node.command("GET", "m")
    newer = seen.replace("0;9.5;", "1;9.5;a:1,-b:2")
    assert await change(seen, newer) == newer
    assert await change(seen, "stale") == newer
    assert await leave("one", "0;8;") == [1, "1;9.5;a:1,-b:2"]
    # This client grants without them: it must wait, as at a process that it has not known.
    same, closed = await leave("one", "")
    assert (same, closed[0], closed.partition(";")[2]) == (0, "-", "9.5;a:1,-b:2")
    assert await leave("one", "0;8;") == [1, closed]
    assert await leave("one", "") == [1, closed], "the next one waits for the rest of that time"
    await node.command("SET", "m", "one 1 - 1;9.5;a:1")
    _, since, _, _, now = await node.command("EVAL", mark.SCRIPT.source, 1, "m", "one", 60_000, "")
    assert since == now, "however long the process has been known"
    assert await leave("two", "") == [0, ""], "a new term has no roster, and gets none any more"
    assert await leave("two", "0;8;") == [1, ""]


NOT_KNOWN = Failure("ERR No such master with that name", code="ERR")
WRONG = Failure("WRONGPASS invalid", permanent=True, code="WRONGPASS")


@pytest.mark.parametrize(
    ("answers", "cause", "permanent"),
    [
        ([NOT_KNOWN, NOT_KNOWN, told(1, 1)], "the Sentinels know no service 's'", True),
        ([NOT_KNOWN, DOWN, told(1, 1)], "1 of 3 Sentinels answered", False),
        (
            [told(1, 1), told(2, 2), told(3, 3)],
            r"disagree: 10.0.0.1:1, 10.0.0.1:2, 10.0.0.1:3",
            False,
        ),
        ([told(1, 1), told(2, 2), DOWN], "disagree: 10.0.0.1:1, 10.0.0.1:2$", False),
        ([WRONG, WRONG, WRONG], r"0 of 3 Sentinels answered \(WRONGPASS invalid\)", True),
        ([WRONG, WRONG, DOWN], "0 of 3 Sentinels answered", False),
        ([WRONG, WRONG, told(1, 1)], "1 of 3 Sentinels answered", False),
    ],
)
def test_why_the_sentinels_name_no_primary(answers: list[Any], cause: str, permanent: bool) -> None:
    replies = [[one] * 3 if isinstance(one, Failure) else one for one in answers]
    with pytest.raises(HandshakeError, match=cause) as caught:
        verdict(*replies)
    assert caught.value.failure.permanent is permanent


def about(*replicas: tuple[str, str, str], down_after: int = 1000) -> list[Any]:
    """What a Sentinel replies that sees these replicas: port, run_id and flags."""
    pairs = [
        {
            b"ip": b"10.0.0.2",
            b"port": port.encode(),
            b"runid": run.encode(),
            b"flags": flags.encode(),
        }
        for port, run, flags in replicas
    ]
    master = {b"config-epoch": b"4", b"down-after-milliseconds": b"%d" % down_after}
    return [[b"10.0.0.1", b"1"], master, pairs]


def test_what_any_sentinel_sees_of_the_replicas_counts() -> None:
    """A Sentinel that has just started knows less."""
    young = about()
    view = verdict(
        young,
        about(("7", "one", "slave"), ("8", "two", "slave,s_down"), down_after=3000),
        about(("9", "three", "slave"), down_after=2000),
    )
    assert (view.replicas, view.known, view.silence) == (1, 2, 3.0)
    assert view.processes == {"10.0.0.2:7": "one", "10.0.0.2:9": "three"}


@pytest.mark.parametrize("broken", [[[b"h"], {}, []], [None, {}, []], [[b"h", b"1"], {}, []]])
def test_an_answer_that_cannot_be_read_is_that_of_one_sentinel(broken: list[Any]) -> None:
    assert verdict(broken, told(1, 1), told(1, 1)).port == 1
    with pytest.raises(HandshakeError, match="can't be read"):
        verdict(broken, broken, told(1, 1))


async def test_the_sentinels_have_a_login_of_their_own() -> None:
    service = Service.from_url(
        "redis+sentinel://u%2F:p%40%2F@h1:1,h2/name?db=3"
        "&sentinel_username=watch%2Fer&sentinel_password=a%2Fb%40c"
    )
    assert (service.name, service.data.db) == ("name", 3)
    assert await service.data.credentials() == ("u/", "p@/")
    assert [(one.address, one.db) for one in service.sentinels] == [("h1:1", 0), ("h2:26379", 0)]
    for one in service.sentinels:
        assert await one.credentials() == ("watch/er", "a/b@c")
    plain = Service.from_url("redis+sentinel://u:p@h1,h2/name")
    assert await plain.sentinels[0].credentials() == ()


async def test_all_sentinels_of_a_redis_py_client_are_asked() -> None:
    client = Sentinel([("h1", 1), ("h2", 2), ("h3", 3)]).master_for("name", db=3)
    service = Service.of_pool(client.connection_pool)
    assert (service.name, service.data.db) == ("name", 3)
    assert [one.address for one in service.sentinels] == ["h1:1", "h2:2", "h3:3"]
    assert asynclock.connect(client).nodes()[0].node == "name@h1:1,h2:2,h3:3"


@pytest.mark.parametrize("path", ["", "/", "/a/b"])
def test_a_service_has_one_name(path: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="name of one service"):
        asynclock.connect(f"redis+sentinel://h1,h2{path}")
