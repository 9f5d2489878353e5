"""What the integrations share: the answers to errors, and what an application with locks has.

An answer has a status, headers and a body as in RFC 9457. A body contains nothing that a stranger
should not read: no holder, no node, no cause. The error has them, and the log too if the fault is
on our side.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import math
import signal
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from .. import _settings
from .._engine.acquire import WORK, Work
from .._engine.engine import NodeHealth
from .._engine.lease import Lease
from .._engine.spec import from_json
from .._nodes.deployment import NodeAddress
from .._primitives.base import LockSettings
from .._primitives.shared.once import LARGEST, Run
from .._primitives.synchronized import R, check_route
from .._settings import ConnectSettings
from ..errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from ..fencing import StaleFenceError
from ..manager import LockManager, connect

_log = logging.getLogger("asynclock.web")

MEDIA_TYPE = "application/problem+json"
KEY = "asynclock"
"""The name of the manager in a framework's own state."""
KEYED: Final = "idempotency:"
"""Beginning of the name for an Idempotency-Key; a hash follows, because not any text is a name."""

Contended = Literal[409, 423]
"""The status for a lock that another holder has: Conflict, or Locked (RFC 4918)."""


class UnusableNameError(ConfigurationError):
    """The values in the request make a name that no lock can have, which is the client's fault."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to report to a client."""

    status: int
    kind: str
    title: str
    lock: str | None = None
    retry_after: int | None = None
    """Whole seconds for the Retry-After header; None for no header."""

    @property
    def close_code(self) -> int:
        """The code that closes a WebSocket: 4000 + status (4000 to 4999 are for applications)."""
        return 4000 + self.status

    @property
    def answer(self) -> tuple[bytes, int, dict[str, str]]:
        """Body, status and headers of the answer; the headers keep caches from storing it."""
        pause = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **pause}
        return self.body, self.status, headers

    @property
    def body(self) -> bytes:
        """The JSON of an `application/problem+json` answer."""
        members: dict[str, Any] = {
            "type": f"urn:asynclock:{self.kind}",
            "title": self.title,
            "status": self.status,
        }
        if self.lock is not None:
            members["lock"] = self.lock
        if self.retry_after is not None:
            members["retry_after"] = self.retry_after
        return json.dumps(members).encode()


def problem_of(error: AsyncLockError, contended: Contended = 409) -> Problem:
    """Return the answer to a request that `error` ended; log what an operator must fix."""
    keyed = (error.name or "").startswith(KEYED)
    name = None if keyed else error.name
    work = WORK.get()
    match error:
        case AcquireTimeoutError() if work is not None and work.stopped:
            return Problem(503, "unavailable", "The server is being stopped", name, 1)
        case NotAcquiredError():
            pause = _pause(error.retry_after)
            if keyed:
                return Problem(409, "in-progress", "This Idempotency-Key is in use", name, pause)
            return Problem(contended, "contended", "Another holder has this lock", name, pause)
        case QuorumUnavailableError():
            _log.warning("%s", error)
            pause = _pause(error.retry_after)
            return Problem(503, "unavailable", "Locks are not available at present", name, pause)
        case StaleFenceError():
            return Problem(412, "stale-fence", "A newer holder was here first", name)
        case LeaseLostError():
            return Problem(500, "lease-lost", "The lock was lost before the work was done", name)
        case UnusableNameError():
            return Problem(400, "unusable-name", "This cannot be the name of a lock")
        case AlreadyHeldError():
            _log.error("a request waits for a lock that it holds itself: %s", error, exc_info=error)
            title = "The request holds this lock and would wait for itself"
            return Problem(500, "already-held", title, name)
    _log.error("a request failed: %s", error, exc_info=error)
    return Problem(500, "misconfigured", "Locks are misconfigured")


def _pause(seconds: float) -> int:
    # Never 0: a client that retries at once would only add load.
    return max(1, math.ceil(seconds))


def schema_of(status: int, kind: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer with this status."""
    properties = {
        "type": {"type": "string", "const": f"urn:asynclock:{kind}"},
        "title": {"type": "string"},
        "status": {"type": "integer", "const": status},
        "lock": {"type": "string", "description": "The name of the lock."},
        "retry_after": {"type": "integer", "description": "Seconds."},
    }
    required = ["type", "title", "status"]
    schema = {"type": "object", "properties": properties, "required": required}
    pause = {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}
    return {"content": {MEDIA_TYPE: {"schema": schema}}, "headers": {"Retry-After": pause}}


def checked(contended: object) -> Contended:
    """Return `contended` if it is 409 or 423. Raises ConfigurationError otherwise."""
    if contended not in (409, 423):
        raise ConfigurationError(f"contended must be 409 or 423, not {contended!r}")
    return contended


def health_of(nodes: tuple[NodeHealth, ...]) -> tuple[int, dict[str, Any]]:
    """Return the status (503 if no quorum can vote, else 200) and the body of a health check."""
    voting = sum(node.state == "up" for node in nodes)
    quorum = len(nodes) // 2 + 1
    body = {
        "status": "ok" if voting >= quorum else "unavailable",
        "voting": voting,
        "quorum": quorum,
        "nodes": [
            {
                "node": node.node,
                "state": node.state,
                "cause": node.cause,
                "votes_in": round(node.votes_in, 3),
                "round_trip": node.round_trip,
            }
            for node in nodes
        ],
    }
    return (200 if voting >= quorum else 503), body


# ---- The requests of an application --------------------------------------------------------------
# When the server stops, their waits for locks end, and holders go on. aiohttp tells an application
# that the server begins to stop. An ASGI server tells it only after the last request has ended. But
# the object of a uvicorn server handles the signals, in workers of gunicorn too, and has a flag for
# that. So while requests run, this finds that object through the handler of the signals, which
# stays in place, and reads the flag.


LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks at the server's flag, which uvicorn itself reads as often."""


class Requests:
    """The requests that an application serves, and that may wait for locks."""

    def __init__(self) -> None:
        self._works: set[Work] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Let calls in the block wait for locks until the server begins to stop.

        From then on they raise AcquireTimeoutError instead of waiting.
        """
        if self._timer is None:
            self._look()
        work = Work(stopped=self._stopping)
        self._works.add(work)
        try:
            with work.running():
                yield
        finally:
            self._works.discard(work)

    def end(self) -> None:
        """End all waits: the server begins to stop."""
        self._stopping = True
        for work in tuple(self._works):
            work.stop()

    def _look(self) -> None:
        if _server_stops():
            self.end()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_INTERVAL, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._works:
            self._look()


def _server_stops() -> bool:
    """Return whether the server that handles the signals of this process is about to exit."""
    handlers = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))
    owners = (getattr(handler, "__self__", None) for handler in handlers)
    return any(getattr(owner, "should_exit", False) is True for owner in owners)


_requests: WeakKeyDictionary[LockManager, Requests] = WeakKeyDictionary()


def requests_of(locks: LockManager) -> Requests:
    """Return the requests of the application that uses this manager."""
    found = _requests.get(locks)
    if found is None:
        found = _requests[locks] = Requests()
    return found


def begin(locks: LockManager) -> None:
    """Note that an application starts with this manager, which another one may have used."""
    _requests[locks] = Requests()


def _warn(locked: Iterable[tuple[str, RouteLock]]) -> None:
    """Log which routes wait for their locks without a timeout."""
    if routes := tuple(dict.fromkeys(route for route, lock in locked if lock.waits_for_ever)):
        _log.warning(
            "these routes wait for their locks without a timeout, so requests pile up while a "
            "holder stays, and some servers wait for them when they stop: %s",
            ", ".join(routes),
            extra={"asynclock_routes": routes},
        )


# ---- Gives an application its manager, from settings that `setup` may replace before the start ---


Nodes: TypeAlias = "Sequence[NodeAddress | LockManager]"


class Source:
    """Nodes and settings, or an existing manager.

    A second `setup` of the same application replaces them, so that a test can use other nodes.
    """

    def __init__(self, nodes: Nodes, settings: ConnectSettings, contended: Contended = 409) -> None:
        self._runs = 0  # several if test clients overlap
        self._take(nodes, settings, contended)

    def replace(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        """Replace all settings. Raises ConfigurationError while the application runs."""
        if self._runs:
            raise ConfigurationError("the application runs: call setup before it starts")
        self._take(nodes, settings, contended)

    def _take(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        self.contended = checked(contended)
        addresses = [node for node in nodes if not isinstance(node, LockManager)]
        if len(addresses) == len(nodes):
            # Made only to raise the error of a wrong setting here, not at the start of the server.
            connect(*addresses, **settings)
        elif len(nodes) > 1:
            raise ConfigurationError("a LockManager has its nodes already: pass nothing else")
        elif settings:
            raise ConfigurationError(f"a LockManager has its settings already: {sorted(settings)}")
        self._nodes, self._addresses, self._settings = tuple(nodes), addresses, settings

    @contextlib.asynccontextmanager
    async def run(self, locked: Iterable[tuple[str, RouteLock]]) -> AsyncIterator[LockManager]:
        """Open the manager while the application runs.

        `locked` has each lock of a route, with the route's path. Raises ConfigurationError if the
        manager refuses the settings of one of them.
        """
        given = next((node for node in self._nodes if isinstance(node, LockManager)), None)
        manager, locked = given or connect(*self._addresses, **self._settings), tuple(locked)
        for route, lock in locked:
            lock.check_settings(manager, route)
        _warn(locked)
        self._runs += 1
        try:
            async with manager as locks:
                begin(locks)
                yield locks
        finally:
            self._runs -= 1


# ---- The locks of routes -------------------------------------------------------------------------


class RouteSettings(LockSettings, total=False):
    """The settings of `LockManager.lock`, and the Retry-After for a client that finds it held."""

    retry_after: float | None
    """Seconds to advise a client that found the lock held (default: those of the error)."""


def declared(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a route's lock, checked without a manager.

    Raises ConfigurationError, or TypeError for a setting that does not exist.
    """
    if wrong := settings.keys() - LockSettings.__annotations__.keys():
        raise _settings.unknown(wrong)
    for setting in ("ttl", "timeout", "max_hold"):
        _settings.optional_seconds(settings.get(setting), setting, zero=setting == "timeout")
    _settings.handoff(settings.get("handoff", True))
    return settings


def layers(function: object) -> Iterator[Callable[..., Any]]:
    """Yield `function` and those that decorators have wrapped in it."""
    while inspect.isfunction(function):
        yield function
        function = getattr(function, "__wrapped__", None)


class RouteLock:
    """The lock that a route declares."""

    def __init__(self, name: object, settings: dict[str, Any]) -> None:
        self._name = name
        retry_after = settings.pop("retry_after", None)
        self._retry_after = _settings.optional_seconds(retry_after, "retry_after", zero=True)
        self._settings = declared(settings)

    @property
    def waits_for_ever(self) -> bool:
        """Whether requests wait for the lock without a timeout."""
        return self._settings.get("timeout") is None

    def check(self, variables: Collection[str], route: str, others: str = "") -> None:
        """Raise ConfigurationError if the path lacks a variable that the name needs."""
        if isinstance(self._name, str):
            check_route(self._name, variables, route, others)

    def check_settings(self, locks: LockManager, route: str) -> None:
        """Raise ConfigurationError if `locks` refuses the settings, such as a ttl."""
        try:
            locks.lock("route", **self._settings)
        except ConfigurationError as error:
            raise ConfigurationError(f"route {route}: {error}") from None

    async def acquire(self, locks: LockManager, name: object) -> Lease:
        """Acquire the lock for a request, from whose values `name` was made.

        Raises UnusableNameError if no lock can have that name, and ConfigurationError if it is no
        text.
        """
        if not isinstance(name, str):
            text = f"the function that names a lock must return a str, not {type(name).__name__}"
            raise ConfigurationError(text)
        try:
            locks.lock(name)  # with default settings, so only the name can be wrong
        except ConfigurationError as error:
            raise UnusableNameError(str(error)) from None
        with requests_of(locks).serve():
            try:
                return await locks.lock(name, **self._settings).acquire()
            except NotAcquiredError as error:
                if self._retry_after is not None:
                    error.retry_after = self._retry_after
                raise


# ---- One answer for each Idempotency-Key ---------------------------------------------------------


HEADER = "Idempotency-Key"
SAFE = {"GET", "HEAD", "OPTIONS", "TRACE"}
"""The methods whose requests may be repeated anyway."""
_key_lease: ContextVar[Lease | None] = ContextVar("_key_lease", default=None)


def key_lease() -> Lease | None:
    """Return the lease under which an idempotent endpoint runs; None for a request without a key.

    Pass its `fence` to the store, which then refuses the late write of a run that lost its lease.
    The lease ends with the endpoint. A task that the endpoint started still gets it then; the
    body of a stream gets None.
    """
    return _key_lease.get()


@contextlib.contextmanager
def _answering(lease: Lease | None) -> Iterator[None]:
    """Let `key_lease` return this lease in the block; the task may serve another request, too."""
    before = _key_lease.set(lease)
    try:
        yield
    finally:
        _key_lease.reset(before)


class Idempotent:
    """The settings of routes that answer once for each key."""

    def __init__(
        self, keep: float, scope: Callable[[Any], str] | None, settings: dict[str, Any]
    ) -> None:
        if scope is not None:
            _settings.callback(scope, "scope")
        self._scope = scope or (lambda _request: "")
        self._settings = {"keep": _settings.seconds(keep, "keep")} | declared(settings)

    async def answer(
        self,
        locks: LockManager,
        request: Any,
        url: str,
        read: Callable[[], Awaitable[bytes]],
        handle: Callable[[], Awaitable[R]],
        make: Callable[[bytes, int, dict[str, str]], R],
    ) -> R:
        """Return the answer of `handle`, or what `make` makes of the answer kept for the key."""
        key = request.headers.get(HEADER)
        if key is None or request.method in SAFE:
            with _answering(None):
                return await handle()
        if not key:
            return make(*Problem(400, "unusable-key", "This Idempotency-Key is empty").answer)
        scope = self._scope(request)
        if not isinstance(scope, str):
            kind = type(scope).__name__
            raise ConfigurationError(f"scope must return a text, whose key it is, not a {kind}")
        name = sha256(json.dumps([scope, key]).encode()).hexdigest()
        head = json.dumps([request.method, url]).encode()
        asked = sha256(head + b"\n" + await read()).hexdigest()
        async with locks.once(f"{KEYED}{name}", **self._settings) as run:
            if not run.done:
                with _answering(run.lease):
                    response = await handle()
                _keep(run, asked, response)
                return response
        return make(*_kept(run, asked))


def _kept(run: Run, request: str) -> tuple[bytes, int, dict[str, str]]:
    stored = run.result if isinstance(run.result, bytes) else b""
    head, _, body = stored.partition(b"\n")
    match from_json(head):
        case [str(asked), *_] if asked != request:
            return Problem(422, "reused-key", "This Idempotency-Key is another request's").answer
        case [_]:
            return Problem(410, "unkept-answer", "This was done; its answer is not kept").answer
        case [_, int(status), None | str() as kind]:
            return body, status, {} if kind is None else {"Content-Type": kind}
    raise ConfigurationError("the kept answer was not written by this library", name=run.name)


def _keep(run: Run, request: str, response: Any) -> None:
    """Keep an answer below 500; of a stream or a large one the request: it isn't done again."""
    status = getattr(response, "status_code", None) or response.status  # FastAPI's, or aiohttp's
    if status >= 500:
        return  # the next request with the key tries again
    head = json.dumps([request, status, response.headers.get("Content-Type")]).encode() + b"\n"
    body = getattr(response, "body", "a stream has none") or b""
    if not isinstance(body, bytes | bytearray | memoryview) or len(head) + len(body) > LARGEST:
        _log.warning("the answer of %r can't be repeated: it is too large, or a stream", run.name)
        head, body = json.dumps([request]).encode(), b""
    run.finish(head + bytes(body))
