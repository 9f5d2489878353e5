"""The data of the live page and who gets it: with nodes in memory, without a browser."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import asynclock
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.waiters import Waiter
from asynclock._inspect.monitor import Ended, Monitor, SeenLease
from asynclock._inspect.survey import SLICE, Survey
from asynclock.contrib.dashboard import app as page
from asynclock.contrib.dashboard import dashboard, snapshots
from asynclock.contrib.dashboard.history import History
from asynclock.contrib.dashboard.rows import Row, in_order, rows_of
from asynclock.contrib.dashboard.snapshots import MOST_LOCKS, MOST_LOSSES, Query, Snapshots
from asynclock.errors import ConfigurationError
from asynclock.events import Lost, NodeDown, NodeUp, Released
from asynclock.testing import lose
from tests.waiting import until, waits

TOKEN = "0123456789abcdef"
"""As short as a token may be."""
NUMBERS = itertools.count()
OWNERS = [f"{digit * 32}:host-{digit}:1" for digit in "ab"]


@pytest.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    addresses = [f"memory://dashboard-{next(NUMBERS)}" for _ in range(3)]
    async with asynclock.connect(*addresses, label="Zoe:1") as locks:
        await locks.ready(voting=True)
        yield locks


def client_of(locks: asynclock.LockManager, **more: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(dashboard(locks, token=TOKEN, **more), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give snapshots a clock that stands still: its `now` can be set."""
    made = SimpleNamespace(now=1000.0)
    made.time = made.monotonic = lambda: made.now
    monkeypatch.setattr(snapshots, "time", made)
    return made


def refreshes(shots: Snapshots, clock: Any, *, last: float = 0.0) -> list[float]:
    """Return when the nodes are asked from now on; asking them takes `last` seconds."""
    asked: list[float] = []
    refresh = shots._monitor.refresh

    async def noted(locks: asynclock.LockManager) -> None:
        asked.append(clock.now)
        clock.now += last
        await refresh(locks)

    shots._monitor.refresh = noted  # type: ignore[method-assign]
    return asked


# ---- who gets it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/page.js", "/state", "/nowhere"])
@pytest.mark.parametrize("host", ["localhost", "rebound.example.org"])
async def test_each_answer_is_shut_off_from_other_pages(
    locks: asynclock.LockManager, path: str, host: str
) -> None:
    async with client_of(locks) as client:
        headers = (await client.get(path, headers={"Host": host})).headers
    parts = headers["content-security-policy"].split("; ")
    policy = dict(part.split(" ", 1) for part in parts)
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert {name for name, sources in policy.items() if sources == "'none'"} == {
        *("default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types")
    }
    assert set(policy.values()) == {"'none'", "'self'"}
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers.get_list("cache-control") == ["no-store"]


@pytest.mark.parametrize(
    ("host", "status"), [(b"LocalHost:8765", 200), (b"\xff\xfe", 421), (b"", 421)]
)
async def test_a_host_is_compared_without_case(
    locks: asynclock.LockManager, host: bytes, status: int
) -> None:
    async with client_of(locks) as client:
        assert (await client.get("/", headers={b"Host": host})).status_code == status


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_of_a_token_has_any_case(
    locks: asynclock.LockManager, scheme: str
) -> None:
    async with client_of(locks) as client:
        for blanks in (" ", "  "):
            headers = {"Authorization": f"{scheme}{blanks}{TOKEN}"}
            assert (await client.get("/state", headers=headers)).status_code == 200


def test_a_token_has_sixteen_characters(locks: asynclock.LockManager) -> None:
    with pytest.raises(ConfigurationError, match="at least 16"):
        dashboard(locks, token=TOKEN[1:])


# ---- the stream ----------------------------------------------------------------------------------


class Slow:
    """Snapshots that are not ready before they may be, and a picture of this many seconds."""

    def __init__(self, *, pace: float = 0.0, ready: bool = True) -> None:
        self.pace = pace
        self.ready = asyncio.Event()
        self.cancelled = False
        if ready:
            self.ready.set()

    async def take(self, query: Query, *, at_once: bool) -> Any:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return {}


def stream_of(slow: Slow) -> Any:
    view = page._View(asynclock.connect("memory://"), TOKEN)
    view._snapshots = slow  # type: ignore[assignment]
    return view._stream(Query())


async def test_a_viewer_that_goes_leaves_no_work_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ALIVE", 0.01)
    slow = Slow(ready=False)
    stream = stream_of(slow)
    assert await anext(stream) == b": at work\n\n"
    await stream.aclose()
    await until(lambda: slow.cancelled)


async def test_a_slow_picture_keeps_no_stream_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that shuts down waits for its streams."""
    monkeypatch.setattr(page, "ALIVE", 0.001)
    monkeypatch.setattr(page, "STREAM", 0.01)
    pieces = [piece async for piece in stream_of(Slow(pace=1.0))]
    assert pieces.count(b": at rest\n\n") <= 10


def test_the_page_waits_for_several_signs_of_life() -> None:
    script = Path(page.__file__).with_name("page.js").read_text("utf-8")
    found = re.search(r"SILENCE = (\d+)", script)
    assert found
    assert int(found[1]) >= 3 * page.ALIVE * 1000
    assert page.STREAM <= 15, "orchestrators kill a server that needs half a minute to end"


# ---- how often the nodes are asked ---------------------------------------------------------------


async def test_all_viewers_share_a_snapshot(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    asked = refreshes(shots, now)
    await asyncio.gather(*(shots.take(Query()) for _ in range(5)))
    now.now += 0.99
    await shots.take(Query())
    assert asked == [1000.0]
    now.now = 1001.0
    await shots.take(Query())
    assert asked == [1000.0, 1001.0]


async def test_snapshots_that_take_long_are_taken_seldom(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they take a fifth of a CPU at most."""
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    asked = refreshes(shots, now, last=2.0)
    for seconds in range(21):
        now.now = 1000.0 + seconds
        await shots.take(Query())
    assert shots.pace == 8.0
    assert asked == [1000.0, 1010.0, 1020.0]


async def test_a_new_request_gets_a_recent_snapshot_at_once(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    asked = refreshes(shots, now)
    assert (await shots.take(Query(), at_once=True))["held"] == 0
    for later, times in ((5.0, 1), (11.0, 1), (12.5, 2)):
        now.now = 1000.0 + later
        await shots.take(Query(), at_once=True)
        assert len(asked) == times
    now.now += 5.0
    await shots.take(Query())
    assert len(asked) == 3, "who looks on gets a new one"


# ---- what it says --------------------------------------------------------------------------------


async def test_the_latest_losses_come_first_and_not_all_are_kept(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    for number in range(MOST_LOSSES + 1):
        now.now += 1
        locks._observers(Lost(str(number), "owner", 7, "on purpose", 2.5))
    locks._observers(Released("released", "owner", 1, 3.0, 1.0))
    losses = (await shots.take(Query()))["losses"]
    assert [one["name"] for one in losses] == [str(n) for n in range(MOST_LOSSES, 0, -1)]
    latest = losses[0]
    assert (latest["at"], latest["fence"], latest["held"]) == (now.now, 7, 2.5)
    assert latest["reason"] == "on purpose"


async def test_the_counts_of_this_process(locks: asynclock.LockManager) -> None:
    shots = Snapshots(locks)
    own: Any = None
    async with asynclock.connect(*(node.node for node in locks.nodes())) as others:
        async with others.lock("a"):
            assert await locks.lock("a").try_acquire() is None
            assert (await shots.take(Query()))["own"]["refused"] == 1
            waiting = asyncio.create_task(locks.lock("a").acquire())
            await waits(locks)
            shots._stale_at = 0.0
            taken = await shots.take(Query())
            own = taken["own"]
        assert (own["acquired"], own["waiting"], own["lost"]) == (0, 1, 0)
        assert [(one["name"], one["waiting"]) for one in taken["locks"]] == [("a", 1)]
        lease = await waiting
    lose(lease)
    shots._stale_at = 0.0
    own = (await shots.take(Query()))["own"]
    assert (own["acquired"], own["waiting"], own["lost"]) == (1, 0, 1)


async def test_names_for_which_only_tasks_of_this_process_wait_are_shown(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"{number:04}": 1 for number in range(MOST_LOCKS + 50)}
    monkeypatch.setattr(asynclock.LockManager, "waiters", lambda _: many)
    taken = await Snapshots(locks).take(Query(limit=MOST_LOCKS))
    assert [one["name"] for one in taken["locks"]] == list(many)[:MOST_LOCKS]
    assert (taken["waited_for"], taken["waiting"], taken["held"]) == (250, 250, 0)


async def test_a_lock_is_found_by_its_name_its_part_and_its_holder(
    locks: asynclock.LockManager,
) -> None:
    shots = Snapshots(locks)
    async with asynclock.connect(*(n.node for n in locks.nodes()), label="abel:2") as others:
        async with locks.semaphore("Pool", 2).acquire(), others.lock("other"):
            found = {
                search: (await shots.take(Query.of({"search": search})))["locks"]
                for search in ("pOOL", "zOE:", "abel", "nobody", "")
            }
            by_holder = (await shots.take(Query.of({"sort": "holder"})))["locks"]
    names = {search: [one["name"] for one in rows] for search, rows in found.items()}
    assert names == {
        "pOOL": ["Pool"],
        "zOE:": ["Pool"],
        "abel": ["other"],
        "nobody": [],
        "": ["Pool", "other"],
    }
    (pool,) = found["pOOL"]
    assert (pool["holder"], pool["nodes"], pool["ours"]) == ("Zoe:1", 3, True)
    assert pool["part"] in ("0", "1")
    assert [one["holder"] for one in by_holder] == ["abel:2", "Zoe:1"]
    taken = await shots.take(Query())
    assert (taken["quorum"], len(taken["nodes"]), taken["trouble"]) == (2, 3, None)


def lease(*views: NodeView, name: str = "a", kind: str = "lock", part: str = "") -> SeenLease:
    return SeenLease(Inspection(name, views, 2, kind, part), 0.0, 0.0)


def view(owner: str | None, error: str | None = None, *, left: float = 5.0) -> NodeView:
    return NodeView("node", owner, left if owner else None, 9, error)


def test_what_nodes_disagree_about_is_shown_as_it_is() -> None:
    def row(*views: NodeView, ours: str = "") -> dict[str, Any]:
        return Row("a", "lock", [lease(*views)]).as_json({ours})

    one, other = OWNERS
    most = row(view(one), view(other), view(one), ours=one)
    assert (most["holder"], most["nodes"], most["agreed"]) == ("host-a:1", 2, False)
    assert most["ours"]
    assert "nodes disagree" in most["note"]
    assert not row(view(one), view(other), view(one), ours=other)["ours"]
    alone = row(view(one), view(None), view(None), ours=one)
    assert (alone["nodes"], alone["agreed"], alone["ours"]) == (1, False, False)
    assert "no quorum" in alone["note"]
    fine = row(view(one), view(one), view(one))
    assert (fine["agreed"], fine["note"], fine["remaining"]) == (True, "", 5.0)


def test_several_leases_of_a_name_are_one_row() -> None:
    one, other = OWNERS
    leases = [
        lease(*[view(owner)] * 3, name="pool", kind="semaphore", part=str(part))
        for part, owner in enumerate((one, other))
    ]
    row = Row("pool", "semaphore", leases).as_json(())
    assert (row["title"], row["part"], row["holders"]) == ("pool [semaphore]", "", 2)
    single = Row("pool", "semaphore", leases[:1]).as_json(())
    assert (single["title"], single["part"]) == ("pool [semaphore 0]", "0")


def watched(*leases: SeenLease, **queues: tuple[Waiter, ...]) -> Monitor:
    monitor = Monitor()
    monitor.leases = {(one.found.name, one.found.part, str(n)): one for n, one in enumerate(leases)}
    monitor.survey = Survey([], queues={(name, "lock"): queue for name, queue in queues.items()})
    return monitor


async def test_nodes_that_differ_are_red_from_the_second_picture_on() -> None:
    """Nodes are read at different moments: a name that is passed on looks like a disagreement."""
    one, other = OWNERS
    monitor = watched(lease(view(one), view(other), view(one)))
    (row,), differ = await rows_of(monitor, {}, ())
    assert (row.level, differ) == ("", {("a", "lock")})
    (row,), _ = await rows_of(monitor, {}, differ)
    assert (row.level, row.why) == ("red", "nodes disagree")


async def test_a_wait_stands_out_when_it_is_longer_than_the_usual_hold() -> None:
    now = time.time()
    waiter = Waiter("0" * 32 + ":host:1", woken=False, since=now - 5)
    fine = lease(*[view(OWNERS[0])] * 3)
    monitor = watched(fine, a=(waiter,))
    (row,), _ = await rows_of(monitor, {}, ())
    assert (row.level, row.why, row.usual) == ("", "", None), "less than 10 s, and no hold known"
    ended = Ended("a", "lock", "", "host:1", now - 100, now - 98, "released")
    monitor.ended.extend([ended] * 2)
    (row,), _ = await rows_of(monitor, {}, ())
    assert row.usual is None, "too few to say what is usual"
    monitor.ended.append(ended)
    (row,), _ = await rows_of(monitor, {}, ())
    assert (row.level, row.usual) == ("amber", 2.0)
    assert row.why == "the longest wait is over the usual hold of 2 s"


@pytest.mark.parametrize(
    ("part", "shared", "why"),
    [
        ("read", False, "a writer waits for 2 readers"),
        ("write", True, "a reader waits for a writer"),
    ],
)
def test_readers_and_writers_that_block_each_other(part: str, shared: bool, why: str) -> None:
    leases = [lease(*[view(OWNERS[0])] * 3, kind="rwlock", part=part)] * 2
    waiter = Waiter("0" * 32 + ":host:1", woken=False, since=time.time() - 5, shared=shared)
    row = Row("a", "rwlock", leases, (waiter,), since=waiter.since)
    row.judge(odd=False)
    assert (row.level, row.why) == ("amber", why)


def test_what_is_wrong_comes_first_and_then_what_is_waited_for() -> None:
    rows = [
        Row("calm", "lock"),
        Row("b", "lock", here=1, since=50.0),
        Row("a", "lock", here=1, since=60.0),
        Row("amber", "lock", here=1, since=70.0, level="amber"),
        Row("red", "lock", level="red"),
    ]
    assert [row.name for row in in_order(rows, "attention")] == ["red", "amber", "b", "a", "calm"]


@pytest.mark.parametrize("column", snapshots.COLUMNS)
def test_rows_are_sorted_by_each_column_and_then_by_name(column: str) -> None:
    some = [lease(*[view(OWNERS[1 - at])] * 3, name=name) for at, name in enumerate("ab")]
    rows = [Row(one.found.name, "lock", [one]) for one in some] + [Row("c", "lock")]
    names = [row.name for row in in_order(rows, column)]
    wanted = {"attention": "abc", "name": "abc", "holder": "cba", "waiting": "abc"}
    assert names == list(wanted.get(column, "cab"))


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        ({"search": "A" * 1000}, Query(search="a" * 200)),
        ({"limit": "0"}, Query(limit=1)),
        ({"offset": "123456789"}, Query(offset=123456789)),
        ({"reverse": "0"}, Query()),
        ({"reverse": "1", "sort": "fence"}, Query(reverse=True, sort="fence")),
    ],
)
def test_a_query_is_read_within_its_bounds(asked: dict[str, str], query: Query) -> None:
    assert Query.of(asked) == query


async def test_a_node_that_is_away_shows_since_when_and_nothing_old(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    first, *others = locks.nodes()
    await shots.take(Query())
    now.now = 1003.0
    locks._observers(NodeDown(first.node, "refused"))
    now.now = 1005.0
    down = replace(first, state="down", cause="refused", round_trip=0.1, version="7.0")
    monkeypatch.setattr(asynclock.LockManager, "nodes", lambda _: (down, *others))
    away, *up = (await shots.take(Query()))["nodes"]
    assert (away["since"], away["cause"]) == (1003.0, "refused")
    assert (away["round_trip"], away["version"]) == (None, None)
    assert [one["since"] for one in up] == [1000.0] * 2
    locks._observers(NodeUp(first.node))
    monkeypatch.undo()


async def test_other_tasks_go_on_while_thousands_of_leases_are_read() -> None:
    monitor = watched(*(lease(*[view(OWNERS[0])] * 3, name=str(n)) for n in range(2000)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    rows, _ = await rows_of(monitor, {}, ())
    counting.cancel()
    assert len(rows) == 2000
    assert turns >= 2000 / SLICE


def test_points_of_a_chart_are_rates_and_leave_gaps_out() -> None:
    history = History()
    counts = {"acquired": 100, "ran out": 1}
    history.note(1000.0, 1.0, counts, 3, 2.5)
    history.waits.extend([0.1, 0.2, 0.3])
    history.losses += 1
    history.note(1002.0, 1.0, {"acquired": 110, "ran out": 2}, 1, 9.0)
    (point,) = history.as_json()
    assert point == {
        "at": 1005.0,
        "acquired": 5.0,
        "lost": 2,
        "waiting": 3,
        "longest": 9.0,
        "p50": 0.2,
        "p99": 0.3,
    }
    assert history.watched == 1000.0
    history.note(2000.0, 1.0, {"acquired": 900, "ran out": 50}, 0, 0.0)
    last = history.as_json()[-1]
    assert (last["acquired"], last["lost"], last["p50"]) == (None, 0, None)
    assert history.watched == 2000.0, "what happened meanwhile is not known"


async def test_pictures_go_back_as_far_as_the_page(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    now.now += 100
    taken = await shots.take(Query())
    assert (taken["seen"]["since"], taken["at"]) == (1000.0, 1100.0)
