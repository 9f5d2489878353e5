"""The live page as an operator meets it at night: in a real browser, with nodes that fail."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import asynclock
from asynclock.contrib.dashboard import dashboard
from asynclock.contrib.dashboard.snapshots import MOST_LOCKS, Query
from asynclock.testing import LocalServer
from tests.contrib.browser import Page, binaries, browse
from tests.contrib.conftest import PATIENT
from tests.contrib.pictures import plant, planted
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef-token"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
LONG = "asynclock:orders:shipping:eu-central-1:customer-0042:invoice"
HOLDER = f"{'a' * 32}:worker-eu-central-1a.production.example.org:31337:ship"
FENCE = 1795331604939299
WIDTHS = (390, 900, 1440)
FILL = (
    "for i = 1, ARGV[1] do redis.call('SET', string.format('asynclock:bulk:%06d', i), "
    "string.rep('0', 32) .. ':h:' .. i, 'PX', 600000) end "
    "redis.call('SET', KEYS[1], ARGV[2], 'PX', 600000) "
    "redis.call('SET', KEYS[1] .. ':#fence', ARGV[3], 'PX', 600000)"
)
# Relative luminance and contrast, https://www.w3.org/TR/WCAG22/#contrast-minimum
CONTRAST = """
const rgb = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
const light = (color) => rgb(color).map((one) => one / 255)
  .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (one) => {
  for (; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color;
  }
};
return [...document.querySelectorAll('body *')]
  .filter((one) => one.checkVisibility())
  .filter((one) => [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .filter((one) => !one.disabled && getComputedStyle(one).clipPath === 'none')
  .map((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
    return [one.id || one.className || one.tagName, (a + 0.05) / (b + 0.05)];
  })
  .filter(([, ratio]) => ratio < 4.5);
"""


@pytest.fixture
def served(asynclock_nodes: list[LocalServer], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    config = tmp_path / "asynclock.toml"
    urls = [node.url for node in asynclock_nodes]
    config.write_text(f"nodes = {urls!r}\nrestart_guard = false\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "asynclock", "serve", "--port", "0", "--config", str(config)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    yield process
    process.kill()
    process.wait(30)
    assert process.stdout
    process.stdout.close()


async def text(page: Page, name: str) -> str:
    return str(await page.run(f"return document.getElementById('{name}').textContent"))


async def shows(page: Page, name: str, wanted: str) -> None:
    async def found() -> bool:
        return wanted in await text(page, name)

    await until(found, timeout=120)


@pytest.mark.timeout(600)
async def test_a_night_with_the_page(
    served: subprocess.Popen[str], asynclock_nodes: list[LocalServer], tmp_path: Path
) -> None:
    if binaries() is None:
        pytest.skip("no browser: chromium or chromedriver is not installed")
    for node in asynclock_nodes:
        await node.command("EVAL", FILL, 1, LONG, 350, HOLDER, FENCE)
    await plant(asynclock_nodes, [planted(1, 3, name="zoo"), planted(2, name="calm")])
    assert served.stdout
    line = await asyncio.to_thread(served.stdout.readline)
    # One browser for all of it: it takes seconds to start.
    async with browse(tmp_path) as page:
        await page.open(line.strip())
        await shows(page, "place", "1–100 of 353")
        assert await text(page, "held") == "Held (353)"
        await _says_who_waits(page)
        assert "leases seen since" in await text(page, "charts")
        assert "this process" not in await text(page, "charts")

        # F5 asks for no token.
        await page.reload()
        await shows(page, "place", "1–100 of 353")
        assert await page.run("return document.getElementById('login').hidden")
        assert await page.run("return location.hash") == ""
        files = "return performance.getEntriesByType('resource').map((one) => one.responseStatus)"
        assert {200} >= set(await page.run(files)), "also of the picture in the browser's tab"

        # All of them can be reached.
        for wanted in ("101–200 of 353", "201–300 of 353", "301–353 of 353"):
            await page.run("document.getElementById('next').click()")
            await shows(page, "place", wanted)
        assert await page.run("return document.getElementById('next').disabled")
        await page.run(FIND % "H:234")
        await shows(page, "place", "1–1 of 1 found")
        assert await page.run("return location.hash") == "#search=H%3A234"
        await shows(page, "locks", "bulk:000234")
        await page.run(FIND % "production")
        await shows(page, "locks", "invoice")
        await _looks_right(page)
        await page.run("document.querySelector('#locks tbody a').click()")
        await shows(page, "lock-title", LONG.removeprefix("asynclock:"))
        await shows(page, "lock-body", "3 of 3")
        for width in WIDTHS:
            await page.look(width)
            assert await page.run(CONTRAST) == [], width
            assert await page.run("return document.documentElement.scrollWidth") <= width
        await page.run("history.back()")
        await shows(page, "place", "of 1 found")

        # What nodes that are gone mean.
        await asynclock_nodes[0].freeze()
        await shows(page, "trouble", "locks work; if one more fails, nothing can be locked")
        assert await text(page, "voting") == "Nodes 2 of 3 vote"
        gone = "return document.querySelector('#nodes .away').innerText"
        assert "it does not answer in time" in await page.run(gone)
        assert "·" not in await page.run(gone), "its round trip and version are old ones"
        assert await page.run("return document.getElementById('trouble').className") == "amber"
        await asynclock_nodes[1].freeze()
        await shows(page, "trouble", "nothing can be locked")
        await shows(page, "locks", "unknown: 1 of 3 nodes answered")
        assert await page.run("return document.getElementById('trouble').className") == "red"
        assert "disagree" not in await text(page, "locks")
        for dark in (False, True):
            await page.look(800, dark=dark)
            assert await page.run(CONTRAST) == []

        # What a server that is gone means.
        served.send_signal(signal.SIGSTOP)
        await shows(page, "status", "the server does not answer")
        assert "no picture since " in await text(page, "status")
        assert await page.run("return document.body.className") == "gone"
        served.send_signal(signal.SIGCONT)
        await shows(page, "status", "live")
        assert await page.run("return document.body.className") == ""


async def _says_who_waits(page: Page) -> None:
    """Who waits for what, since when, behind whom: the first row, and the view that it opens."""
    first = "return document.querySelector('#locks tbody tr').innerText"
    shown = await page.run(first)
    assert shown.startswith("zoo\nthe longest wait is over 10 s")
    assert "longest 1m" in shown
    assert await page.run("return document.querySelector('#locks tbody tr').className") == "amber"
    await page.run("document.querySelector('#locks tbody a').click()")
    await shows(page, "lock-title", "zoo")
    places = (
        "return [...document.querySelectorAll('#lock .queue tbody tr')]"
        ".map((one) => one.innerText.split('\\t').slice(0, 3))"
    )
    assert await page.run(places) == [
        ["1", "web-2.example.org", "4100"],
        ["2", "worker-eu-1.example.org", "4101"],
        ["3", "worker-eu-2.example.org", "4102"],
    ]
    assert "fence" in await text(page, "lock-body")
    assert await page.run("return !!document.querySelector('#lock figure svg rect.bar0')")
    # A search finds those who wait, too.
    await page.run("history.back()")
    await shows(page, "place", "of 353")
    await page.run(FIND % "WORKER-EU-2.EXAMPLE.ORG:4102")
    await shows(page, "place", "1–1 of 1 found")
    assert (await page.run(first)).startswith("zoo")
    await page.run(FIND % "")
    await shows(page, "place", "of 353")


FIND = (
    "const box = document.getElementById('search'); box.value = '%s';"
    "box.dispatchEvent(new Event('input'))"
)


async def _looks_right(page: Page) -> None:
    for width in WIDTHS:
        for dark in (False, True):
            await page.look(width, dark=dark)
            assert await page.run(CONTRAST) == [], (width, dark)
        # Nothing sticks out, a number stays in one piece, an address breaks between its parts.
        assert await page.run("return document.documentElement.scrollWidth") <= width
        lines = await page.run(
            "const lines = (at) => new Set([...document.querySelector(`#locks tbody tr`)"
            ".cells[at].firstChild.getClientRects()].map((one) => one.top)).size;"
            "return [lines(3), lines(2)]"
        )
        assert lines[0] <= 3
        assert lines[1] == 1
    unnamed = (
        "return [...document.querySelectorAll('table')].filter((one) => !one.caption"
        " && !one.closest('section[aria-labelledby]')).length"
    )
    assert await page.run(unnamed) == 0
    unscoped = "return document.querySelectorAll('th:not([scope])').length"
    assert await page.run(unscoped) == 0


# ---- without a browser ---------------------------------------------------------------------------


def client_for(locks: asynclock.LockManager, url: str, **more: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(dashboard(locks, token=TOKEN, **more), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url=url, headers=AUTH, timeout=60)


@pytest.mark.parametrize(
    ("url", "more", "status"),
    [
        ("http://localhost:8765", {}, 200),
        ("http://127.0.0.1", {}, 200),
        ("http://[::1]:8765", {}, 200),
        ("http://rebound.example.org", {}, 421),
        ("http://locks.example.org", {"hosts": ["Locks.example.org"]}, 200),
        ("http://rebound.example.org", {"hosts": ["locks.example.org"]}, 421),
        ("http://rebound.example.org", {"hosts": ["locks.example.org"], "public": True}, 421),
        ("http://anything.example.org", {"public": True}, 200),
    ],
)
async def test_a_foreign_host_is_refused(
    asynclock_nodes: list[LocalServer], url: str, more: dict[str, Any], status: int
) -> None:
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, **PATIENT) as locks, client_for(locks, url, **more) as it:
        for path in ("/", "/state"):
            assert (await it.get(path)).status_code == status


async def test_search_sort_and_pages(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
    for node in asynclock_nodes:
        await node.command("EVAL", FILL, 1, LONG, 2000, HOLDER, FENCE)
    async with (
        asynclock.connect(*urls, **PATIENT) as locks,
        client_for(locks, "http://localhost") as client,
    ):

        async def state(query: str) -> Any:
            return (await client.get(f"/state?{query}")).json()

        names = []
        for offset in range(0, 2001, 150):
            page = await state(f"offset={offset}&limit=150")
            assert (page["version"], page["held"], page["found"]) == (1, 2001, 2001)
            names += [lock["name"] for lock in page["locks"]]
        assert len(set(names)) == 2001
        assert names == sorted(names)
        found = await state("search=BULK:0019&sort=name&reverse=1&limit=3")
        assert [lock["name"] for lock in found["locks"]] == [f"bulk:00199{n}" for n in (9, 8, 7)]
        assert (found["found"], found["held"]) == (100, 2001)
        first = (await state("sort=fence&reverse=1&limit=1"))["locks"][0]
        assert first["fence"] == FENCE
        assert len((await state("limit=100000"))["locks"]) == MOST_LOCKS


@pytest.mark.parametrize("offset", ["", "-1", "x", "1" * 30, "²"])
def test_a_query_that_makes_no_sense(offset: str) -> None:
    assert Query.of({"offset": offset, "limit": "no", "sort": "text", "reverse": "yes"}) == Query()


async def test_whose_counters_they_are(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
    async with (
        asynclock.connect(*urls, **PATIENT) as locks,
        asynclock.connect(*urls, **PATIENT) as others,
        client_for(locks, "http://localhost") as client,
    ):

        async def state() -> Any:
            return (await client.get("/state")).json()

        assert (await state())["own"] is None
        theirs = await others.lock("theirs").acquire()

        async def seen(count: int, what: str) -> None:
            async def counted() -> bool:
                return bool((await state())["seen"][what] == count)

            await until(counted)

        await seen(1, "acquired")
        assert (await state())["own"] is None
        await theirs.release()
        await seen(1, "released")
        async with locks.lock("ours"):
            await seen(2, "acquired")
            assert (await state())["own"]["acquired"] == 1


async def test_a_quarantined_node_is_never_up(asynclock_nodes: list[LocalServer]) -> None:
    """A fresh server may have forgotten what it granted: `serve` says so, as services see it."""
    urls = [node.url for node in asynclock_nodes]
    async with (
        asynclock.connect(*urls, ttl=3600.0, max_ttl=3600.0) as locks,
        client_for(locks, "http://localhost") as client,
    ):
        state = (await client.get("/state")).json()
    assert {node["state"] for node in state["nodes"]} == {"quarantined"}
    assert state["trouble"]["level"] == "red"
    assert "3 quarantined" in state["trouble"]["text"]
