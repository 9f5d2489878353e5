"""A name may be free now: a hint from a server, never a promise.

A key is watched before the question that arms the push is sent, so no wake-up falls between the
two. Every wait is bounded elsewhere: a lost push only makes it longer.
"""

from __future__ import annotations

import asyncio

STRAGGLERS = 0.02
"""Seconds after the first node's push in which the others' are waited for."""
SETTLE = 0.001
"""The same after a quorum's: a push that is still on its way would be taken for a new one, and
all nodes asked once more."""


class Wakeups:
    """Who waits for which key.

    A name is free when a quorum of nodes has freed it, so a watch wakes when all have pushed; a
    moment after a quorum has, or a little after the first if the others stay silent. Without
    that, every waiter would ask all nodes once per node that it hears from.
    """

    def __init__(self, size: int, quorum: int) -> None:
        self._size = size
        self._quorum = quorum
        # Dicts for sets: woken in the order of arrival, the same in every run of a simulation.
        self._watched: dict[str, dict[Watch, None]] = {}

    def watch(self, keys: tuple[str, ...], *, queued: bool = False) -> Watch:
        """Start to watch `keys`; `close` the watch when done. `queued`: wake one, not all."""
        watch = Watch(self, keys, self._size, self._quorum, queued)
        for key in keys:
            self._watched.setdefault(key, {})[watch] = None
        return watch

    def wake(self, key: str | None, node: int | None = None) -> None:
        """`key` changed on `node` (None: we changed it everywhere); `key` None: all may have."""
        if key is None:
            for watches in list(self._watched.values()):
                for watch in list(watches):
                    watch.wake()
            return
        for watch in list(self._watched.get(key, ())) if self._watched else ():
            if node is None:
                watch.wake()
            else:
                watch.hear(node)
            if watch.queued:
                break  # those behind it would ask in vain

    def drop(self, watch: Watch) -> None:
        """Forget a watch."""
        for key in watch.keys:
            watches = self._watched.get(key)
            if watches is not None:
                watches.pop(watch, None)
                if not watches:
                    del self._watched[key]


class Watch:
    """One task's interest in some keys."""

    __slots__ = (
        "_future",
        "_heard",
        "_owner",
        "_patience",
        "_quorum",
        "_size",
        "keys",
        "queued",
        "woken",
    )

    def __init__(
        self, owner: Wakeups, keys: tuple[str, ...], size: int, quorum: int, queued: bool
    ) -> None:
        self._owner = owner
        self._size = size
        self._quorum = quorum
        self._heard: set[int] = set()
        self._patience: asyncio.TimerHandle | None = None
        self.keys = keys
        self.queued = queued
        """Whether only the first of those who watch a key is woken by it."""
        self.woken = False
        self._future: asyncio.Future[None] | None = None

    def hear(self, node: int) -> None:
        """One of the keys changed on `node`."""
        self._heard.add(node)
        if len(self._heard) == self._size:
            self.wake()
        elif len(self._heard) == self._quorum:
            self._be_patient(SETTLE)
        elif self._patience is None:
            self._be_patient(STRAGGLERS)

    def _be_patient(self, seconds: float) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(seconds, self.wake)

    def wake(self) -> None:
        """It is worth asking again."""
        self.woken = True
        self._pass()

    def reset(self) -> None:
        """Forget what was heard: called right before the question that arms the next push."""
        self.woken = False
        self._heard.clear()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def wait(self, seconds: float) -> bool:
        """Sleep until woken or `seconds` have passed. → whether it was woken."""
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
        """Watch no longer."""
        self.reset()
        self._owner.drop(self)
