"""`asynclock demo`: shows what the library is for, on five local Redis servers.

Part of the package and not of examples/, because `pip install "asynclock[demo]"` must bring the
store and the service processes along, and the wheel holds no examples.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self, cast

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

import asynclock
from asynclock import Lease, LockManager

from ..testing import LocalServer, local_servers
from ._output import Status, console, say

# ---- The store of the demo: a store without a lock, and a user who wants an order ----------------


PAYMENT = 0.005
"""Seconds from the check that an order is free to its sale, in which a card is charged."""

Guard = Callable[[int], AbstractAsyncContextManager[Lease | None]]
"""Takes an order; returns the context of its sale, which yields a lease or None."""


class Store:
    """Sales in an SQLite file, which doesn't prevent several sales of one order."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, timeout=20.0, isolation_level=None)
        # A demo needn't survive a power cut, but readers must not wait for writers.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS sales (act INT, order_id INT, buyer TEXT, fence INT)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_order ON sales (act, order_id)")

    def sales(self, act: int, order: int) -> int:
        """Return how often the order was sold."""
        found = self._db.execute(
            "SELECT count(*) FROM sales WHERE act = ? AND order_id = ?", (act, order)
        )
        return int(found.fetchone()[0])

    def sell(self, act: int, order: int, buyer: str, fence: int) -> None:
        """Record the sale of one order; the store does not check for an earlier one."""
        self._db.execute("INSERT INTO sales VALUES (?, ?, ?, ?)", (act, order, buyer, fence))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


async def buy(store: Store, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """Check the order, pay, record the sale. Wrong unless `guard` admits one user at a time."""
    async with guard(order) as lease:
        if store.sales(act, order):
            return False
        await asyncio.sleep(PAYMENT)
        store.sell(act, order, buyer, lease.fence if lease else 0)
        return True


# ---- A service process: ten users, who all grab each order at a given moment ---------------------
#   python -m asynclock.cli.demo FOLDER SERVICE USERS TTL NODE…
# It reads lines like `{"act": 1, "order": 7, "at": <monotonic seconds>}` from stdin, and answers
# `{"order": 7, "sold": 1}` when all its users are done. It ends at the end of stdin, so it can't
# outlive the demo.


ACQUIRE_TIMEOUT = 30.0
"""Maximum seconds that a user waits for the lock before giving up."""


def guards(locks: LockManager) -> tuple[Guard, Guard, Guard]:
    """Return the protection of the orders in each act: no lock, one per process, one for all."""
    local: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
    return (
        lambda _order: nullcontext(),
        lambda order: local[order],
        lambda order: locks.lock(f"order:{order}", timeout=ACQUIRE_TIMEOUT),
    )


async def user(store: Store, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """Buy one order; try again when a lease is lost or too few nodes answer."""
    give_up = time.monotonic() + ACQUIRE_TIMEOUT
    while True:
        try:
            return await buy(store, act, order, buyer, guard)
        except (asynclock.LeaseLostError, asynclock.QuorumUnavailableError):
            if time.monotonic() > give_up:
                raise


async def serve(folder: Path, service: str, users: int, ttl: float, nodes: Sequence[str]) -> None:
    """Serve until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    store = Store(folder / "store.sqlite")
    async with asynclock.connect(*nodes, ttl=ttl, max_ttl=ttl, label=service) as locks:
        protection = guards(locks)
        print(json.dumps({"ready": service}), flush=True)
        while line := await reader.readline():
            task = json.loads(line)
            act, order = task["act"], task["order"]
            await asyncio.sleep(max(0.0, task["at"] - time.monotonic()))
            guard = protection[act - 1]
            sold = await asyncio.gather(
                *(user(store, act, order, f"{service}/{n}", guard) for n in range(users))
            )
            print(json.dumps({"order": order, "sold": sum(sold)}), flush=True)
    store.close()


def main() -> None:
    """Run one service until its stdin ends, with the arguments of this process."""
    # On Ctrl-C the demo itself ends its services.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nodes fail on purpose here; the library's warnings about them would only clutter the screen.
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    folder, service, users, ttl, *nodes = sys.argv[1:]
    asyncio.run(serve(Path(folder), service, int(users), float(ttl), nodes))


# ---- The scenario: servers, two service processes, three acts, and their sales -------------------


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


class DemoError(Exception):
    """A service of the demo failed; the message has the cause."""


class ServiceProcess:
    """One service process, which gets its orders as lines on stdin."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._in = cast(asyncio.StreamWriter, process.stdin)
        self._out = cast(asyncio.StreamReader, process.stdout)
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


@asynccontextmanager
async def services(folder: Path, nodes: Sequence[str]) -> AsyncIterator[list[ServiceProcess]]:
    """Start both service processes and wait until they are ready."""
    running: list[ServiceProcess] = []
    try:
        for name in SERVICES:
            log = folder / f"{name}.log"
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", __name__),
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


async def run_acts(orders: int, display: Lines) -> list[Act]:
    """Run all three acts. Leaves no process and no file, even when cancelled."""
    with tempfile.TemporaryDirectory(prefix="asynclock-demo-") as name:
        folder = Path(name)
        async with local_servers(NODES) as servers:
            display.nodes(["up"] * NODES)
            with closing(Store(folder / "store.sqlite")) as store:
                async with services(folder, [server.url for server in servers]) as running:
                    return [
                        await _act(number, orders, store, running, servers, display)
                        for number in (1, 2, 3)
                    ]


async def _act(
    number: int,
    orders: int,
    store: Store,
    running: Sequence[ServiceProcess],
    servers: Sequence[LocalServer],
    display: Lines,
) -> Act:
    act = Act(number, orders)
    display.progress(act)
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
    return act


async def _break_two(servers: Sequence[LocalServer], display: Lines) -> None:
    await servers[KILLED].kill()
    await servers[FROZEN].freeze()
    states = ["up"] * len(servers)
    states[KILLED], states[FROZEN] = "killed", "frozen"
    display.nodes(states)


# ---- The command ---------------------------------------------------------------------------------


_STYLES = {"up": "green", "killed": "bold red", "frozen": "bold cyan"}
INTRO = (
    f"{len(SERVICES)} service processes × {USERS} users; "
    "all of them try to buy the same order at the same moment."
)


def demo(
    orders: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of orders that each act sells.")
    ] = 100,
) -> int:
    """Show what the library is for on five local Redis servers, in about ten seconds.

    Two service processes with ten users each try to buy the same order at the same moment, order
    after order: first without a lock, then with a lock inside each process, then with asynclock
    over five masters, of which one is killed and one frozen half-way.

    The exit status is 0 only if the last act sold every order exactly once.

    Examples:

        asynclock demo

        asynclock demo --orders 500
    """
    out = console()
    try:
        acts = asyncio.run(_until_stopped(orders, out))
    except DemoError as error:
        say(error)
        return 1
    if acts is None:
        say("stopped; servers and services are gone")
        return 128 + signal.SIGTERM
    out.print()
    out.print(_result(acts))
    out.print(_verdict(acts[-1]))
    return Status.OK if acts[-1].correct else 1


async def _until_stopped(orders: int, out: Console) -> list[Act] | None:
    # asyncio.run turns Ctrl-C into a cancellation; SIGTERM must clean up in the same way.
    with Screen(out) if out.is_terminal else Lines(out) as display:
        work = asyncio.ensure_future(run_acts(orders, display))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await asyncio.wait([work])
        return None if work.cancelled() else work.result()


class Lines:
    """Shows the demo as plain lines, for a log."""

    def __init__(self, out: Console) -> None:
        self._out = out
        out.print(INTRO)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def nodes(self, states: Sequence[str]) -> None:
        """Show the state of each server: "up", "killed" or "frozen"."""
        numbered = (f"{number} {state}" for number, state in enumerate(states, 1))
        self._out.print(f"nodes: {', '.join(numbered)}")

    def progress(self, act: Act) -> None:
        """Show the start of an act, each order that is done, and with the last one the end."""
        if not act.sold:
            self._out.print(f"act {act.number} of {len(TITLES)}: {act.title}, {act.orders} orders")
        elif len(act.sold) == act.orders:
            took = f"{act.sales} sales in {act.seconds:.1f} s"
            self._out.print(f"  {took}; orders sold twice or more: {act.doubles}")


class Screen(Lines):
    """Shows the demo on a terminal: a bar per act, and the nodes."""

    def __init__(self, out: Console) -> None:
        self._nodes = Text("starting five Redis servers …", style="dim")
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[verdict]}"),
        )
        self._live = Live(console=out, refresh_per_second=12, get_renderable=self._render)
        self._tasks: dict[int, TaskID] = {}
        super().__init__(out)

    def __enter__(self) -> Self:
        # Draw now, because servers that start fast would replace the first line before it is seen.
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> Group:
        return Group(self._nodes, self._bars)

    def nodes(self, states: Sequence[str]) -> None:
        """Show the state of each server in colour."""
        parts = [Text("nodes  ")]
        for number, state in enumerate(states, 1):
            parts.append(Text(f"● {number}", style=_STYLES[state]))
            parts.append(Text("   " if state == "up" else f" {state}   ", style=_STYLES[state]))
        self._nodes = Text.assemble(*parts)

    def progress(self, act: Act) -> None:
        """Add a bar for an act that starts; move it with each order."""
        if not act.sold:
            title = f"{act.number}  {act.title}"
            self._tasks[act.number] = self._bars.add_task(title, total=act.orders, verdict="")
            return
        style = "red" if act.doubles else "green"
        verdict = f"[{style}]orders sold twice or more: {act.doubles}[/]"
        self._bars.update(self._tasks[act.number], completed=len(act.sold), verdict=verdict)


def _result(acts: Sequence[Act]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("act")
    for title in ("orders", "sales", "sold once", "sold twice", "unsold", "seconds"):
        table.add_column(title, justify="right")
    for act in acts:
        unsold = sum(count == 0 for count in act.sold.values())
        table.add_row(
            f"{act.number}  {act.title}",
            str(act.orders),
            str(act.sales),
            Text(str(act.once), style="green" if act.correct else ""),
            Text(str(act.doubles), style="bold red" if act.doubles else "green"),
            Text(str(unsold), style="bold red" if unsold else ""),
            f"{act.seconds:.1f}",
        )
    return table


def _verdict(act: Act) -> Text:
    faults = f"node {KILLED + 1} of {NODES} was killed and node {FROZEN + 1} frozen half-way"
    if act.correct:
        return Text(f"asynclock: every order was sold exactly once, though {faults}.", "bold green")
    return Text(f"asynclock: {act.orders - act.once} orders went wrong; {faults}.", "bold red")


if __name__ == "__main__":
    main()
