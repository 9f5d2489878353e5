"""What a link does if a script was forgotten, a batch was denied or a primary was demoted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .replies import NO_RIGHT, NOBODY, READONLY, ServerError, Sink, failure
from .script import Command
from .undoing import Entry, Undoing


class Sender(Protocol):
    """The link, as far as its refusals need it."""

    in_cluster: bool
    """Whether the server is one of a Cluster, whose redirects are followed."""

    def send(self, command: Command, sink: Sink, index: int) -> None:
        """Queue `command`."""

    def close(self, cause: str, *, permanent: bool = False, code: str = "") -> None:
        """End the connection now."""


class ErrorReplies:
    """The errors among the replies that have arrived together on one link."""

    __slots__ = ("_in_flight", "_link", "_undoing")

    def __init__(self, link: Sender, in_flight: Sequence[Entry]) -> None:
        self._link = link
        self._in_flight = in_flight
        """The commands without a reply."""
        self._undoing: Undoing | None = None

    def take(self, error: Exception, sink: Sink, index: int, command: Command) -> None:
        """Send a forgotten script again; pass any other error on to `sink`."""
        known = failure(error, in_cluster=self._link.in_cluster)
        # What was sent with its source is not sent again: only a broken server says NOSCRIPT then.
        if known.code == "NOSCRIPT" and command.script is not None and not command.sourced:
            # Send the script with EVAL, which also loads it. The commands behind get NOSCRIPT as
            # well and are resent in the same order. But if another client has loaded the script in
            # the meantime, a release or a leave behind ran before this acquire: send it again.
            undoing = self._undoing = self._undoing or Undoing()
            later = undoing.behind(command, self._in_flight)
            self._link.send(command.with_source(), sink, index)
            for other in later:
                self._link.send(other.with_source(), NOBODY, 0)
        else:
            sink.on_reply(index, known)
            _demoted(self._link, known.cause)

    def late(self, error: Exception, index: int, command: Command) -> None:
        """Take an error that came after the timeout: a key may still need its release."""
        # A batch is denied as a whole, even if the user has no right to one of its names only.
        denied = failure(error).code == NO_RIGHT
        for part in command.parts:
            if part.retry_until and denied and part is not command:
                self._link.send(part, NOBODY, index)
            elif part.retry_until:
                self.take(error, NOBODY, index, part)


def look_inside(link: Sender, reply: Any) -> None:
    """Close the link if an error inside the reply to a batch shows that its primary is demoted."""
    if type(reply) is list and len(reply) == 3 and reply[0] and type(reply[1]) is list:
        for error in reply[1]:
            if type(error) is ServerError:
                _demoted(link, str(error))


def _demoted(link: Sender, cause: str) -> None:
    if READONLY in cause:  # Redis 6.2 wraps an error in a script in other text
        link.close("it is no longer a primary", code=READONLY)
