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
    ".map((row) => [...row.cells].map((cell) => cell.innerText))"
)
TEXTS = "return [...document.querySelectorAll('%s')].map((one) => one.innerText)"
CALM: dict[str, Any] = {
    "name": "calm",
    "kind": "lock",
    "title": "calm",
    "part": "",
    "holder": "host:1",
    "holders": 1,
    "held": 3700.0,
    "fence": 77,
    "remaining": 8.2,
    "nodes": 3,
    "agreed": True,
    "note": "",
    "ours": False,
    "waiting": 0,
    "more": False,
    "waited": None,
    "usual": None,
    "level": "",
    "why": "",
}
BUSY: dict[str, Any] = {
    **CALM,
    "name": "jobs",
    "kind": "semaphore",
    "title": "jobs [semaphore]",
    "holders": 3,
    "held": 15000.0,
    "nodes": 2,
    "note": "nodes disagree",
    "ours": True,
    "waiting": 12,
    "more": True,
    "waited": 7500.0,
    "level": "red",
    "why": "nodes disagree",
}
FREE: dict[str, Any] = {
    **CALM,
    "name": "<i>free</i>",
    "title": "<i>free</i>",
    "holder": None,
    "holders": 0,
    "held": None,
    "fence": 0,
    "remaining": None,
    "nodes": 0,
    "waiting": 1,
    "waited": 3700.0,
    "level": "amber",
    "why": "a writer waits for a reader",
}
POINT: dict[str, Any] = {
    "at": 1.7e9,
    "acquired": 12.5,
    "lost": 1,
    "waiting": 15,
    "longest": 75.0,
    "p50": 0.002,
    "p99": 0.25,
}
NODE: dict[str, Any] = {
    "node": "redis://a",
    "state": "up",
    "cause": "",
    "votes_in": 0.0,
    "round_trip": 0.002,
    "version": "7.2",
    "since": 1.7e9,
}
AWAY = {
    **NODE,
    "node": "redis://b",
    "state": "quarantined",
    "cause": "it restarted",
    "votes_in": 3.24,
    "round_trip": None,
    "version": None,
}
PICTURE: dict[str, Any] = {
    "version": 1,
    "at": 1.7e9,
    "pace": 1.0,
    "quorum": 2,
    "trouble": {"level": "amber", "text": "one node is away"},
    "doubts": ["is it the prefix?"],
    "held": 1234,
    "found": 300,
    "offset": 0,
    "locks": [BUSY, FREE, CALM],
    "lock": None,
    "waiting": 15,
    "waited_for": 2,
    "longest": 7500.0,
    "wrong": 2,
    "nodes": [NODE, AWAY, {**NODE, "node": "redis://c"}],
    "losses": [{"at": 1.7e9, "name": "lost", "fence": 5, "held": 2.5, "reason": "it expired"}],
    "seen": {"since": 1.7e9, "acquired": 11, "released": 22, "ran_out": 33},
    "own": {"acquired": 1, "lost": 2, "refused": 3, "waiting": 4},
    "history": [{**POINT, "at": 1.7e9 - 5}, POINT],
}
VIEW: dict[str, Any] = {"remaining": None, "fence": 0, "error": None, "holder": None}
LEASE: dict[str, Any] = {
    "part": "0",
    "holder": "host:1:task",
    "host": "host",
    "pid": 1,
    "task": "task",
    "held": 250.0,
    "fence": 77,
    "remaining": 8.2,
    "nodes": 2,
    "agreed": False,
    "note": "nodes disagree",
    "ours": True,
    "views": [
        {**VIEW, "node": "redis://a", "holder": "host:1", "remaining": 8.2},
        {**VIEW, "node": "redis://b", "error": "down"},
        {**VIEW, "node": "redis://c"},
    ],
}
PLACE: dict[str, Any] = {
    "label": "web:7:x",
    "host": "web",
    "pid": 7,
    "task": "x",
    "woken": True,
    "shared": True,
    "waited": 4500.0,
}
ELSEWHERE = {**PLACE, "label": "x", "host": None, "pid": None, "task": None, "waited": None}
PAST = {
    "kind": "semaphore",
    "part": "0",
    "holder": "before:1",
    "since": 1.7e9 - 400,
    "until": 1.7e9 - 300,
    "ended": "ran out",
}
LOCK: dict[str, Any] = {
    "name": "jobs",
    "message": "http://leader",
    "watched": 1.7e9 - 450,
    "kinds": [{**BUSY, "leases": [LEASE], "queue": [PLACE, ELSEWHERE], "here": 0}],
    "past": [PAST],
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
            await _opens_one_lock(page, desk)
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
    assert await page.run(TEXTS % "#doubts li") == ["is it the prefix?"]
    assert await text(page, "voting") == "Nodes 2 of 3 vote"
    first, second, _ = await page.run(TEXTS % "#nodes li")
    assert first.split() == ["up", "redis://a", "2.0", "ms", "·", "7.2"]
    assert second.startswith("quarantined")
    assert ", votes in 3.2 s: it restarted" in second
    busy, free, calm = await page.run(ROWS % "locks")
    assert busy[0].splitlines() == ["jobs [semaphore]", "held by this process", "nodes disagree"]
    assert busy[1:] == [
        *("12+ longest 2h 05m", "4h 10m", "host:1 and 2 more", "8.2 s", "77", "2 of 3")
    ]
    assert free[0].splitlines() == ["<i>free</i>", "a writer waits for a reader"]
    assert free[1:] == ["1 for 1h 01m", "", "nobody", "", "", ""]
    assert calm == ["calm", "", "1h 01m", "host:1", "8.2 s", "77", "3 of 3"]
    kinds = "return [...document.querySelectorAll('#locks tbody tr')].map((row) => row.className)"
    assert await page.run(kinds) == ["red", "amber", "quiet"]
    charts = [one.split("\n") for one in await page.run(TEXTS % "#charts li")]
    waiting, longest, acquired, ran_out, waits = [[*filter(None, one)] for one in charts]
    assert waiting == ["Waiting", "15", "for 2 names"]
    assert longest == ["Longest wait", "2h 05m", "2 names in trouble"]
    assert acquired[:2] == ["Acquired", "13 /s"]
    assert acquired[2].startswith("11 leases seen since ")
    assert ran_out == ["Ran out", "33", "2 lost by this process"]
    assert waits == ["Waits of this process", "2.0 ms · 250 ms", "p50 · p99; 1 lease"]
    named = "return [...document.querySelectorAll('#charts svg')].every((one) => one.ariaLabel)"
    assert await page.run(named)
    # On a phone each cell has the title of its column, and one without a text is left out.
    await page.look(390)
    seen = "return [...document.querySelectorAll('#locks tbody tr:nth-child(2) > *')].map((one) =>"
    assert await page.run(seen + " one.checkVisibility())") == [
        *(True, True, False, True, False, False, False)
    ]
    titles = seen + " getComputedStyle(one, '::before').content)"
    assert (await page.run(titles))[1:4] == ['"waiting "', '"held for "', '"holder "']
    await page.look(1100)
    (loss,) = await page.run(ROWS % "losses")
    assert (loss[0], loss[2:]) == ("lost", ["2.5 s", "5", "it expired"])
    assert loss[1].count(":") == 2, "the time of day"
    assert (await text(page, "held")).replace(",", "") == "Held (1234)"
    assert await text(page, "place") == "1–3 of 300"
    assert await page.run("return document.getElementById('previous').disabled")
    assert not await page.run("return document.getElementById('next').disabled")
    assert await page.run("return document.title") == "(2) asynclock"


async def _asks_for_what_is_chosen(page: Page, desk: Desk) -> None:
    async def asks(**wanted: Any) -> None:
        await until(lambda: desk.asked[-1] == Query(**wanted), str(wanted), timeout=60)

    async def search(words: str) -> None:
        find = f"const box = document.getElementById('search'); box.value = '{words}';"
        await page.run(find + "box.dispatchEvent(new Event('input'))")

    await asks()
    assert await page.run("return location.hash") == ""
    await click(page, "next")
    await asks(offset=100)
    assert await page.run("return location.hash") == "#offset=100"
    await true(page, "!document.getElementById('previous').disabled")
    assert await text(page, "place") == "101–103 of 300"
    await click(page, "previous")
    await asks()
    options = "return [...document.getElementById('sort').options].map((one) => one.value)"
    assert sorted(await page.run(options)) == sorted(snapshots.COLUMNS)
    head = "document.querySelector('#locks th[data-sort=held] button').click()"
    sorting = "document.querySelector('#locks th[data-sort=held]').ariaSort"
    for reverse, shown in ((True, "descending"), (False, "ascending")):
        await page.run(head)
        await asks(sort="held", reverse=reverse)
        assert await page.run(f"return {sorting}") == shown
    await page.run(head)
    await asks()
    await page.run(
        "const list = document.getElementById('sort'); list.value = 'holder';"
        "list.dispatchEvent(new Event('change'))"
    )
    await asks(sort="holder")
    await click(page, "reverse")
    await asks(sort="holder", reverse=True)
    assert await text(page, "reverse") == "descending"
    assert await page.run("return document.getElementById('reverse').ariaPressed") == "true"
    await search("a&b=c")
    await asks(sort="holder", reverse=True, search="a&b=c")
    await true(page, "document.getElementById('place').textContent === '1–3 of 300 found'")
    # All of it is in the address, so a reload and the way back show the same.
    await page.reload()
    await true(page, "document.getElementById('search').value === 'a&b=c'")
    await asks(sort="holder", reverse=True, search="a&b=c")
    await page.run("history.back()")
    await asks(sort="holder")
    # A page that is no longer there: back to the first.
    await true(page, "!document.getElementById('next').disabled")
    await click(page, "next")
    await asks(sort="holder", offset=100)
    desk.picture = {**PICTURE, "found": 3, "locks": []}
    await asks(sort="holder")
    await true(page, "document.getElementById('pager').hidden")
    desk.picture = PICTURE
    await page.run("location.hash = ''")
    await asks()


async def _opens_one_lock(page: Page, desk: Desk) -> None:
    await true(page, "document.querySelectorAll('#locks tbody tr').length === 3")
    desk.picture = {**PICTURE, "lock": LOCK}
    await page.run("document.querySelector('#locks tbody a').click()")
    await until(lambda: desk.asked[-1] == Query(lock="jobs"), "the lock is asked for", timeout=60)
    await true(page, "!document.getElementById('lock').hidden")
    assert await page.run("return location.hash") == "#lock=jobs"
    assert await page.run("return document.activeElement.id") == "lock-title"
    assert not await page.run("return document.getElementById('overview').checkVisibility()")
    assert await text(page, "lock-title") == "jobs [semaphore]"
    (lease,) = await page.run(TEXTS % "#lock .leases > li")
    assert "host:1:task" in lease
    facts = await page.run(TEXTS % "#lock .leases dl > div")
    assert [one.split("\n")[0] for one in facts] == [
        *("part", "held for", "since", "remaining", "fence", "nodes", "message", "note")
    ]
    assert "message\nhttp://leader" in facts
    assert "nodes\n2 of 3" in facts
    views = await page.run(TEXTS % "#lock .views tr")
    assert [one.split() for one in views] == [
        ["redis://a", "host:1", "8.2", "s"],
        ["redis://b", "down"],
        ["redis://c", "free"],
    ]
    places = [one.split("\t") for one in await page.run(TEXTS % "#lock .queue tbody tr")]
    assert places == [
        ["1", "web", "7:x", "1h 15m", "reads, woken"],
        ["2", "x", "", "", "reads, woken"],
    ]
    assert "and 10 more" in await text(page, "lock-body")
    bars = "return [...document.querySelectorAll('#lock figure rect')].map((one) => one.className"
    assert await page.run(bars + ".baseVal)") == ["unseen", "out", "bar1"]
    drawn = await page.run("return document.querySelector('#lock figure svg').ariaLabel")
    assert drawn == "The last ten minutes: 2 holds by 2 holders"
    (before,) = await page.run(TEXTS % "#lock .wide table:not(.queue) tbody tr")
    assert before.split("\t")[:2] == ["before:1", "for 1m 40s"]
    assert before.endswith("ran out")
    # A name that is in no picture any more.
    desk.picture = {**PICTURE, "lock": {**LOCK, "kinds": [], "past": []}}
    await true(page, "document.getElementById('lock-body').textContent.includes('Nobody holds')")
    desk.picture = PICTURE
    await page.run(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', KEY))".replace(
            "KEY", "{key: 'Escape', bubbles: true}"
        )
    )
    await true(page, "!document.getElementById('overview').hidden")
    assert await page.run("return location.hash") == ""
    assert await page.run("return document.activeElement.textContent") == "jobs [semaphore]"
    pressed = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', KEY))"
    await page.run(pressed.replace("KEY", "{key: '/', bubbles: true}"))
    assert await page.run("return document.activeElement.id") == "search"
    await page.run("document.querySelector('#locks tbody a').focus()")
    # The next picture changes only what differs: the link that has the focus keeps it.
    desk.picture = {**PICTURE, "locks": [CALM, {**BUSY, "waiting": 13}, FREE]}
    await true(page, "document.querySelector('#locks tbody tr').className === 'quiet'")
    assert await page.run("return document.activeElement.textContent") == "jobs [semaphore]"
    desk.picture = PICTURE


async def _says_what_is_missing(page: Page, desk: Desk) -> None:
    lists: dict[str, Any] = {"locks": [], "losses": [], "found": 0, "held": 0, "doubts": []}
    none = {"waiting": 0, "waited_for": 0, "wrong": 0, "history": []}
    desk.picture = {**PICTURE, **lists, **none, "trouble": None, "own": None}
    await true(page, "document.getElementById('place').textContent === '0'")
    assert await page.run("return document.getElementById('trouble').hidden")
    assert await page.run(TEXTS % "#doubts li") == []
    assert "this process" not in await text(page, "charts")
    assert "nobody waits" in await text(page, "charts")
    assert await page.run("return document.getElementById('next').disabled")
    assert not await page.run("return document.getElementById('lost').checkVisibility()")
    empty = (
        "return [...document.querySelectorAll('.empty')].filter((one) => one.checkVisibility())"
        ".map((one) => one.textContent)"
    )
    assert await page.run(empty) == ["nothing is held, and nobody waits"]
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
