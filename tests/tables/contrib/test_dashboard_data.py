"""The data of the live page: how often nodes are asked, what is wrong, rows, charts, streams."""

import asyncio
import gc
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock._engine.inspection import Inspection, NodeView, Waiter
from asynclock._inspect.monitor import Ended, Monitor, SeenLease
from asynclock._inspect.survey import SLICE, Survey
from asynclock._inspect.views import MANY
from asynclock.contrib import dashboard as page
from asynclock.contrib.dashboard import snapshots
from asynclock.contrib.dashboard.snapshots import (
    MOST_LOCKS,
    MOST_LOSSES,
    History,
    Query,
    Row,
    Snapshots,
    in_order,
    past,
    rows_of,
)
from asynclock.events import Lost, NodeDown, NodeUp, Released
from tests.contrib.apps import TOKEN, client_for, memory
from tests.waiting import in_virtual_time, until

OWNERS = [f"{digit * 32}:host-{digit}:1" for digit in "ab"]
ONE, OTHER = OWNERS


@pytest.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    async with asynclock.connect(*memory(), label="Zoe:1") as locks:
        await locks.ready(voting=True)
        yield locks


# ---- how often the nodes are asked ---------------------------------------------------------------
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give snapshots a clock that stands still: its `now` can be set."""
    made = SimpleNamespace(now=1000.0)
    made.time = made.monotonic = lambda: made.now
    monkeypatch.setattr(snapshots, "time", made)
    return made


@pytest.mark.parametrize(
    ("last", "pace", "moments", "asked"),
    [
        # All viewers share a picture, which is a second old at most.
        (0.0, 1.0, [(0, "on")] * 5 + [(0.99, "on"), (1, "on")], [0, 1]),
        # Pictures that take long are taken seldom: they need a fifth of a CPU at most.
        (2.0, 8.0, [(second, "on") for second in range(21)], [0, 10, 20]),
        # A new request gets a recent one at once, and then looks on.
        (0.0, 1.0, [(0, "new"), (5, "new"), (11, "new"), (12.5, "new"), (17, "on")], [0, 12.5, 17]),
        # One of a slow server is recent for longer.
        (2.0, 8.0, [(0, "on"), (27, "new"), (29, "new")], [0, 29]),
    ],
)
async def test_how_often_the_nodes_are_asked(
    locks: asynclock.LockManager,
    monkeypatch: pytest.MonkeyPatch,
    last: float,
    pace: float,
    moments: list[tuple[float, str]],
    asked: list[float],
) -> None:
    """Asking them takes `last` seconds."""
    now, found = clock(monkeypatch), list[float]()
    shots = Snapshots(locks)
    refresh = shots._monitor.refresh

    async def noted(locks: asynclock.LockManager) -> None:
        found.append(now.now - 1000.0)
        now.now += last
        await refresh(locks)

    shots._monitor.refresh = noted  # type: ignore[method-assign]
    taken: Any = None
    for moment, group in itertools.groupby(moments):
        now.now = 1000.0 + moment[0]
        at_once = moment[1] == "new"
        taking = [shots.take(Query(), at_once=at_once) for _ in group]
        taken, *_ = await asyncio.gather(*taking)
    assert found == asked
    assert taken["pace"] == shots.pace == pace
    assert taken["at"] == 1000.0 + asked[-1] + last
    looks = [1000.0 + at + last for at in asked]
    starts = [
        at for at, before in zip(looks, [0.0, *looks], strict=False) if at - before > 3 * pace + 5
    ]
    assert taken["seen"]["since"] == starts[-1], "what happens in a gap is not seen"


async def test_a_state_is_a_new_picture_and_a_stream_begins_with_a_recent_one(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Query, bool]] = []

    async def take(_shots: Snapshots, query: Query, *, at_once: bool = False) -> Any:
        asked.append((query, at_once))
        return {"taken": len(asked)}

    monkeypatch.setattr(Snapshots, "take", take)
    # A clock of which each look takes a second, so that the stream has two pictures.
    monkeypatch.setattr(page, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    monkeypatch.setattr(page, "STREAM", 3)
    monkeypatch.setattr(page, "ALIVE", 0.01)
    monkeypatch.setattr(snapshots, "FRESH", 0.01)
    query = "search=Abc&sort=fence&reverse=1&offset=7&limit=3"
    wanted = Query("abc", "fence", reverse=True, offset=7, limit=3)
    async with client_for(locks) as client:
        assert (await client.get(f"/state?{query}")).json() == {"taken": 1}
        events = await client.get(f"/events?{query}")
    pictures = [f'event: picture\ndata: {{"taken": {n}}}\n\n: at rest\n\n' for n in (2, 3)]
    assert events.text == "".join(pictures)
    assert asked == [(wanted, False), (wanted, True), (wanted, False)]


class Slow:
    """Pictures that are good for `pace` seconds, and take `last` seconds, or for ever."""

    def __init__(self, *, pace: float = 0.0, last: float | None = 0.0) -> None:
        self.pace = pace
        self.last = last
        self.cancelled = False

    async def take(self, query: Query, *, at_once: bool) -> Any:
        try:
            if self.last != 0.0:
                await asyncio.wait_for(asyncio.Event().wait(), self.last)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return {}


def stream_of(slow: Slow) -> Any:
    view = page._View(asynclock.connect("memory://"), TOKEN)
    view._snapshots = slow  # type: ignore[assignment]
    return view._stream(Query())


PICTURE, REST, WORK = b"event: picture\ndata: {}\n\n", b": at rest\n\n", b": at work\n\n"


RESTS = [PICTURE, REST, REST, REST]


@pytest.mark.parametrize(
    ("pace", "last", "wanted"),
    [
        # It rests as long as a picture is good.
        (3.5, 0.0, [(at + n, piece) for at in (0, 3, 6, 9) for n, piece in enumerate(RESTS)]),
        # It says that it lives while it works and rests.
        (8.0, 2.5, [(1, WORK), (2, WORK), (2.5, PICTURE), *((n + 3.5, REST) for n in range(8))]),
        # A slow picture keeps no stream open: a server that shuts down waits for its streams.
        (100.0, 0.0, [(0, PICTURE), *((n, REST) for n in range(1, 11))]),
    ],
)
@in_virtual_time
async def test_what_a_stream_sends(
    monkeypatch: pytest.MonkeyPatch, pace: float, last: float, wanted: list[Any]
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(page, "time", SimpleNamespace(monotonic=loop.time))
    began, pieces = loop.time(), list[Any]()
    async for piece in stream_of(Slow(pace=pace, last=last)):
        pieces.append((round(loop.time() - began, 1), piece))
        assert len(pieces) < 20, "a stream without a rest never ends"
    assert pieces == wanted


@in_virtual_time
async def test_a_viewer_that_goes_leaves_no_work_behind() -> None:
    slow = Slow(last=None)
    stream = stream_of(slow)
    assert await anext(stream) == WORK
    await stream.aclose()
    await until(lambda: slow.cancelled)


def test_the_page_waits_for_several_signs_of_life() -> None:
    script = Path(page.__file__).with_name("page.js").read_text("utf-8")
    found = re.search(r"SILENCE = (\d+)", script)
    assert found
    assert int(found[1]) >= 3 * page.ALIVE * 1000
    assert page.STREAM <= 15, "orchestrators kill a server that needs half a minute to end"


# ---- what is asked for ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "query"),
    [
        ({"search": "A" * 1000}, Query(search="a" * 200)),
        ({"limit": "0"}, Query(limit=1)),
        ({"limit": "999999999"}, Query(limit=MOST_LOCKS)),
        ({"offset": "123456789"}, Query(offset=123456789)),
        ({"reverse": "0"}, Query()),
        ({"reverse": "1", "sort": "fence"}, Query(reverse=True, sort="fence")),
        *(({"sort": column}, Query(sort=column)) for column in snapshots.COLUMNS),
        ({"limit": "no", "sort": "text", "reverse": "yes"}, Query()),
        *(({"offset": wrong}, Query()) for wrong in ("", "-1", "x", "1" * 30, "²")),
        # Python refuses to read numbers with thousands of digits.
        ({"limit": "9" * 5000, "offset": "9" * 5000}, Query()),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_query_is_read_within_its_bounds(asked: dict[str, str], query: Query) -> None:
    assert Query.of(asked) == query


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
    taken = await shots.take(Query())
    losses = taken["losses"]
    assert [one["lost"] for one in taken["history"]] == [MOST_LOSSES + 1], "the chart counts all"
    assert [one["name"] for one in losses] == [str(n) for n in range(MOST_LOSSES, 0, -1)]
    latest = losses[0]
    assert (latest["at"], latest["fence"], latest["held"]) == (now.now, 7, 2.5)
    assert latest["reason"] == "on purpose"


async def test_names_for_which_only_tasks_of_this_process_wait_are_shown(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"{number:04}": 1 for number in range(MOST_LOCKS + 50)}
    monkeypatch.setattr(asynclock.LockManager, "waiters", lambda _: many)
    taken = await Snapshots(locks).take(Query(limit=MOST_LOCKS))
    assert [one["name"] for one in taken["locks"]] == list(many)[:MOST_LOCKS]
    assert (taken["waited_for"], taken["waiting"], taken["held"]) == (250, 250, 0)


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
    assert away["exact"]
    other = Snapshots(locks)  # one that has never seen the node up
    assert not (await other.take(Query()))["nodes"][0]["exact"]
    locks._observers(NodeUp(first.node))  # for less than the time between two looks
    now.now = 1010.0
    assert (await other.take(Query()))["nodes"][0]["exact"]
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("attempts", "acquired", "waiting"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
)
def test_a_process_used_for_locks_shows_counts(attempts: int, acquired: int, waiting: int) -> None:
    """One whose nodes are away only waits, and one may have been told no each time."""
    counts = SimpleNamespace(
        attempts=attempts, acquired=acquired, waiting=waiting, lost=0, refused=0
    )
    locks: Any = SimpleNamespace(statistics=lambda: counts)
    shown = {"acquired": acquired, "lost": 0, "refused": 0, "waiting": waiting}
    assert snapshots._own(locks) == (shown if attempts or acquired or waiting else None)


# ---- rows ----------------------------------------------------------------------------------------
def lease(
    *owners: str | None, name: str = "a", kind: str = "lock", part: str = "", fence: int = 9
) -> SeenLease:
    """Make a lease that one node after the other says an owner has."""
    views = [NodeView("node", one, 5.0 if one else None, fence, None) for one in owners]
    return SeenLease(Inspection(name, tuple(views), 2, kind, part), 0.0, 0.0)


@pytest.mark.parametrize(
    ("owners", "shown", "note"),
    [
        ((ONE, OTHER, ONE), ("host-a:1", 2, False, True), "nodes disagree"),
        ((OTHER, ONE, OTHER), ("host-b:1", 2, False, False), "nodes disagree"),
        ((ONE, None, None), ("host-a:1", 1, False, False), "no quorum"),
        ((ONE, ONE, ONE), ("host-a:1", 3, True, True), ""),
        ((f"#rests:{ONE}",) * 3, ("host-a:1", 3, True, False), "rests"),
    ],
)
def test_what_nodes_disagree_about_is_shown(owners: Any, shown: tuple[Any, ...], note: str) -> None:
    row = Row("a", "lock", [lease(*owners)]).as_json({ONE})
    assert (row["holder"], row["nodes"], row["agreed"], row["ours"]) == shown
    assert row["remaining"] == (None if note == "no quorum" else 5.0)
    assert note in row["note"] if note else row["note"] == ""


def test_several_leases_of_a_name_are_one_row() -> None:
    leases = [
        lease(*[owner] * 3, name="pool", kind="semaphore", part=str(part))
        for part, owner in enumerate(OWNERS)
    ]
    row = Row("pool", "semaphore", leases).as_json(())
    assert (row["title"], row["part"], row["holders"]) == ("pool [semaphore]", "", 2)
    single = Row("pool", "semaphore", leases[:1]).as_json(())
    assert (single["title"], single["part"]) == ("pool [semaphore 0]", "0")


def test_a_long_queue_says_that_more_may_wait() -> None:
    queue = tuple(Waiter(f"{n:032x}:web-{n}:1", woken=False) for n in range(995))
    one = Row("a", "lock", waiting=queue).in_full(())
    few = Row("b", "lock", waiting=queue[:2], here=30).in_full(())
    assert (one["waiting"], one["more"], len(one["queue"])) == (995, True, 200)
    assert (few["waiting"], few["more"], len(few["queue"])) == (30, False, 2)
    assert Row("a", "lock", waiting=queue[:MANY]).as_json(())["more"]
    assert not Row("a", "lock", waiting=queue[: MANY - 1]).as_json(())["more"]


def test_a_name_with_thousands_of_holders_sends_the_longest_holds() -> None:
    leases = [lease(*[ONE] * 3, kind="semaphore", part=str(n)) for n in range(5000)]
    for n, one in enumerate(leases):
        one.since = float(5000 - n)
    full = Row("pool", "semaphore", leases).in_full(())
    assert (full["holders"], len(full["leases"])) == (5000, 200)
    assert full["leases"][0]["part"] == "4999"
    ended = Ended("pool", "semaphore", "0", "host:1", 0.0, 1.0, "released")
    assert len(past([ended] * 5000, "pool")) == 200


def watched(*leases: SeenLease, **queues: tuple[Waiter, ...]) -> Monitor:
    monitor = Monitor()
    monitor.leases = {(one.found.name, one.found.part, str(n)): one for n, one in enumerate(leases)}
    monitor.survey = Survey([], queues={(name, "lock"): queue for name, queue in queues.items()})
    return monitor


async def test_nodes_that_differ_are_red_from_the_second_picture_on() -> None:
    """Nodes are read at different moments: a name that is passed on looks like a disagreement."""
    monitor = watched(lease(ONE, OTHER, ONE))
    (row,), differ = await rows_of(monitor, {}, ())
    assert (row.level, differ) == ("", {("a", "lock")})
    (row,), _ = await rows_of(monitor, {}, differ)
    assert (row.level, row.why) == ("red", "nodes disagree")


@pytest.mark.parametrize(("usual", "shown"), [(2.0, "2 s"), (1500.0, "25m 0s")])
async def test_a_wait_stands_out_if_longer_than_the_usual_hold(usual: float, shown: str) -> None:
    """The usual hold is that of three that were seen to end, or else 10 s."""
    now = float(int(time.time()))
    waiter = Waiter("0" * 32 + ":host:1", woken=False, since=now - max(5, 2 * usual))
    monitor = watched(lease(*[ONE] * 3), a=(waiter,))
    ended = Ended("a", "lock", "", "host:1", now - 9999, now - 9999 + usual, "released")
    late = f"the longest wait is over the usual hold of {shown}"
    first = ("amber", "the longest wait is over 10 s", None) if usual > 5 else ("", "", None)
    for known, wanted in ((0, first), (2, first), (3, ("amber", late, usual))):
        monitor.ended.clear()
        monitor.ended.extend([ended] * known)
        (row,), _ = await rows_of(monitor, {}, ())
        assert (row.level, row.why, row.usual) == wanted


@pytest.mark.parametrize(
    ("part", "shared", "why"),
    [
        ("read", False, "a writer waits for 2 readers"),
        ("write", True, "a reader waits for a writer"),
        ("read", True, ""),
        ("write", False, ""),
    ],
)
def test_readers_and_writers_that_block_each_other(part: str, shared: bool, why: str) -> None:
    leases = [lease(*[ONE] * 3, kind="rwlock", part=part)] * 2
    waiter = Waiter("0" * 32 + ":host:1", woken=False, since=time.time() - 5, shared=shared)
    row = Row("a", "rwlock", leases, (waiter,), since=waiter.since)
    row.judge(odd=False)
    assert (row.level, row.why) == ("amber" if why else "", why)


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
    some = [lease(*[OWNERS[1 - at]] * 3, name="ab"[at], fence=9 - at) for at in range(2)]
    some.append(lease(None, name="d"))
    rows = [Row(one.found.name, "lock", [one]) for one in some] + [Row("c", "lock")]
    names = [row.name for row in in_order(rows, column) if row.name != "d"]  # nobody holds it
    wanted = {"attention": "abc", "name": "abc", "holder": "cba", "waiting": "abc", "fence": "cba"}
    assert names == list(wanted.get(column, "cab"))


@pytest.mark.parametrize("column", snapshots.COLUMNS)
def test_a_viewer_who_searches_or_sorts_first_waits_no_longer(column: str) -> None:
    rows = [Row(str(n), "lock", [lease(*[ONE] * 3, name=str(n))]) for n in range(50)]
    calls: list[int] = []
    for _ in range(2):
        calls.append(0)

        def count(_frame: object, event: str, _more: object) -> None:
            calls[-1] += event == "call"

        gc.disable()  # what a collection ends would count, too
        sys.setprofile(count)
        try:
            assert [row for row in in_order(rows, column) if row.contains("web")] == []
        finally:
            sys.setprofile(None)
            gc.enable()
    assert calls[0] == calls[1] > 50


async def test_other_tasks_go_on_while_thousands_of_leases_are_read() -> None:
    monitor = watched(*(lease(*[ONE] * 3, name=str(n)) for n in range(2000)))
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
    history.note(1000.0, 1.0, {"acquired": 100, "ran out": 1}, 3, 2.5)
    history.waits.extend([0.1, 0.2, 0.3])
    history.losses += 1
    history.note(1002.0, 1.0, {"acquired": 110, "ran out": 2}, 1, 9.0)
    (point,) = history.as_json()
    rates = {"at": 1005.0, "acquired": 5.0, "ran_out": 1, "lost": 1, "p50": 0.2, "p99": 0.3}
    assert point == {**rates, "waiting": 3, "longest": 9.0}
    assert (history.watched, history.seen("acquired")) == (1000.0, 10)
    # What happened in a gap is in no number.
    history.note(2000.0, 1.0, {"acquired": 900, "ran out": 50}, 0, 0.0)
    last = history.as_json()[-1]
    assert (last["acquired"], last["ran_out"], last["p50"]) == (None, 0, None)
    assert (history.watched, history.seen("acquired")) == (2000.0, 0)
