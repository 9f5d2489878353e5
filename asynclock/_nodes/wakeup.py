"""Wakes waiters when a server reports that a name may be free. The report is only a hint.

A watch begins before the request that arms the push is sent, so no push falls between the two.
Other limits bound every wait: a lost push only makes a wait longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PUSH_WINDOW = 0.02
"""Seconds to wait for the other nodes' pushes after the first one."""
QUORUM_PUSH_WINDOW = 0.001
"""Seconds to wait for the other nodes' pushes after those of a quorum. Without this, a late push
would count as a new one, and all nodes would be asked once more."""


class Wakeups:
    """The watches of all keys.

    A name is free when a quorum of nodes has freed it. So a watch wakes when all nodes have pushed,
    a moment after a quorum has pushed, or a little after the first push if the others stay silent.
    Without that, every waiter would ask all nodes again after each node's push.
    """

    def __init__(self, size: int, quorum: int) -> None:
        self.size = size
        self.quorum = quorum
        # Dicts instead of sets, to wake in the order of arrival: simulations must repeat exactly.
        self.watched: dict[str, dict[Watch, None]] = {}
        self.on_change: Callable[[str | None], None] = lambda _key: None
        """Called with each key that `wake` is called with."""

    def watch(self, keys: tuple[str, ...], *, ticket: str | None = None) -> Watch:
        """Start to watch `keys`; call `close` when done.

        `ticket` is another key, which wakes this watch alone: changes on a quorum wake it at
        once. A change of `keys` wakes it a moment later, to let a push for the ticket come first.
        """
        if ticket is not None:
            keys = (ticket, *keys)
        watch = Watch(self, keys, ticket)
        for key in keys:
            self.watched.setdefault(key, {})[watch] = None
        return watch

    def wake(self, key: str | None, node: int | None = None) -> None:
        """Report that `key` changed on `node`, or on all nodes by our own request (None).

        If `key` is None or "", all keys may have changed (see `Node.on_wake`).
        """
        self.on_change(key)
        if not key:
            for watches in list(self.watched.values()):
                for watch in list(watches):
                    watch.wake()
            return
        for watch in list(self.watched.get(key, ())) if self.watched else ():
            if watch.ticket not in (None, key):
                watch.on_hint()
            elif node is None:
                watch.wake()
            else:
                watch.on_change(node)

    def count(self, ticket: str, node: int) -> None:
        """Report that `node` has left the name to this ticket's waiter: see `Watch.count`."""
        for watch in list(self.watched.get(ticket, ())):
            watch.count(node)

    def drop(self, watch: Watch) -> None:
        for key in watch.keys:
            watches = self.watched.get(key)
            if watches is not None:
                watches.pop(watch, None)
                if not watches:
                    del self.watched[key]


class Watch:
    """One task's interest in some keys."""

    __slots__ = ("_changed", "_future", "_owner", "_timer", "keys", "ticket", "woken")

    def __init__(self, owner: Wakeups, keys: tuple[str, ...], ticket: str | None) -> None:
        self._owner = owner
        self._changed: set[int] = set()
        self._timer: asyncio.Handle | None = None
        self.keys: tuple[str, ...] = keys
        self.ticket: str | None = ticket
        """The key by which only this watch is woken; None for none."""
        self.woken: bool = False
        self._future: asyncio.Future[None] | None = None

    @property
    def called(self) -> bool:
        """Whether a node reported a change of the ticket, or of any key if there is no ticket."""
        return len(self._changed) > 0

    def on_change(self, node: int) -> None:
        """Note that one of the keys changed on `node`."""
        if node in self._changed:
            return
        self._changed.add(node)
        if len(self._changed) == (self._owner.size if self.ticket is None else self._owner.quorum):
            self.wake()
        elif len(self._changed) == self._owner.quorum:
            self._wake_after(QUORUM_PUSH_WINDOW)
        elif self._timer is None:
            self._wake_after(PUSH_WINDOW)

    def count(self, node: int) -> None:
        """Count `node`, which has left the name to this waiter, for the quorum; start no timer."""
        self._changed.add(node)
        if len(self._changed) == self._owner.quorum:
            self.wake()

    def on_hint(self) -> None:
        """Note that the name may be free, though nobody has woken us yet."""
        if self._timer is None:
            # A push for the ticket nearly always arrives together with this one: then a timer
            # would only delay the next request.
            self._timer = asyncio.get_running_loop().call_soon(self._wait_for_more)

    def _wait_for_more(self) -> None:
        if not self.woken:
            self._wake_after(PUSH_WINDOW)

    def _wake_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.wake)

    def wake(self, _ended: object = None) -> None:
        """Wake the waiting task, or else the next `wait`. This is also a callback of futures."""
        self.woken = True
        self._pass()

    def reset(self) -> None:
        """Forget earlier pushes; called right before the request that arms the next push."""
        self.woken = False
        self._changed.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self, seconds: float) -> bool:
        """Sleep until woken, at most `seconds`; return whether it was woken."""
        if not self.woken:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(seconds, self._pass)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        return self.woken

    def _pass(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def close(self) -> None:
        self.reset()
        self._owner.drop(self)
