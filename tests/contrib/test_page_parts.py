"""Each part of the live page in a real browser: a picture made for it, and each control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.contrib.dashboard import app, dashboard, snapshots
from asynclock.contrib.dashboard.snapshots import Query, Snapshots
from asynclock.errors import QuorumUnavailableError
from tests.contrib.apps import serving
from tests.contrib.browser import Page, binaries, browse
from tests.waiting import until

TOKEN = "0123456789abcdef-token"
ROWS = (
    "return [...document.querySelectorAll('#%s tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.textContent))"
)
KINDS = (
    "return [...document.querySelectorAll('#%s tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.className))"
)
PICTURE: dict[str, Any] = {
    "version": 1,
    "at": 1.7e9,
    "pace": 1.0,
    "quorum": 2,
    "trouble": {"level": "amber", "text": "one node is away"},
    "held": 1234,
    "found": 300,
    "offset": 0,
    "locks": [
        {
            "name": "jobs",
            "part": "3",
            "holder": "host:1",
            "fence": 77,
            "remaining": 0.05,
            "nodes": 2,
            "agreed": True,
            "note": "nodes disagree",
            "ours": True,
        },
        {
            "name": "free",
            "part": "",
            "holder": None,
            "fence": 0,
            "remaining": None,
            "nodes": 3,
            "agreed": False,
            "note": "",
            "ours": False,
        },
    ],
    "waiters": [
        {
            "name": "jobs",
            "count": 3,
            "more": True,
            "queue": [{"label": "w:1", "woken": True}, {"label": None, "woken": False}],
        },
        {"name": "here", "count": 2, "more": False, "queue": []},
    ],
    "waited_for": 250,
    "nodes": [
        {
            "node": "redis://a",
            "state": "up",
            "cause": "",
            "votes_in": 0.0,
            "round_trip": 0.002,
            "version": "7.2",
        },
        {
            "node": "redis://b",
            "state": "quarantined",
            "cause": "it restarted",
            "votes_in": 3.24,
            "round_trip": None,
            "version": None,
        },
    ],
    "losses": [{"at": 1.7e9, "name": "lost", "fence": 5, "held": 2.5, "reason": "it expired"}],
    "seen": {"since": 1.7e9, "acquired": 11, "released": 22, "ran_out": 33},
    "own": {"acquired": 1, "lost": 2, "refused": 3, "waiting": 4},
}


class Desk:
    """What the server says from now on, and what the page has asked for."""

    def __init__(self) -> None:
        self.picture = PICTURE
        self.error: Exception | None = None
        self.asked: list[Query] = []

    async def take(self, query: Query, *, at_once: bool = False) -> dict[str, Any]:
        self.asked.append(query)
        if self.error is not None:
            raise self.error
        return {**self.picture, "offset": query.offset}


async def text(page: Page, name: str) -> str:
    return str(await page.run(f"return document.getElementById('{name}').textContent"))


async def true(page: Page, script: str) -> None:
    """Wait until an expression in the page is true."""
    await until(lambda: page.run(f"return {script}"), script, timeout=60)


async def click(page: Page, name: str) -> None:
    await page.run(f"document.getElementById('{name}').click()")


async def log_in(page: Page, token: str) -> None:
    await page.run(f"document.getElementById('token').value = '{token}'")
    await page.run("document.querySelector('#login button').click()")


@pytest.mark.timeout(300)
async def test_each_part_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip("no browser: chromium or chromedriver is not installed")
    desk = Desk()
    monkeypatch.setattr(Snapshots, "take", lambda _, query, **more: desk.take(query, **more))
    monkeypatch.setattr(snapshots, "FRESH", 0.1)
    monkeypatch.setattr(app, "ALIVE", 0.05)
    # One browser for all of it: it takes seconds to start.
    async with serving(dashboard(asynclock.connect("memory://"), token=TOKEN)) as url:
        async with browse(tmp_path) as page:
            await page.open(url)
            await _asks_for_the_token(page)
            await _shows_a_picture(page)
            await _asks_for_what_is_chosen(page, desk)
            await _says_what_is_missing(page, desk)


async def _asks_for_the_token(page: Page) -> None:
    await true(page, "!document.getElementById('login').hidden")
    assert await page.run("return document.getElementById('main').hidden")
    assert await page.run("return document.getElementById('token').type") == "password"
    assert await page.run("return document.activeElement.id") == "token"
    await log_in(page, "a wrong one, long enough")
    await true(page, "document.getElementById('status').textContent.includes('not the one')")
    assert await page.run("return document.getElementById('status').className") == "down"
    assert not await page.run("return document.getElementById('login').hidden")
    assert await page.run("return sessionStorage.length") == 0
    await log_in(page, TOKEN)
    await true(page, "!document.getElementById('main').hidden")
    assert await page.run("return document.getElementById('login').hidden")
    assert await page.run("return Object.values(sessionStorage)") == [TOKEN]


async def _shows_a_picture(page: Page) -> None:
    assert (await text(page, "status")).startswith("live, ")
    assert await page.run("return document.getElementById('status').className") == "live"
    assert await text(page, "trouble") == "one node is away"
    assert await page.run("return document.getElementById('trouble').className") == "amber"
    assert await page.run(ROWS % "nodes") == [
        ["redis://a", "up", "", "2.0 ms", "7.2", ""],
        ["redis://b", "quarantined", "3.2 s", "", "", "it restarted"],
    ]
    states = [row[1] for row in await page.run(KINDS % "nodes")]
    assert states == ["good", "bad"]
    assert await page.run(ROWS % "locks") == [
        ["jobs [3]", "host:1", "50.0 ms", "77", "2", "nodes disagree, held by this process"],
        ["free", "", "", "", "3", ""],
    ]
    # On a phone each cell has the title of its column, and one without a text is left out.
    await page.look(375)
    titles = "return [...document.querySelectorAll('#locks tbody tr:first-child > *')].map((one) =>"
    before = " getComputedStyle(one, '::before').content)"
    assert await page.run(titles + before) == [f'"{column}"' for column in snapshots.COLUMNS]
    seen = "return [...document.querySelectorAll('#locks tbody tr:last-child > *')].map((one) =>"
    assert await page.run(seen + " one.checkVisibility())") == [
        *(True, False, False, False, True, False)
    ]
    await page.look(1100)
    notes = [row[5].split() for row in await page.run(KINDS % "locks")]
    assert notes == [["bad"], ["nothing"]]
    assert await page.run(ROWS % "waiters") == [
        ["jobs", "3 or more", "w:1 (woken), , …"],
        ["here", "2", ""],
    ]
    assert await text(page, "waited") == "(the first 2 of 250 names)"
    (loss,) = await page.run(ROWS % "losses")
    assert loss[1:] == ["lost", "5", "2.5 s", "it expired"]
    assert loss[0].count(":") == 2, "the time of day"
    counters = await text(page, "counters")
    assert counters.startswith("All clients, as seen by this page since ")
    assert "11 acquired22 released33 ran out" in counters
    assert counters.endswith("This process1 acquired2 lost3 refused4 waiting")
    assert (await text(page, "held")).replace(",", "") == "Held (1234)"
    assert await text(page, "place") == "1–2 of 300 found"
    assert await page.run("return document.getElementById('previous').disabled")
    assert not await page.run("return document.getElementById('next').disabled")


async def _asks_for_what_is_chosen(page: Page, desk: Desk) -> None:
    async def asks(**wanted: Any) -> None:
        await until(lambda: desk.asked[-1] == Query(**wanted), str(wanted), timeout=60)

    await asks()
    await click(page, "next")
    await asks(offset=100)
    await true(page, "!document.getElementById('previous').disabled")
    assert await text(page, "place") == "101–102 of 300 found"
    await click(page, "next")
    await asks(offset=200)
    await click(page, "previous")
    await asks(offset=100)
    sort = "const list = document.getElementById('sort'); list.value = 'holder';"
    options = "return [...document.getElementById('sort').options].map((one) => one.value)"
    assert await page.run(options) == list(snapshots.COLUMNS)
    await page.run(sort + "list.dispatchEvent(new Event('change'))")
    await asks(sort="holder")
    await click(page, "reverse")
    await asks(sort="holder", reverse=True)
    assert await text(page, "reverse") == "descending"
    assert await page.run("return document.getElementById('reverse').ariaPressed") == "true"
    await click(page, "next")
    await asks(sort="holder", reverse=True, offset=100)
    search = "const box = document.getElementById('search'); box.value = 'a&b=c';"
    await page.run(search + "box.dispatchEvent(new Event('input'))")
    await asks(sort="holder", reverse=True, search="a&b=c")
    await click(page, "reverse")
    await asks(sort="holder", search="a&b=c")
    assert await text(page, "reverse") == "ascending"
    # All that were found are shown, and more are held.
    desk.picture = {**PICTURE, "found": 2}
    await true(page, "document.getElementById('place').textContent === '1–2 of 2 found'")
    assert await page.run("return document.getElementById('next').disabled")
    desk.picture = PICTURE
    await true(page, "!document.getElementById('next').disabled")
    # A page that is no longer there: back to the first.
    await click(page, "next")
    await asks(sort="holder", search="a&b=c", offset=100)
    desk.picture = {**PICTURE, "found": 2, "locks": []}
    await asks(sort="holder", search="a&b=c")


async def _says_what_is_missing(page: Page, desk: Desk) -> None:
    lists: dict[str, Any] = {"locks": [], "waiters": [], "losses": [], "found": 0, "held": 0}
    desk.picture = {**PICTURE, **lists, "trouble": None, "own": None, "waited_for": 0}
    await true(page, "document.getElementById('place').textContent === '0'")
    assert await page.run("return document.getElementById('trouble').hidden")
    assert "This process" not in await text(page, "counters")
    assert await text(page, "waited") == ""
    assert await page.run("return document.getElementById('next').disabled")
    empty = (
        "return [...document.querySelectorAll('.empty')].filter((one) => one.checkVisibility())"
        ".map((one) => one.textContent)"
    )
    assert await page.run(empty) == [
        "nothing is held",
        "nobody is known to wait",
        "this process has lost none",
    ]
    desk.error = QuorumUnavailableError("secret", name="a")
    status = "document.getElementById('status')"
    await true(page, f"{status}.textContent.includes('QuorumUnavailableError')")
    shown = await text(page, "status")
    assert shown.startswith("no picture since ")
    assert "the nodes can't be asked" in shown
    assert "secret" not in shown
    assert await page.run(f"return {status}.className") == "down"
    assert await page.run("return document.body.className") == "gone"
    opacity = "return Number(getComputedStyle(document.getElementById('main')).opacity)"
    assert await page.run(opacity) < 1
    desk.error, desk.picture = None, PICTURE
    await true(page, f"{status}.className === 'live'")
    assert await page.run("return document.body.className") == ""
    assert await page.run(empty) == []
