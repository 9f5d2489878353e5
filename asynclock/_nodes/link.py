"""One socket to one node: commands out in one write per loop tick, replies back in order.

This is the hot path. A command costs one entry in a queue: no task, no future and no timer of its
own. One timer serves all deadlines of a link: every command has the same time to be answered, so
the oldest is due first. An overdue command is given up by its sink at once, but keeps its place in
the queue: replies come in order, and the link counts as stalled until the overdue reply is in.
Why not a client's connection: docs/decisions/0001.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol, cast

import hiredis

from .. import _clock
from .script import Command

MAX_IN_FLIGHT = 65_536
"""Commands that may wait for a reply on one link; a backlog this long is of no use to anyone.
Only releases are still taken then: what is held is bounded, and must be given back."""

EARLY = 50
"""So many commands of one tick are worth a write of their own: the node begins while we go on."""
LAG = 0.02
"""A timer that fires later than this was kept by our own busy loop, not by the node."""
LAGGING = 8
"""So many timeouts are allowed to a node while our own loop is busy."""

_MORE = object()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node gave no answer. `permanent` ones need a person: trying again won't help."""

    cause: str
    permanent: bool = False
    code: str = ""
    """The first word of the server's error, such as MOVED; "" where no server spoke."""


class Sink(Protocol):
    """Who waits for the answer of node number `index`: a reply, or a Failure."""

    def cast(self, index: int, reply: Any, /) -> None:
        """Take the answer, straight from the socket. Raises, uncounted, at a strange shape only."""


class Owner(Protocol):
    """Who owns a link and is told what concerns the connection as a whole."""

    def told(self, clock: float, sent: float, received: float) -> None:
        """A script's reply carried the node's clock; called before the reply is cast."""

    def pushed(self, push: list[Any]) -> None:
        """The node sent something nobody asked for."""

    def lost(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        """The connection ended."""


class _ServerError(Exception):
    """An error reply, as hiredis makes it."""


# What a script meets has no code of its own; in the words of servers before 7.2, and since.
_FORBIDDEN_INSIDE = ("executing the script can't", "ACL failure in script")
_PERMANENT = ("WRONGPASS", "NOAUTH", "NOPERM", "NOPROTO")


def failure(error: Exception) -> Failure:
    """A server's error reply as an answer."""
    text = str(error)
    code = text.partition(" ")[0]
    permanent = code in _PERMANENT or text.startswith("ERR unknown command")
    forbidden = any(words in text for words in _FORBIDDEN_INSIDE)
    return Failure(text, permanent or forbidden, code)


class Link(asyncio.Protocol):
    """A connection that is open, or was."""

    def __init__(self, owner: Owner, timeout: float) -> None:
        self.owner = owner
        self.timeout = timeout
        """Seconds that each command has to be answered; set while nothing is in flight."""
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=ConnectionError, replyError=_ServerError, notEnoughData=_MORE
        )
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._in_flight: deque[tuple[Sink, int, float, Command]] = deque()
        self._overdue = 0
        self._sent = self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._end = Failure("the server closed the connection")
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.stalled_since = 0.0
        """When a reply became overdue that is still out; 0 while the node answers in time."""

    # what others ask of it

    def send(self, command: Command, sink: Sink, index: int) -> None:
        """Queue `command`; `sink` gets the answer, in time and exactly once."""
        out, in_flight = self._out, self._in_flight
        full = len(in_flight) >= MAX_IN_FLIGHT and not command.owed_until
        if full or self._transport is None:
            sink.cast(index, Failure("connection lost" if self._transport is None else "backlog"))
            return
        if not out:
            # What a tick queues counts as sent when its first command was: a reading of the
            # clock per write, not per command, and too early is the safe side.
            self._sent = _clock.now()
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._arm(self.timeout)
        out.append(command.packed)
        in_flight.append((sink, index, self._sent, command))
        if len(out) == EARLY:
            self._write()

    async def ask(self, command: Command) -> Any:
        """Send `command`, → its reply or Failure. Cancelling stops listening, nothing else."""
        answer = Answer(self._loop)
        self.send(command, answer, 0)
        return await answer.future

    def close(self, cause: str, *, permanent: bool = False) -> None:
        """End the connection now; what is still out fails with `cause`."""
        self._end = Failure(cause, permanent)
        if self._transport is not None:
            self._flush()
            self._transport.abort()

    async def finish(self) -> None:
        """End the connection once what is queued was handed to the system, or a timeout later."""
        if self._transport is not None:
            self._end = Failure("closed")
            self._flush()
            self._transport.close()
            await asyncio.wait([self.closed], timeout=self.timeout)
        if self._transport is not None:  # a frozen peer whose buffers are full takes nothing more
            self._transport.abort()
        await self.closed

    # out

    def _flush(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._out and not self._paused and self._transport is not None:
            out, self._out = self._out, []
            self._transport.write(b"".join(out))

    def pause_writing(self) -> None:
        """asyncio: the peer reads slower than we write."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the peer has caught up."""
        self._paused = False
        self._flush()

    # in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes from the node."""
        received = _clock.now()
        replies = self._parse(data)
        if replies:
            self._tell_clock(replies, received)
        for reply in replies:
            sink, index, _, command = entry = self._in_flight.popleft()
            if self._overdue:
                self._overdue -= 1
                if not self._overdue:
                    self.stalled_since = 0.0
                if command.owed_until and type(reply) is _ServerError:
                    self._refused(reply, NOBODY, index, command)  # nobody waits, the key does
            elif type(reply) is _ServerError:
                self._refused(reply, sink, index, command)
            else:
                try:
                    sink.cast(index, reply)
                except Exception:
                    self._in_flight.appendleft(entry)  # answered when asyncio ends this link
                    raise

    def _parse(self, data: bytes) -> list[Any]:
        replies: list[Any] = []
        gets = self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _MORE:
                if type(reply) is hiredis.PushNotification:
                    self.owner.pushed(reply)
                else:
                    replies.append(reply)
        except ConnectionError:
            self.close("it does not speak the Redis protocol", permanent=True)
        if len(replies) > len(self._in_flight):
            self.close("it sent a reply that nobody asked for")
            return []
        return replies

    def _tell_clock(self, replies: list[Any], received: float) -> None:
        # The newest reading of a batch says all that the others could, and before any is counted.
        for place in range(len(replies) - 1, -1, -1):
            reply = replies[place]
            if type(reply) is list and reply and type(reply[-1]) is int and reply[-1] > 1 << 48:
                self.owner.told(reply[-1] / 1_000_000, self._in_flight[place][2], received)
                return

    def _refused(self, error: Exception, sink: Sink, index: int, command: Command) -> None:
        known = failure(error)
        if known.code == "NOSCRIPT" and command.script is not None:
            # Healed by EVAL, which also makes the node know it from now on. Those behind it in
            # the queue get the same answer in the same order, so order is kept; but if another
            # client has taught the node meanwhile, a release behind was executed before its
            # acquire will be: it comes again.
            later = [entry[3] for entry in self._in_flight if entry[3].owed_until]
            Link.send(self, command.with_source(), sink, index)
            for other in later:
                if command.args[0] == "acquire" and other.args[1] == command.args[1]:
                    Link.send(self, other.with_source(), NOBODY, 0)
        else:
            sink.cast(index, known)

    # time

    def _arm(self, seconds: float) -> None:
        self._due = _clock.now() + seconds
        self._timer = self._loop.call_later(seconds, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        now = _clock.now()
        due, late = now - self.timeout, now - self._due
        while self._overdue < len(self._in_flight):
            sink, index, sent, _ = self._in_flight[self._overdue]
            if sent > due:
                self._arm(sent - due)
                return
            if late > LAG and now - sent < LAGGING * self.timeout:
                # It was our own loop that was busy: the reply may lie in the socket already, or
                # the request was written a moment ago only. Time for it, but not for ever.
                self._arm(min(late, self.timeout))
                return
            self._overdue += 1
            if not self.stalled_since:
                self.stalled_since = now
            sink.cast(index, Failure(f"no answer within {self.timeout:g} s"))

    # end

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection has ended."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end = self._end if error is None else Failure(f"connection lost: {error}")
        entries, overdue = self._in_flight, self._overdue
        self._in_flight, self._overdue = deque(), 0
        self.owner.lost(self, end, [entry[3] for entry in entries])
        for number, (sink, index, _, _) in enumerate(entries):
            if number >= overdue:
                sink.cast(index, end)
        if not self.closed.done():
            self.closed.set_result(None)


class Answer:
    """A sink for one answer that somebody awaits."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()

    def cast(self, _index: int, reply: Any) -> None:
        """Take the answer; nobody may be waiting any more."""
        if not self.future.done():
            self.future.set_result(reply)


class _Nobody:
    """A sink for answers that don't matter."""

    def cast(self, _index: int, _reply: Any) -> None:
        """Take the answer and forget it."""


NOBODY: Sink = _Nobody()
