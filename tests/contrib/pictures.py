"""Takes the pictures of the live page for docs/_static: python -m tests.contrib.pictures

Three nodes, one of them dead; 200 locks, some contended; three widths, light and dark. The locks,
the waiters and what the page has seen are made up, so that nobody waits for minutes to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import asynclock
from asynclock._inspect.monitor import Ended, Monitor
from asynclock.contrib.dashboard import dashboard, snapshots
from asynclock.contrib.dashboard.history import History
from asynclock.testing import LocalServer
from tests.contrib.apps import serving
from tests.contrib.browser import Page, browse
from tests.waiting import until

STATIC = Path(__file__).parents[2] / "docs" / "_static"
WIDTHS = (390, 900, 1440)
TOKEN = "a token for the pictures"
CONTENDED = "orders:eu-west-1:invoice:77120"
HOSTS = ("web-1", "web-2", "worker-eu-1", "worker-eu-2", "worker-us-1")
BRIEF = (12, 40, 103, 131, 150)
"""The locks for which somebody has waited for a moment."""
PLANT = """
for _, one in ipairs(cjson.decode(ARGV[1])) do
  local key, now = 'asynclock:' .. one.name, redis.call('TIME')
  now = now[1] * 1000000 + now[2]
  redis.call('SET', key, one.owner, 'PX', one.left * 1000)
  redis.call('SET', key .. ':#fence', string.format('%.0f', now - one.held * 1000000), 'PX', 900000)
  for place, waited in ipairs(one.waited) do
    local ticket = string.format('%032x:%s', place, one.waiters[place])
    local queue = key .. ':#queue'
    redis.call('ZADD', queue, string.format('%.0f', now - waited * 1000000), ticket)
    redis.call('SET', queue .. ':#' .. ticket, '1', 'PX', 900000)
  end
end
"""
"""Writes locks and waiters that have been there for a while, as real clients would have."""


@dataclass
class Planted:
    """A lock on the nodes, and those who wait for it; times in seconds."""

    name: str
    owner: str
    held: float
    left: float
    """Seconds until it ends without a renewal."""
    waited: Sequence[float] = ()
    waiters: Sequence[str] = ()


async def plant(servers: Sequence[LocalServer], locks: Sequence[Planted]) -> None:
    """Write locks to all servers."""
    for at in range(0, len(locks), 1000):
        text = json.dumps([asdict(one) for one in locks[at : at + 1000]])
        await asyncio.gather(*(server.command("EVAL", PLANT, 0, text) for server in servers))


def planted(number: int, waiters: int = 0, *, name: str = "", left: float = 0) -> Planted:
    """Make a lock with some waiters."""
    kind = ("cart", "shipment", "refund", "stock")[number % 4]
    label = f"{HOSTS[number % 5]}.example.org:{4000 + number % 97}"
    return Planted(
        name or f"orders:eu-west-1:{kind}:{77000 + 7 * number}",
        f"{number:032x}:{label}",
        0.4 + number**2 % 4000 / 13 if not waiters else 20.0 * waiters + 11,
        left or 52 + number % 71 / 10,
        [(0.9 if waiters == 1 else 19.7) * waiters / (place + 1) for place in range(waiters)],
        [f"{HOSTS[(number + place) % 5]}.example.org:{4100 + place}" for place in range(waiters)],
    )


@contextlib.asynccontextmanager
async def fleet() -> AsyncIterator[tuple[list[LocalServer], asynclock.LockManager]]:
    """Start three nodes with 200 locks; yield them, and a manager for the page."""
    settings: dict[str, Any] = {"ttl": 60.0, "max_ttl": 120.0, "restart_guard": False}
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(LocalServer()) for _ in range(3)]
        locks = [planted(number, int(number in BRIEF)) for number in range(190)]
        locks += [planted(1, 13, name=CONTENDED), planted(2, 3, name="nightly-report")]
        await plant(servers, locks)
        await plant(servers[:1], [planted(7, name="tenant:42:import")])
        await plant(servers[1:2], [planted(8, name="tenant:42:import")])
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
        locks_of_page = asynclock.connect(*urls, label="serve", **settings)
        try:
            yield servers, await stack.enter_async_context(locks_of_page)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            assert made
            assert term


class SeenBefore(History):
    """What a page has seen that was open for nine minutes."""

    def __init__(self) -> None:
        super().__init__()
        now, counts = time.time(), SeenLeases().counts
        acquired = [160 + 90 * math.sin(step / 9) + step * 7 % 41 for step in range(108)]
        for step in range(108):
            ago = 540.0 - 5 * step
            waiting = 3 + step % 3 + max(0, step - 60) // 3
            so_far = {
                "acquired": counts["acquired"] - int(sum(acquired[step + 1 :])),
                "ran out": sum(step >= at for at in (31, 32, 77)),
            }
            self.note(now - ago, 1.0, so_far, waiting, max(4.0 + step % 4, 262.0 - ago))


class SeenLeases(Monitor):
    """The leases that such a page has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.ended.extend(ended(time.time()))
        self.counts.update({"acquired": 18_204, "released": 18_001, "ran out": 3})


def ended(now: float) -> Iterator[Ended]:
    """Yield the holds that such a page has seen end."""
    for step in range(9):
        since = now - 560 + 31 * step
        for name, labels in ((CONTENDED, HOSTS), ("nightly-report", HOSTS[::-1])):
            holder = f"{labels[step % 5]}.example.org:{4100 + step}"
            how = "ran out" if step == 5 else "released"
            yield Ended(name, "lock", "", holder, since, since + 14 + 5 * (step % 4), how)


async def take(folder: Path) -> None:
    """Take all pictures."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mock.patch.object(snapshots, "History", SeenBefore))
        stack.enter_context(mock.patch.object(snapshots, "Monitor", SeenLeases))
        servers, locks = await stack.enter_async_context(fleet())
        url = await stack.enter_async_context(serving(dashboard(locks, token=TOKEN)))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        page = await stack.enter_async_context(browse(Path(scratch)))
        await page.open(f"{url}/#token={TOKEN.replace(' ', '+')}")
        await shows(page, "#locks tbody tr")
        await servers[2].kill()
        await shows(page, "#nodes .away")
        await plant(servers[:2], [planted(number, 1) for number in BRIEF])
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                await page.look(width, dark=scheme == "dark")
                await page.run("scrollTo(0, 0)")
                await page.screenshot(folder / f"page-{width}-{scheme}.png")
        await page.run(f"location.hash = 'lock={CONTENDED}'")
        await shows(page, "#lock .queue")
        for width, scheme in ((390, "light"), (1440, "light"), (1440, "dark")):
            await page.look(width, dark=scheme == "dark")
            await page.run("scrollTo(0, 0)")
            await page.screenshot(folder / f"page-lock-{width}-{scheme}.png")


async def shows(page: Page, selector: str) -> None:
    """Wait until the page has an element that can be seen."""
    script = f"return !!document.querySelector('{selector}')?.checkVisibility()"
    await until(lambda: page.run(script), selector, timeout=60)


if __name__ == "__main__":
    began = time.monotonic()
    asyncio.run(take(Path(sys.argv[1]) if sys.argv[1:] else STATIC))
    print(f"taken in {time.monotonic() - began:.0f} s")
