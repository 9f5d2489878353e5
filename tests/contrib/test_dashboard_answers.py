"""What the live page's server answers to each request, as a whole: hosts, tokens, data, streams."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import asynclock
from asynclock.contrib.dashboard import app as page
from asynclock.contrib.dashboard import dashboard, snapshots
from asynclock.contrib.dashboard.snapshots import Query, Snapshots
from tests.cli.schema import check
from tests.contrib.test_dashboard_data import Slow, clock, refreshes
from tests.waiting import in_virtual_time

TOKEN = "Token-With-Capitals"
NUMBERS = itertools.count()


@pytest.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    addresses = [f"memory://dashboard-answers-{next(NUMBERS)}" for _ in range(3)]
    async with asynclock.connect(*addresses, label="Zoe:1") as locks:
        await locks.ready(voting=True)
        yield locks


async def status(
    app: Any, host: bytes | None, path: str = "/", client: Any = ("127.0.0.1", 1)
) -> int:
    """Return the status of the answer to a request that no client library has completed."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", b"*/*")] + ([] if host is None else [(b"host", host)])
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b""}
    await app({**scope, **({} if client == "unknown" else {"client": client})}, receive, send)
    return int(sent[0]["status"])


def client_of(locks: asynclock.LockManager, **more: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(dashboard(locks, token=TOKEN, **more), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


# ---- who is answered -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (b"localhost", 200),
        (b"localhost:", 200),
        (b"localhost:8765", 200),
        (b"127.0.0.1:8765", 200),
        (b"[::1]", 200),
        (b"[::1]:8765", 200),
        (b"[::1]:", 200),
        (b"[::2]", 421),
        (b"localhost:8765:8765", 421),
        (b"localhost:example.org", 421),
        (b"localhost.example.org", 421),
        (None, 421),
    ],
)
async def test_a_host_is_a_name_or_an_address_and_perhaps_a_port(
    host: bytes | None, wanted: int
) -> None:
    app = dashboard(asynclock.connect("memory://"), token=TOKEN)
    assert await status(app, host) == wanted


async def test_beside_the_names_of_a_proxy_this_machine_keeps_its_own() -> None:
    app = dashboard(asynclock.connect("memory://"), token=TOKEN, hosts=["Locks.example.org"])
    for host, wanted in (
        (b"locks.example.org", 200),
        (b"localhost", 200),
        (b"127.0.0.1", 200),
        (b"[::1]", 200),
        (b"example.org", 421),
    ):
        assert await status(app, host) == wanted
    public = dashboard(
        asynclock.connect("memory://"), token=TOKEN, hosts=["locks.example.org"], public=True
    )
    assert await status(public, b"localhost") == 421, "the proxy never says that"


@pytest.mark.parametrize(
    ("client", "wanted"),
    [
        ("unknown", 200),
        (None, 200),
        (("127.0.0.7", 1), 200),
        (("::1", 1), 200),
        (("192.168.0.1", 1), 403),
        (("::2", 1), 403),
        (("localhost", 1), 403),
    ],
    ids=str,
)
async def test_a_client_is_on_this_machine_or_not(client: Any, wanted: int) -> None:
    """A server at a Unix socket tells no address, or nothing at all."""
    app = dashboard(asynclock.connect("memory://"), token=TOKEN)
    assert await status(app, b"localhost", client=client) == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(TOKEN, 200), (TOKEN.lower(), 401), (TOKEN.upper(), 401), (TOKEN[:-1], 401), ("", 401)],
)
async def test_the_case_of_a_token_counts(
    locks: asynclock.LockManager, given: str, wanted: int
) -> None:
    async with client_of(locks) as client:
        answer = await client.get("/state", headers={"Authorization": f"Bearer {given}"})
    assert answer.status_code == wanted


async def test_the_files_of_the_page_have_the_types_that_browsers_need(
    locks: asynclock.LockManager,
) -> None:
    """With `nosniff` a browser runs no script and takes no style of another type."""
    async with client_of(locks) as client:
        types = {}
        for path in ("/", "/page.js", "/page.css", "/icon.svg", "/favicon.ico"):
            answer = await client.get(path)
            types[path] = answer.headers["content-type"].partition(";")[0]
    assert types == {
        "/": "text/html",
        "/page.js": "text/javascript",
        "/page.css": "text/css",
        "/icon.svg": "image/svg+xml",
        "/favicon.ico": "image/svg+xml",
    }


# ---- what is asked for ---------------------------------------------------------------------------


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
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with client_of(locks) as client:
        state = await client.get(f"/state?{query}", headers=headers)
        assert state.json() == {"taken": 1}
        events = await client.get(f"/events?{query}", headers=headers)
    pictures = [f'event: picture\ndata: {{"taken": {n}}}\n\n: at rest\n\n' for n in (2, 3)]
    assert events.text == "".join(pictures)
    assert asked == [(wanted, False), (wanted, True), (wanted, False)]


@in_virtual_time
async def test_a_stream_sends_a_picture_and_rests_as_long_as_one_is_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(page, "time", SimpleNamespace(monotonic=loop.time))
    view = page._View(asynclock.connect("memory://"), TOKEN)
    view._snapshots = Slow(pace=3.5)  # type: ignore[assignment]
    began = loop.time()
    pieces = []
    async for piece in view._stream(Query()):
        pieces.append((round(loop.time() - began), piece))
        assert len(pieces) < 20, "a stream without a rest never ends"
    picture, rest = b"event: picture\ndata: {}\n\n", b": at rest\n\n"
    wanted = []
    for at in (0, 3, 6, 9):
        wanted += [(at, picture), *((at + later, rest) for later in (1, 2, 3))]
    assert pieces == wanted


# ---- what a picture says -------------------------------------------------------------------------


async def test_a_picture_as_a_whole(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    now.now += 5
    async with locks.lock("jobs") as lease:
        taken = await shots.take(Query())
    check(taken, "page")
    nodes = [(one["node"], one["state"], one["since"]) for one in taken.pop("nodes")]
    assert nodes == [(one.node, "up", 1005.0) for one in locks.nodes()]
    assert [point["at"] for point in taken.pop("history")] == [1010.0]
    (row,) = taken.pop("locks")
    assert 0 < row.pop("remaining") <= 10
    assert row.pop("held") >= 0
    assert row == {
        "name": "jobs",
        "kind": "lock",
        "title": "jobs",
        "part": "",
        "holder": "Zoe:1",
        "holders": 1,
        "fence": lease.fence,
        "nodes": 3,
        "agreed": True,
        "note": "",
        "ours": True,
        "waiting": 0,
        "more": False,
        "waited": None,
        "usual": None,
        "level": "",
        "why": "",
    }
    assert taken == {
        "version": 1,
        "at": 1005.0,
        "pace": 1.0,
        "quorum": 2,
        "trouble": None,
        "held": 1,
        "found": 1,
        "offset": 0,
        "lock": None,
        "doubts": [],
        "waiting": 0,
        "waited_for": 0,
        "longest": 0.0,
        "wrong": 0,
        "losses": [],
        "seen": {"since": 1000.0, "acquired": 0, "released": 0, "ran_out": 0},
        "own": {"acquired": 1, "lost": 0, "refused": 0, "waiting": 0},
    }


async def test_a_picture_tells_its_own_pace_and_its_place(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    refreshes(shots, now, last=2.0)
    async with locks.lock("a"), locks.lock("b"):
        taken = await shots.take(Query(offset=1))
    assert (taken["pace"], taken["at"]) == (8.0, 1002.0)
    assert (taken["offset"], taken["found"], taken["held"]) == (1, 2, 2)
    assert [one["name"] for one in taken["locks"]] == ["b"]


async def test_a_picture_of_a_slow_server_is_recent_for_longer(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    shots = Snapshots(locks)
    asked = refreshes(shots, now, last=2.0)
    await shots.take(Query())
    for at, times in ((1027.0, 1), (1029.0, 2)):
        now.now = at
        await shots.take(Query(), at_once=True)
        assert len(asked) == times


async def test_a_search_finds_a_part_and_nothing_across_two_texts(
    locks: asynclock.LockManager,
) -> None:
    shots = Snapshots(locks)
    async with locks.rwlock("Map").write(), locks.lock("other"):
        found = {}
        for search in ("map", "write", "mapwrite", "writezoe", "otherzoe"):
            taken = await shots.take(Query.of({"search": search}))
            found[search] = [one["name"] for one in taken["locks"]]
    assert found == {
        "map": ["Map"],
        "write": ["Map"],
        "mapwrite": [],
        "writezoe": [],
        "otherzoe": [],
    }


@pytest.mark.parametrize("column", snapshots.COLUMNS)
def test_locks_can_be_sorted_by_each_column(column: str) -> None:
    assert Query.of({"sort": column}) == Query(sort=column)


@pytest.mark.parametrize(
    ("attempts", "acquired", "waiting"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
)
def test_a_process_that_was_used_for_locks_shows_its_counts(
    attempts: int, acquired: int, waiting: int
) -> None:
    """One whose nodes are away only waits, and one may have been told no each time."""
    counts = SimpleNamespace(
        attempts=attempts, acquired=acquired, waiting=waiting, lost=0, refused=0
    )
    locks: Any = SimpleNamespace(statistics=lambda: counts)
    shown = {"acquired": acquired, "lost": 0, "refused": 0, "waiting": waiting}
    used = attempts or acquired or waiting
    assert snapshots._own(locks) == (shown if used else None)
