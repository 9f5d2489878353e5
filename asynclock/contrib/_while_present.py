"""Cancels a handler of aiohttp under a lock when its client disconnects.

The handler of an accepted WebSocket is not cancelled.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import anyio
from aiohttp import hdrs, web

PRESENCE_INTERVAL = 0.05
"""Seconds between checks whether the client is still connected: aiohttp doesn't report it, except
(with `handler_cancellation`) to every handler of the application."""


class WhilePresent:
    """A cancel scope that is cancelled when the client of a request disconnects.

    It no longer looks once a WebSocket has been accepted.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> anyio.CancelScope:
        self._scope.__enter__()
        self._look()
        return self._scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return self._scope.__exit__(kind, error, trace)

    def _look(self) -> None:
        if _is_open_socket(self._request):
            return  # its handler notices the end itself, and may have to clean up then
        transport = self._request.transport
        if transport is None or transport.is_closing():
            self._scope.cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(PRESENCE_INTERVAL, self._look)


def _is_open_socket(request: web.Request) -> bool:
    asked = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
    return asked and request.writer.output_size > 0
