"""The headers of a fence: what is read, what is refused, and what a refused sender is told."""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    LOCK_PART_HEADER,
    FencedRedis,
    FenceHeaderError,
    FenceStamp,
    FenceStore,
    MemoryFenceStore,
    StaleFenceError,
    check_fence,
    fence_headers,
    read_fence_headers,
    refusal,
)
from tests.fencing.clients import Wire

STORED = "orders:42"
HEADERS = (LOCK_NAME_HEADER, LOCK_FENCE_HEADER, LOCK_PART_HEADER)
GOOD = fence_headers(FenceStamp("jobs", 5, "3"))
ON_ANY_MACHINE = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
LETTERS = st.one_of(st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)).map(chr)


# ---- what is read --------------------------------------------------------------------------------
@ON_ANY_MACHINE
@given(st.text(LETTERS, min_size=1, max_size=100), st.integers(1, 2**53 - 1))
def test_what_was_said_is_what_is_read(name: str, fence: int) -> None:
    headers = fence_headers(FenceStamp(name, fence))
    assert all(text.isascii() and text.isprintable() for text in headers.values())
    assert read_fence_headers(headers) == FenceStamp(name, fence)
    shouted = {header.upper(): f" \t{text}\t " for header, text in headers.items()}
    assert read_fence_headers(shouted) == FenceStamp(name, fence)


@ON_ANY_MACHINE
@given(st.text(LETTERS, max_size=30), st.text(LETTERS, max_size=30))
def test_whatever_is_sent_is_read_or_refused(name: str, fence: str) -> None:
    headers = {LOCK_NAME_HEADER: name, LOCK_FENCE_HEADER: fence}
    with contextlib.suppress(FenceHeaderError):
        assert read_fence_headers(headers).fence == int(fence)


@pytest.mark.parametrize(
    ("stamp", "headers"),
    [
        # Other programs, in any language, send these: docs/fencing.md.
        (FenceStamp("jobs?", 7, "3"), ("jobs%3F", "7", "3")),
        (FenceStamp("jobs?", 7), ("jobs%3F", "7")),
        # Names stay readable in a log.
        (FenceStamp("shop/orders:42@eu-1_a.b", 7), ("shop/orders:42@eu-1_a.b", "7")),
        (FenceStamp("é" * 300, 7), ("%C3%A9" * 300, "7")),
        (FenceStamp("a" * 2048, 7), ("a" * 2048, "7")),
        *((FenceStamp("a", 7, one), ("a", "7", one)) for one in ("read", "write", "255", "a" * 16)),
    ],
    ids=str,
)
def test_the_headers_of_a_stamp(stamp: FenceStamp, headers: tuple[str, ...]) -> None:
    names = ("X-Lock-Name", "X-Lock-Fence", "X-Lock-Part")
    wanted = dict(zip(names, headers, strict=False))
    assert fence_headers(stamp) == wanted
    assert read_fence_headers(wanted) == stamp
    assert read_fence_headers([(key.lower(), text) for key, text in wanted.items()]) == stamp


# ---- what is refused -----------------------------------------------------------------------------
NO_NAME = "X-Lock-Name is not a percent-encoded name: %s"
NO_FENCE = "X-Lock-Fence is not a number between 1 and 2**53 - 1: %s"
NO_PART = "X-Lock-Part is not up to 16 small letters and digits: %s"
TOO_LARGE = (str(2**53), "9" * 16, "1" + "0" * 15_000)


@pytest.mark.parametrize(
    ("header", "value", "words"),
    [
        *((LOCK_FENCE_HEADER, one, NO_FENCE) for one in ("", "0", "-1", "+1", "1.0", "1e3")),
        *((LOCK_FENCE_HEADER, one, NO_FENCE) for one in ("0x1", "1_0", "٣", "007", "5, 6")),
        *((LOCK_FENCE_HEADER, one, NO_FENCE) for one in ("seven", *TOO_LARGE)),
        *((LOCK_NAME_HEADER, one, NO_NAME) for one in ("", "a b", "a,b", "ü", "%", "%zz", "%ff")),
        *((LOCK_NAME_HEADER, one, NO_NAME) for one in ("%ed%a0%80", "a" * 2049)),
        *((LOCK_PART_HEADER, one, NO_PART) for one in ("", "A", "a:b", "x" * 17, "1, 2", "-")),
        *((LOCK_PART_HEADER, one, NO_PART) for one in ("a-b", "a_b", "é", "1\n", " ")),
        # Only spaces and tabs around a value are overlooked, as RFC 9110 says; a line break in a
        # value is an attack on whatever reads the headers next.
        *((one, f"{GOOD[one]}{blank}", "") for one in HEADERS for blank in "\n\r\v\xa0"),
        *((one, "," * 10_000, "") for one in HEADERS),
    ],
    ids=lambda one: str(one)[:20],
)
def test_a_malformed_header_is_told_what_it_must_be(header: str, value: str, words: str) -> None:
    """No lock is named: the header that is wrong may be that of the name. Little is repeated."""
    with pytest.raises(FenceHeaderError) as caught:
        read_fence_headers({**GOOD, header: value})
    assert (caught.value.header, caught.value.missing) == (header, False)
    status, body = refusal(caught.value)
    assert (status, body["status"], body["header"]) == (400, 400, header)
    assert body.keys() == {"type", "title", "status", "header", "detail"}
    assert len(str(body["detail"])) < 300
    if len(value) < 100 and words:
        assert body["detail"] == words % repr(value.strip(" \t"))


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_comes_exactly_once(header: str) -> None:
    """Also if both are equal."""
    pairs = list(GOOD.items())
    with pytest.raises(FenceHeaderError) as caught:
        read_fence_headers([*pairs, (header.lower(), dict(pairs)[header])])
    assert str(caught.value) == f"2 {header} headers, not one"
    assert (refusal(caught.value)[0], caught.value.header) == (400, header)
    rest = [pair for pair in pairs if pair[0] != header]
    if header == LOCK_PART_HEADER:
        assert read_fence_headers(rest) == FenceStamp("jobs", 5)
        return
    with pytest.raises(FenceHeaderError, match=f"no {header}") as caught:
        read_fence_headers(rest)
    assert (refusal(caught.value)[0], caught.value.missing) == (428, True)


def test_a_bad_header_is_a_wrong_value_and_a_stale_fence_is_none() -> None:
    """A handler of ValueError must not answer 400 to a sender that was overtaken."""
    assert issubclass(FenceHeaderError, ValueError)
    assert not issubclass(StaleFenceError, ValueError)


# ---- what is checked -----------------------------------------------------------------------------
STALE = {"type": "urn:asynclock:stale-fence", "title": "A newer holder was here first"}
FENCES = {"fence": 5, "highest": 9}
BAD = {"type": "urn:asynclock:bad-fence-header", "title": "The request has no usable fence"}
TOO_OLD = (
    "fence 5 of 'jobs' (3) is too old: the store has no record of it, and keeps no records of "
    "fences below 700 (begin each lease with a claim)"
)


@pytest.mark.parametrize(
    ("sent", "seen", "guarded", "status", "body"),
    [
        (
            FenceStamp(STORED, 5),
            FenceStamp(STORED, 9),
            STORED,
            412,
            {**FENCES, "detail": f"fence 5 of {STORED!r} is stale: 9 was seen before"},
        ),
        (
            FenceStamp(STORED, 5, "read"),
            FenceStamp(STORED, 9, "write"),
            STORED,
            412,
            {**FENCES, "detail": f"fence 5 of {STORED!r} (read) is stale: 9 was seen before"},
        ),
        (
            FenceStamp("orders:7", 5),
            None,
            STORED,
            400,
            {
                "header": LOCK_NAME_HEADER,
                "detail": f"{LOCK_NAME_HEADER} is 'orders:7', but this is guarded by {STORED!r}",
            },
        ),
        (
            FenceStamp("jobs", 5, "3"),
            Wire(-1, 700),
            "jobs",
            412,
            {**FENCES, "highest": None, "detail": TOO_OLD},
        ),
    ],
    ids=["stale", "another side", "another lock", "too old"],
)
async def test_a_refused_sender_is_told_why_and_what_to_look_at(
    sent: FenceStamp, seen: Any, guarded: str, status: int, body: dict[str, Any]
) -> None:
    store: FenceStore = FencedRedis(seen) if isinstance(seen, Wire) else MemoryFenceStore()  # type: ignore[arg-type]  # it has what is used
    if isinstance(seen, FenceStamp):
        await store.claim(seen)
    with pytest.raises((FenceHeaderError, StaleFenceError)) as caught:
        await check_fence(fence_headers(sent), store, guarded)
    kind = STALE if status == 412 else BAD
    assert refusal(caught.value) == (status, {**kind, "status": status, "lock": guarded, **body})


@pytest.mark.parametrize("name", ["a:#b", "#b", "a:#fence"])
async def test_a_name_that_no_lock_can_have_is_the_senders_mistake(name: str) -> None:
    """The store refuses it; a web server must not answer 500."""
    with pytest.raises(FenceHeaderError, match="must not contain ':#'") as caught:
        await check_fence(fence_headers(FenceStamp(name, 7)), FencedRedis(Wire()), name)  # type: ignore[arg-type]  # it has what is used
    assert (caught.value.header, caught.value.missing) == (LOCK_NAME_HEADER, False)
    status, body = refusal(caught.value)
    assert (status, body["lock"], body["header"]) == (400, name, LOCK_NAME_HEADER)


async def test_a_checked_request_has_the_stamp_that_was_sent() -> None:
    """The handler passes it on to the store that it writes to, so it has the part as well."""
    store, stamp = MemoryFenceStore(), FenceStamp("jobs", 5, "3")
    with pytest.raises(FenceHeaderError, match="guarded by 'other'"):
        await check_fence(fence_headers(FenceStamp("jobs", 9, "3")), store, "other")
    # And that was not remembered.
    assert await check_fence(fence_headers(stamp), store, "jobs") == stamp
