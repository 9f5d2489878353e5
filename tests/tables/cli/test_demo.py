"""The parts of the demo: what an act does, how its end is told, and how an order is guarded."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import asynclock
from asynclock.cli.demo import command, scenario, service
from asynclock.cli.demo.command import Lines, Screen, _result, _verdict
from asynclock.cli.demo.scenario import Act, DemoError, ServiceProcess, _act
from asynclock.cli.demo.service import Guards, user
from asynclock.cli.demo.store import Store, buy
from asynclock.testing import run_virtual
from tests.waiting import in_virtual_time

GOOD = Act(3, 3, {0: 1, 1: 1, 2: 1}, 0.5)
BAD = Act(1, 4, {0: 3, 1: 1, 2: 0, 3: 2}, 1.25)

# ---- what is told -------------------------------------------------------------------------------


def test_the_figures_of_an_act() -> None:
    assert (BAD.title, BAD.sales, BAD.doubles, BAD.once, BAD.correct) == ("no lock", 6, 2, 1, False)
    assert (GOOD.title, GOOD.sales, GOOD.doubles, GOOD.once) == ("asynclock, 5 masters", 3, 0, 3)
    assert GOOD.correct
    assert not Act(3, 3, {0: 1, 1: 1}).correct, "it has not sold the last one"
    assert Act(2, 1).title == "asyncio.Lock per process"


def console(**more: Any) -> Console:
    return Console(file=io.StringIO(), width=100, highlight=False, **more)


def written(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_result_has_a_row_for_each_act() -> None:
    out = console()
    out.print(_result([BAD, GOOD]))
    _, titles, _, *rows, _ = written(out).splitlines()
    assert titles.split() == "act orders sales sold once sold twice unsold seconds".split()
    assert [row.split() for row in rows] == [
        ["1", "no", "lock", "4", "6", "1", "2", "1", "1.2"],
        ["3", "asynclock,", "5", "masters", "3", "3", "3", "0", "0", "0.5"],
    ]


def test_what_went_wrong_is_red() -> None:
    out = console(force_terminal=True, color_system="standard")
    out.print(_result([BAD]))
    bad = written(out)
    assert bad.count("\x1b[1;31m") == 2, "sold twice, and unsold"
    assert "\x1b[32m" not in bad
    out = console(force_terminal=True, color_system="standard")
    out.print(_result([GOOD]))
    assert "\x1b[1;31m" not in written(out)
    assert "\x1b[32m" in written(out)
    assert (_verdict(GOOD).style, _verdict(BAD).style) == ("bold green", "bold red")


def test_the_verdict_names_what_was_broken() -> None:
    faults = "node 2 of 5 was killed and node 4 frozen half-way"
    assert _verdict(GOOD).plain == (
        f"asynclock: every order was sold exactly once, though {faults}."
    )
    assert _verdict(BAD).plain == f"asynclock: 3 orders went wrong; {faults}."


def test_a_log_has_plain_lines() -> None:
    out = console()
    with Lines(out) as lines:
        lines.nodes(["up", "killed", "up", "frozen", "up"])
        lines.act_began(BAD)
        lines.progress(BAD)
        lines.act_ended(BAD)
    assert written(out).splitlines() == [
        "2 service processes × 10 users; all of them try to buy the same order at the same moment.",
        "nodes: 1 up, 2 killed, 3 up, 4 frozen, 5 up",
        "act 1 of 3: no lock, 4 orders",
        "  6 sales in 1.2 s; orders sold twice or more: 2",
    ]


def test_a_terminal_shows_the_progress_of_an_act_in_orders() -> None:
    screen = Screen(console(force_terminal=True))
    screen.nodes(["up", "killed", "up"])
    assert screen._nodes.plain == "nodes  ● 1   ● 2 killed   ● 3   "
    screen.act_began(BAD)
    for act in (Act(1, 4, {0: 1}), Act(1, 4, {0: 1, 1: 2})):
        screen.progress(act)
        (task,) = screen._bars.tasks
        colour = "red" if act.doubles else "green"
        assert (task.description, task.total) == ("1  no lock", 4)
        assert task.completed == len(act.sold)
        assert task.fields["verdict"] == f"[{colour}]orders sold twice or more: {act.doubles}[/]"
    screen.act_ended(BAD)
    assert screen._bars.tasks == [task], "it stays on the screen"


@pytest.mark.parametrize(
    ("ended", "status", "said"),
    [
        ([BAD, GOOD], 0, ""),
        ([GOOD, BAD], 1, ""),
        (None, 128 + signal.SIGTERM, "asynclock: stopped; servers and services are gone\n"),
        (DemoError("orders-a is gone"), 1, "asynclock: orders-a is gone\n"),
    ],
    ids=["sold-once", "sold-twice", "stopped", "broken"],
)
def test_the_exit_status_is_that_of_the_last_act(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended: list[Act] | DemoError | None,
    status: int,
    said: str,
) -> None:
    asked: list[int] = []

    async def until_stopped(orders: int, _: Console) -> Any:
        await asyncio.sleep(0)
        asked.append(orders)
        if isinstance(ended, DemoError):
            raise ended
        return ended

    monkeypatch.setattr(command, "_until_stopped", until_stopped)
    assert command.demo(orders=12) == status
    assert asked == [12]
    out, err = capsys.readouterr()
    assert err == said
    if isinstance(ended, list):
        assert " ".join(out.split()).endswith(_verdict(ended[-1]).plain), "it may be broken up"


# ---- what an act does ---------------------------------------------------------------------------


class Noted:
    """Servers, services, a store and a display that note what happens to them."""

    def __init__(self) -> None:
        self.did: list[Any] = []

    def part(self, name: str) -> Any:
        """Return an object whose methods are noted under this name; some are awaited."""

        def note(method: str) -> Any:
            def call(*args: Any, **words: Any) -> Any:
                words.pop("at", None)
                self.did.append((name, method, *args, *words.values()))
                return 10 * args[0] + args[1] if method == "sales" else _nothing()

            return call

        names = ("kill", "freeze", "send", "done", "sales")
        return SimpleNamespace(**{method: note(method) for method in names})

    def nodes(self, states: Sequence[str]) -> None:
        self.did.append(("nodes", *states))

    def act_began(self, act: Act) -> None:
        self.did.append(("began", act.number, dict(act.sold)))

    def progress(self, act: Act) -> None:
        self.did.append(("progress", dict(act.sold)))

    def act_ended(self, act: Act) -> None:
        self.did.append(("ended", dict(act.sold)))


class _Awaited:
    """Nothing, to be awaited or not."""

    def __await__(self) -> Any:
        return iter(())


def _nothing() -> _Awaited:
    return _Awaited()


def played(number: int, orders: int) -> tuple[list[Any], Act]:
    noted = Noted()
    servers = [noted.part(f"node {at}") for at in range(1, 6)]
    running = [noted.part(name) for name in ("a", "b")]
    act = asyncio.run(_act(number, orders, noted.part("store"), running, servers, noted))
    return noted.did, act


def test_each_order_goes_to_all_services_before_any_is_waited_for() -> None:
    did, act = played(2, 2)
    assert did == [
        ("began", 2, {}),
        ("a", "send", 2, 0),
        ("b", "send", 2, 0),
        ("a", "done"),
        ("b", "done"),
        ("store", "sales", 2, 0),
        ("progress", {0: 20}),
        ("a", "send", 2, 1),
        ("b", "send", 2, 1),
        ("a", "done"),
        ("b", "done"),
        ("store", "sales", 2, 1),
        ("progress", {0: 20, 1: 21}),
        ("ended", {0: 20, 1: 21}),
    ]
    assert (act.number, act.orders, act.sold) == (2, 2, {0: 20, 1: 21})


@pytest.mark.parametrize("orders", [1, 4, 5])
def test_half_way_through_the_last_act_two_nodes_are_broken(orders: int) -> None:
    broken = [
        ("node 2", "kill"),
        ("node 4", "freeze"),
        ("nodes", "up", "killed", "up", "frozen", "up"),
    ]
    did, _ = played(3, orders)
    at = did.index(broken[0])
    assert did[at : at + 3] == broken
    assert sum(step[0] == "progress" for step in did[:at]) == orders // 2
    for number in (1, 2):
        assert not [step for step in played(number, orders)[0] if step in broken]


class Process:
    """A service process that says these lines, and ends when it is killed or told to."""

    def __init__(self, *lines: bytes, stays: bool = False) -> None:
        self.lines, self.stays = list(lines), stays
        self.sent, self.killed, self.closed = b"", False, False
        self.stdin = SimpleNamespace(write=self.write, close=self.close)
        self.stdout = SimpleNamespace(readline=self.readline)

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    async def readline(self) -> bytes:
        return self.lines.pop(0) if self.lines else await asyncio.sleep(3600, b"late")

    def kill(self) -> None:
        self.killed = True

    async def wait(self) -> int:
        async with asyncio.timeout(600):
            while self.stays and not self.killed:
                await asyncio.sleep(1)
        return 0


def service_of(process: Process, log: Path = Path("/nowhere")) -> ServiceProcess:
    return ServiceProcess("orders-a", process, log)  # type: ignore[arg-type]


@in_virtual_time
async def test_a_service_gets_its_orders_as_lines() -> None:
    process = Process(b"{}\n")
    served = service_of(process)
    served.send(act=1, order=2, at=3.5)
    await served.done()
    assert process.sent == b'{"act": 1, "order": 2, "at": 3.5}\n'
    await served.end()
    assert (process.closed, process.killed) == (True, False)


@in_virtual_time
async def test_a_service_that_does_not_end_is_killed() -> None:
    process = Process(stays=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await service_of(process).end()
    assert process.killed
    assert loop.time() - began == pytest.approx(6.0, abs=1.1)


@in_virtual_time
async def test_a_service_that_is_mute_for_a_minute_is_broken() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(DemoError, match="orders-a did not answer within 60 s"):
        await service_of(Process()).done()
    assert loop.time() - began == pytest.approx(60.0)


def test_a_service_that_has_ended_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"0123456789" * 300 + b" the \xff end")
    with pytest.raises(DemoError) as error:
        run_virtual(service_of(Process(b""), log).done())
    text = log.read_text(errors="replace")[-2000:]
    assert str(error.value) == f"orders-a ended unexpectedly; its log ends with: {text}"
    piped: Any = SimpleNamespace(stdin=None, stdout=None)
    with pytest.raises(DemoError, match="orders-a has no pipes"):
        ServiceProcess("orders-a", piped, log)


# ---- the protection of an order -----------------------------------------------------------------


async def together(act: int, *orders: tuple[Guards, int]) -> int:
    """Return how many of these are inside at once, at most."""
    inside = most = 0

    async def one(guards: Guards, order: int) -> None:
        nonlocal inside, most
        async with guards.of_act(act)(order) as fence:
            assert (fence > 0) is (act == 3)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(one(*order) for order in orders))
    return most


@in_virtual_time
async def test_an_order_is_protected_from_nobody_then_from_tasks_then_from_all() -> None:
    async with asynclock.connect("memory://") as a, asynclock.connect("memory://") as b:
        here, there = Guards(a), Guards(b)
        assert [await together(act, (here, 1), (here, 1)) for act in (1, 2, 3)] == [2, 1, 1]
        assert [await together(act, (here, 2), (there, 2)) for act in (1, 2, 3)] == [2, 2, 1]
        assert [await together(act, (here, 3), (here, 4)) for act in (1, 2, 3)] == [2, 2, 2]
        async with a.lock("order:7"):
            with pytest.raises(asynclock.AcquireTimeoutError):
                async with asyncio.timeout(600), there.of_act(3)(7):
                    pass


@in_virtual_time
async def test_an_order_is_bought_once_with_its_fence(tmp_path: Path) -> None:
    @asynccontextmanager
    async def guard(order: int) -> AsyncIterator[int]:
        guarded.append(order)
        yield 42

    guarded: list[int] = []
    store = Store(tmp_path / "sales")
    assert await buy(store, 3, 7, "ann", guard)
    assert not await buy(store, 3, 7, "bob", guard)
    assert await buy(store, 1, 7, "bob", guard)
    assert guarded == [7, 7, 7]
    sales = [(3, 7), (1, 7), (7, 3), (3, 8)]
    assert [store.sales(act, order) for act, order in sales] == [1, 1, 0, 0]
    store.sell(3, 7, "eve", 43)
    assert store.sales(3, 7) == 2, "the store prevents nothing"
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sales")) as file:
        rows = file.execute("SELECT act, order_id, buyer, fence FROM sales").fetchall()
    assert rows == [(3, 7, "ann", 42), (1, 7, "bob", 42), (3, 7, "eve", 43)]


@in_virtual_time
async def test_without_a_guard_all_who_look_at_once_buy(tmp_path: Path) -> None:
    @asynccontextmanager
    async def nothing(_: int) -> AsyncIterator[int]:
        yield 0

    store = Store(tmp_path / "sales")
    sold = await asyncio.gather(*(buy(store, 1, 1, str(n), nothing) for n in range(3)))
    assert sold == [True, True, True]
    store.close()


@pytest.mark.parametrize(
    "error",
    [
        asynclock.LeaseLostError("a", reason="it is late", owner="o", fence=1),
        asynclock.QuorumUnavailableError("two nodes are gone"),
    ],
    ids=["lost", "no-quorum"],
)
def test_a_user_tries_again_for_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    now, ends = 0.0, 0.0
    tried: list[float] = []

    async def fails(*_: Any) -> bool:
        nonlocal now
        tried.append(now)
        now += 4.0
        if now > ends or len(tried) > 100:
            return True
        raise error

    monkeypatch.setattr(service, "buy", fails)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now))
    store: Any = None
    guard: Any = None
    ends = 10.0
    assert run_virtual(user(store, 1, 1, "ann", guard))
    assert len(tried) == 3
    tried.clear()
    now, ends = 0.0, 1e9
    with pytest.raises(type(error)):
        run_virtual(user(store, 1, 1, "ann", guard))
    assert tried == [4.0 * number for number in range(8)]


def test_other_errors_of_a_user_are_faults_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(service, "buy", fails)
    store: Any = None
    guard: Any = None
    with pytest.raises(ZeroDivisionError):
        run_virtual(user(store, 1, 1, "ann", guard))


def test_a_user_waits_longer_than_a_lease_of_a_killed_service_lasts() -> None:
    assert service.ACQUIRE_TIMEOUT > 2 * scenario.TTL
    assert scenario.ANSWER_TIMEOUT > service.ACQUIRE_TIMEOUT
