"""What `inspect` and `top` say when nodes are missing, and on terminals of any size."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import asynclock
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.waiters import Waiter
from asynclock._inspect.monitor import Monitor, SeenLease
from asynclock.cli.look import held, rows
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.contrib.apps import client_for

from .conftest import PATIENCE, Program
from .schema import check
from .terminal import Session
from .test_inspect import locks_of

LONG = "orders:shipping:eu-central-1:customer-0042:invoice"


def waiters(count: int) -> tuple[Waiter, ...]:
    return tuple(Waiter(f"{n:032x}:web-{n}:1", woken=False) for n in range(count))


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (20, "20 waiting; the first goes next", "20     web-19:1"),
        (21, "21 waiting; the first goes next", "and 1 more, which --json lists"),
        # The nodes were asked for 1,000, of which some had died.
        (995, "995 or more waiting; the first goes next", "and 975 more, which --json lists"),
    ],
)
def test_a_long_queue_is_cut_and_says_so(
    capsys: pytest.CaptureFixture[str], count: int, first: str, last: str
) -> None:
    held._show_queue(waiters(count))
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == (first, last)
    assert len(lines) <= 23
    assert rows._waiting(waiters(count)) == f"{first.partition(' waiting')[0]}, first web-0:1"


async def test_every_json_output_keeps_to_its_schema(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes)
    async with locks_of(asynclock_nodes) as locks:
        lease = await locks.lock("a").acquire()
        slot = await locks.semaphore("pool", 2).acquire()
        await locks.event("bell").set()
        await locks.latch("done", 3).count_down()
        await asynclock_nodes[2].kill()
        all_, one, free, pool, bell, doctor, nothing = await program.each(
            ("inspect", "--all", "--json"),
            ("inspect", "a", "--json"),
            ("inspect", "free", "--json"),
            ("inspect", "pool", "--json"),
            ("inspect", "bell", "--json"),
            ("doctor", "--json", "--watch", "0.2"),
            ("release", "gone", "--force", "--yes", "--json"),
        )
        released = await program("release", "a", "--force", "--yes", "--json")
        bench = await program(
            "bench", "--json", "--seconds", "0.05", "--rounds", "1", "--tasks", "2"
        )
        async with client_for(locks, "http://localhost") as client:
            page = (await client.get("/state")).json()
        await slot.release()
        await lease.release()
    check(json.loads(all_.out), "inspect --all")
    for shown in (one, free, pool, bell):
        check(json.loads(shown.out), "inspect")
    check(json.loads(doctor.out), "doctor")
    check(json.loads(nothing.out), "release")
    check(json.loads(released.out), "release")
    check(json.loads(bench.out), "bench")
    check(page, "page")


async def test_silence_is_no_disagreement(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes, node_timeout=0.5)
    first, second, third = asynclock_nodes
    for node in (first, second):
        await node.command("SET", "asynclock:young", f"{1:032d}:a:1", "PX", 60_000)
        await node.command("SET", "asynclock:split", f"{id(node):032d}:a:1", "PX", 60_000)
    await third.command("SET", "asynclock:torn", f"{1:032d}:a:1", "PX", 60_000)
    young, split, torn = await program.each(
        ("inspect", "young"), ("inspect", "split"), ("inspect", "torn")
    )
    assert "not on 1 of 3 nodes" in young.out
    assert "disagree" not in young.out
    assert "nobody has a quorum: no quorum, nodes disagree, not on 1 of 3 nodes" in split.out
    assert "nobody has a quorum: no quorum, not on 2 of 3 nodes" in torn.out
    await first.kill()
    await second.kill()
    torn, listed = await program.each(("inspect", "torn"), ("inspect", "--all", "--json"))
    assert torn.status == 69
    assert "torn: unknown: 1 of 3 nodes answered" in torn.out
    (found,) = json.loads(listed.out)["locks"]
    assert (found["conflict"], found["silent"], found["missing"]) == (False, 2, 0)


async def test_a_node_without_a_vote_is_not_up(
    program: Program, asynclock_servers: StartServers
) -> None:
    """Servers that have just started may have forgotten who has what: "free" would mislead."""
    nodes = await asynclock_servers(3)
    program.use(nodes, restart_guard=True, max_ttl=3600.0)
    plain, data, board = await program.each(
        ("inspect", "x"), ("inspect", "x", "--json"), ("top", "--once")
    )
    assert "no owner is known, but 3 of 3 nodes have no vote" in plain.out
    assert len(json.loads(data.out)["without_vote"]) == 3
    assert board.out.startswith("3 of 3 nodes without a vote (3 quarantined): nothing can be")
    assert board.out.count("quarantined  ") == 3


async def test_what_is_cut_ends_with_an_ellipsis(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes)
    label = "worker-eu-central-1a.production.example.org:31337:ship"
    async with locks_of(asynclock_nodes, label) as locks:
        lease = await locks.lock(LONG).acquire()
        for width in (40, 80, 200):
            for words in (("inspect", "--all"), ("inspect", LONG)):
                session = Session(program, *words, size=(24, width))
                try:
                    assert await session.end() == 0
                finally:
                    session.close()
                shown = session.screen
                assert ("…" in shown) == (width == 80), shown
                if width != 80:
                    assert LONG in shown
                    assert label in shown
        await lease.release()


async def test_top_scrolls_on_a_narrow_terminal(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    program.use(asynclock_nodes)
    script = (
        "for i = 1, 300 do redis.call('SET', string.format('asynclock:n%03d', i), "
        "string.rep('0', 32) .. ':host:1', 'PX', 600000) end"
    )
    for node in asynclock_nodes:
        await node.command("EVAL", script, 0)
    session = Session(program, "top", "--interval", "0.2", size=(24, 40))
    try:
        here = await session.shows("of 300")
        await session.shows("n001")
        session.type("\x1b[F")  # End
        here = await session.shows("-300 of 300", here)
        assert "n300" in session.screen
        session.type("\x1b[5~")  # PgUp
        await session.shows("n280", here)
        session.type("g")
        here = await session.shows("1-", here)
        await asynclock_nodes[0].freeze()
        here = await session.shows("1 of 3 nodes without a vote", here)
        await asynclock_nodes[1].freeze()
        await session.shows("nothing can be locked", here)
        session.type("q")
        assert await session.end() == 0
    finally:
        session.close()
        for node in asynclock_nodes[:2]:
            await node.thaw()


async def test_a_page_of_locks_is_asked_about_at_once(
    program: Program, asynclock_nodes: list[LocalServer]
) -> None:
    """Fifty locks per command, and none of them keeps the server busy for long."""
    program.use(asynclock_nodes)
    node = asynclock_nodes[0]
    script = "for i = 1, 2000 do redis.call('SET', 'asynclock:n' .. i, 'o:h:1', 'PX', 600000) end"
    for one in asynclock_nodes:
        await one.command("EVAL", script, 0)
        await one.command("LPUSH", "asynclock:not-ours", 1)
    await node.command("CONFIG", "RESETSTAT")
    ended = await program("inspect", "--all")
    assert "2000 held" in ended.out, ended.out[-200:]
    stats = await node.command("INFO", "commandstats")
    calls = stats.partition("cmdstat_evalsha:calls=")[2].partition(",")[0]
    assert int(calls) < 300


async def test_a_wait_for_a_cluster_of_pages_ends(
    asynclock_nodes: list[LocalServer],
) -> None:
    """A node that dies in the middle of a survey is an error in it, no end of it."""
    from asynclock._access import node_access
    from asynclock._inspect.survey import survey

    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, restart_guard=False, node_timeout=1.0) as locks:
        for node in asynclock_nodes:
            await node.command("SET", "asynclock:x", "o:h:1", "PX", 60_000)
        looking = asyncio.ensure_future(survey(node_access(locks)))
        await asynclock_nodes[0].kill()
        async with asyncio.timeout(PATIENCE):
            found = await looking
    assert [one.name for one in found.held] == ["x"]


def test_scrolling_sorts_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting 100,000 locks takes a second, which no key may wait for."""
    from asynclock.cli.look import top

    sorts: list[tuple[int, bool, str]] = []

    def ordered(monitor: Monitor, *how: Any) -> list[Any]:
        sorts.append(how)
        return list(rows.ordered(monitor, *how))

    monkeypatch.setattr(top, "ordered", ordered)
    view = top.TopScreen(Monitor())
    for key in ("down", "end", "s", "up", "r", "page down", "/", "x", "\r", "home"):
        view._key(key)
        view._render()
    wanted = [(0, False, ""), (1, False, ""), (1, True, ""), (1, True, "x")]
    assert sorts == wanted
    view.monitor.leases = {}
    view._render()
    assert sorts == [*wanted, wanted[-1]]


# Name, holder, first and last seen, remaining, fence, waiting, nodes that hold it (of two).
SEEN = (
    ("b", "web-2", 3.0, 5.0, 7, 0, 1),
    ("a", "web-3", 1.0, 9.0, 8, 2, 2),
    ("C", "web-1", 2.0, 7.0, 9, 1, 2),
)


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("name", "abC"),
        ("holder", "Cba"),
        ("seen for", "aCb"),
        ("remaining", "bCa"),
        ("fence", "baC"),
        ("nodes", "baC"),
        ("waiting", "bCa"),
        ("note", "aCb"),
    ],
)
def test_each_column_sorts(column: str, names: str) -> None:
    monitor = Monitor()
    for name, holder, first, left, fence, queue, kept in SEEN:
        views = [
            NodeView(f"n{n}", f"{fence:032x}:{holder}:1" if n < kept else None, left, fence)
            for n in range(2)
        ]
        found = Inspection(name, tuple(views), 2, waiting=waiters(queue))
        monitor.leases[name, "", ""] = SeenLease(found, first, 10.0)
    at = rows.COLUMNS.index(column)
    shown = [lease.found.name for lease in rows.ordered(monitor, at, reverse=False, search="")]
    assert "".join(shown) == names
    shown = [lease.found.name for lease in rows.ordered(monitor, at, reverse=False, search="EB-3")]
    assert shown == ["a"]
