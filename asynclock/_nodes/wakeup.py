"""A name may be free now: a hint from a server, never a promise.

A key is watched before the question that arms the push is sent, so no wake-up falls between the
two. Every wait is bounded elsewhere: a lost push only makes it longer.
"""

from __future__ import annotations

import asyncio


class Wakeups:
    """Who waits for which key. One push wakes all who watch the key, with all nodes alike."""

    def __init__(self) -> None:
        self._watched: dict[str, set[Watch]] = {}

    def watch(self, keys: tuple[str, ...]) -> Watch:
        """Start to watch `keys`; `close` the watch when done."""
        watch = Watch(self, keys)
        for key in keys:
            self._watched.setdefault(key, set()).add(watch)
        return watch

    def wake(self, key: str | None) -> None:
        """`key` changed; None: all may have."""
        if key is None:
            for watches in list(self._watched.values()):
                for watch in list(watches):
                    watch.wake()
            return
        for watch in list(self._watched.get(key, ())):
            watch.wake()

    def drop(self, watch: Watch) -> None:
        """Forget a watch."""
        for key in watch.keys:
            watches = self._watched.get(key)
            if watches is not None:
                watches.discard(watch)
                if not watches:
                    del self._watched[key]


class Watch:
    """One task's interest in some keys."""

    __slots__ = ("_future", "_owner", "keys", "woken")

    def __init__(self, owner: Wakeups, keys: tuple[str, ...]) -> None:
        self._owner = owner
        self.keys = keys
        self.woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """One of the keys changed."""
        self.woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Sleep until a key changes or `seconds` pass. → whether one changed."""
        if not self.woken:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(seconds, self._pass)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        woken, self.woken = self.woken, False
        return woken

    def _pass(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def close(self) -> None:
        """Watch no longer."""
        self._owner.drop(self)
