"""The program as a process on real servers, and in this process on nodes in memory."""

import asyncio
import contextlib
import functools
import gc
import inspect
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from asynclock.cli import main
from asynclock.testing import LocalServer, run_virtual
from tests import waiting
from tests.tables.inside import forget_commands, no_loop

ROOT = Path(__file__).parents[2]
ASYNCLOCK = (sys.executable, "-m", "asynclock")
PATIENCE = 150.0
"""Seconds for anything that must happen: the machine may be busy with other tests."""
STRANGE = ("ASYNCLOCK_NODES", "ASYNCLOCK_CONFIG", "FORCE_COLOR", "NO_COLOR", "COLUMNS")
"""What a machine may set for its own programs."""

until = functools.partial(waiting.until, timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Programs take long to start on a busy machine; every wait in them has its own bound."""
    for item in items:
        if item.nodeid.startswith("tests/cli/"):
            item.add_marker(pytest.mark.timeout(3 * PATIENCE))


@pytest.fixture(autouse=True)
def as_from_a_shell() -> None:
    """Let programs that a test starts react to signals, though our caller, or a test, ignores them.

    A program inherits an ignored signal (nohup, a background job), but not a handled one. Setting
    signals in each child instead would run Python between fork and exec, for which our loop waits:
    more than a second if the machine is busy and this process is large.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@pytest.fixture(autouse=True)
def as_at_its_start() -> None:
    forget_commands()


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The library's logger; no command but the test's own has changed it."""
    found = logging.getLogger("asynclock")
    before, propagates = list(found.handlers), found.propagate
    found.handlers.clear()
    yield found
    found.handlers[:], found.propagate = before, propagates


def environment(**more: str) -> dict[str, str]:
    """No settings of the machine's own, and the package of this checkout."""
    env = {key: value for key, value in os.environ.items() if key not in STRANGE}
    # Compiling the package at every start would take most of the time of these tests.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
    env["PATH"] = os.pathsep.join((env["PATH"], os.defpath))  # the shells of these tests call cat
    return {**env, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "TERM": "xterm", **more}


@dataclass(frozen=True)
class Outcome:
    """How the program ended."""

    status: int
    out: str
    err: str


class Program:
    """Starts `python -m asynclock …`; what still runs at the end of the test is killed."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.nodes: list[LocalServer] = []
        """The nodes of the test."""
        self.settings = {"ASYNCLOCK_CONFIG": str(config)}
        """The variables of a run that is given no others."""
        self._running: list[asyncio.subprocess.Process] = []

    def use(self, nodes: Sequence[LocalServer | str], **settings: Any) -> None:
        """These nodes and settings, from a file; fresh servers vote at once."""
        urls = [node if isinstance(node, str) else node.url for node in nodes]
        # A busy machine may keep a server or us from the CPU for longer than the usual 0.25 s.
        given = {"nodes": urls, "restart_guard": False, "node_timeout": 2.0, **settings}
        lines = (f"{key} = {_toml(value)}" for key, value in given.items())
        self.config.write_text("\n".join(lines))

    async def start(
        self,
        *args: str,
        stdin: int | None = None,
        env: Mapping[str, str] | None = None,
        by: Sequence[str] = ASYNCLOCK,
        **files: Any,
    ) -> asyncio.subprocess.Process:
        """Start it, or another command with its arguments, and return."""
        process = await asyncio.create_subprocess_exec(
            *(*by, *args),
            env=environment(**(self.settings if env is None else env)),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            **{"stderr": asyncio.subprocess.PIPE, **files},
        )
        self._running.append(process)
        return process

    async def finish(self, process: asyncio.subprocess.Process) -> Outcome:
        """Wait for its end."""
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        status = process.returncode
        assert status is not None
        outcome = Outcome(status, out.decode(), err.decode())
        assert "Traceback" not in outcome.err, outcome.err
        return outcome

    async def __call__(self, *args: str, env: Mapping[str, str] | None = None) -> Outcome:
        """Run it to its end, in this process unless it starts another command."""
        if args[:1] == ("run",):
            return await self.finish(await self.start(*args, env=env))
        return self.inside(*args, env=env)

    def inside(
        self, *args: str, env: Mapping[str, str] | None = None, encoding: str = "utf-8"
    ) -> Outcome:
        """Run it in this process: a start of Python takes many times as long as a command.

        The loop of the test stands still meanwhile. What talks to the test needs `start`.
        """
        variables = environment(**(self.settings if env is None else env))
        files = [io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2)]
        before, collects = signal.getsignal(signal.SIGINT), gc.isenabled()
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, variables, clear=True))
            stack.enter_context(patch.object(sys, "argv", ["asynclock", *args]))
            stack.enter_context(patch.multiple(sys, stdout=files[0], stderr=files[1]))
            stack.callback(signal.signal, signal.SIGINT, before)
            stack.enter_context(no_loop())
            with pytest.raises(SystemExit) as ended:
                main()
        if collects:
            gc.enable()  # `inspect` needs no collector: its process ends soon
        out, err = (file.buffer.getvalue().decode() for file in files)
        return Outcome(int(ended.value.code or 0), out, err)

    async def each(self, *calls: tuple[str, ...]) -> list[Outcome]:
        """Run several to their ends, processes at once."""
        return list(await asyncio.gather(*(self(*call) for call in calls)))

    async def close(self) -> None:
        """Kill what still runs."""
        for process in self._running:
            if process.returncode is None:
                process.kill()
                await process.wait()


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, and read its output to the end."""
    begin = "import asyncio, os, signal, subprocess, sys, time\n"
    command, env = [sys.executable, "-c", begin + script], environment()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


@pytest_asyncio.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Program]:
    """The program without nodes."""
    made = Program(tmp_path / "asynclock.toml")
    yield made
    await made.close()


@pytest.fixture
def program(bare: Program, asynclock_nodes: list[LocalServer]) -> Program:
    """The program with three nodes, unless the test gives it others."""
    bare.nodes = asynclock_nodes
    bare.use(asynclock_nodes)
    return bare


def alive(pid: int) -> bool:
    """Whether a process exists that has not ended (a zombie has)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def connected(node: LocalServer, wanted: int) -> None:
    """Wait until this many clients of locks are connected."""

    async def all_of_them() -> bool:
        lines = (await node.command("CLIENT", "LIST")).splitlines()
        return sum("resp=3" in line or "flags=t" in line for line in lines) >= wanted

    await until(all_of_them, f"{wanted} clients are connected")


# ---- the program in this process -----------------------------------------------------------------
NODES = ("memory://a", "memory://b", "memory://c")
Prepare = Callable[[], Coroutine[Any, Any, None]]
Scene = Prepare | Callable[[], contextlib.AbstractAsyncContextManager[object]]


class Here:
    """Runs the program in this process, on nodes in memory and in virtual time.

    `scene` makes something of the nodes first; what it enters lasts while the program runs.
    """

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.seconds = 0.0
        """Seconds that the last run took."""
        self._capsys = capsys
        self._scene: Scene = contextlib.nullcontext
        patch.setattr(asyncio, "run", self._run)

    def __call__(self, *words: str, scene: Scene = contextlib.nullcontext) -> Outcome:
        """Run the program to its end."""
        self._scene = scene
        self.patch.setattr(sys, "argv", ["asynclock", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        return Outcome(int(ended.value.code or 0), said.out, said.err)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def play() -> Any:
            async with contextlib.AsyncExitStack() as stack:
                scene: Any = self._scene()
                await (scene if inspect.isawaitable(scene) else stack.enter_async_context(scene))
                began = asyncio.get_running_loop().time()
                try:
                    return await work
                finally:
                    self.seconds = asyncio.get_running_loop().time() - began

        return run_virtual(play())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    for name in STRANGE:
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGINT)
    yield Here(monkeypatch, capsys)
    signal.signal(signal.SIGINT, before)
    gc.enable()  # `inspect` needs no collector: its process ends soon
