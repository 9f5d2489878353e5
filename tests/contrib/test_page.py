"""The live page in a real browser: each part and control, names that attack, a bad night."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.contrib.dashboard import dashboard
from asynclock.errors import QuorumUnavailableError
from asynclock.testing import LocalServer
from tests.contrib.apps import TOKEN, memory, serving
from tests.contrib.browser import Page, tab
from tests.contrib.planted import LONG, bulk, plant, planted
from tests.contrib.test_serve import serve
from tests.tables.inside import pictures
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)
FIND = (
    "const box = document.getElementById('search'); box.value = '%s';"
    "box.dispatchEvent(new Event('input'))"
)
PRESS = "%s.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
OPEN = "document.querySelector('#locks tbody a').click()"
SHORT = """
const $ = (name) => document.getElementById(name);
const all = (what) => [...document.querySelectorAll(what)];
const texts = (what) => all(what).map((one) => one.innerText);
const rows = (id) => all(`#${id} tbody tr`).map((row) => [...row.cells].map((c) => c.innerText));
const first = (what) => document.querySelector(what);
"""
"""What expressions about the page may use."""


@pytest.fixture
async def page(browser: tuple[str, str]) -> AsyncIterator[Page]:
    """The tab of the worker's browser."""
    async with tab(*browser) as page:
        yield page


async def has(page: Page, wanted: dict[str, Any]) -> None:
    """Look at expressions in the page and what they are."""
    found = await page.run(f"{SHORT} return [{', '.join(wanted)}]")
    assert dict(zip(wanted, found, strict=True)) == wanted


async def say(page: Page, expression: str) -> Any:
    return await page.run(f"{SHORT} return {expression}")


# ---- each part -----------------------------------------------------------------------------------
CALM: dict[str, Any] = json.loads("""{
    "name": "calm", "kind": "lock", "title": "calm", "part": "", "holder": "host:1", "holders": 1,
    "held": 3700.0, "exact": true, "fence": 77, "remaining": 8.2, "nodes": 3, "agreed": true,
    "note": "", "ours": false, "waiting": 0, "more": false, "waited": null, "usual": null,
    "level": "", "why": ""
}""")
BUSY: dict[str, Any] = CALM | json.loads("""{
    "name": "jobs", "kind": "semaphore", "title": "jobs [semaphore]", "holders": 3, "held": 15000.0,
    "exact": false, "nodes": 2, "note": "nodes disagree", "ours": true, "waiting": 12, "more": true,
    "waited": 7500.0, "level": "red", "why": "nodes disagree"
}""")
FREE: dict[str, Any] = CALM | json.loads("""{
    "name": "<i>free</i>", "title": "<i>free</i>", "holder": null, "holders": 0, "held": null,
    "fence": 0, "remaining": null, "nodes": 0, "waiting": 1, "waited": 3700.0, "level": "amber",
    "why": "a writer waits for a reader"
}""")
POINT: dict[str, Any] = json.loads("""{
    "at": 1.7e9, "acquired": 12.5, "ran_out": 4, "lost": 1, "waiting": 15, "longest": 75.0,
    "p50": 0.002, "p99": 0.25
}""")
NODE: dict[str, Any] = json.loads("""{
    "node": "redis://a", "state": "up", "cause": "", "votes_in": 0.0, "round_trip": 0.002,
    "version": "7.2", "since": 1.7e9, "exact": true
}""")
AWAY: dict[str, Any] = NODE | json.loads("""{
    "node": "redis://b", "state": "quarantined", "cause": "it restarted", "votes_in": 3.24,
    "round_trip": null, "version": null
}""")
PICTURE: dict[str, Any] = {
    **json.loads("""{
        "version": 1, "at": 1.7e9, "pace": 1.0, "quorum": 2,
        "trouble": {"level": "amber", "text": "one node is away"}, "doubts": ["is it the prefix?"],
        "held": 1234, "found": 300, "offset": 0, "lock": null, "waiting": 15, "waited_for": 2,
        "longest": 7500.0, "wrong": 2,
        "losses": [{"at": 1.7e9, "name": "lost", "fence": 5, "held": 2.5, "reason": "it expired"}],
        "seen": {"since": 1.7e9, "acquired": 11, "released": 22, "ran_out": 33},
        "own": {"acquired": 1, "lost": 2, "refused": 3, "waiting": 4}
    }"""),
    "locks": [BUSY, FREE, CALM],
    "nodes": [NODE, AWAY, {**NODE, "node": "redis://c"}],
    "history": [{**POINT, "at": 1.7e9 - 5}, POINT],
}
VIEW: dict[str, Any] = {"remaining": None, "fence": 0, "error": None, "holder": None}
LEASE: dict[str, Any] = {
    **json.loads("""{
        "part": "0", "holder": "host:1:task", "host": "host", "pid": 1, "task": "task",
        "held": 250.0, "exact": true, "fence": 77, "remaining": 8.2, "nodes": 2, "agreed": false,
        "note": "nodes disagree", "ours": true, "message": "http://leader"
    }"""),
    "views": [
        {**VIEW, "node": "redis://a", "holder": "host:1", "remaining": 8.2},
        {**VIEW, "node": "redis://b", "error": "down"},
        {**VIEW, "node": "redis://c"},
    ],
}
PLACE: dict[str, Any] = json.loads("""{
    "label": "web:7:x", "host": "web", "pid": 7, "task": "x", "woken": true, "shared": true,
    "waited": 4500.0
}""")
ELSEWHERE = {**PLACE, "label": "x", "host": None, "pid": None, "task": None, "waited": None}
PAST: dict[str, Any] = json.loads("""{
    "kind": "semaphore", "part": "0", "holder": "before:1", "ended": "ran out",
    "since": 1699999600.0, "until": 1699999700.0
}""")
LOCK: dict[str, Any] = {
    "name": "jobs",
    "watched": 1.7e9 - 450,
    "kinds": [{**BUSY, "leases": [LEASE], "queue": [PLACE, ELSEWHERE], "here": 0}],
    "past": [PAST],
}


class Desk:
    """What the server says from now on, and what the page has asked for."""

    def __init__(self) -> None:
        self.picture = PICTURE
        self.error: Exception | None = None
        self.asked: list[dict[str, Any]] = []

    async def take(self, chosen: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(chosen)
        if self.error is not None:
            raise self.error
        return {**self.picture, "offset": chosen.get("offset", 0)}

    async def hears(self, **wanted: Any) -> None:
        """Wait until the page asks for this."""
        chosen = {name: value for name, value in wanted.items() if value}
        await until(lambda: self.asked[-1] == chosen, str(chosen), timeout=60)


async def test_each_part_of_the_page(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    desk = Desk()
    pictures(monkeypatch, desk.take)
    async with serving(dashboard(asynclock.connect("memory://"), token=TOKEN)) as url:
        await page.open(url)
        await _asks_for_the_token(page)
        await _shows_a_picture(page)
        await _asks_for_what_is_chosen(page, desk)
        await _opens_one_lock(page, desk)
        await _says_what_is_missing(page, desk)


async def _asks_for_the_token(page: Page) -> None:
    await page.true("!document.getElementById('login').hidden")
    asked = {"$('main').hidden": True, "$('token').type": "password"}
    await has(page, {**asked, "document.activeElement.id": "token"})
    await page.log_in("a wrong one, long enough")
    await page.shows("status", "not the one")
    refused = {"$('status').className": "down", "$('login').hidden": False}
    await has(page, {**refused, "sessionStorage.length": 0})
    await page.log_in(TOKEN)
    await page.true("!document.getElementById('main').hidden")
    await has(page, {"$('login').hidden": True, "Object.values(sessionStorage)": [TOKEN]})


async def _shows_a_picture(page: Page) -> None:
    assert (await page.text("status")).startswith("live, ")
    await has(
        page,
        {
            "$('status').className": "live",
            "$('trouble').textContent": "one node is away",
            "$('trouble').className": "amber",
            "texts('#doubts li')": ["is it the prefix?"],
            "$('voting').textContent": "Nodes 2 of 3 vote",
            "all('#locks tbody tr').map((row) => row.className)": ["red", "amber", "quiet"],
            "all('#charts svg').every((one) => one.ariaLabel)": True,
            "$('held').textContent.replace(',', '')": "Names 1234 leases held",
            "$('place').textContent": "1–3 of 300",
            "$('previous').disabled": True,
            "$('next').disabled": False,
            "document.title": "(2) asynclock",
        },
    )
    first, second, _ = await say(page, "texts('#nodes li')")
    assert first.split() == ["up", "redis://a", "2.0", "ms", "·", "7.2"]
    assert second.startswith("quarantined")
    assert "since 11/14/2023 " in second
    assert ", votes in 3.2 s: it restarted" in second
    busy, free, calm = await say(page, "rows('locks')")
    assert busy[0].splitlines() == ["jobs [semaphore]", "held by this process", "nodes disagree"]
    assert busy[1:] == [
        *("12+ longest 2h 05m", "over 4h 10m", "host:1 and 2 more", "8.2 s", "77", "2 of 3")
    ]
    assert free[0].splitlines() == ["<i>free</i>", "a writer waits for a reader"]
    assert free[1:] == ["1 for 1h 01m", "", "nobody", "", "", ""]
    assert calm == ["calm", "", "1h 01m", "host:1", "8.2 s", "77", "3 of 3"]
    charts = [one.split("\n") for one in await say(page, "texts('#charts li')")]
    waiting, longest, acquired, ran_out, waits, lost = [[*filter(None, one)] for one in charts]
    assert waiting == ["Waiting", "15", "for 2 names"]
    assert longest == ["Longest wait", "2h 05m", "2 names in trouble"]
    assert acquired[:2] == ["Acquired", "13 /s"]
    assert acquired[2].startswith("11 seen since ")
    assert ran_out[:2] == ["Ran out", "8"]
    assert waits == ["Waits here (p99)", "250 ms", "p50 2.0 ms, 1 lease"]
    assert lost == ["Lost here", "2", "by this process"]
    (loss,) = await say(page, "rows('losses')")
    assert (loss[0], loss[2:]) == ("lost", ["2.5 s", "5", "it expired"])
    assert loss[1].count(":") == 2, "the time of day"
    # On a phone each cell has the title of its column, and one without a text is left out.
    await fits(page, 390)
    cells = "all('#locks tbody tr:nth-child(2) > *').map((one) =>"
    seen = [True, True, False, True, False, False, False]
    titles = f"{cells} getComputedStyle(one, '::before').content).slice(1, 4)"
    shown = ['"waiting "', '"held for "', '"holder "']
    await has(page, {f"{cells} one.checkVisibility())": seen, titles: shown})
    await page.look(1100)


async def _asks_for_what_is_chosen(page: Page, desk: Desk) -> None:
    async def click(name: str) -> None:
        await page.run(f"document.getElementById('{name}').click()")

    await desk.hears()
    await has(page, {"location.hash": ""})
    await click("next")
    await desk.hears(offset=100)
    await page.true("!document.getElementById('previous').disabled")
    shown = {"location.hash": "#offset=100", "$('place').textContent": "101–103 of 300"}
    await has(page, shown)
    await click("previous")
    await desk.hears()
    columns = "[...$('sort').options].map((one) => one.value).sort()"
    sorts = "attention fence held holder name nodes remaining waiting".split()
    await has(page, {columns: sorts})
    head = "document.querySelector('#locks th[data-sort=held] button').click()"
    for reverse, shown_as in ((True, "descending"), (False, "ascending")):
        await page.run(head)
        await desk.hears(sort="held", reverse=reverse)
        await has(page, {"first('#locks th[data-sort=held]').ariaSort": shown_as})
    await page.run(head)
    await desk.hears()
    await page.run(
        "const list = document.getElementById('sort'); list.value = 'holder';"
        "list.dispatchEvent(new Event('change'))"
    )
    await desk.hears(sort="holder")
    await click("reverse")
    await desk.hears(sort="holder", reverse=True)
    await has(page, {"$('reverse').textContent": "descending", "$('reverse').ariaPressed": "true"})
    await page.run(FIND % "a&b=c")
    await desk.hears(sort="holder", reverse=True, search="a&b=c")
    await page.true("document.getElementById('place').textContent === '1–3 of 300 found'")
    # All of it is in the address, so a reload and the way back show the same.
    await page.reload()
    await page.true("document.getElementById('search').value === 'a&b=c'")
    await desk.hears(sort="holder", reverse=True, search="a&b=c")
    await page.run("history.back()")
    await desk.hears(sort="holder")
    # A page that is no longer there: back to the first.
    await page.true("!document.getElementById('next').disabled")
    await click("next")
    await desk.hears(sort="holder", offset=100)
    desk.picture = {**PICTURE, "found": 3, "locks": []}
    await desk.hears(sort="holder")
    await page.true("document.getElementById('pager').hidden")
    desk.picture = PICTURE
    await page.run("location.hash = ''")
    await desk.hears()


async def _opens_one_lock(page: Page, desk: Desk) -> None:
    await page.true("document.querySelectorAll('#locks tbody tr').length === 3")
    desk.picture = {**PICTURE, "lock": LOCK}
    await page.run(OPEN)
    await desk.hears(lock="jobs")
    await page.true("!document.getElementById('lock').hidden")
    await has(
        page,
        {
            "location.hash": "#lock=jobs",
            "document.activeElement.id": "lock-title",
            "$('overview').checkVisibility()": False,
            "$('lock-title').textContent": "jobs [semaphore]",
            "texts('#lock .leases > li').length": 1,
            "texts('#lock .leases > li')[0].includes('host:1:task')": True,
            "all('#lock figure rect').map((one) => one.className.baseVal)": [
                *("unseen", "out", "bar1")
            ],
            "first('#lock figure svg').ariaLabel": "The last ten minutes: 2 holds by 2 holders",
            "$('lock-body').textContent.includes('and 10 more')": True,  # waiters
            "$('lock-body').textContent.includes('and 2 more')": True,  # holders
        },
    )
    # On a phone the nodes that work leave their place to the lock.
    visible = "texts('#nodes li').filter((_, at) => all('#nodes li')[at].checkVisibility()).length"
    await has(page, {visible: 3})
    await page.look(390)
    await has(page, {visible: 1})
    await page.look(1100)
    facts = await say(page, "texts('#lock .leases dl > div')")
    assert [one.split("\n")[0] for one in facts] == [
        *("part", "held for", "since", "remaining", "fence", "nodes", "message", "note")
    ]
    assert {"message\nhttp://leader", "nodes\n2 of 3"} <= set(facts)
    views = await say(page, "texts('#lock .views tr')")
    assert [one.split() for one in views] == [
        ["redis://a", "host:1", "8.2", "s"],
        ["redis://b", "down"],
        ["redis://c", "free"],
    ]
    places = await say(page, "texts('#lock .queue tbody tr')")
    assert [one.split("\t") for one in places] == [
        ["1", "web", "7:x", "1h 15m", "reads, woken"],
        ["2", "x", "", "", "reads, woken"],
    ]
    (before,) = await say(page, "texts('#lock .past tbody tr')")
    assert before.split("\t")[:2] == ["before:1", "1m 40s"]
    assert before.endswith("ran out")
    # A name that is in no picture any more.
    desk.picture = {**PICTURE, "lock": {**LOCK, "kinds": [], "past": []}}
    await page.shows("lock-body", "Nobody holds")
    desk.picture = PICTURE
    await page.run(PRESS % ("document.body", "Escape"))
    await page.true("!document.getElementById('overview').hidden")
    focus = "document.activeElement.textContent"
    await has(page, {"location.hash": "", focus: "jobs [semaphore]"})
    await page.run(PRESS % ("document.activeElement", "/"))
    await has(page, {"document.activeElement.id": "search"})
    await page.run("document.querySelector('#locks tbody a').focus()")
    # The next picture changes only what differs: the link that has the focus keeps it.
    desk.picture = {**PICTURE, "locks": [CALM, {**BUSY, "waiting": 13}, FREE]}
    await page.true("document.querySelector('#locks tbody tr').className === 'quiet'")
    await has(page, {focus: "jobs [semaphore]"})
    desk.picture = PICTURE


async def _says_what_is_missing(page: Page, desk: Desk) -> None:
    lists: dict[str, Any] = {"locks": [], "losses": [], "found": 0, "held": 0, "doubts": []}
    none = {"waiting": 0, "waited_for": 0, "wrong": 0, "history": []}
    desk.picture = {**PICTURE, **lists, **none, "trouble": None, "own": None}
    await page.true("document.getElementById('place').textContent === '0'")
    empty = "all('.empty').filter((one) => one.checkVisibility()).map((one) => one.textContent)"
    await has(
        page,
        {
            "$('trouble').hidden": True,
            "texts('#doubts li')": [],
            "$('charts').textContent.includes('this process')": False,
            "$('charts').textContent.includes('nobody waits')": True,
            "$('next').disabled": True,
            "$('lost').checkVisibility()": False,
            empty: ["nothing is held, and nobody waits"],
        },
    )
    down = {**AWAY, "state": "down"}
    desk.picture = {**desk.picture, "nodes": [NODE, down, {**down, "node": "redis://c"}]}
    unknown = "unknown: 1 of 3 nodes answer"
    await page.true(f"document.getElementById('charts').textContent.includes('{unknown}')")
    await has(page, {empty: [unknown], "$('charts').textContent.includes('nobody waits')": False})
    desk.error = QuorumUnavailableError("secret", name="a")
    await page.shows("status", "QuorumUnavailableError")
    shown = await page.text("status")
    assert shown.startswith("no picture since ")
    assert "the nodes can't be asked" in shown
    assert "secret" not in shown
    faded = "Number(getComputedStyle($('main')).opacity) < 1"
    gone = {"$('status').className": "down", "document.body.className": "gone", faded: True}
    await has(page, gone)
    desk.error, desk.picture = None, PICTURE
    await page.true("document.getElementById('status').className === 'live'")
    await has(page, {"document.body.className": "", empty: []})


# ---- names ---------------------------------------------------------------------------------------
EVIL = "<script>document.title='owned'</script>"
TRICK = "a\u202egnp.exe\x1b[31m"


async def test_names_cannot_act_in_a_browser(page: Page) -> None:
    painted = "document.querySelectorAll('#locks tbody tr').length === 4"
    async with (
        asynclock.connect(*memory(), label="host:1:<b>label</b>") as locks,
        serving(dashboard(locks, token=TOKEN)) as url,
        locks.lock(EVIL),
        locks.lock(TRICK),
        locks.lock("<img src=x onerror=alert(1)>"),
        locks.rwlock("book").read(),
    ):
        await page.open(url)
        await page.true("!document.getElementById('login').hidden")
        await page.log_in(TOKEN)
        await page.true(painted)
        html = await page.run("return document.documentElement.outerHTML")
        html = html.replace("<wbr>", "")
        if folder := os.environ.get("ASYNCLOCK_SCREENSHOTS"):
            await page.screenshot(Path(folder) / "dashboard.png")
        await page.open("about:blank")
        await page.open(f"{url}/#token={TOKEN}")
        await page.true(painted)
        (book,) = await say(page, "rows('locks').filter((row) => row[0].startsWith('book'))")
    safe = {"document.title": "asynclock", "document.scripts.length": 1, "location.hash": ""}
    await has(page, safe)
    # The policy holds even against a script that got in: no markup from text, no eval.
    blocked = "try { %s; return 'done' } catch (error) { return error.name }"
    assert await page.run(blocked % "document.body.innerHTML = '<b>x</b>'") == "TypeError"
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in html
    assert "<img" not in html
    assert "&lt;b&gt;label&lt;/b&gt;" in html
    assert "a\\u{202e}gnp.exe\\u{1b}[31m" in html
    # A reader has one word, and was there before it was seen.
    assert (book[0].splitlines()[0], book[2].split()[0]) == ("book [rwlock read]", "over")
    assert TOKEN not in html


# ---- a night -------------------------------------------------------------------------------------
WIDTHS = (390, 900, 1440)
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
  .filter((one) => one.placeholder
    || [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .filter((one) => !one.disabled && getComputedStyle(one).clipPath === 'none')
  .map((one) => {
    const { color } = getComputedStyle(one, one.placeholder ? '::placeholder' : null);
    const [a, b] = [light(color), light(ground(one))].sort((x, y) => y - x);
    return [one.id || one.className || one.tagName, (a + 0.05) / (b + 0.05)];
  })
  .filter(([, ratio]) => ratio < 4.5);
"""


async def fits(page: Page, width: int, **look: Any) -> None:
    """Look at it in this width: it can be read, and nothing sticks out."""
    await page.look(width, **look)
    assert await page.run(CONTRAST) == [], (width, look)
    assert await page.run("return document.documentElement.scrollWidth") <= width
    boxes = "all('#charts li, #nodes li, #locks :is(td, tbody th)')"
    cut = f"{boxes}.filter((one) => one.scrollWidth > one.clientWidth).length"
    await has(page, {cut: 0})


async def test_a_night_with_the_page(
    asynclock_nodes: list[LocalServer], tmp_path: Path, page: Page
) -> None:
    named = planted(1, 3, name="zoo"), planted(2, name="calm")
    await plant(asynclock_nodes, [*bulk(350), *named])
    config = tmp_path / "asynclock.toml"
    urls = [node.url for node in asynclock_nodes]
    config.write_text(f"nodes = {urls!r}\nrestart_guard = false\n")
    async with serve([], "--config", str(config)) as (_, address, process):
        await page.open(address)
        await page.shows("place", "1–100 of 353")
        assert await page.text("held") == "Names 353 leases held"
        await _says_who_waits(page)
        assert " seen since " in await page.text("charts")
        assert "this process" not in await page.text("charts")

        # F5 asks for no token.
        await page.reload()
        await page.shows("place", "1–100 of 353")
        files = "performance.getEntriesByType('resource').every((one) => one.responseStatus == 200)"
        # Also of the picture in the browser's tab.
        await has(page, {"$('login').hidden": True, "location.hash": "", files: True})

        # All of them can be reached.
        for wanted in ("101–200 of 353", "201–300 of 353", "301–353 of 353"):
            await page.run("document.getElementById('next').click()")
            await page.shows("place", wanted)
        await has(page, {"$('next').disabled": True})
        await page.run(FIND % "H:234")
        await page.shows("place", "1–1 of 1 found")
        await has(page, {"location.hash": "#search=H%3A234"})
        await page.shows("locks", "bulk:000234")
        await page.run(FIND % "production")
        await page.shows("locks", "invoice")
        await _looks_right(page)
        await page.run(OPEN)
        await page.shows("lock-title", LONG)
        await page.shows("lock-body", "3 of 3")
        for width in WIDTHS:
            await fits(page, width)
        await page.run("history.back()")
        await page.shows("place", "of 1 found")

        # What nodes that are gone mean.
        await asynclock_nodes[0].freeze()
        await page.shows("trouble", "locks work; if one more fails, nothing can be locked")
        amber = {"$('voting').textContent": "Nodes 2 of 3 vote", "$('trouble').className": "amber"}
        await has(page, amber)
        gone = await say(page, "first('#nodes .away').innerText")
        assert re.search(r"since [\d:]+ \(.+\): .*answer", gone, re.DOTALL), gone
        assert "·" not in gone, "its round trip and version are old ones"
        await asynclock_nodes[1].freeze()
        await page.shows("trouble", "nothing can be locked")
        await page.shows("locks", "unknown: 1 of 3 nodes answered")
        await page.shows("held", "353 leases seen; unknown: 1 of 3 nodes answer")
        await has(page, {"$('trouble').className": "red"})
        assert "disagree" not in await page.text("locks")
        for dark in (False, True):
            await fits(page, 800, dark=dark)

        # What a server that is gone means.
        process.send_signal(signal.SIGSTOP)
        await page.shows("status", "the server does not answer")
        assert "no picture since " in await page.text("status")
        await has(page, {"document.body.className": "gone"})
        process.send_signal(signal.SIGCONT)
        await page.shows("status", "live")
        await has(page, {"document.body.className": ""})

        # What nodes that come back without their locks mean: none of these ran out.
        for node in asynclock_nodes:
            await node.restart()
        await page.shows("held", "Names 0 leases held")
        await page.shows("voting", "Nodes 3 of 3 vote")
        await has(page, {"$('trouble').hidden": True})
        assert "Ran out0" in await page.text("charts")
        for node, who in zip(asynclock_nodes, "ab", strict=False):
            await node.command("SET", "asynclock:odd", f"{who * 32}:{who}:1", "PX", 600_000)
        await page.run("location.hash = ''")
        await page.shows("locks", "nodes disagree")
        await page.true("document.querySelector('#locks tbody tr').className === 'red'")


async def _says_who_waits(page: Page) -> None:
    """The first row, and the view that it opens, tell the waiters, since when, and behind whom."""
    row = "first('#locks tbody tr')"
    shown = await say(page, f"{row}.innerText")
    assert shown.startswith("zoo\nthe longest wait is over 10 s")
    assert re.search("longest (59 s|1m)", shown), "59.1 s, and what has passed since"
    await has(page, {f"{row}.className": "amber"})
    await page.run(OPEN)
    await page.shows("lock-title", "zoo")
    places = [
        ["1", "web-2.example.org", "4100"],
        ["2", "worker-eu-1.example.org", "4101"],
        ["3", "worker-eu-2.example.org", "4102"],
    ]
    cells = "texts('#lock .queue tbody tr').map((one) => one.split('\\t').slice(0, 3))"
    await has(page, {cells: places, "!!first('#lock figure svg rect.bar0')": True})
    assert "fence" in await page.text("lock-body")
    # A search finds those who wait, too.
    await page.run("history.back()")
    await page.shows("place", "of 353")
    await page.run(FIND % "WORKER-EU-2.EXAMPLE.ORG:4102")
    await page.shows("place", "1–1 of 1 found")
    assert (await say(page, f"{row}.innerText")).startswith("zoo")
    await page.run(FIND % "")
    await page.shows("place", "of 353")


async def _looks_right(page: Page) -> None:
    lines = (
        "const lines = (at) => new Set([...document.querySelector(`#locks tbody tr`)"
        ".cells[at].firstChild.getClientRects()].map((one) => one.top)).size;"
        "return [lines(3), lines(2)]"
    )
    for width in WIDTHS:
        for dark in (False, True):
            await fits(page, width, dark=dark)
        # A number stays in one piece, an address breaks between its parts.
        holder, held = await page.run(lines)
        assert holder <= 3
        assert held == 1
    named = "all('table').every((one) => one.caption || one.closest('section[aria-labelledby]'))"
    await has(page, {named: True, "all('th:not([scope])').length": 0})
