"""One socket to one node: commands out in one write per loop tick, replies back in order.

This is the hot path. A command takes one entry in a queue, but no task, no future and no timer of
its own. One timer serves all deadlines of a link: every command has the same timeout, so the oldest
is due first. The sink of an overdue command gets a Failure at once, but the command keeps its place
in the queue, because replies come in order. The link counts as stalled until the overdue reply is
there. docs/decisions/0001 says why this isn't a Redis client's connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from contextvars import Context
from typing import Any, Protocol, cast

import hiredis

from .. import _clock, _process
from .wire import (
    BATCH,
    CACHING,
    GRANTED,
    NO_RIGHT,
    NOBODY,
    NOT_REDIS,
    READONLY,
    UNDOES,
    WRITES,
    Answer,
    Command,
    Failure,
    ServerError,
    Sink,
    Word,
    failure,
    lost,
    too_far,
)

MAX_IN_FLIGHT = 65_536
"""Maximum number of commands without a reply on one link; a longer backlog would be useless.
A full link still takes releases, whose number is bounded by that of the leases, and readings of the
fleet's record, which must be known before later replies count."""

BUFFER = 16_384
"""Number of bytes that asyncio reads at once. Without a buffer of ours it takes 256 KiB for each
read, which the system may have to map and unmap each time (docs/decisions/0043)."""
WRITE_AT = 50
"""Number of commands in one tick that are written at once, so that the node can begin with them."""
LATE_TIMER = 0.02
"""Seconds of delay of a timer above which our own loop was busy, and not the node slow."""
LATE_TIMER_FACTOR = 8
"""Maximum number of timeouts that a node gets while our own loop is busy."""
_MORE = object()


class LinkListener(Protocol):
    """Gets the events of the whole connection."""

    watched_keys: Collection[str]
    """The keys that tasks of this process watch."""
    on_wake: Callable[[str | None], None]
    """Called with a key that a command of our own changes."""
    in_cluster: bool
    """Whether the server is one of a Cluster, whose redirects are followed."""
    lack: Failure | None
    """The error that the server gave as its last answer, such as OOM; None if it voted."""

    def on_answer(self, command: Command, answer: Any) -> None:
        """Take an answer just before the sink gets it.

        That is each error, each grant that was held back, and while `lack` is set any other reply.
        """

    def on_clock(self, clock: float, sent: float, received: float) -> None:
        """Take the node's clock from a script's reply; called before the sink gets the reply."""

    def on_push(self, push: list[Any]) -> None:
        """Take a message that the node sent without a request."""

    def keep_release(self, release: Command) -> Sink:
        """Keep a release, to send it again; return the sink of an error that it got."""

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        """Note that the connection has ended, and which commands had no reply."""


class Link(asyncio.Protocol, asyncio.BufferedProtocol):
    """One connection, which is open or has ended; it is never reopened."""

    def __init__(self, listener: LinkListener, timeout: float) -> None:
        # 29 attributes: with a 30th, Python 3.11 moves all of them to a dict, which costs 4,300
        # instructions per cycle.
        self.listener = listener
        self.timeout: float = timeout
        """Seconds in which each command must be answered."""
        self.in_cluster: bool = listener.in_cluster
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=ConnectionError, replyError=ServerError, notEnoughData=_MORE
        )
        self._bytes = bytearray(BUFFER)
        self._buffer = memoryview(self._bytes)  # asyncio's TLS reads into slices of it
        self._filled = False
        """Whether a read filled the buffer since a command was late: more may be in the socket."""
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._in_flight: deque[tuple[Sink, int, float, Command]] = deque()
        self._again: set[Word] = set()
        """The owners and tickets of the commands that were sent again, until their replies."""
        self._half: list[Any] = []
        """The replies so far to an incomplete bundle."""
        self._overdue = 0
        self._sent = self._due = 0.0
        self.trip: float = 0.0
        """Seconds that the login took, or the last overdue reply."""
        self._timer: asyncio.TimerHandle | None = None
        self._context = Context()
        """An empty context for the timer, instead of that of the task that happens to set it."""
        self._paused = self._greeted = self._busy = False
        self.tracking: bool = False
        """Whether the server takes requests for pushes (CACHING)."""
        self.no_hello: Failure | None = None
        """The reply to HELLO 3 of a server that refuses RESP3; the link speaks RESP2 then."""
        self._end = Failure("the server closed the connection")
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.before_write: Callable[[], None] | None = None
        """Called by `flush`, and by `send` with `write`, before they write; may queue more. `flush`
        calls this even if nothing is queued."""
        self.doubted: Callable[[float], Failure | None] | None = None
        """Returns why the server may not be the primary at a moment, or None if it is."""
        self.stalled_since: float = 0.0
        """When the oldest overdue reply became overdue; 0 while the node answers in time."""

    # for its users

    def send(self, command: Command, sink: Sink, index: int, *, write: bool = False) -> None:
        """Queue `command`; with `write`, write all. `sink` gets one answer, within the timeout."""
        ended = self._transport is None
        if ended or (len(self._in_flight) >= MAX_IN_FLIGHT and not command.unlimited):
            sink.on_reply(index, self._end if ended else Failure("backlog"))
            return
        if self._busy:  # a garbage collection in here closed a call, which sends its release
            self._loop.call_soon(Link.send, self, command, sink, index)
            return
        if command.first is not None and (self.tracking or command.first is not CACHING):
            self.send(command.first, NOBODY, index)
        self._busy = True
        try:
            if not self._out:
                # One clock reading per write: all commands of a tick share the send time of the
                # first. A send time that is too early is safe.
                self._sent = _clock.now()
                if not write:
                    self._loop.call_soon(self.flush)
            if self._timer is None:
                self._arm(self.timeout)
            self._out.append(command.packed)
            self._in_flight.append((sink, index, self._sent, command))
        finally:
            self._busy = False
        if command.wakes and self.listener.watched_keys:
            for key in command.wakes:
                self.listener.on_wake(key)
        if write:
            if self.before_write is not None:
                self.before_write()
            self._write()
        elif len(self._out) == WRITE_AT:
            self._write()

    def ask(self, command: Command) -> asyncio.Future[Any]:
        """Queue `command` and return a future of its answer; cancelling that doesn't stop it."""
        answer = Answer(self._loop)
        self.send(command, answer, 0)
        return answer.future

    def answer_within(self, seconds: float) -> None:
        """End the handshake: `seconds` is the timeout from now on; nothing may be in flight."""
        self.timeout, self._greeted = seconds, True
        self._disarm()
        if self._in_flight:
            self._arm(seconds)

    @property
    def releasing(self) -> bool:
        """Whether a release has no reply yet."""
        return any(single.retry_until for _, _, _, one in self._in_flight for single in one.singles)

    def close(self, cause: str, *, permanent: bool = False, code: str = "") -> None:
        """End the connection now; commands without a reply fail with `cause`."""
        self._end = Failure(cause, permanent, code)
        if self._transport is not None:
            self.flush()
            self._transport.abort()

    async def finish(self) -> None:
        """End the connection once all queued bytes went to the system, or after one timeout."""
        if self._transport is not None:
            self._end = Failure("closed")
            self.flush()
            self._transport.close()
            await asyncio.wait([self.closed], timeout=self.timeout)
        if self._transport is not None:  # a frozen peer with full buffers
            self._transport.abort()
        await self.closed

    def forked(self) -> None:
        """In a forked child: close the copy of the socket; the connection stays the parent's."""
        transport, self._transport = self._transport, None
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                _process.close_copy(sock.fileno())
        self._out.clear()
        self._disarm()

    # out

    def flush(self) -> None:
        if self.before_write is not None:
            self.before_write()
        self._write()

    def _write(self) -> None:
        if self._out and not (self._paused or self._busy) and self._transport is not None:
            self._busy = True
            try:
                out, self._out = self._out, []
                self._transport.write(b"".join(out))
            finally:
                self._busy = False

    def pause_writing(self) -> None:
        """asyncio: the peer reads slower than we write."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: the peer has caught up."""
        self._paused = False
        # Later: a write that fails in here, in the middle of asyncio's, ends the transport twice.
        self._loop.call_soon(self.flush)

    # in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        _process.tell_child(self)

    def get_buffer(self, _: int) -> memoryview:
        """asyncio: where the next bytes from the node go."""
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        """asyncio: bytes from the node are in the buffer."""
        if size == BUFFER:
            self._filled = True
        self._reader.feed(self._bytes, 0, size)  # type: ignore[arg-type]  # it takes any buffer
        self._take_replies()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the node that were not read into the buffer: uvloop, `memory://`."""
        self._reader.feed(data)
        self._take_replies()

    def _take_replies(self) -> None:
        received = _clock.now()
        replies = self._parse()
        number = len(replies)
        while number:  # the newest clock, before any reply counts
            number -= 1
            match replies[number]:
                case [*_, clock] if type(clock) is int and clock > 1 << 48:
                    self.listener.on_clock(clock / 1_000_000, self._in_flight[number][2], received)
                    break
        # A new primary may already have granted the same lock to another owner.
        doubt = None if self.doubted is None else self.doubted(received)
        for reply in replies:
            sink, index, sent, command = entry = self._in_flight.popleft()
            if self._again:
                self._undo_again(command)
            if self._overdue:
                self.trip = received - sent
                self._overdue -= 1
                if not self._overdue:
                    self.stalled_since = 0.0
                if type(reply) is ServerError or command.op == BATCH:
                    self._rejected_late(reply, index, command)
            elif doubt is not None and command.op in WRITES:
                sink.on_reply(index, doubt)
            elif type(reply) is ServerError:
                self._rejected(reply, sink, index, command)
            else:
                odd = command.op == BATCH and take_errors(self, reply)
                if odd or self.listener.lack is not None:
                    self._hear(command, reply)
                try:
                    sink.on_reply(index, reply)
                except Exception:
                    self._in_flight.appendleft(entry)  # gets its Failure when asyncio ends the link
                    raise

    def _hear(self, command: Command, answer: Any) -> None:
        self.listener.on_answer(command, answer)

    def _parse(self) -> list[Any]:
        replies: list[Any] = []
        gets = self._reader.gets
        try:
            while (reply := gets()) is not _MORE:
                if type(reply) is hiredis.PushNotification:
                    self.listener.on_push(reply)
                else:
                    replies.append(reply)
        except (ConnectionError, TypeError):  # the latter: a list is a key in a map
            # Not permanent if this server has completed a handshake in the protocol before.
            cause = "it does not speak the Redis protocol"
            self.close(cause, permanent=not self._greeted, code=NOT_REDIS)
        if self.in_cluster:
            replies = self._join(replies)
        if len(replies) > len(self._in_flight):
            # A server that is full or protected says so before it is asked.
            refused = type(replies[0]) is ServerError and not (self._greeted or self._in_flight)
            end = failure(replies[0]) if refused else Failure("it sent a reply without a request")
            self.close(end.cause, permanent=end.permanent, code=end.code)
            return []
        return replies

    def _join(self, replies: list[Any]) -> list[Any]:
        """Return the complete replies; those to a bundle as one, in BATCH's form."""
        replies, joined, at = self._half + replies, [], 0
        for number in range(len(self._in_flight)):  # no iterator: it may grow
            command = self._in_flight[number][3]
            end = at + command.size
            if end > len(replies):
                break
            joined.append(as_batch(command, replies[at:end]) if command.size > 1 else replies[at])
            at = end
        self._half = replies[at:]
        return joined if len(joined) < len(self._in_flight) else joined + self._half

    # errors: what is sent again is no new write, so `Link.send` sends it, also in a subclass

    def _rejected(self, error: Exception, sink: Sink, index: int, command: Command) -> None:
        """Send a forgotten script again; pass any other error on to `sink`."""
        known = failure(error, in_cluster=self.in_cluster)
        # What was sent with its source is not sent again: only a broken server says NOSCRIPT then.
        if known.code == "NOSCRIPT" and command.script is not None and not command.sourced:
            # EVAL also loads the script. The commands behind get NOSCRIPT as well and are sent
            # again in the same order, see `_undo_again`.
            self._again.update(word for one in command.singles for word in one.puts)
            Link.send(self, command.with_source(), sink, index)
        else:
            self._hear(command, known)
            sink.on_reply(index, known)
            _demoted(self, known.cause)

    def _undo_again(self, command: Command) -> None:
        """Repeat a release or a leave that has run before an acquire that was sent again.

        That happens if another client has loaded the script in the meantime.
        """
        if command.sourced:
            self._again.difference_update(word for one in command.singles for word in one.puts)
            return
        for single in command.singles:
            if single.op in UNDOES and single.owner in self._again:
                Link.send(self, single.with_source(), NOBODY, 0)

    def _rejected_late(self, reply: Any, index: int, command: Command) -> None:
        """Take errors that came after the timeout: a key may still need its release."""
        match reply:
            case [1, list(errors), _]:
                pass
            case _:
                errors = [reply] * len(command.singles)
        for single, error in zip(command.singles, errors, strict=False):
            if type(error) is not ServerError:
                continue
            if not single.retry_until:
                _demoted(self, str(error))
            # A batch is denied as a whole, even if the user has no right to one name only.
            elif single is not command and failure(error).code == NO_RIGHT:
                Link.send(self, single, NOBODY, index)
            else:
                self._rejected(error, self.listener.keep_release(single), index, single)

    # time

    def _arm(self, seconds: float) -> None:
        self._due = _clock.now() + seconds
        self._timer = self._loop.call_later(seconds, self._check_time, context=self._context)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_time(self) -> None:
        self._timer = None
        now = _clock.now()
        due, late = now - self.timeout, now - self._due
        while self._overdue < len(self._in_flight):
            sink, index, sent, _ = self._in_flight[self._overdue]
            if sent > due:
                self._arm(sent - due)
                return
            busy = late > LATE_TIMER and now - sent < LATE_TIMER_FACTOR * self.timeout
            if busy or self._filled:
                # Our own loop was busy: the reply may be in the socket already. Give it more time.
                self._filled = False
                self._arm(min(max(late, LATE_TIMER), self.timeout))
                return
            self._overdue += 1
            if not self.stalled_since:
                self.stalled_since = now
            hint = too_far(self.trip, self.timeout)
            sink.on_reply(index, Failure(f"no answer within {self.timeout:g} s{hint}"))

    # end

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection has ended."""
        self._transport = None
        self._disarm()
        end = self._end = self._end if error is None else lost(error, greeted=self._greeted)
        entries, overdue = self._in_flight, self._overdue
        self._in_flight, self._overdue = deque(), 0
        self.listener.on_disconnect(self, end, [entry[3] for entry in entries])
        for sink, index, _, _ in list(entries)[overdue:]:
            sink.on_reply(index, end)
        if not self.closed.done():
            self.closed.set_result(None)


NEEDED_CHECKS = 5
"""Number of checks that must come in time until the limit is over."""


class Patience:
    """Calls `over` after `seconds` in which our loop ran, unless it is cancelled before.

    The limit is checked several times, and a check that is later than the whole time between two
    does not count: the answer may be in the socket by then, or our next step was never sent. `over`
    is called after at most LATE_TIMER_FACTOR limits' worth of checks, also if all are late.
    """

    __slots__ = ("_checks", "_counted", "_due", "_over", "_pause", "_timer")

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._over = over
        self._pause = seconds / NEEDED_CHECKS
        self._counted = 0
        self._checks = LATE_TIMER_FACTOR * NEEDED_CHECKS
        self._arm()

    def cancel(self) -> None:
        self._timer.cancel()

    def _arm(self) -> None:
        self._due = _clock.now() + self._pause
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._pause, self._check, context=Context())

    def _check(self) -> None:
        self._checks -= 1
        self._counted += _clock.now() - self._due <= self._pause
        if self._counted == NEEDED_CHECKS or not self._checks:
            self._over()
        else:
            self._arm()


def as_batch(command: Command, replies: list[Any]) -> list[Any]:
    """Return what BATCH would reply in place of these."""
    odd = clock = 0
    releases = len(replies) - len(command.claims)
    for n, reply in enumerate(replies):
        match reply:
            case [1, fence, b"", clock] if n >= releases:
                replies[n] = fence
            case [1, b"" | [], clock] if n < releases:
                replies[n] = GRANTED
            case [_, *_, clock]:
                odd = 1
            case _:
                odd = 1
    return [odd, replies, clock]


def take_errors(link: Link, reply: Any) -> bool:
    """Make Failures of the errors in the reply to a batch; return whether there are any.

    Close the link if one of them shows that its primary is demoted.
    """
    found = False
    match reply:
        case [1, list(replies), _]:
            for n, one in enumerate(replies):
                if type(one) is ServerError:  # its reason is as in a single command
                    error = ServerError(str(one).removesuffix("."))
                    replies[n] = failure(error, in_cluster=link.in_cluster)
                    _demoted(link, str(one))
                    found = True
    return found


def _demoted(link: Link, cause: str) -> None:
    if READONLY in cause:  # Redis 6.2 wraps an error in a script in other text
        link.close("it is no longer a primary", code=READONLY)
