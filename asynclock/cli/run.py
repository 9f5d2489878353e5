"""`asynclock run`: runs a command only while a lock is held.

    asynclock run [OPTIONS] NAME [OPTIONS] [--] COMMAND…

Our options end where the command begins, as with env, timeout and flock: the first word of the
command and all words after it belong to the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import _clock
from .._engine.engine import Engine, NodeHealth, health
from .._engine.inspection import Inspection
from .._engine.lease import Lease
from .._engine.spec import LONGEST_MESSAGE
from .._primitives.base import Lockable
from ..errors import AsyncLockError, ConfigurationError, LeaseLostError
from ..events import HELD_TOO_LONG, NOT_RENEWED, Contended, Event, Renewed
from ..manager import LockManager, engine_of
from ._output import Status, clean, guarded, log_to_stderr, say, seconds
from ._settings import COMMON, Settings, duration, load, read_options
from .child import FORWARDED, Child, Guardian, hear_of_ends

VALUES: dict[str, Any] = {
    **COMMON,
    "--ttl": duration,
    "--timeout": duration,
    "--max-ttl": duration,
    "--max-hold": duration,
    "--at-least": duration,
    "--permits": int,
    "--message": str,
    "--on-loss": ("kill", "warn"),
    "--wait-for": ("group", "command"),
}
"""For each option with a value: the function that reads it, or the allowed values."""
FLAGS = {"--no-wait": "no_wait", "--shared": "shared", "--exclusive": "exclusive"}
MAX_NAME = 4096
"""Maximum number of characters of a name, which goes into the environment and all messages."""
MAX_SECONDS = 86_400.0
"""Maximum ttl in seconds: a day."""


@dataclass
class RunArguments:
    """The arguments of `asynclock run`; times in seconds."""

    name: str
    command: list[str]
    ttl: float | None = None
    timeout: float | None = None
    max_ttl: float | None = None
    max_hold: float | None = None
    at_least: float | None = None
    permits: int | None = None
    message: str | None = None
    shared: bool = False
    exclusive: bool = False
    node_timeout: float | None = None
    prefix: str | None = None
    node: list[str] | None = None
    config: Path | None = None
    on_loss: str = "kill"
    wait_for: str = "group"
    no_wait: bool = False

    def check(self) -> None:
        """Raise ConfigurationError for contradictory or oversized arguments."""
        if self.no_wait and self.timeout is not None:
            raise ConfigurationError("--no-wait and --timeout exclude each other")
        if self.shared + self.exclusive + (self.permits is not None) > 1:
            raise ConfigurationError("--shared, --exclusive and --permits exclude each other")
        if self.at_least is not None and (self.shared or self.exclusive or self.permits):
            raise ConfigurationError("--at-least is for a lock that one command holds alone")
        if self.message is not None and self.shared:
            raise ConfigurationError("--message and --shared exclude each other")
        texts = ("a lock's name", self.name, MAX_NAME), ("--message", self.message, LONGEST_MESSAGE)
        for what, text, most in texts:
            if (length := len(text or "")) > most:
                long = f"{what} may have {most} characters, this one has {length}"
                raise ConfigurationError(long)
        for option, given in (("--ttl", self.ttl), ("--max-ttl", self.max_ttl)):
            if given is not None and given > MAX_SECONDS:
                raise ConfigurationError(
                    f"{option} {given:g} is {given / MAX_SECONDS:,.0f} days: if this machine "
                    "died, nobody would get the lock for that long. The lock is renewed while "
                    "the command runs, so 10 to 60 seconds are enough"
                )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our arguments (the options and the name) and the words of the command."""
    words = number = 0
    while number < len(arguments):
        word = arguments[number]
        if word == "--":
            return _after_the_dashes(arguments, number, words)
        if word.startswith("-") and word != "-":
            number += 1 + (word in VALUES)
            continue
        if words == 1:
            break
        words += 1
        number += 1
    return list(arguments[:number]), list(arguments[number:])


def _after_the_dashes(arguments: Sequence[str], at: int, words: int) -> tuple[list[str], list[str]]:
    ours, rest = list(arguments[:at]), list(arguments[at + 1 :])
    if words == 0 and rest:
        name, *rest = rest
        if rest[:1] == ["--"]:
            del rest[0]
        return [*ours, "--", name], rest
    return ours, rest


def parse(arguments: Sequence[str]) -> RunArguments | None:
    """Return the arguments, or None if typer must show help or explain a mistake."""
    ours, command = split(arguments)
    found = read_options(ours, VALUES, FLAGS)
    if found is None or len(found[1]) != 1 or not command:
        return None
    options, (name,) = found
    return RunArguments(name, command, **options)


# ---- The command under the lock ------------------------------------------------------------------


GRACE = 5.0
"""Maximum seconds between SIGTERM and SIGKILL when the lease is about to run out."""
GRACE_SHARE = 4
"""That time is at most the ttl divided by this: by then three rounds of renewal have failed."""
GRACE_WHEN_LOST = 0.5
"""Seconds between SIGTERM and SIGKILL when the lease has been lost already."""
KILL_MARGIN = 0.02
"""Share of the ttl by which SIGKILL comes before the lease's end, because a busy machine is late.
The guardian's SIGKILL comes halfway between the two."""
ENDS_WAIT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the wait for the lock."""
NOTICE_AFTER = 1.0
"""Seconds of waiting after which a person at a terminal gets the reason."""


def start(wanted: RunArguments) -> int:
    """Run the command without typer, and return the exit status of this program."""
    return guarded(lambda: run_job(wanted))


def run_job(wanted: RunArguments) -> int:
    """Run the command under the lock, and return the exit status. Raises AsyncLockError."""
    wanted.check()
    settings = load(wanted.node, wanted.config, wanted.prefix, wanted.node_timeout)
    status = _missing(wanted.command[0])
    if status is not None:
        return status
    log_to_stderr()
    hear_of_ends()
    guardian = Guardian()
    try:
        return asyncio.run(_Job(settings, guardian, wanted).run())
    finally:
        guardian.close()


def _missing(program: str) -> Status | None:
    # Checked before the wait for the lock, not after it.
    if shutil.which(program) is not None:
        return None
    exists = os.sep in program and Path(program).exists()
    say(f"{program}: {'not executable' if exists else 'command not found'}")
    return Status.NOT_EXECUTABLE if exists else Status.NOT_FOUND


class _Job:
    """One command under one lease."""

    def __init__(self, settings: Settings, guardian: Guardian, wanted: RunArguments) -> None:
        self._settings = settings
        self._guardian = guardian
        self._wanted = wanted
        self._name = wanted.name
        self._kills = wanted.on_loss == "kill"
        self._child: Child | None = None
        self._stopped_by = 0
        """The signal that ended the wait for the lock; 0 without one."""

    async def run(self) -> int:
        """Wait for the lock, run the command, release the lock. Return the exit status."""
        wanted = self._wanted
        label = f"{socket.gethostname()}:{os.getpid()}:{Path(wanted.command[0]).name}"
        label = clean(label)[:200]  # a file's name may contain anything
        label = str(self._settings.options.get("label") or label)
        self._let_signals_end_the_wait()
        try:
            manager = self._settings.connect(ttl=wanted.ttl, max_ttl=wanted.max_ttl, label=label)
            async with manager as locks:
                lease = await self._acquire(locks)
                if lease is None:
                    return Status.NOT_ACQUIRED
                return await self._under(lease, locks)
        except asyncio.CancelledError:
            if self._stopped_by:
                return 128 + self._stopped_by
            raise
        finally:
            # Everything is done: ignore signals from here on.
            for number in (signal.SIGCHLD, *FORWARDED):
                if asyncio.get_running_loop().remove_signal_handler(number):
                    ours = signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN
                    signal.signal(number, ours)

    def _let_signals_end_the_wait(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: signal.Signals) -> None:
            if self._child is not None:
                # The loop had noted the signal before the command's own handlers were there.
                self._child.send(number)
                return
            self._stopped_by = number
            if task is not None:
                task.cancel()

        for number in ENDS_WAIT:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)

    # waiting for the lock

    async def _acquire(self, locks: LockManager) -> Lease | None:
        lock, inspect = self._lock(locks)
        if self._wanted.no_wait:
            lease = await lock.try_acquire()
            if lease is None:
                say(f"{self._name!r} {_had(await inspect())}")
            return lease
        reporting = [asyncio.ensure_future(self._report_missing_nodes(locks))]

        def report_holder(event: Event) -> None:
            if isinstance(event, Contended) and len(reporting) == 1:
                reporting.append(asyncio.ensure_future(self._report_holder(inspect)))

        locks.observe(report_holder)
        try:
            return await lock.acquire(timeout=self._wanted.timeout)
        finally:
            for task in reporting:
                task.cancel()
            locks.unobserve(report_holder)

    def _lock(self, locks: LockManager) -> tuple[Lockable, Callable[[], Awaitable[Inspection]]]:
        wanted, name, max_hold = self._wanted, self._name, self._wanted.max_hold
        if wanted.permits is not None:
            semaphore = locks.semaphore(name, wanted.permits, max_hold=max_hold)
            return semaphore, semaphore.inspect
        if wanted.shared or wanted.exclusive:
            both = locks.rwlock(name, max_hold=max_hold)
            return both.read() if wanted.shared else both.write(), both.inspect
        lock = locks.lock(name, max_hold=max_hold, at_least=wanted.at_least)
        return lock, partial(locks.inspect, name)

    async def _report_holder(self, inspect: Callable[[], Awaitable[Inspection]]) -> None:
        with contextlib.suppress(AsyncLockError):
            found = await inspect()
            free = shlex.join(["asynclock", "release", self._name, "--force"])
            hint = f"; `{free}` frees it" if found.rests else ""
            say(f"waiting for {self._name!r}, which {_had(found)}{hint}")

    async def _report_missing_nodes(self, locks: LockManager) -> None:
        """Tell a user at the terminal which nodes are missing."""
        reported: dict[str, str] = {}
        while sys.stderr.isatty():
            await asyncio.sleep(NOTICE_AFTER)
            nodes = locks.nodes()
            missing = {node.node: node.state for node in nodes if node.state != "up"}
            if missing and missing != reported:
                up = len(nodes) - len(missing)
                say(f"waiting for {self._name!r}: {up} of {len(nodes)} nodes can grant it now")
                _say_missing(nodes)
            reported = missing

    # running the command

    async def _under(self, lease: Lease, locks: LockManager) -> int:
        whole_group = self._wanted.wait_for == "group"
        engine = engine_of(locks)
        if self._wanted.message:
            await lease.publish(self._wanted.message)

        def deadline(remaining: float) -> float:
            end = _clock.now() + remaining - KILL_MARGIN / 2 * lease.ttl
            return end if self._kills else float("inf")

        def renewed(event: Event) -> None:
            if isinstance(event, Renewed):
                self._guardian.watch(child.group, deadline(event.remaining))

        try:
            child = self._child = Child(
                self._wanted.command,
                environment_under(lease),
                whole_group=whole_group,
                on_fork=partial(self._guardian.watch, deadline=deadline(lease.remaining())),
            )
        except OSError as error:
            await lease.release()
            say(f"{self._wanted.command[0]}: {error.strerror or error}")
            return Status.NOT_EXECUTABLE
        child.follow(lambda: lease.held or not self._kills)
        locks.observe(renewed)
        self._guardian.watch(child.group, deadline(lease.remaining()))
        reporting = asyncio.ensure_future(self._report_rest_of_group(child))
        try:
            lost = await self._supervise(child, lease, engine)
        finally:
            reporting.cancel()
        left = not whole_group and not lost and child.others_live()
        if left:
            self._guardian.watch(0, float("inf"))  # they need the lock no longer
        released = await _released(lease)
        if lost or (self._kills and not released):
            if lease.lost_reason is None:  # otherwise the library has logged the loss
                say(f"{self._name!r} was lost: {lost}")
            return Status.LOST
        if left:
            say(f"{self._name!r} was released, but processes that the command started go on")
        return child.done.result()

    async def _report_rest_of_group(self, child: Child) -> None:
        status = await asyncio.shield(child.ended)
        await asyncio.sleep(NOTICE_AFTER)
        say(
            f"the command ended with status {status}, but processes that it started go on; "
            f"{self._name!r} is held until they end (--wait-for command would not wait)"
        )

    # when the lock is lost

    async def _supervise(self, child: Child, lease: Lease, engine: Engine) -> str | None:
        """Wait for the command's end; return why the lock was lost if that ended it."""
        grace = min(GRACE, lease.ttl / GRACE_SHARE) if self._kills else 0.0
        danger = asyncio.ensure_future(_danger(lease, grace))
        try:
            waits: set[asyncio.Future[Any]] = {child.done, danger}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if child.done.done():
                return NOT_RENEWED if self._kills and not lease.held else None
            if self._kills:
                return await self._end(child, lease, engine)
            say(f"{self._name!r} was lost; the command goes on (--on-loss warn)")
            await child.done
            return None
        finally:
            danger.cancel()

    async def _end(self, child: Child, lease: Lease, engine: Engine) -> str:
        left = lease.remaining()
        grace = max(0.0, left - KILL_MARGIN * lease.ttl) if left else GRACE_WHEN_LOST
        over = any(one.valid_until >= one.renew_until for one in engine.renewals.grants())
        reason = f": {HELD_TOO_LONG}" if over else ""
        why = f"{self._name!r} can't be renewed{reason}: " if left else ""
        say(f"{why}the command gets SIGTERM now, and SIGKILL {grace:.1f} s later")
        child.wait_for_all()
        child.end(signal.SIGTERM)
        if left and not over:
            _say_missing(health(engine))
        await asyncio.wait([child.done], timeout=grace)
        child.send(signal.SIGKILL)
        await child.done
        return HELD_TOO_LONG if over else NOT_RENEWED


def _had(found: Inspection) -> str:
    holders = {one.holder for one in found.parts or (found,) if one.holder}
    has = f"rests for {seconds(found.remaining or 0.0)}, last" if found.rests else "is"
    return f"{has} held by {', '.join(sorted(holders)) or 'another owner'}"


def _say_missing(nodes: tuple[NodeHealth, ...]) -> None:
    for node in nodes:
        if node.state != "up":
            say(f"  {node.node}: {node.state}: {node.cause or 'no answer yet'}")


async def _danger(lease: Lease, grace: float) -> None:
    # Every renewal moves the end of the lease, so check again when the last known end is near.
    while lease.held and (left := lease.remaining() - grace) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await lease.wait_lost()


async def _released(lease: Lease) -> bool:
    # Leaving a block waits for the nodes also within a turn: they may know that the lease was lost.
    try:
        async with lease:
            pass
    except LeaseLostError:
        return False
    return True


# ---- The environment of a command that runs under a lock -----------------------------------------


def environment_under(lease: Lease) -> Mapping[str, str]:
    """Return our caller's environment, and what tells the command of its lease."""
    deadline = time.time() + lease.remaining()
    return {
        **_inherited(),
        "ASYNCLOCK_NAME": lease.name,
        "ASYNCLOCK_FENCE": str(lease.fence),
        "ASYNCLOCK_OWNER": lease.owner,
        "ASYNCLOCK_DEADLINE": f"{deadline:.3f}",
    }


def _inherited() -> dict[str, str]:
    """Return our environment as our caller set it.

    In the C locale Python sets LC_CTYPE (PEP 538), which the command must not see. Only Linux still
    shows the original environment.
    """
    found = dict(os.environ)
    if "LC_CTYPE" in found:
        with contextlib.suppress(OSError):
            first = Path("/proc/self/environ").read_bytes().split(b"\0")
            if not any(one.startswith(b"LC_CTYPE=") for one in first):
                del found["LC_CTYPE"]
    return found
