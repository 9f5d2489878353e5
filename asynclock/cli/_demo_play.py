"""The play of the demo: servers, two service processes, three acts, and what was sold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..testing import LocalServer, local_servers
from ._demo_shop import Shop

SERVICES = ("orders-a", "orders-b")
USERS = 10
NODES = 5
TTL = 2.0
"""Short, so that a killed service would not hold anybody up, and fresh servers may soon vote."""
KILLED, FROZEN = 1, 3
HEAD_START = 0.01
"""Seconds between telling the services and the moment at which all users grab."""
PATIENCE = 60.0
"""Seconds after which a service that does not answer is taken for broken."""

TITLES = ("no lock", "asyncio.Lock per process", f"asynclock, {NODES} masters")


@dataclass
class Act:
    """What came of one act."""

    number: int
    orders: int
    sold: dict[int, int] = field(default_factory=dict)
    """Order → how often it was sold."""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """What protects the orders."""
        return TITLES[self.number - 1]

    @property
    def sales(self) -> int:
        """All sales together."""
        return sum(self.sold.values())

    @property
    def doubles(self) -> int:
        """Orders that were sold more than once."""
        return sum(count > 1 for count in self.sold.values())

    @property
    def once(self) -> int:
        """Orders that were sold exactly once."""
        return sum(count == 1 for count in self.sold.values())

    @property
    def right(self) -> bool:
        """Whether every order was sold exactly once."""
        return self.once == self.orders == len(self.sold)


class Audience(Protocol):
    """Who watches the play."""

    def nodes(self, states: Sequence[str]) -> None:
        """How each server is: "up", "killed" or "frozen"."""

    def begins(self, act: Act) -> None:
        """An act begins."""

    def progress(self, act: Act) -> None:
        """One more order is done."""

    def ends(self, act: Act) -> None:
        """An act is over."""


class DemoError(Exception):
    """A service of the demo broke; the message says how."""


class Service:
    """One service process, told what to grab by lines on its stdin."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        if process.stdin is None or process.stdout is None:
            raise DemoError(f"{name} has no pipes")
        self.name = name
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._log = log

    def tell(self, **task: float) -> None:
        """Give it an order to grab."""
        self._in.write(json.dumps(task).encode() + b"\n")

    async def answer(self) -> None:
        """Wait until its users are done."""
        try:
            async with asyncio.timeout(PATIENCE):
                said = await self._out.readline()
        except TimeoutError:
            raise DemoError(f"{self.name} did not answer within {PATIENCE:g} s") from None
        if not said:
            log = self._log.read_text(errors="replace")[-2000:]
            raise DemoError(f"{self.name} ended unexpectedly; its log ends with: {log}")

    async def end(self) -> None:
        """Close its stdin, upon which it ends; kill it if it does not."""
        self._in.close()
        try:
            async with asyncio.timeout(5.0):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def services(folder: Path, nodes: Sequence[str]) -> AsyncIterator[list[Service]]:
    """Both service processes, ready to play."""
    running: list[Service] = []
    try:
        for name in SERVICES:
            log = folder / f"{name}.log"
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"{__package__}._demo_service"),
                    *(str(folder), name, str(USERS), str(TTL), *nodes),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            running.append(Service(name, process, log))
        for service in running:
            await service.answer()
        yield running
    finally:
        for service in running:
            await service.end()


async def play(orders: int, audience: Audience) -> list[Act]:
    """All three acts. Leaves no process and no file behind, also when cancelled."""
    with tempfile.TemporaryDirectory(prefix="asynclock-demo-") as name:
        folder = Path(name)
        async with local_servers(NODES) as servers:
            audience.nodes(["up"] * NODES)
            shop = Shop(folder / "shop.sqlite")
            try:
                async with services(folder, [server.url for server in servers]) as staff:
                    return [
                        await _act(number, orders, shop, staff, servers, audience)
                        for number in (1, 2, 3)
                    ]
            finally:
                shop.close()


async def _act(
    number: int,
    orders: int,
    shop: Shop,
    staff: Sequence[Service],
    servers: Sequence[LocalServer],
    audience: Audience,
) -> Act:
    act = Act(number, orders)
    audience.begins(act)
    started = time.monotonic()
    for order in range(orders):
        if number == len(TITLES) and order == orders // 2:
            await _break(servers, audience)
        at = time.monotonic() + HEAD_START
        for service in staff:
            service.tell(act=number, order=order, at=at)
        for service in staff:
            await service.answer()
        act.sold[order] = shop.sales(number, order)
        act.seconds = time.monotonic() - started
        audience.progress(act)
    audience.ends(act)
    return act


async def _break(servers: Sequence[LocalServer], audience: Audience) -> None:
    await servers[KILLED].kill()
    await servers[FROZEN].freeze()
    states = ["up"] * len(servers)
    states[KILLED], states[FROZEN] = "killed", "frozen"
    audience.nodes(states)
