"""Answers a request once for each Idempotency-Key, and repeats that answer to the same request."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, TypeVar

from .. import _settings
from .._engine.replies import from_json
from .._primitives.once import LARGEST, Run
from ..errors import ConfigurationError
from ..manager import LockManager
from ._web import KEYED, MEDIA_TYPE, Problem, declared

_log = logging.getLogger("asynclock")

T = TypeVar("T")

HEADER = "Idempotency-Key"
SAFE = {"GET", "HEAD", "OPTIONS", "TRACE"}
"""The methods whose requests may be repeated anyway."""
ERRORS = 500
"""Answers from this status on are not kept: the next request with the key tries again."""


Answer = tuple[bytes, int, dict[str, str]]
"""The body, the status and the headers of an answer that is kept, or that says why none is."""


class Idempotent:
    """The settings of routes that answer once for each key."""

    def __init__(
        self, keep: float, scope: Callable[[Any], str] | None, settings: dict[str, Any]
    ) -> None:
        if scope is not None:
            _settings.callback(scope, "scope")
        self._scope = scope
        self._settings = {"keep": _settings.seconds(keep, "keep")} | declared(settings)

    async def answer(
        self,
        locks: LockManager,
        request: Any,
        url: str,
        read: Callable[[], Awaitable[bytes]],
        handle: Callable[[], Awaitable[T]],
        make: Callable[[bytes, int, dict[str, str]], T],
    ) -> T:
        """Return what `handle` answers to `request`; or `make` the answer that its key has got."""
        key = request.headers.get(HEADER)
        if key is None or request.method in SAFE:
            return await handle()
        if not key:
            return make(*_problem(400, "unusable-key", "This Idempotency-Key is empty"))
        scope = "" if self._scope is None else self._scope(request)
        # Hashed, because any text may come from a client, and not any text is a name.
        name = sha256(json.dumps([scope, key]).encode()).hexdigest()
        head = json.dumps([request.method, url]).encode()
        asked = sha256(head + b"\n" + await read()).hexdigest()
        async with locks.once(f"{KEYED}{name}", **self._settings) as run:
            if not run.done:
                response = await handle()
                _keep(run, asked, response)
                return response
        return make(*_kept(run, asked))


def _kept(run: Run, request: str) -> Answer:
    stored = run.result if isinstance(run.result, bytes) else b""
    head, _, body = stored.partition(b"\n")
    match from_json(head):
        case [str(asked), *_] if asked != request:
            return _problem(422, "reused-key", "This Idempotency-Key belongs to another request")
        case [_, int(status), None | str() as kind]:
            return body, status, {} if kind is None else {"Content-Type": kind}
        case [_]:
            return _problem(410, "unkept-answer", "This was done; its answer can't be repeated")
    raise ConfigurationError("the kept answer was not written by this library", name=run.name)


def _problem(status: int, kind: str, title: str) -> Answer:
    problem = Problem(status, kind, title)
    return problem.body, status, {**problem.headers, "Content-Type": MEDIA_TYPE}


def _keep(run: Run, request: str, response: Any) -> None:
    """Keep an answer at the end of `run`; if it is a stream or too large, only that there was one.

    The handler has done its work, so no other request with the key may do it again. An error of the
    server is not kept.
    """
    status = getattr(response, "status_code", None) or response.status  # FastAPI's, or aiohttp's
    if status >= ERRORS:
        return
    body = getattr(response, "body", "a stream has none")
    body = b"" if body is None else body
    answer = json.dumps([request, status, response.headers.get("Content-Type")]).encode() + b"\n"
    if isinstance(body, bytes | bytearray | memoryview) and len(answer) + len(body) <= LARGEST:
        run.finish(answer + bytes(body))
    else:
        _log.warning("the answer of %r can't be repeated: it is too large, or a stream", run.name)
        run.finish(json.dumps([request]).encode())
