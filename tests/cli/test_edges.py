"""What the commands do in rare cases, as functions: a process per case would take seconds."""

from __future__ import annotations

import importlib.metadata
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._inspect.fleet_state import FleetState, clients_of
from asynclock._inspect.monitor import Monitor, SeenLease, SeenNode
from asynclock._primitives.election import Election
from asynclock._rules.nodeset import NOTHING
from asynclock.cli import bench, main, nodes
from asynclock.cli._ending import guarded
from asynclock.cli._sources import Settings
from asynclock.cli._start import start
from asynclock.cli._status import Status
from asynclock.cli.bench import Row
from asynclock.cli.doctor.trial import use_everything
from asynclock.cli.look import held, serve, top
from asynclock.errors import AsyncLockError
from asynclock.testing.history.load import Load
from tests.waiting import in_virtual_time


@pytest.fixture
def handler() -> Iterator[None]:
    """The program changes what Ctrl-C does."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def fail(error: BaseException) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


# ---- how the program ends ------------------------------------------------------------------------


@pytest.mark.usefixtures("handler")
def test_a_missing_module_is_the_extra_only_if_the_extra_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from asynclock.cli import _start

    monkeypatch.setattr(_start, "start", fail(ModuleNotFoundError("no yaml", name="yaml.nodes")))
    with pytest.raises(ModuleNotFoundError, match="no yaml"):
        main()
    monkeypatch.setattr(_start, "start", fail(ModuleNotFoundError("no rich", name="rich.live")))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 64
    assert "pip install 'asynclock[cli]'" in capsys.readouterr().err


def test_the_page_needs_an_extra_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--node", "redis://localhost"]
    missing = ModuleNotFoundError("no uvicorn", name="uvicorn")
    monkeypatch.setattr(serve, "_serve", fail(missing))
    assert start(words) == Status.USAGE
    assert "pip install 'asynclock[cli,dashboard]'" in capsys.readouterr().err
    monkeypatch.setattr(serve, "_serve", fail(ModuleNotFoundError("no yaml", name="yaml")))
    with pytest.raises(ModuleNotFoundError, match="no yaml"):
        start(words)


def test_the_page_ends_when_its_server_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    listening: list[Any] = []

    async def served(_: Any, sockets: Any) -> None:
        listening.extend(one.getsockname() for one in sockets)

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    monkeypatch.setenv(serve.TOKEN, "x" * 16)
    assert start(["serve", "--node", "memory://", "--port", "0"]) == Status.OK
    ((host, port),) = listening
    assert capsys.readouterr().out == f"http://{host}:{port}/#token={'x' * 16}\n"


def test_ctrl_c_in_a_command_has_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded(fail(KeyboardInterrupt())) == Status.INTERRUPTED
    monkeypatch.setattr(serve, "_serve", fail(KeyboardInterrupt()))
    assert start(["serve", "--node", "redis://localhost"]) == Status.INTERRUPTED


def test_ctrl_d_at_a_question_has_the_same_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_serve", fail(EOFError()))  # as the input of a prompt raises it
    assert start(["serve", "--node", "redis://localhost"]) == Status.INTERRUPTED


def test_typer_explains_a_wrong_option_of_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(["inspect", "--wrong"]) == Status.USAGE
    assert "--wrong" in capsys.readouterr().err


def test_a_checkout_that_is_not_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = importlib.metadata.PackageNotFoundError("asynclock")
    monkeypatch.setattr(importlib.metadata, "version", fail(missing))
    assert start(["--version"]) == Status.OK
    assert capsys.readouterr().out == "asynclock (not installed)\n"


# ---- what the commands print ---------------------------------------------------------------------


def test_keys_of_the_live_view() -> None:
    view = top.TopScreen(Monitor())

    def footer(*keys: str) -> str:
        for key in keys:
            view._key(key)
        return " ".join(str(line) for line in view._footer(0, 200))

    assert "filter: ab▏" in footer("/", "a", "x", "\x7f", "b", "\x00", "up")
    assert "filter: ab  " in footer("\r") + "  "
    assert "▏" not in footer()
    assert "filter:" not in footer("\x1b")
    assert "paused" in footer(" ")
    assert "paused" not in footer(" ")


async def test_a_paused_view_asks_no_node() -> None:
    asked = []

    class Counting(Monitor):
        async def refresh(self, _: Any) -> None:
            asked.append(1)
            view._key(" ")

    class Screen:
        def refresh(self) -> None:
            pass

    class Enough(Exception):
        pass

    async def pause(_: float) -> None:
        pauses.append(1)
        if len(pauses) == 3:
            raise Enough

    pauses: list[int] = []
    view = top.TopScreen(Counting())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top.asyncio, "sleep", pause)
        with pytest.raises(Enough):
            await view._keep_refreshing(None, 1.0, Screen())  # type: ignore[arg-type]  # both unused
    assert len(asked) == 1


def test_a_load_without_any_success_has_no_figures() -> None:
    row = Row("one name", [Load(errors=Counter(QuorumUnavailableError=3)), Load()])
    assert row.cells() == ("one name", "0", "", "", "", "", "3 QuorumUnavailableError")
    assert row.as_json() == {"load": "one name", "errors": {"QuorumUnavailableError": 3}}


def test_clients_that_nobody_may_list_are_not_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert clients_of(None, [None, ValueError()]) is None
    assert clients_of(None, [b""]) == ()
    (client,) = clients_of(None, [b"id=1 name=asynclock:0a1b:web-1 age=3\n"]) or ()
    assert (client.label, client.uses) == ("web-1", "other")
    nodes._print(FleetState(None, NOTHING, (), None, silent=False))
    assert "clients: no node shows them (CLIENT LIST)" in capsys.readouterr().out


def test_a_key_without_ttl_is_told_and_has_no_seconds_left() -> None:
    views = tuple(NodeView(f"n{n}", f"{5:032x}:web-1", None, 5) for n in range(3))
    found = Inspection("a", views, 2)
    verdict = held._verdict(found, {})
    assert "a key without ttl" in verdict
    assert "left without renewal" not in verdict
    left = tuple(replace(view, remaining=4.0) for view in views)
    assert "4.0 s left without renewal" in held._verdict(replace(found, nodes=left), {})


def test_what_is_wrong_has_a_colour_in_the_live_view() -> None:
    """Nodes that are not up, and locks with a note."""
    monitor = Monitor()
    states = ("up", "down")
    monitor.nodes = [
        SeenNode(NodeHealth(f"n-{one}", one, "", 0.0, None, None, None), "", "", "")
        for one in states
    ]
    lines = top.TopScreen(monitor)._nodes(200)
    found = {line.plain.split()[0]: line.style for line in lines if line.plain}
    assert (found["n-up"], found["n-down"]) == ("", "bold red")
    views = [NodeView("n", one, 5.0, 7) for one in ("me", "me", None)]
    odd, even = (
        SeenLease(Inspection(name, tuple(some), 2), 0.0, 0.0)
        for name, some in (("odd", views), ("even", views[:2]))
    )
    view = top.TopScreen(monitor)
    view._room = 2
    lines = view._locks([odd, even], 200)
    found = {line.plain.split()[0]: line.style for line in lines}
    assert (found["odd"], found["even"]) == ("yellow", "")


@in_virtual_time
async def test_each_load_has_as_many_tasks_as_its_title_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    async def load(_subject: object, names: Sequence[str], seconds: float) -> Load:
        asked.append([name.rpartition(":")[2] for name in names])
        return Load(count=1, seconds=seconds)

    monkeypatch.setattr(bench, "run_load", load)
    rows = await bench.measure(Settings(("memory://",), {}), 3, 0.1, 1)
    assert [row.title for row in rows] == ["1 task", "3 tasks, own names", "3 tasks, one name"]
    assert asked[1:] == [["0"], ["0", "1", "2"], ["hot", "hot", "hot"]]


@in_virtual_time
async def test_doctor_notices_that_nobody_can_be_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: object, value: str) -> None:
        raise AsyncLockError("nobody")

    monkeypatch.setattr(Election, "campaign", refuses)
    assert await use_everything(Settings(("memory://",), {}), "memory://") == {"election": "nobody"}
