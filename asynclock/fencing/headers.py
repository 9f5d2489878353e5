"""A lease on its way through HTTP: the header pair X-Lock-Name and X-Lock-Fence.

The name is percent-encoded UTF-8 (header values are ASCII, names need not be), the fence decimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from ..errors import AsyncLockError
from .stamp import FENCE_LIMIT, Fenced, FenceStamp, StaleFenceError
from .store import FenceStore

LOCK_NAME_HEADER = "X-Lock-Name"
LOCK_FENCE_HEADER = "X-Lock-Fence"

Headers = Mapping[str, str] | Iterable[tuple[str, str]]

# No comma: a proxy that joins two headers of one name must not make a third value of them.
_READABLE = "!$&()*+-./:;=@_~"
_NAME = re.compile(r"(?:[A-Za-z0-9!$&()*+\-./:;=@_~]|%[0-9A-Fa-f]{2}){1,2048}")
_FENCE = re.compile(r"[1-9][0-9]{0,15}")


class FenceHeaderError(AsyncLockError, ValueError):
    """The request does not carry one usable pair of lock headers: the sender must be mended.

    `header` is the one that is at fault; `missing` tells absence (428) from nonsense (400).
    """

    def __init__(
        self, message: str, *, name: str | None = None, header: str = "", missing: bool = False
    ) -> None:
        super().__init__(message, name=name)
        self.header = header
        self.missing = missing


def fence_headers(lease: Fenced) -> dict[str, str]:
    """The two headers that tell the receiver on whose behalf a request is made."""
    stamp = FenceStamp.of(lease)
    return {
        LOCK_NAME_HEADER: quote(stamp.name, safe=_READABLE),
        LOCK_FENCE_HEADER: str(stamp.fence),
    }


def read_fence_headers(headers: Headers) -> FenceStamp:
    """The lock and fence that a request names; raises `FenceHeaderError`.

    `headers` is a mapping (of any framework; case does not matter) or pairs of name and value.
    What comes back was said by the sender: see that it may say so, and that the lock is the one
    that guards what it asks for (`check_fence` compares the name).
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    name, fence = _only(pairs, LOCK_NAME_HEADER), _only(pairs, LOCK_FENCE_HEADER)
    return FenceStamp(_read_name(name), _read_fence(fence))


async def check_fence(headers: Headers, store: FenceStore, name: str) -> FenceStamp:
    """The stamp of a request that may act under the lock `name`, remembered by `store`.

    Raises `FenceHeaderError`, also when the request names another lock, and `StaleFenceError`.
    """
    stamp = read_fence_headers(headers)
    if stamp.name != name:
        raise FenceHeaderError(
            f"{LOCK_NAME_HEADER} is {stamp.name!r}, but this is guarded by {name!r}",
            name=name,
            header=LOCK_NAME_HEADER,
        )
    await store.claim(stamp)
    return stamp


def refusal(error: FenceHeaderError | StaleFenceError) -> tuple[int, dict[str, object]]:
    """The HTTP status and the JSON body that tell a client why it was refused."""
    if isinstance(error, StaleFenceError):
        body = {"error": "stale_fence", "fence": error.fence, "highest": error.highest}
        return 412, {**body, "detail": str(error)}
    body = {"error": "bad_fence_header", "header": error.header, "detail": str(error)}
    return 428 if error.missing else 400, body


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
