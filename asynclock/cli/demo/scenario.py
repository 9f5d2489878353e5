"""The course of the demo: servers, two service processes, three acts, and their sales."""

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

from ...testing import LocalServer, local_servers
from .service import Store

SERVICES = ("orders-a", "orders-b")
USERS = 10
NODES = 5
TTL = 2.0
"""Seconds; short, so that a killed service blocks others briefly and new servers vote soon."""
KILLED, FROZEN = 1, 3
HEAD_START = 0.01
"""Seconds between the message to the services and the moment at which all users grab."""
ANSWER_TIMEOUT = 60.0
"""Seconds after which a service without an answer counts as broken."""

TITLES = ("no lock", "asyncio.Lock per process", f"asynclock, {NODES} masters")


@dataclass
class Act:
    """The result of one act."""

    number: int
    orders: int
    sold: dict[int, int] = field(default_factory=dict)
    """How often each order was sold."""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The text about the protection of the orders."""
        return TITLES[self.number - 1]

    @property
    def sales(self) -> int:
        """The number of all sales."""
        return sum(self.sold.values())

    @property
    def doubles(self) -> int:
        """The number of orders that were sold more than once."""
        return sum(count > 1 for count in self.sold.values())

    @property
    def once(self) -> int:
        """The number of orders that were sold exactly once."""
        return sum(count == 1 for count in self.sold.values())

    @property
    def correct(self) -> bool:
        """Whether every order was sold exactly once."""
        return self.once == self.orders == len(self.sold)


class Display(Protocol):
    """Shows the acts, the servers and the progress to the user."""

    def nodes(self, states: Sequence[str]) -> None:
        """Show the state of each server: "up", "killed" or "frozen"."""

    def act_began(self, act: Act) -> None:
        """Show the start of an act."""

    def progress(self, act: Act) -> None:
        """Show that one more order is done."""

    def act_ended(self, act: Act) -> None:
        """Show the end of an act."""


class DemoError(Exception):
    """A service of the demo failed; the message has the cause."""


class ServiceProcess:
    """One service process, which gets its orders as lines on stdin."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        if process.stdin is None or process.stdout is None:
            raise DemoError(f"{name} has no pipes")
        self.name = name
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._log = log

    def send(self, **task: float) -> None:
        """Send an order to grab."""
        self._in.write(json.dumps(task).encode() + b"\n")

    async def done(self) -> None:
        """Wait until the users of this service are done."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                said = await self._out.readline()
        except TimeoutError:
            raise DemoError(f"{self.name} did not answer within {ANSWER_TIMEOUT:g} s") from None
        if not said:
            log = self._log.read_text(errors="replace")[-2000:]
            raise DemoError(f"{self.name} ended unexpectedly; its log ends with: {log}")

    async def end(self) -> None:
        """Close the service's stdin, which ends it; kill it if it doesn't end."""
        self._in.close()
        try:
            async with asyncio.timeout(5.0):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def services(folder: Path, nodes: Sequence[str]) -> AsyncIterator[list[ServiceProcess]]:
    """Start both service processes and wait until they are ready."""
    running: list[ServiceProcess] = []
    try:
        for name in SERVICES:
            log = folder / f"{name}.log"
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"{__package__}.service"),
                    *(str(folder), name, str(USERS), str(TTL), *nodes),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            running.append(ServiceProcess(name, process, log))
        for service in running:
            await service.done()
        yield running
    finally:
        for service in running:
            await service.end()


async def run_acts(orders: int, display: Display) -> list[Act]:
    """Run all three acts. Leaves no process and no file, even when cancelled."""
    with tempfile.TemporaryDirectory(prefix="asynclock-demo-") as name:
        folder = Path(name)
        async with local_servers(NODES) as servers:
            display.nodes(["up"] * NODES)
            store = Store(folder / "store.sqlite")
            try:
                async with services(folder, [server.url for server in servers]) as running:
                    return [
                        await _act(number, orders, store, running, servers, display)
                        for number in (1, 2, 3)
                    ]
            finally:
                store.close()


async def _act(
    number: int,
    orders: int,
    store: Store,
    running: Sequence[ServiceProcess],
    servers: Sequence[LocalServer],
    display: Display,
) -> Act:
    act = Act(number, orders)
    display.act_began(act)
    started = time.monotonic()
    for order in range(orders):
        if number == len(TITLES) and order == orders // 2:
            await _break_two(servers, display)
        at = time.monotonic() + HEAD_START
        for service in running:
            service.send(act=number, order=order, at=at)
        for service in running:
            await service.done()
        act.sold[order] = store.sales(number, order)
        act.seconds = time.monotonic() - started
        display.progress(act)
    display.act_ended(act)
    return act


async def _break_two(servers: Sequence[LocalServer], display: Display) -> None:
    await servers[KILLED].kill()
    await servers[FROZEN].freeze()
    states = ["up"] * len(servers)
    states[KILLED], states[FROZEN] = "killed", "frozen"
    display.nodes(states)
