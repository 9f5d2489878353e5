"""`asynclock run NAME -- COMMAND…`: a command that runs only while a lock is held."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import _clock
from .._engine.lease import Lease
from ..errors import ConfigurationError
from ..events import Contended, Event, Renewed
from ..manager import LockManager
from ._child import FORWARDED, Child
from ._guardian import Guardian
from ._options import ConfigOption, NodeOption, NodeTimeoutOption, PrefixOption, Settings, load
from ._output import log_to_stderr, say
from ._status import Status

GRACE = 5.0
"""Seconds at most between SIGTERM and SIGKILL when the lease is about to run out, …"""
GRACE_SHARE = 4
"""… and never more than this part of the ttl: before it, three rounds of renewal have failed."""
GONE_GRACE = 0.5
"""The same when the nodes hold the name for somebody else already."""
MARGIN = 0.02
"""The part of the ttl by which SIGKILL comes before the lease's own end: a busy machine is late.
The guardian's comes in the middle between the two."""
BEFORE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the wait for the lock; Ctrl-C is asyncio's own."""


class OnLoss(StrEnum):
    """What happens to the command when its lock is lost."""

    kill = "kill"
    warn = "warn"


def add_to(app: typer.Typer) -> None:
    """Make the command known."""
    app.command("run")(run)


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="What to run under it, after --", show_default=False
        ),
    ],
    ttl: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long the lock outlives us if we die; it is renewed meanwhile. Default: 10",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Wait so long for the lock.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the lock.")] = False,
    on_loss: Annotated[
        OnLoss, typer.Option(help="Whether to end the command when the lock is lost.")
    ] = OnLoss.kill,
    max_ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="The longest ttl of all users of these nodes."),
    ] = None,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
) -> int:
    """Run a command while holding a lock.

    The command gets our terminal and our signals, and finds ASYNCLOCK_NAME, ASYNCLOCK_FENCE,
    ASYNCLOCK_OWNER and ASYNCLOCK_DEADLINE in its environment. If the lock can't be renewed, it
    gets SIGTERM, and SIGKILL before anybody else could get the lock.

    The exit status is the command's own (128+n if signal n ended it), or one of ours:
    64 wrong usage, 69 too few nodes answer, 70 the lock was lost, 75 somebody else has it,
    126 the command can't be executed, 127 it was not found.

    Examples:

        asynclock run nightly-report -- ./report.sh --all
        asynclock run migrate --no-wait -- alembic upgrade head
        asynclock run deploy --timeout 60 --ttl 30 -- sh -c 'build && push'
    """
    if no_wait and timeout is not None:
        raise ConfigurationError("--no-wait and --timeout exclude each other")
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    status = _missing(command[0])
    if status is not None:
        return status
    log_to_stderr()
    guardian = Guardian()
    try:
        job = _Job(settings, guardian, name, command, on_loss)
        return asyncio.run(job.run(ttl, max_ttl, timeout=timeout, wait=not no_wait))
    finally:
        guardian.close()


def _missing(program: str) -> Status | None:
    # Before the wait for the lock, not after it.
    if shutil.which(program) is not None:
        return None
    exists = os.sep in program and Path(program).exists()
    say(f"{program}: {'not executable' if exists else 'command not found'}")
    return Status.NOT_EXECUTABLE if exists else Status.NOT_FOUND


class _Job:
    """One command under one lease."""

    def __init__(
        self,
        settings: Settings,
        guardian: Guardian,
        name: str,
        command: list[str],
        on_loss: OnLoss,
    ) -> None:
        self._settings = settings
        self._guardian = guardian
        self._name = name
        self._command = command
        self._kills = on_loss is OnLoss.kill
        self._child: Child | None = None
        self._margin = 0.0
        self._told = False

    async def run(
        self, ttl: float | None, max_ttl: float | None, *, timeout: float | None, wait: bool
    ) -> int:
        """Wait for the lock, run the command, give the lock back. → the exit status."""
        label = f"{socket.gethostname()}:{os.getpid()}:{Path(self._command[0]).name}"[:200]
        label = str(self._settings.options.get("label") or label)
        manager = self._settings.connect(ttl=ttl, max_ttl=max_ttl, label=label)
        stopped_by: list[int] = []
        _let_signals_end_the_wait(stopped_by)
        try:
            async with manager as locks:
                lease = await self._acquire(locks, timeout, wait)
                if lease is None:
                    return Status.NOT_ACQUIRED
                return await self._under(lease, locks)
        except asyncio.CancelledError:
            if stopped_by:
                return 128 + stopped_by[0]
            raise
        finally:
            # A signal that comes while the loop closes would meet half of its machinery.
            for number in (signal.SIGCHLD, *FORWARDED):
                asyncio.get_running_loop().remove_signal_handler(number)

    async def _acquire(self, locks: LockManager, timeout: float | None, wait: bool) -> Lease | None:
        lock = locks.lock(self._name)
        if wait:
            locks.observe(self._tell_why_we_wait)
            try:
                return await lock.acquire(timeout=timeout)
            finally:
                locks.unobserve(self._tell_why_we_wait)
        lease = await lock.try_acquire()
        if lease is None:
            found = await locks.inspect(self._name)
            say(f"{self._name!r} is held by {found.holder or 'somebody else'}")
        return lease

    def _tell_why_we_wait(self, event: Event) -> None:
        if isinstance(event, Contended) and not self._told:
            self._told = True
            say(f"waiting for {self._name!r}, which {event.holder or 'somebody else'} has")

    async def _under(self, lease: Lease, locks: LockManager) -> int:
        try:
            child = self._child = Child(self._command, _environment(lease))
        except OSError as error:
            await lease.release()
            say(f"{self._command[0]}: {error.strerror or error}")
            return Status.NOT_EXECUTABLE
        locks.observe(self._renewed)
        self._margin = MARGIN / 2 * lease.ttl
        self._watch(lease.remaining())
        child.on_resume(lambda: self._may_go_on(lease))
        lost = await self._supervise(child, lease)
        released = await lease.release()
        if lost or (self._kills and not released):
            if lease.lost_reason is None:  # else the library has said so
                say(f"{self._name!r} was lost: it ran out")
            return Status.LOST
        return child.done.result()

    # keeping the guardian informed

    def _renewed(self, event: Event) -> None:
        if isinstance(event, Renewed):
            self._watch(event.remaining)

    def _watch(self, remaining: float) -> None:
        if self._child is not None:
            deadline = _clock.now() + remaining - self._margin
            self._guardian.watch(self._child.group, deadline if self._kills else float("inf"))

    def _may_go_on(self, lease: Lease) -> bool:
        if lease.held or not self._kills or self._child is None:
            return True
        self._child.send(signal.SIGKILL)
        return False

    # when the lock is lost

    async def _supervise(self, child: Child, lease: Lease) -> bool:
        """Wait for the command's end. → whether it was ended because the lock was lost."""
        grace = min(GRACE, lease.ttl / GRACE_SHARE) if self._kills else 0.0
        danger = asyncio.ensure_future(_danger(lease, grace))
        try:
            waits: set[asyncio.Future[Any]] = {child.done, danger}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if child.done.done():
                return self._kills and not lease.held
            if self._kills:
                await self._end(child, lease)
                return True
            say(f"{self._name!r} was lost; the command goes on (--on-loss warn)")
            await child.done
            return False
        finally:
            danger.cancel()

    async def _end(self, child: Child, lease: Lease) -> None:
        left = lease.remaining()
        if left:
            say(f"{self._name!r} can't be renewed: ending the command")
        grace = max(0.0, left - MARGIN * lease.ttl) if left else GONE_GRACE
        child.end(signal.SIGTERM)
        await asyncio.wait([child.done], timeout=grace)
        child.send(signal.SIGKILL)
        await child.done


async def _danger(lease: Lease, grace: float) -> None:
    # Every renewal moves the end of the lease; look again when the one known would be near.
    while lease.held and (left := lease.remaining() - grace) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await lease.wait_lost()


def _environment(lease: Lease) -> Mapping[str, str]:
    deadline = time.time() + lease.remaining()
    return {
        **os.environ,
        "ASYNCLOCK_NAME": lease.name,
        "ASYNCLOCK_FENCE": str(lease.fence),
        "ASYNCLOCK_OWNER": lease.owner,
        "ASYNCLOCK_DEADLINE": f"{deadline:.3f}",
    }


def _let_signals_end_the_wait(stopped_by: list[int]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop(number: int) -> None:
        stopped_by.append(number)
        if task is not None:
            task.cancel()

    for number in BEFORE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
