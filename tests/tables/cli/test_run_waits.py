"""How `asynclock run` begins: its settings, its wait for the lock, and what it says meanwhile."""

import asyncio
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock._engine.engine import NodeHealth
from asynclock.cli import run as job
from asynclock.cli._output import Status
from asynclock.cli._settings import Settings
from asynclock.cli.child import FORWARDED
from asynclock.cli.run import RunArguments, parse
from asynclock.errors import (
    AcquireTimeoutError,
    AsyncLockError,
    ConfigurationError,
    QuorumUnavailableError,
)
from asynclock.testing import memory_node
from tests.cli.conftest import Program
from tests.waiting import in_virtual_time

from .test_run_job import NODES, Command, Guarding, made, now


@pytest.fixture
def signals() -> Iterator[None]:
    """At its end `run` ignores all signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, *FORWARDED)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# ---- what it was asked ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "name", "command"),
    [
        ("backup psql -h db mydb", "backup", "psql -h db mydb"),
        ("fetch curl --timeout 5 u", "fetch", "curl --timeout 5 u"),
        ("fetch --timeout 7 curl --timeout 5 u", "fetch", "curl --timeout 5 u"),
        ("--ttl=3 n -- -x", "n", "-x"),
        ("-- n c -- d", "n", "c -- d"),
        ("-- n -- c", "n", "c"),
        ("n -- c --help", "n", "c --help"),
        ("--node redis://a --node redis://b n c --no-wait", "n", "c --no-wait"),
    ],
)
def test_where_the_command_begins(arguments: str, name: str, command: str) -> None:
    found = parse(arguments.split())
    assert found is not None
    assert (found.name, found.command) == (name, command.split())


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "n", "n --", "--help", "n --help", "n -v c", "--bogus n c"),
        *("--ttl", "--ttl soon n c", "--ttl 5x n c", "--ttl 1.2.3s n c"),
        *("--permits 1.5 n c", "--on-loss panic n c", "--no-wait=1 n c"),
    ],
)
def test_help_and_mistakes_are_left_to_typer(arguments: str) -> None:
    assert parse(arguments.split()) is None


def test_times_and_numbers() -> None:
    times = "--ttl 1 --timeout 2s --max-ttl 1h30m --max-hold 1.5m --node-timeout 250ms".split()
    found = parse(["n", *times, *"--permits 3 --prefix p --node u c".split()])
    seconds = {"ttl": 1.0, "timeout": 2.0, "max_ttl": 5400.0, "max_hold": 90.0}
    others: dict[str, Any] = {"node_timeout": 0.25, "permits": 3, "prefix": "p", "node": ["u"]}
    assert found == RunArguments("n", ["c"], **seconds, **others)


# ---- before it waits -----------------------------------------------------------------------------
class Never:
    """What must not be made."""

    def __init__(self, *_: Any) -> None:
        raise AssertionError("it was made")


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("no-such-command", Status.NOT_FOUND, "no-such-command: command not found"),
        ("./no-such-command", Status.NOT_FOUND, "./no-such-command: command not found"),
        ("./text", Status.NOT_EXECUTABLE, "./text: not executable"),
        # A shell looks for it in PATH alone.
        ("text", Status.NOT_FOUND, "text: command not found"),
    ],
)
def test_a_command_that_can_not_be_run_is_told_before_the_wait(
    program: str,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "Guardian", Never)
    assert job.run_job(RunArguments("j", [program], node=["memory://"])) == status
    assert capsys.readouterr().err == f"asynclock: {said}\n"


def test_a_day_and_a_long_name_are_allowed() -> None:
    RunArguments("n" * 4096, ["true"], ttl=86_400.0, max_ttl=86_400.0).check()


def test_settings_from_options_and_a_guardian_that_ends_with_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guardian must end also if the work fails: it would outlive us."""
    seen: list[Any] = []

    class Noting(Guarding):
        def close(self) -> None:
            seen.append("closed")

    class Failing:
        def __init__(self, settings: Settings, *_: Any) -> None:
            seen.append((settings.nodes, settings.options))

        async def run(self) -> int:
            raise ZeroDivisionError

    monkeypatch.setattr(job, "Guardian", Noting)
    monkeypatch.setattr(job, "_Job", Failing)
    monkeypatch.setattr(job, "hear_of_ends", lambda: None)
    monkeypatch.setattr(job, "log_to_stderr", lambda: seen.append("warnings are shown"))
    wanted = RunArguments("j", ["true"], node=["memory://"], prefix="p:", node_timeout=0.7)
    with pytest.raises(ZeroDivisionError):
        job.run_job(wanted)
    options = {"prefix": "p:", "node_timeout": 0.7}
    assert seen == ["warnings are shown", (("memory://",), options), "closed"]


# ---- the whole way -------------------------------------------------------------------------------
async def _whole(
    wanted: RunArguments,
    command: type[Command] = Command,
    handlers: dict[int, Callable[[], Any]] | None = None,
    **options: Any,
) -> int:
    """Run all of it. `handlers` gets what handles each signal: virtual time has no signals."""
    loop, settings = asyncio.get_running_loop(), Settings(NODES, options)
    known: dict[int, Callable[[], Any]] = {} if handlers is None else handlers

    def handle(number: int, call: Callable[..., Any], *given: Any) -> None:
        known[number] = functools.partial(call, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "add_signal_handler", handle)
        patch.setattr(loop, "remove_signal_handler", lambda number: known.pop(number, None))
        patch.setattr(job, "Child", command)
        guardian: Any = Guarding()
        return await job._Job(settings, guardian, wanted).run()


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("label", [None, "nightly"])
@in_virtual_time
async def test_the_lease_has_the_terms_that_were_asked_for(label: str | None) -> None:
    """Others see the command, and not its arguments, which may contain a password."""
    seen: list[Any] = []

    class Looking(Command):
        def follow(self, may_go_on: Callable[[], bool]) -> None:
            async def look() -> None:
                async with asynclock.connect(*NODES) as others:
                    found = await others.inspect("j")
                seen.append((found.holder, found.remaining))
                self.exit(7)

            seen.append(asyncio.ensure_future(look()))

    options: dict[str, Any] = {"ttl": 5.0, "label": label} if label else {"ttl": 5.0}
    wanted = RunArguments("j", ["/bin/cmd", "secret"], ttl=33.0, max_ttl=44.0)
    assert await _whole(wanted, Looking, **options) == 7
    _, (holder, remaining) = seen
    assert remaining == pytest.approx(33.0, abs=0.1)
    assert holder == (label or f"{socket.gethostname()}:{os.getpid()}:cmd")


@pytest.mark.usefixtures("signals")
@in_virtual_time
async def test_the_longest_ttl_that_was_given_counts() -> None:
    wanted = RunArguments("j", ["cmd"], ttl=33.0, max_ttl=22.0)
    with pytest.raises(ConfigurationError, match="max_ttl"):
        await _whole(wanted)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@in_virtual_time
async def test_a_signal_ends_the_wait_and_leaves_the_queue(number: signal.Signals) -> None:
    for ignored in (False, True):
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        handlers: dict[int, Callable[[], Any]] = {}
        async with asynclock.connect(*NODES) as locks:
            lease = await locks.lock("j").acquire()
            wanted = RunArguments("j", ["cmd"], timeout=20.0)
            waiting = asyncio.ensure_future(_whole(wanted, handlers=handlers))
            await asyncio.sleep(3.0)
            assert (await locks.inspect("j")).waiting
            if ignored:  # as by nohup, or in the background of a script
                assert number not in handlers
                with pytest.raises(AcquireTimeoutError):
                    await waiting
            else:
                handlers[number]()
                assert await waiting == 128 + number
                # Everything is done, and a second Ctrl-C must not change the status.
                assert signal.getsignal(number) is signal.SIG_IGN
            assert lease.held
            assert not (await locks.inspect("j")).waiting


# ---- the wait ------------------------------------------------------------------------------------
@in_virtual_time
async def test_it_waits_as_asked_and_says_once_for_whom(capsys: pytest.CaptureFixture[str]) -> None:
    async with asynclock.connect(*NODES, label="web-1:77") as others, others.lock("j"):
        async with asynclock.connect(*NODES) as locks:
            await locks.ready()
            began = now()
            assert await made(Guarding(), no_wait=True)._acquire(locks) is None
            assert now() - began < 0.1
            assert capsys.readouterr().err == "asynclock: 'j' is held by web-1:77\n"
            began = now()
            with pytest.raises(AcquireTimeoutError):
                await made(Guarding(), timeout=30.0)._acquire(locks)
            assert now() - began == pytest.approx(30.0, abs=0.5)
            assert locks.statistics().refused > 3
            told = "asynclock: waiting for 'j', which is held by web-1:77\n"
            assert capsys.readouterr().err == told
            # Later events concern nobody: the command runs.
            assert await locks.lock("j").try_acquire() is None
            assert not capsys.readouterr().err


@in_virtual_time
async def test_a_lock_that_is_free_and_one_that_nobody_can_tell_of_are_no_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail() -> Any:
        raise AsyncLockError("too few nodes answered")

    async with asynclock.connect(*NODES) as locks:
        assert await made(Guarding(), no_wait=True)._acquire(locks)
    await made(Guarding())._report_holder(fail)
    assert not capsys.readouterr().err


class Fleet:
    """Nodes that come and go as the test says."""

    def __init__(self) -> None:
        up = NodeHealth("", "up", "", 0.0, 0.001, "7.0.0", "master")
        self.nodes_ = [replace(up, node=name) for name in "abc"]

    def nodes(self) -> tuple[NodeHealth, ...]:
        return tuple(self.nodes_)

    def is_(self, at: int, state: str, cause: str = "") -> None:
        self.nodes_[at] = replace(self.nodes_[at], state=state, cause=cause)


@in_virtual_time
async def test_a_person_is_told_of_each_change_of_the_missing_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fleet: Any = Fleet()
    reporting = asyncio.ensure_future(made(Guarding())._report_missing_nodes(fleet))

    async def said(seconds: float = 5.0) -> list[str]:
        await asyncio.sleep(seconds)
        lines = capsys.readouterr().err.splitlines()
        return [line.removeprefix("asynclock: ") for line in lines]

    assert not await said()
    fleet.is_(0, "down", "can't connect")
    one = ["waiting for 'j': 2 of 3 nodes can grant it now", "  a: down: can't connect"]
    assert await said() == one
    fleet.is_(2, "connecting")
    two = ["waiting for 'j': 1 of 3 nodes can grant it now", one[1]]
    assert await said() == [*two, "  c: connecting: no answer yet"]
    assert not await said(60.0)
    fleet.is_(0, "up")
    fleet.is_(2, "up")
    assert not await said()
    fleet.is_(0, "down", "can't connect")
    assert await said() == one, "again, since it had come back"
    reporting.cancel()


@in_virtual_time
async def test_a_log_is_told_of_no_missing_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    for name in "bc":
        memory_node(name).kill()
    async with asynclock.connect(*NODES) as locks:
        with pytest.raises(QuorumUnavailableError):
            await made(Guarding(), timeout=10.0)._acquire(locks)
    assert "can grant it now" not in capsys.readouterr().err


@in_virtual_time
async def test_the_report_of_missing_nodes_ends_with_the_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with asynclock.connect(*NODES) as locks:
        assert await made(Guarding())._acquire(locks)
        memory_node("a").kill()
        await asyncio.sleep(10.0)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("patched", ["NOTED", "GRANTED"])
async def test_ctrl_c_between_the_grant_and_the_command(program: Program, patched: str) -> None:
    """The lock is given back, quietly."""
    program.use(program.nodes, ttl=60.0, max_ttl=60.0)
    by = (sys.executable, "-c", globals()[patched])
    ended = await program.finish(await program.start("run", "j", "--", "sleep", "1000", by=by))
    assert (ended.status, ended.err) == (128 + signal.SIGINT, "")
    for node in program.nodes:
        assert await node.command("EXISTS", "asynclock:j") == 0


# The loop noted it while we still waited for the lock: its callback comes after us.
NOTED = f"""
import asyncio, signal, sys
sys.path[:0] = {sys.path!r}
from asynclock.cli import main
from asynclock.cli.run import _Job
under = _Job._under
def under_then(*args):
    asyncio.get_running_loop()._handle_signal(signal.SIGINT)
    return under(*args)
_Job._under = under_then
main()
"""


GRANTED = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from asynclock.cli import main
import asynclock.cli.run as job
before = job.environment_under
def after(lease):
    os.kill(os.getpid(), signal.SIGINT)
    return before(lease)
job.environment_under = after
main()
"""
