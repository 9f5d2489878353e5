"""Takes the pictures of the live page for docs/_static: python -m tests.tables.contrib.pictures

Three nodes, one of them dead; 200 locks, some contended; three widths, light and dark. The locks,
the waiters and what the page has seen are made up, so that nobody waits for minutes to pass. The
page is that of an application that takes locks, too.
"""

import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image  # of matplotlib, which draws the benchmarks' charts

import asynclock
from asynclock._inspect.monitor import Ended, Monitor
from asynclock.contrib.dashboard import dashboard
from asynclock.contrib.dashboard.snapshots import History, Query, Snapshots
from asynclock.testing import LocalServer
from tests.contrib.apps import serving
from tests.contrib.browser import Page, browse
from tests.contrib.planted import HOSTS, plant, planted
from tests.waiting import call_off, until

STATIC = Path(__file__).parents[3] / "docs" / "_static"
WIDTHS = (390, 900, 1440)
TOKEN = "a token for the pictures"
CONTENDED = "orders:eu-west-1:invoice:77120"
OWN = {"acquired": 6_412, "lost": 0, "refused": 12, "waiting": 0}
"""What the process of the page has done."""
BRIEF = (12, 40, 103, 131, 150)
"""The locks for which somebody has waited for a moment."""


@contextlib.asynccontextmanager
async def fleet() -> AsyncIterator[tuple[list[LocalServer], asynclock.LockManager]]:
    """Start three nodes with 200 locks; yield them, and a manager for the page."""
    settings: dict[str, Any] = {"ttl": 60.0, "max_ttl": 120.0, "restart_guard": False}
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(LocalServer()) for _ in range(3)]
        urls = [server.url for server in servers]
        clients = [
            await stack.enter_async_context(
                asynclock.connect(*urls, label=f"{host}.example.org:{4000 + at}", **settings)
            )
            for at, host in enumerate(HOSTS)
        ]
        made = [await one.semaphore("gpu", 3).acquire() for one in clients[:3]]
        made += [await one.rwlock("price-list").read().acquire() for one in clients[:3]]
        term = await clients[0].election("scheduler").campaign("http://web-1.example.org:8080")
        waiting = [
            asyncio.ensure_future(clients[3].semaphore("gpu", 3).acquire()),
            asyncio.ensure_future(clients[4].rwlock("price-list").write().acquire()),
        ]
        locks_of_page = asynclock.connect(*urls, label="web-3.example.org:4711", **settings)
        await stack.enter_async_context(locks_of_page)
        made.append(await locks_of_page.lock("orders:eu-west-1:stock:70001").acquire())
        try:
            yield servers, locks_of_page
        finally:
            await call_off(*waiting)
            assert made
            assert term


async def write(servers: list[LocalServer]) -> None:
    """Write locks and waiters, which age from now on."""
    locks = [planted(number, int(number in BRIEF)) for number in range(189)]
    locks += [planted(1, 13, name=CONTENDED), planted(2, 3, name="nightly-report")]
    await plant(servers, locks)
    await plant(servers[:1], [planted(7, name="tenant:42:import")])
    await plant(servers[1:2], [planted(8, name="tenant:42:import")])


class SeenBefore(History):
    """What a page has seen that was open for nine minutes."""

    def __init__(self) -> None:
        super().__init__()
        now, counts = time.time(), SeenLeases().totals
        acquired = [160 + 90 * math.sin(step / 9) + step * 7 % 41 for step in range(108)]
        for step in range(108):
            ago = 540.0 - 5 * step
            waiting = 3 + step % 3 + max(0, step - 60) // 3
            so_far = {
                "acquired": counts["acquired"] - int(sum(acquired[step + 1 :])),
                "ran out": sum(step >= at for at in (31, 32, 77)),
            }
            self.note(now - ago, 1.0, so_far, waiting, max(4.0 + step % 4, 262.0 - ago))

    def note(self, now: float, pace: float, *more: Any) -> None:
        """Add a picture, with waits of this process; a busy machine makes no gap."""
        self.waits.extend(abs(math.sin(now * part)) ** 9 * 0.4 + 0.002 for part in range(1, 60))
        super().note(now, pace + 60, *more)


class SeenLeases(Monitor):
    """The leases that such a page has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.ended.extend(ended(time.time()))
        self.totals.update({"acquired": 18_204, "released": 18_001, "ran out": 3})


def ended(now: float) -> Iterator[Ended]:
    """Yield the holds that such a page has seen end."""
    for step in range(9):
        since = now - 560 + 31 * step
        for name, labels in ((CONTENDED, HOSTS), ("nightly-report", HOSTS[::-1])):
            holder = f"{labels[step % 5]}.example.org:{4100 + step}"
            how = "ran out" if step == 5 else "released"
            yield Ended(name, "lock", "", holder, since, since + 14 + 5 * (step % 4), how)


async def look(servers: list[LocalServer], locks: asynclock.LockManager) -> tuple[Any, Any]:
    """Return what the page shows when a node has just died, and what it shows of one lock."""
    shots = Snapshots(locks)
    await write(servers)
    await shots.take(Query())
    await servers[2].kill()
    await until(lambda: locks.nodes()[2].state == "down", "the third node is down", timeout=60)
    shots._history, shots._monitor = SeenBefore(), SeenLeases()
    shots._stale_at = 0.0
    await write(servers[:2])
    picture = await shots.take(Query())
    for number, node in enumerate(picture["nodes"][:2]):
        node["round_trip"] = (0.0021, 0.0026)[number]  # whatever else this machine does
    for row in picture["locks"]:
        if not row["exact"]:
            row["held"] = 41.0  # a page that was open has seen readers for a while
    picture |= {"pace": 1.0, "own": OWN}
    one = await shots.take(Query(lock=CONTENDED), at_once=True)
    return picture, {**picture, "lock": one["lock"]}


async def take(folder: Path) -> None:
    """Take all pictures."""
    async with contextlib.AsyncExitStack() as stack:
        servers, locks = await stack.enter_async_context(fleet())
        scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        page = await stack.enter_async_context(browse(Path(scratch)))
        picture, one = await look(servers, locks)

        async def taken(_shots: Snapshots, query: Query, **_more: Any) -> Any:
            return one if query.lock else picture

        stack.enter_context(mock.patch.object(Snapshots, "take", taken))
        url = await stack.enter_async_context(serving(dashboard(locks, token=TOKEN)))
        await page.open(f"{url}/#token={TOKEN.replace(' ', '+')}")
        await shows(page, "#nodes .away")
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                await save(page, folder / f"page-{width}-{scheme}.png", width, scheme)
        await page.run(f"location.hash = 'lock={CONTENDED}'")
        await shows(page, "#lock .queue")
        for width, scheme in ((390, "light"), (1440, "light"), (1440, "dark")):
            await save(page, folder / f"page-lock-{width}-{scheme}.png", width, scheme)


async def save(page: Page, file: Path, width: int, scheme: str) -> None:
    """Take one picture, with few colours, so that it is small."""
    await page.look(width, dark=scheme == "dark")
    await page.run("scrollTo(0, 0)")
    await page.screenshot(file)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256).save(file, optimize=True)


async def shows(page: Page, selector: str) -> None:
    """Wait until the page has an element that can be seen."""
    script = f"return !!document.querySelector('{selector}')?.checkVisibility()"
    await until(lambda: page.run(script), selector, timeout=120)


if __name__ == "__main__":
    began = time.monotonic()
    asyncio.run(take(Path(sys.argv[1]) if sys.argv[1:] else STATIC))
    print(f"taken in {time.monotonic() - began:.0f} s")
