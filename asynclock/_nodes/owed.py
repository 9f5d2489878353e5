"""What one node must still get: the commands that wait for its first connection, and lost releases.

A release or a leave may be lost with a connection, and is resent while it can matter. Also,
the server may execute an acquire from the old connection after a release from the new one. Releases
are idempotent per owner, and leaves per ticket, so a doubtful one is kept and resent when the node
is back, until the node has answered and no late acquire can follow. There is one entry and one
retry schedule per operation and owner (or ticket), and none for an owner whose requests never went
to the node. So the number of entries is limited by the leases that were held or requested when a
connection broke, however often that happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from .. import _clock
from .link import LATE_TIMER_FACTOR, Patience
from .replies import REDIRECTS, Failure, Sink
from .script import Command, Word

RETRY_MARGIN = 0.1
"""Seconds added to each retry, so that the event it waits for has certainly happened."""


class PendingReleases:
    """The releases kept for one node; `send` sends one if there is a connection."""

    def __init__(self, node_timeout: float, send: Callable[[Command, Sink], None]) -> None:
        self._timeout = node_timeout
        self._send = send
        self._kept: dict[tuple[Word, Word], PendingRelease] = {}
        """By operation and owner: a release, or the leave of a ticket."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_redirect: Callable[[Command], None] | None = None
        """Called with a release whose key has moved to another server; None outside a Cluster."""
        self.late_acquires: dict[Word, float] = {}
        """The owners and tickets that the server may still take from a broken connection, and the
        moment after which it no longer executes those commands."""
        self.set_back = 0.0
        """Seconds by which the node's clock was set back; its keys live that much longer."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, release: Command) -> None:
        """Keep `release`, to send it again when the node is back."""
        # The deadline is checked on reconnect: the node's clock may have been set back by then.
        if release.undoes not in self._kept:
            self._kept[release.undoes] = PendingRelease(self, release.again())
            self._idle.clear()

    def connection_broke(self, unanswered: Iterable[Command], asked_until: float) -> None:
        """Keep what matters of the unanswered commands; `asked_until` is when requests ended."""
        now = _clock.now()
        # A lease may be won without this node and be released here before its acquire arrives.
        late: dict[Word, float] = {}
        for command in (part for one in unanswered for part in one.parts):
            if command.retry_until and command.asked_since <= asked_until:
                self.keep(command)
            for word in command.puts:
                late[word] = now + LATE_TIMER_FACTOR * self._timeout + RETRY_MARGIN
        if late:
            self.late_acquires.update(late)
            loop = asyncio.get_running_loop()
            loop.call_later(
                LATE_TIMER_FACTOR * self._timeout + 2 * RETRY_MARGIN, self._forget_late, late
            )

    def sent(self, command: Command) -> None:
        """Note that `command` is being sent; keep a release that a late acquire may follow."""
        if command.retry_until and command.owner in self.late_acquires:
            self.keep(command)
            self._kept[command.undoes].retry_later(self._timeout)

    def resend(self) -> None:
        """Send everything that still matters, because the node is back."""
        for pending in list(self._kept.values()):
            self.send_again(pending)

    def take(self) -> list[Command]:
        """Remove and return everything that still matters, for another server with these keys."""
        kept = [pending.command for pending in self._kept.values() if not self._expired(pending)]
        self.clear()
        return kept

    def drop_expired(self) -> None:
        """Drop what no longer matters; no connection follows that would check it."""
        for pending in list(self._kept.values()):
            if self._expired(pending):
                self._drop(pending)

    def clear(self) -> None:
        """Drop all entries and their retry schedules."""
        for pending in list(self._kept.values()):
            self._drop(pending)

    async def wait_sent(self) -> None:
        """Wait until nothing is kept; the caller must limit the time."""
        await self._idle.wait()

    # one entry

    def answered(self, pending: PendingRelease, reply: object) -> None:
        """Handle the node's reply, or its Failure, to one release."""
        if self._kept.get(pending.command.undoes) is not pending:
            return
        left = self.late_acquires.get(pending.command.owner, 0.0) - _clock.now()
        if isinstance(reply, Failure):
            redirected = reply.code in REDIRECTS
            if redirected and self.on_redirect is not None:
                self._drop(pending)
                self.on_redirect(pending.command)
            elif reply.permanent and not redirected:  # a proxy may find the key's server later
                self._drop(pending)
            else:
                pending.retry_later(self._timeout)
        elif left > 0:
            pending.retry_later(self._timeout, left)
        else:
            self._drop(pending)

    def send_again(self, pending: PendingRelease) -> None:
        """Send one release again, unless its time is over."""
        if self._expired(pending):
            self._drop(pending)
        else:
            pending.cancel_timer()
            self._send(pending.command, pending)

    def _expired(self, pending: PendingRelease) -> bool:
        return pending.command.retry_until + self.set_back <= _clock.now()

    def _drop(self, pending: PendingRelease) -> None:
        pending.cancel_timer()
        del self._kept[pending.command.undoes]
        if not self._kept:
            self._idle.set()

    def _forget_late(self, late: dict[Word, float]) -> None:
        for owner, until in late.items():
            if self.late_acquires.get(owner) == until:
                del self.late_acquires[owner]


class PendingRelease:
    """One release and its retry schedule; takes the node's answers."""

    __slots__ = ("_pause", "_releases", "_timer", "command")

    def __init__(self, releases: PendingReleases, command: Command) -> None:
        self.command = command
        self._releases = releases
        self._pause = 1
        self._timer: asyncio.TimerHandle | None = None

    def on_reply(self, _index: int, reply: object) -> None:
        self._releases.answered(self, reply)

    def retry_later(self, node_timeout: float, longest: float = float("inf")) -> None:
        """Send it again after 1, 2, 4, then always 8 node timeouts, at most `longest` seconds."""
        if self._timer is None:
            seconds = min(self._pause * node_timeout, longest) + RETRY_MARGIN
            self._pause = min(2 * self._pause, LATE_TIMER_FACTOR)
            self._timer = asyncio.get_running_loop().call_later(
                seconds, self._releases.send_again, self
            )

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


Waiting = tuple[Command, Sink, int]
"""A command, and the sink and the index for its reply."""


class ConnectBacklog:
    """Keeps commands in order; calls `give_up` when the first has waited for `patience` seconds.

    Time in which our own process stood does not count.
    """

    __slots__ = ("_asked", "_give_up", "_patience", "_taken", "_timer")

    def __init__(self, patience: float, give_up: Callable[[], None]) -> None:
        self._patience = patience
        self._give_up = give_up
        self._asked: list[Waiting] = []
        self._timer: Patience | None = None
        self._taken = asyncio.Event()
        self._taken.set()

    def __iter__(self) -> Iterator[Command]:
        return (command for command, _, _ in self._asked)

    def add(self, command: Command, sink: Sink, index: int) -> None:
        """Keep a command until `take` is called."""
        self._asked.append((command, sink, index))
        self._taken.clear()
        if self._timer is None:
            self._timer = Patience(self._patience, self._give_up)

    def take(self) -> list[Waiting]:
        """Return and clear the backlog."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._taken.set()
        asked, self._asked = self._asked, []
        return asked

    async def wait_taken(self) -> None:
        await self._taken.wait()
