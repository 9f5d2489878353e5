"""One server process: starts, freezes, kills and reaps it, by its own process id only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from asynclock.errors import ConfigurationError

_STEP = 0.002
_TIMEOUT = 10.0  # seconds for a signal to take effect


class ServerProcess:
    """A child in its own process group, so that a forked AOF rewrite is killed with it.

    This is a plain `subprocess`. One of asyncio would belong to an event loop, but a server may
    serve many tests, each with its own loop.
    """

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._pid_file = folder / "pid"
        self.frozen: bool = False
        with (folder / "output.log").open("ab") as output:
            self._popen = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C must only reach the test process, which then ends its servers in order.
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._popen.pid))

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._popen.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status, -n for signal n, or None while the process runs."""
        return self._popen.poll()

    async def freeze(self) -> None:
        """Send SIGSTOP, and wait until the kernel has really stopped the process."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        deadline = time.monotonic() + _TIMEOUT
        while not self._stopped() and time.monotonic() < deadline:
            await asyncio.sleep(_STEP)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.frozen = False

    async def kill(self) -> None:
        """Send SIGKILL (which also ends a frozen process), and wait until it is reaped."""
        self._signal(signal.SIGKILL)
        if not await self.gone():
            raise ConfigurationError(f"the server {self.pid} did not end by SIGKILL")

    async def gone(self, timeout: float = _TIMEOUT) -> bool:
        """Wait until the process has ended; return False if it hasn't after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.alive:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_STEP)
        self._pid_file.unlink(missing_ok=True)
        return True

    def kill_now(self) -> None:
        """Do the same as `kill` without an event loop."""
        self._signal(signal.SIGKILL)
        self._popen.wait(_TIMEOUT)
        self._pid_file.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        # Not reaped yet, so the id can't belong to another process.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _stopped(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: trust the signal
            return True
        with contextlib.suppress(ChildProcessError):
            status = os.waitid(
                os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
            )
            return status is not None
        return True
