"""The live page's server: what it answers to whom, and what its data says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import asynclock
from asynclock.contrib.dashboard import dashboard
from asynclock.errors import ConfigurationError
from asynclock.testing import lose
from tests.cli.schema import check
from tests.contrib.apps import PATIENT, TOKEN, client_for, memory, serving
from tests.tables.inside import pictures_last
from tests.waiting import becomes, call_off, until, waits

LABEL = "host:1:<b>label</b>"
CLIENT = ("127.0.0.1", 1)
GOOD = f"Bearer {TOKEN}"


@pytest.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    async with asynclock.connect(*memory(), label=LABEL) as locks:
        await locks.ready(voting=True)
        yield locks


# ---- who is answered -----------------------------------------------------------------------------
async def status(
    settings: dict[str, Any] | None = None,
    *,
    host: bytes | None = b"localhost",
    client: Any = CLIENT,
    path: str = "/",
    token: str | None = None,
    method: str = "GET",
) -> int:
    """Return the status of the answer to a request that no client library has completed."""
    app = dashboard(asynclock.connect("memory://"), token=TOKEN, **(settings or {}))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", b"*/*")]
    headers += [] if host is None else [(b"host", host)]
    headers += [] if token is None else [(b"authorization", token.encode("latin-1"))]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    scope |= {"query_string": b""} | ({} if client == "unknown" else {"client": client})
    await app(scope, receive, send)
    return int(sent[0]["status"])


PROXY = {"hosts": ["Locks.example.org"]}
PUBLIC = {"public": True}
BOTH = PROXY | PUBLIC


@pytest.mark.parametrize(
    ("settings", "host", "wanted"),
    [
        ({}, b"localhost", 200),
        ({}, b"LocalHost:8765", 200),
        ({}, b"localhost:", 200),
        ({}, b"127.0.0.1:8765", 200),
        ({}, b"[::1]", 200),
        ({}, b"[::1]:8765", 200),
        ({}, b"[::1]:", 200),
        ({}, b"[::2]", 421),
        ({}, b"localhost:8765:8765", 421),
        ({}, b"localhost:example.org", 421),
        ({}, b"localhost.example.org", 421),
        ({}, b"rebound.example.org", 421),
        ({}, b"\xff\xfe", 421),
        ({}, b"", 421),
        ({}, None, 421),
        (PROXY, b"locks.example.org", 200),
        (PROXY, b"localhost", 200),  # this machine keeps its own names
        (PROXY, b"127.0.0.1", 200),
        (PROXY, b"[::1]", 200),
        (PROXY, b"example.org", 421),
        (BOTH, b"locks.example.org", 200),
        (BOTH, b"rebound.example.org", 421),
        (BOTH, b"localhost", 421),  # the proxy never says that
        (PUBLIC, b"anything.example.org", 200),
    ],
)
async def test_a_foreign_host_is_refused(
    settings: dict[str, Any], host: bytes | None, wanted: int
) -> None:
    assert await status(settings, host=host) == wanted
    refused = wanted if wanted == 421 else 401
    assert await status(settings, host=host, path="/state") == refused


@pytest.mark.parametrize(
    ("settings", "client", "wanted"),
    [
        ({}, "unknown", 200),  # a server at a Unix socket tells no address, or nothing at all
        ({}, None, 200),
        ({}, ("127.0.0.7", 1), 200),
        ({}, ("::1", 1), 200),
        ({}, ("192.168.0.1", 1), 403),
        ({}, ("::2", 1), 403),
        ({}, ("localhost", 1), 403),
        ({}, ("testclient", 1), 403),
        (PUBLIC, ("192.0.2.1", 1), 200),
    ],
)
async def test_other_machines_are_refused(
    settings: dict[str, Any], client: Any, wanted: int
) -> None:
    assert await status(settings, client=client) == wanted


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        *((f"{scheme} {TOKEN}", 200) for scheme in ("Bearer", "bearer", "BEARER", "Bearer ")),
        *((None, 401), ("Bearer", 401), ("Bearer ", 401), ("Bearer wrong", 401)),
        *((f"Basic {TOKEN}", 401), (f"{GOOD}x", 401), (GOOD[:-1], 401), ("Bearer \xff", 401)),
        *((f"Bearer {TOKEN.lower()}", 401), (f"Bearer {TOKEN.upper()}", 401)),
    ],
)
async def test_without_the_token_there_is_no_data(token: str | None, wanted: int) -> None:
    assert await status(token=token, path="/state") == wanted
    if wanted == 401:
        assert await status(token=token, path="/events") == 401


async def test_a_refusal_says_what_to_send(locks: asynclock.LockManager) -> None:
    async with client_for(locks, token=None) as client:
        answer = await client.get("/state")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "memory" not in answer.text


@pytest.mark.parametrize("token", ["", "short", "x" * 15, None, "ü" * 20])
def test_there_is_no_page_without_a_good_token(token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"at least 16 .*ASYNCLOCK_TOKEN"):
        dashboard(asynclock.connect("memory://"), token=token)
    assert dashboard(asynclock.connect("memory://"), token="x" * 16)


@pytest.mark.parametrize("path", ["/", "/state", "/events", "/page.js"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_it_changes_nothing(path: str, method: str) -> None:
    assert await status(path=path, method=method, token=GOOD) == 405


# ---- what is answered ----------------------------------------------------------------------------
TYPES = {
    "/": "text/html",
    "/page.js": "text/javascript",
    "/page.css": "text/css",
    "/icon.svg": "image/svg+xml",
    "/favicon.ico": "image/svg+xml",
    "/state": "application/json",
    "/nowhere": "text/plain",
}


@pytest.mark.parametrize("path", TYPES)
@pytest.mark.parametrize("host", ["localhost", "rebound.example.org"])
async def test_each_answer_is_shut_off_from_other_pages(
    locks: asynclock.LockManager, path: str, host: str
) -> None:
    """With `nosniff` a browser runs no script and takes no style of another type."""
    async with client_for(locks) as client:
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
    if host == "localhost":
        assert headers["content-type"].partition(";")[0] == TYPES[path]


async def test_events_show_what_each_viewer_asks_for(locks: asynclock.LockManager) -> None:
    headers = {"Authorization": GOOD}
    names = ["a\nevent: failed\n\n", "calmly"]

    async def seen(client: httpx.AsyncClient, search: str) -> list[str]:
        async with client.stream("GET", "/events", params={"search": search}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    break
        return [one["name"] for one in json.loads(line[6:])["locks"]]

    async with serving(dashboard(locks, token=TOKEN)) as url, locks.multi_lock(*names):
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            found = await asyncio.gather(
                *(seen(client, one) for one in ("", "event", "calmly", "nothing"))
            )
    assert found == [names, names[:1], names[1:], []]


async def test_a_closed_manager_has_no_data(locks: asynclock.LockManager) -> None:
    async with client_for(locks) as client:
        await locks.aclose()
        answer = await client.get("/state")
        assert (answer.status_code, answer.json()) == (503, {"error": "ConfigurationError"})
        answer = await client.get("/events")
        assert answer.text == "event: failed\ndata: ConfigurationError\n\n"


# ---- what a picture says -------------------------------------------------------------------------
async def test_a_picture_as_a_whole(locks: asynclock.LockManager) -> None:
    async with client_for(locks) as client, locks.lock("jobs") as lease:
        taken = (await client.get("/state")).json()
    check(taken, "page")
    nodes = [(one["node"], one["state"]) for one in taken.pop("nodes")]
    assert nodes == [(one.node, "up") for one in locks.nodes()]
    assert len(taken.pop("history")) == 1
    assert taken["seen"].pop("since") == taken.pop("at")
    (row,) = taken.pop("locks")
    assert 0 < row.pop("remaining") <= 10
    assert row.pop("held") >= 0
    assert row == {"holder": LABEL, "fence": lease.fence} | json.loads("""{
        "name": "jobs", "kind": "lock", "title": "jobs", "part": "", "holders": 1, "exact": true,
        "nodes": 3, "agreed": true, "note": "", "ours": true, "waiting": 0, "more": false,
        "waited": null, "usual": null, "level": "", "why": ""
    }""")
    assert taken == {"pace": taken["pace"]} | json.loads("""{
        "version": 1, "quorum": 2, "trouble": null, "held": 1, "found": 1, "offset": 0,
        "lock": null, "doubts": [], "waiting": 0, "waited_for": 0, "longest": 0.0, "wrong": 0,
        "losses": [], "seen": {"acquired": 0, "released": 0, "ran_out": 0},
        "own": {"acquired": 1, "lost": 0, "refused": 0, "waiting": 0}
    }""")


async def test_a_name_that_rests_is_shown_and_not_held(locks: asynclock.LockManager) -> None:
    await (await locks.lock("jobs", at_least=600.0).acquire()).release()
    async with client_for(locks) as client, locks.lock("other"):
        taken = (await client.get("/state", params={"lock": "jobs", "sort": "name"})).json()
    check(taken, "page")
    row, other = taken["locks"]
    assert (taken["held"], other["note"]) == (1, "")
    ((lease,),) = [kind["leases"] for kind in taken["lock"]["kinds"]]
    for one in (row, lease):
        assert (one["note"], one["holder"], one["ours"]) == ("rests", LABEL, False)
        assert 590 < one["remaining"] <= 600


async def test_who_waits_in_other_processes(urls: list[str]) -> None:
    async with (
        asynclock.connect(*urls, **PATIENT, label=LABEL) as locks,
        asynclock.connect(*urls, **PATIENT, label="there:2") as there,
        client_for(locks) as client,
    ):
        await locks.ready()  # each node is asked for both
        _held = [await lock.acquire() for lock in (locks.semaphore("pool", 2), locks.lock("a"))]
        waiting = asyncio.create_task(there.lock("a").acquire())

        async def shown() -> Any:
            state = (await client.get("/state?lock=a&search=THERE")).json()
            check(state, "page")
            return state["locks"] and state

        state = await until(shown, "the waiter is on the page")
        both = (await client.get("/state")).json()
        await call_off(waiting)
    (one,) = state["locks"]
    assert (one["name"], one["waiting"]) == ("a", 1)
    assert 0 <= one["waited"] <= state["longest"] + 1
    (kind,) = state["lock"]["kinds"]
    (lease,) = kind["leases"]
    assert (lease["holder"], [view["holder"] for view in lease["views"]]) == (LABEL, [LABEL] * 3)
    (place,) = kind["queue"]
    assert (place["label"], place["host"], place["pid"]) == ("there:2", "there", 2)
    assert (place["woken"], place["shared"]) == (False, False)
    assert "ticket" not in place, "with it, anyone could leave the queue for its waiter"
    assert [row["name"] for row in both["locks"]] == ["a", "pool"], "what is waited for is first"
    assert [node["state"] for node in both["nodes"]] == ["up"] * 3


async def test_the_counts_of_this_process(
    locks: asynclock.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None in a process that has asked for no lock; what all have done is counted beside it."""
    pictures_last(monkeypatch, 0.01)
    taken: Any = None
    async with (
        client_for(locks) as client,
        asynclock.connect(*(node.node for node in locks.nodes())) as others,
    ):

        async def counts() -> Any:
            """Return what this process has acquired and lost, and who waits in it."""
            nonlocal taken
            taken = (await client.get("/state")).json()
            own = taken["own"]
            return own and (own["acquired"], own["lost"], own["waiting"])

        async def seen() -> Any:
            await counts()
            return [taken["seen"][what] for what in ("acquired", "released")]

        assert await counts() is None
        theirs = await others.lock("a").acquire()
        await becomes(seen, [1, 0])
        assert taken["own"] is None
        assert await locks.lock("a").try_acquire() is None
        await becomes(counts, (0, 0, 0))
        assert (await client.get("/state")).json()["own"]["refused"] == 1
        waiting = asyncio.create_task(locks.lock("a").acquire())
        await waits(locks)
        await becomes(counts, (0, 0, 1))
        assert [(one["name"], one["waiting"]) for one in taken["locks"]] == [("a", 1)]
        await theirs.release()
        lease = await waiting
        await becomes(counts, (1, 0, 0))
        await becomes(seen, [2, 1])
        lose(lease)
        await becomes(counts, (1, 1, 0))
    (loss,) = taken["losses"]
    assert (loss["name"], loss["fence"], loss["reason"]) == ("a", lease.fence, lease.lost_reason)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("pOOL", ["Pool"]),
        ("HOST:1", ["Map", "Pool"]),
        ("abel", ["Map", "other", "Pool", "readers"]),
        ("abel:2", ["other", "readers"]),
        ("write", ["Map"]),
        ("mapwrite", []),
        ("writehost", []),
        ("otherabel", []),
        ("nobody", []),
    ],
)
async def test_a_lock_is_found_by_its_name_its_part_and_its_holder(
    locks: asynclock.LockManager, search: str, found: list[str]
) -> None:
    nodes = [node.node for node in locks.nodes()]
    async with (
        asynclock.connect(*nodes, label="abel:2") as others,
        locks.semaphore("Pool", 2).acquire() as lease,
        locks.rwlock("Map").write(),
        others.lock("other"),
        others.rwlock("readers").read(),
        client_for(locks) as client,
    ):
        taken = (await client.get("/state", params={"search": search, "sort": "name"})).json()
        by_holder = (await client.get("/state?sort=holder")).json()["locks"]
    assert [one["name"] for one in taken["locks"]] == found
    assert [one["holder"] for one in by_holder] == ["abel:2", "abel:2", LABEL, LABEL]
    # Readers don't say since when they read: the page knows since when it has seen them.
    assert [one["name"] for one in by_holder if not one["exact"]] == ["readers"]
    parts = [(one["part"], one["ours"]) for one in by_holder if one["name"] == "Pool"]
    assert parts == [(lease.part, True)]


async def test_every_permit_of_a_hold_is_ours(locks: asynclock.LockManager) -> None:
    async with locks.semaphore("Pool", 2).several(2), client_for(locks) as client:
        kinds = (await client.get("/state?lock=Pool")).json()["lock"]["kinds"]
    assert [one["ours"] for kind in kinds for one in kind["leases"]] == [True, True]


async def test_a_quarantined_node_is_never_up(urls: list[str]) -> None:
    """A fresh server may have forgotten what it granted: `serve` says so, as services see it."""
    async with asynclock.connect(*urls, ttl=3600.0, max_ttl=3600.0) as locks:
        async with client_for(locks) as client:
            state = (await client.get("/state")).json()
    assert {node["state"] for node in state["nodes"]} == {"quarantined"}
    assert state["trouble"]["level"] == "red"
    assert "3 quarantined" in state["trouble"]["text"]


@pytest.mark.parametrize("busy", [True, False], ids=["new locks", "one that is renewed"])
async def test_settings_that_differ_are_no_red_alarm(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, *, busy: bool
) -> None:
    """New servers have no vote by the page's settings, and by those of the services they have."""
    pictures_last(monkeypatch, 0.01)
    async with (
        asynclock.connect(*urls, max_ttl=3600.0) as locks,
        client_for(locks) as client,
        asynclock.connect(*urls, **{**PATIENT, "ttl": 10.0}) as services,
        services.lock("before"),
    ):
        assert (await client.get("/state")).json()["trouble"]["level"] == "red"

        async def seems_to_differ() -> Any:
            async with services.lock("a job") if busy else contextlib.nullcontext():
                trouble = (await client.get("/state")).json()["trouble"]
                return trouble["level"] == "amber" and trouble["text"]

        text = await until(seems_to_differ, every=0.2)
    assert f"clients go on locking, such as {'a job' if busy else 'before'!r}" in text
    assert "--restart-guard" in text


@pytest.mark.parametrize(
    ("settings", "found", "doubts"),
    [
        ({"max_ttl": 3600.0, "prefix": "other:"}, ["jobs"], []),
        ({"prefix": "another:"}, [], ["no key begins with 'another:'", "--prefix"]),
        ({"max_ttl": 20.0, "prefix": "other:"}, ["jobs"], ["the max_ttl of 20 s", "--max-ttl"]),
    ],
)
async def test_settings_of_the_services_that_differ_are_named(
    urls: list[str], settings: dict[str, Any], found: list[str], doubts: list[str]
) -> None:
    async with (
        asynclock.connect(*urls, **PATIENT, prefix="other:") as services,
        services.lock("jobs"),
        asynclock.connect(*urls, **{**PATIENT, "ttl": 8.0, **settings}) as locks,
        client_for(locks) as client,
    ):
        taken = (await client.get("/state")).json()
    assert [one["name"] for one in taken["locks"]] == found
    assert taken["trouble"] is None
    assert len(taken["doubts"]) == bool(doubts)
    assert all(words in taken["doubts"][0] for words in doubts)
