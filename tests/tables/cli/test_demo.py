"""The parts of the demo: what an act does and how its end is told, and how an order is guarded."""

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import asynclock
from asynclock.cli import demo
from asynclock.cli.demo import (
    Act,
    DemoError,
    Guard,
    Lines,
    Screen,
    ServiceProcess,
    Store,
    _act,
    _result,
    _verdict,
    buy,
    guards,
    user,
)
from asynclock.testing import run_virtual
from tests.waiting import PATIENCE, in_virtual_time

GOOD = Act(3, 3, {0: 1, 1: 1, 2: 1}, 0.5)
BAD = Act(1, 4, {0: 3, 1: 1, 2: 0, 3: 2}, 1.25)
FAULTS = "node 2 of 5 was killed and node 4 frozen half-way"
RED, GREEN = "\x1b[1;31m", "\x1b[32m"


# ---- what is told --------------------------------------------------------------------------------
def console(**more: Any) -> Console:
    return Console(file=io.StringIO(), width=100, highlight=False, **more)


def written(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize(
    ("act", "row", "red", "green", "verdict"),
    [
        (
            GOOD,
            "3 asynclock, 5 masters 3 3 3 0 0 0.5",
            0,
            True,
            "every order was sold exactly once",
        ),
        (BAD, "1 no lock 4 6 1 2 1 1.2", 2, False, "3 orders went wrong"),
        (Act(2, 1, {0: 1}), "2 asyncio.Lock per process 1 1 1 0 0 0.0", 0, True, "every order was"),
        (Act(3, 3, {0: 1, 1: 1}), "3 asynclock, 5 masters 3 2 2 0 0 0.0", 0, True, "1 orders went"),
    ],
    ids=["sold once", "sold twice", "one order", "one not reached"],
)
def test_the_figures_of_an_act(act: Act, row: str, red: int, green: bool, verdict: str) -> None:
    out = console(force_terminal=True, color_system="standard")
    out.print(_result([act]))
    shown = written(out)
    assert (shown.count(RED), GREEN in shown) == (red, green)
    _, titles, _, line, _ = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert titles.split() == "act orders sales sold once sold twice unsold seconds".split()
    assert line.split() == row.split()
    assert act.correct == verdict.startswith("every")
    assert _verdict(act).plain.startswith(f"asynclock: {verdict}")
    assert FAULTS in _verdict(act).plain
    assert _verdict(act).style == ("bold green" if act.correct else "bold red")


def test_a_log_has_plain_lines() -> None:
    out = console()
    with Lines(out) as lines:
        lines.nodes(["up", "killed", "up", "frozen", "up"])
        for act in (Act(1, 4), Act(1, 4, {0: 1}), BAD):
            lines.progress(act)
    assert written(out).splitlines() == [
        "2 service processes × 10 users; all of them try to buy the same order at the same moment.",
        "nodes: 1 up, 2 killed, 3 up, 4 frozen, 5 up",
        "act 1 of 3: no lock, 4 orders",
        "  6 sales in 1.2 s; orders sold twice or more: 2",
    ]


def test_a_terminal_shows_the_progress_of_an_act_in_orders() -> None:
    with Screen(out := console(force_terminal=True)) as screen:
        screen.nodes(["up", "killed", "up"])
        screen.progress(Act(1, 4))
    assert "killed" in written(out)
    assert "1  no lock" in written(out)
    assert screen._nodes.plain == "nodes  ● 1   ● 2 killed   ● 3   "
    for act, colour in ((Act(1, 4, {0: 1}), "green"), (Act(1, 4, {0: 1, 1: 2}), "red")):
        screen.progress(act)
        (task,) = screen._bars.tasks
        assert (task.description, task.total) == ("1  no lock", 4)
        assert task.completed == len(act.sold)
        assert task.fields["verdict"] == f"[{colour}]orders sold twice or more: {act.doubles}[/]"


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
    async def until_stopped(orders: int, _: Console) -> Any:
        assert orders == 12
        if isinstance(ended, DemoError):
            raise ended
        return ended

    monkeypatch.setattr(demo, "_until_stopped", until_stopped)
    assert demo.demo(orders=12) == status
    out, err = capsys.readouterr()
    assert err == said
    if isinstance(ended, list):
        assert "unsold" in out
        assert " ".join(out.split()).endswith(_verdict(ended[-1]).plain), "it may be broken up"


# ---- what an act does ----------------------------------------------------------------------------
class Noted:
    """Servers, services, a store and a display that note what happens to them."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def part(self, name: str) -> Any:
        """Return an object whose methods are noted under this name; some are awaited."""

        async def nothing() -> None:
            pass

        def note(method: str) -> Any:
            def call(*args: Any, **words: Any) -> Any:
                words.pop("at", None)
                self.did.append(" ".join(map(str, (name, method, *args, *words.values()))))
                if method in ("kill", "freeze", "done"):
                    return nothing()
                return 10 * args[0] + args[1] if method == "sales" else None

            return call

        names = ("kill", "freeze", "send", "done", "sales")
        return SimpleNamespace(**{method: note(method) for method in names})

    def nodes(self, states: Any) -> None:
        self.did.append(" ".join(states))

    def progress(self, act: Act) -> None:
        self.did.append(f"progress {act.sold}")


def played(number: int, orders: int) -> list[str]:
    noted = Noted()
    servers = [noted.part(f"node {at}") for at in range(1, 6)]
    running = [noted.part(name) for name in ("a", "b")]
    act = asyncio.run(_act(number, orders, noted.part("store"), running, servers, noted))
    assert (act.number, act.orders, len(act.sold)) == (number, orders, orders)
    return noted.did


def test_each_order_goes_to_all_services_before_any_is_waited_for() -> None:
    assert played(2, 2) == [
        "progress {}",
        *("a send 2 0", "b send 2 0", "a done", "b done", "store sales 2 0", "progress {0: 20}"),
        *("a send 2 1", "b send 2 1", "a done", "b done", "store sales 2 1"),
        "progress {0: 20, 1: 21}",
    ]


@pytest.mark.parametrize("orders", [1, 4, 5])
def test_half_way_through_the_last_act_two_nodes_are_broken(orders: int) -> None:
    broken = ["node 2 kill", "node 4 freeze", "up killed up frozen up"]
    did = played(3, orders)
    at = did.index(broken[0])
    assert did[at : at + 3] == broken
    assert sum(step.startswith("progress") for step in did[:at]) == orders // 2 + 1
    assert not {*played(1, orders), *played(2, orders)} & {*broken}


class Process:
    """A service process that says nothing, and ends only when it is killed."""

    def __init__(self) -> None:
        self.stdin = self.stdout = self
        self.closed, self.ended = False, asyncio.Event()
        self.kill = self.ended.set
        self.wait = self.ended.wait

    def close(self) -> None:
        self.closed = True

    async def readline(self) -> bytes:
        return await asyncio.sleep(3600, b"late")


@in_virtual_time
async def test_a_service_that_is_mute_for_a_minute_is_broken_and_one_that_stays_is_killed() -> None:
    loop, process = asyncio.get_running_loop(), Process()
    began, service = loop.time(), ServiceProcess("a", process, Path())  # type: ignore[arg-type]
    with pytest.raises(DemoError, match="a did not answer within 60 s"):
        await service.done()
    assert loop.time() - began == pytest.approx(60.0)
    await service.end()
    assert (process.closed, process.ended.is_set()) == (True, True)
    assert loop.time() - began == pytest.approx(65.0, abs=1.1)


# ---- a service -----------------------------------------------------------------------------------
async def test_a_service_answers_each_order_until_its_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings: list[Any] = []
    connect = asynclock.connect

    def noted(*nodes: str, **more: Any) -> Any:
        settings.append((nodes, more))
        return connect(*nodes, **more)

    monkeypatch.setattr(asynclock, "connect", noted)
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
    for act, order in ((1, 7), (2, 7), (3, 7), (3, 8)):
        os.write(writing, json.dumps({"act": act, "order": order, "at": 0.0}).encode() + b"\n")
    os.close(writing)
    async with asyncio.timeout(PATIENCE):
        await demo.serve(tmp_path, "orders-a", 3, 20.0, ["memory://"])
    assert settings == [(("memory://",), {"ttl": 20.0, "max_ttl": 20.0, "label": "orders-a"})]
    ready, *sold = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ready == {"ready": "orders-a"}
    assert [(one["order"], one["sold"]) for one in sold] == [(7, 3), (7, 1), (7, 1), (8, 1)]
    store = Store(tmp_path / "store.sqlite")
    assert [store.sales(*place) for place in ((1, 7), (2, 7), (3, 7), (3, 8))] == [3, 1, 1, 1]
    store.close()


async def together(act: int, *orders: tuple[tuple[Guard, ...], int]) -> int:
    """Return how many of these are inside at once, at most."""
    inside = most = 0

    async def one(protection: tuple[Guard, ...], order: int) -> None:
        nonlocal inside, most
        async with protection[act - 1](order) as lease:
            assert bool(lease and lease.fence) is (act == 3)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(one(*order) for order in orders))
    return most


@in_virtual_time
async def test_an_order_is_protected_from_nobody_then_from_tasks_then_from_all() -> None:
    async with asynclock.connect("memory://") as a, asynclock.connect("memory://") as b:
        here, there = guards(a), guards(b)
        assert [await together(act, (here, 1), (here, 1)) for act in (1, 2, 3)] == [2, 1, 1]
        assert [await together(act, (here, 2), (there, 2)) for act in (1, 2, 3)] == [2, 2, 1]
        assert [await together(act, (here, 3), (here, 4)) for act in (1, 2, 3)] == [2, 2, 2]
        async with a.lock("order:7"):
            with pytest.raises(asynclock.AcquireTimeoutError):
                async with asyncio.timeout(600), there[2](7):
                    pass


@in_virtual_time
async def test_an_order_is_bought_once_with_its_fence(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def guard(order: int) -> AsyncIterator[Any]:
        guarded.append(order)
        yield SimpleNamespace(fence=42)

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


@pytest.mark.parametrize(
    ("error", "ends", "tried"),
    [
        (asynclock.LeaseLostError("a", reason="late", owner="o", fence=1), 10.0, 3),
        (asynclock.LeaseLostError("a", reason="late", owner="o", fence=1), 1e9, 8),
        (asynclock.QuorumUnavailableError("two nodes are gone"), 10.0, 3),
        (asynclock.QuorumUnavailableError("two nodes are gone"), 1e9, 8),
        (ZeroDivisionError(), 1e9, 1),  # a fault of the demo
    ],
)
def test_a_user_tries_again_for_half_a_minute(
    error: Exception, ends: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = 0.0, 0

    async def fails(*_: Any) -> bool:
        nonlocal now, tries
        now, tries = now + 4.0, tries + 1
        if now > ends:
            return True
        raise error

    monkeypatch.setattr(demo, "buy", fails)
    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: now))
    nothing: Any = None
    with contextlib.nullcontext() if ends < 1e9 else pytest.raises(type(error)):
        assert run_virtual(user(nothing, 1, 1, "ann", nothing))
    assert tries == tried
