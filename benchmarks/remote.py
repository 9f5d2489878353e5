"""The runner's end of a worker process: sends requests and limits the time of every answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from types import TracebackType
from typing import Any

from .install import ROOT

START_SECONDS = 20.0


def environment() -> dict[str, str]:
    """Return the variables of a measured program.

    Python keeps what it compiles, even if it is told not to: an installed asynclock is compiled,
    and so are the packages that it is compared with.
    """
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}


class WorkerError(Exception):
    """The worker answered with an error, gave no answer, or could not start."""


class Remote:
    """One worker process. ``async with`` starts and ends it."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.versions: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None
        # A full pipe would block the worker, so use a file, which lives as long as this object.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    async def __aenter__(self) -> Remote:
        env = {**environment(), "PYTHONHASHSEED": "0"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors,
                limit=2**24,
                cwd=ROOT,
                env=env,
            )
            self.versions = (await self._answer(START_SECONDS))["versions"]
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ask(self, op: str, patience: float = 30.0, **fields: object) -> dict[str, Any]:
        """Send one request and return its answer; ``patience`` is in seconds.

        If no answer comes, the process is ended, because later answers would no longer match.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        try:
            answer = await self._answer(patience)
        except BaseException:
            await self.end()
            raise
        if "failed" in answer:
            raise WorkerError(f"{op}: {answer['failed']}")
        return answer

    def freeze(self) -> None:
        """Stop the process (SIGSTOP), as if its machine hung: its connections stay open."""
        self._signal(signal.SIGSTOP)

    async def terminate(self, patience: float = 30.0) -> int:
        """Ask the process to end (SIGTERM), as a deploy does, and return its exit status."""
        assert self._process is not None
        self._signal(signal.SIGTERM)
        async with asyncio.timeout(patience):
            return await self._process.wait()

    async def end(self) -> None:
        """Kill the worker at once: there is nothing to clean up."""
        if self._process is None:
            self._errors.close()
            return
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        # Process.kill would reap a process that has just died, and asyncio would miss its end.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _answer(self, patience: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(patience):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise WorkerError(f"no answer in {patience:.0f} s") from None
        if not line:
            raise WorkerError(f"ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        if self._errors.closed:
            return "before this question"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "without a word")
