"""The HTTP headers of a lease: X-Lock-Name, X-Lock-Fence and X-Lock-Part.

The name is percent-encoded UTF-8, because header values are ASCII. The fence is decimal. The part
is sent only if the name has several parts: slots of a semaphore, sides of a read-write lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from ..errors import AsyncLockError, ConfigurationError
from .stamp import FENCE_LIMIT, Fenced, FenceStamp, FenceStore, StaleFenceError

LOCK_NAME_HEADER = "X-Lock-Name"
LOCK_FENCE_HEADER = "X-Lock-Fence"
LOCK_PART_HEADER = "X-Lock-Part"

Headers = Mapping[str, str] | Iterable[tuple[str, str]]

# Without the comma: a proxy that joins two headers with a comma must not produce a valid name.
_READABLE = "!$&()*+-./:;=@_~"
_NAME = re.compile(r"(?:[A-Za-z0-9!$&()*+\-./:;=@_~]|%[0-9A-Fa-f]{2}){1,2048}")
_FENCE = re.compile(r"[1-9][0-9]{0,15}")
_PART = re.compile(r"[a-z0-9]{1,16}")


class FenceHeaderError(AsyncLockError, ValueError):
    """The request's lock headers are missing or malformed: fix the sender.

    `header` is the wrong header; `missing` is True if it is absent (428) and False if it is
    malformed (400).
    """

    def __init__(
        self, message: str, *, name: str | None = None, header: str = "", missing: bool = False
    ) -> None:
        super().__init__(message, name=name)
        self.header = header
        self.missing = missing


def fence_headers(lease: Fenced) -> dict[str, str]:
    """Return the headers that name the lease under which a request is made.

    Args:
        lease: the lease, or its stamp.
    """
    stamp = FenceStamp.of(lease)
    headers = {
        LOCK_NAME_HEADER: quote(stamp.name, safe=_READABLE),
        LOCK_FENCE_HEADER: str(stamp.fence),
    }
    return {**headers, LOCK_PART_HEADER: stamp.part} if stamp.part else headers


def read_fence_headers(headers: Headers) -> FenceStamp:
    """Return the lock, part and fence that a request names. Raises `FenceHeaderError`.

    The result is the sender's claim: check that the sender is authorized, and that this lock guards
    what the request asks for (`check_fence` compares the name).

    Args:
        headers: a mapping of any framework, in any case, or pairs of name and value.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    name, fence = _only(pairs, LOCK_NAME_HEADER), _only(pairs, LOCK_FENCE_HEADER)
    return FenceStamp(_read_name(name), _read_fence(fence), _read_part(pairs))


async def check_fence(headers: Headers, store: FenceStore, name: str) -> FenceStamp:
    """Check that a request may act under the lock `name`; store its fence and return its stamp.

    Raises `FenceHeaderError`, also if the request names another lock, and `StaleFenceError`.

    Args:
        headers: the request's, as for `read_fence_headers`.
        store: remembers the highest fence of each lock.
        name: the lock that guards what the request asks for.
    """
    stamp = read_fence_headers(headers)
    if stamp.name != name:
        raise FenceHeaderError(
            f"{LOCK_NAME_HEADER} is {stamp.name!r}, but this is guarded by {name!r}",
            name=name,
            header=LOCK_NAME_HEADER,
        )
    try:
        await store.claim(stamp)
    except ConfigurationError as error:  # no lock can have this name
        raise FenceHeaderError(str(error), name=name, header=LOCK_NAME_HEADER) from None
    return stamp


def refusal(error: FenceHeaderError | StaleFenceError) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and the `application/problem+json` body for a refused request.

    Args:
        error: the error of `check_fence`.
    """
    more: dict[str, object]
    if isinstance(error, StaleFenceError):
        status, kind, title = 412, "stale-fence", "A newer holder was here first"
        more = {"fence": error.fence, "highest": error.highest}
    else:
        status, kind = 428 if error.missing else 400, "bad-fence-header"
        title, more = "The request has no usable fence", {"header": error.header}
    body = {"type": f"urn:asynclock:{kind}", "title": title, "status": status}
    lock = {} if error.name is None else {"lock": error.name}
    return status, {**body, **lock, **more, "detail": str(error)}


def _read_part(pairs: list[tuple[str, str]]) -> str:
    if not any(key.lower() == LOCK_PART_HEADER.lower() for key, _ in pairs):
        return ""
    text = _only(pairs, LOCK_PART_HEADER)
    if _PART.fullmatch(text):
        return text
    raise FenceHeaderError(
        f"{LOCK_PART_HEADER} is not up to 16 small letters and digits: {text[:80]!r}",
        header=LOCK_PART_HEADER,
    )


def _only(pairs: list[tuple[str, str]], header: str) -> str:
    values = [value for key, value in pairs if key.lower() == header.lower()]
    if not values:
        raise FenceHeaderError(f"no {header} header", header=header, missing=True)
    if len(values) > 1:
        raise FenceHeaderError(f"{len(values)} {header} headers, not one", header=header)
    return values[0].strip(" \t")


def _read_name(text: str) -> str:
    try:
        if _NAME.fullmatch(text):
            return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise FenceHeaderError(
        f"{LOCK_NAME_HEADER} is not a percent-encoded name: {text[:80]!r}", header=LOCK_NAME_HEADER
    )


def _read_fence(text: str) -> int:
    if _FENCE.fullmatch(text) and int(text) < FENCE_LIMIT:
        return int(text)
    raise FenceHeaderError(
        f"{LOCK_FENCE_HEADER} is not a number between 1 and 2**53 - 1: {text[:80]!r}",
        header=LOCK_FENCE_HEADER,
    )
