"""Whole answers: each refusal, each request of a store to Redis, each error about a wrong value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    LOCK_PART_HEADER,
    FencedRedis,
    FenceHeaderError,
    FenceStamp,
    MemoryFenceStore,
    StaleFenceError,
    check_fence,
    fence_headers,
    read_fence_headers,
)
from asynclock.fencing.headers import refusal

STORED = "orders:42"


class Wire:
    """A client as redis-py's that notes what a store asks for, and answers as a test says."""

    def __init__(self, *answer: int) -> None:
        self.answer = list(answer or (1, 0))
        self.asked: list[tuple[list[Any], list[Any]]] = []

    async def execute_command(self, *words: Any) -> Any:
        raise AssertionError(f"only its script was to be called, not {words}")

    def register_script(self, source: str) -> Any:
        async def call(keys: list[Any], args: list[Any]) -> list[int]:
            assert "redis.call" in source
            self.asked.append((keys, args))
            return self.answer

        return call


def on(wire: Wire, **settings: Any) -> FencedRedis:
    return FencedRedis(wire, **settings)  # type: ignore[arg-type]  # it has what is used


# ---- what a refused sender is told ---------------------------------------------------------------


async def told(stamp: FenceStamp, *seen: FenceStamp, **more: str) -> tuple[int, dict[str, Any]]:
    """Return the answer to a request for STORED with this stamp and these headers."""
    store = MemoryFenceStore()
    for one in seen:
        await store.claim(one)
    with pytest.raises((FenceHeaderError, StaleFenceError)) as caught:
        await check_fence({**fence_headers(stamp), **more}, store, STORED)
    return refusal(caught.value)


async def test_a_stale_sender_is_told_both_fences() -> None:
    assert await told(FenceStamp(STORED, 5), FenceStamp(STORED, 9)) == (
        412,
        {
            "type": "urn:asynclock:stale-fence",
            "title": "A newer holder was here first",
            "status": 412,
            "lock": STORED,
            "fence": 5,
            "highest": 9,
            "detail": f"fence 5 of {STORED!r} is stale: 9 was seen before",
        },
    )


async def test_a_sender_that_names_another_lock_is_told_which_is_meant() -> None:
    assert await told(FenceStamp("orders:7", 5)) == (
        400,
        {
            "type": "urn:asynclock:bad-fence-header",
            "title": "The request has no usable fence",
            "status": 400,
            "lock": STORED,
            "header": LOCK_NAME_HEADER,
            "detail": f"{LOCK_NAME_HEADER} is 'orders:7', but this is guarded by {STORED!r}",
        },
    )


@pytest.mark.parametrize(
    ("header", "value", "detail"),
    [
        (LOCK_NAME_HEADER, "a b", "X-Lock-Name is not a percent-encoded name: 'a b'"),
        (LOCK_FENCE_HEADER, "0", "X-Lock-Fence is not a number between 1 and 2**53 - 1: '0'"),
        (LOCK_PART_HEADER, "A", "X-Lock-Part is not up to 16 small letters and digits: 'A'"),
    ],
)
async def test_a_sender_of_a_malformed_header_is_told_what_it_must_be(
    header: str, value: str, detail: str
) -> None:
    """No lock is named: the header that is wrong may be that of the name."""
    assert await told(FenceStamp(STORED, 5), **{header: value}) == (
        400,
        {
            "type": "urn:asynclock:bad-fence-header",
            "title": "The request has no usable fence",
            "status": 400,
            "header": header,
            "detail": detail,
        },
    )


@pytest.mark.parametrize("header", [LOCK_NAME_HEADER, LOCK_FENCE_HEADER, LOCK_PART_HEADER])
def test_a_header_that_comes_twice_is_malformed_even_if_both_are_equal(header: str) -> None:
    pairs = list(fence_headers(FenceStamp(STORED, 5, "3")).items())
    with pytest.raises(FenceHeaderError) as caught:
        read_fence_headers([*pairs, (header, dict(pairs)[header])])
    assert refusal(caught.value) == (
        400,
        {
            "type": "urn:asynclock:bad-fence-header",
            "title": "The request has no usable fence",
            "status": 400,
            "header": header,
            "detail": f"2 {header} headers, not one",
        },
    )


async def test_a_name_that_no_lock_can_have_is_refused_with_that_name() -> None:
    name = "a:#b"
    with pytest.raises(FenceHeaderError) as caught:
        await check_fence(fence_headers(FenceStamp(name, 1)), on(Wire()), name)
    status, body = refusal(caught.value)
    assert (status, body["lock"], body["header"]) == (400, name, LOCK_NAME_HEADER)
    assert "must not contain ':#'" in str(body["detail"])


async def test_a_fence_that_is_too_old_is_refused_with_the_way_out() -> None:
    stamp = FenceStamp("jobs", 5, "3")
    with pytest.raises(StaleFenceError) as caught:
        await check_fence(fence_headers(stamp), on(Wire(-1, 700)), "jobs")
    assert refusal(caught.value) == (
        412,
        {
            "type": "urn:asynclock:stale-fence",
            "title": "A newer holder was here first",
            "status": 412,
            "lock": "jobs",
            "fence": 5,
            "highest": None,
            "detail": (
                "fence 5 of 'jobs' (3) is too old: the store has no record of it, and keeps no "
                "records of fences below 700 (begin each lease with a claim)"
            ),
        },
    )


# ---- what headers may look like ------------------------------------------------------------------


async def test_a_checked_request_has_the_stamp_that_was_sent() -> None:
    """The handler passes it on to the store that it writes to, so it has the part as well."""
    stamp = FenceStamp("jobs", 5, "3")
    assert await check_fence(fence_headers(stamp), MemoryFenceStore(), "jobs") == stamp


@pytest.mark.parametrize("part", ["-", "a-b", "a_b", "é", "1\n", " "])
def test_a_part_of_other_letters_is_the_senders_mistake(part: str) -> None:
    """A web server must not answer 500, which an error of the stamp would be."""
    headers = fence_headers(FenceStamp("jobs", 5, "3"))
    with pytest.raises(FenceHeaderError, match="small letters and digits"):
        read_fence_headers({**headers, LOCK_PART_HEADER: part})


@pytest.mark.parametrize("blank", ["\n", "\r", "\v", "\xa0"])
@pytest.mark.parametrize("header", [LOCK_NAME_HEADER, LOCK_FENCE_HEADER, LOCK_PART_HEADER])
def test_only_spaces_and_tabs_around_a_value_are_overlooked(header: str, blank: str) -> None:
    """As RFC 9110 says; a line break in a value is an attack on whatever reads the headers next."""
    headers = fence_headers(FenceStamp("jobs", 5, "3"))
    with pytest.raises(FenceHeaderError) as caught:
        read_fence_headers({**headers, header: headers[header] + blank})
    assert caught.value.header == header


def test_a_bad_header_is_a_wrong_value_and_a_stale_fence_is_none() -> None:
    """A handler of ValueError must not answer 400 to a sender that was overtaken."""
    assert issubclass(FenceHeaderError, ValueError)
    assert not issubclass(StaleFenceError, ValueError)


# ---- stamps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("", 1), "a lock's name is a non-empty str, not ''"),
        ((7, 1), "a lock's name is a non-empty str, not 7"),
        (("a", "7"), "a fence is an int, not '7'"),
        (("a", True), "a fence is an int, not True"),
        (("a", 0), "a fence must be between 1 and 2**53 - 1, not 0"),
        (("a", 2**53), f"a fence must be between 1 and 2**53 - 1, not {2**53}"),
        (("a", 1, "A"), "a part is up to 16 small letters and digits, not 'A'"),
        (("a", 1, "a\n"), "a part is up to 16 small letters and digits, not 'a\\n'"),
    ],
)
def test_a_stamp_says_what_is_wrong_with_a_value(values: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FenceStamp(*values)
    assert str(caught.value) == words


def test_a_stamp_is_a_value() -> None:
    """It is a key of a dict, and nobody changes the fence that was checked."""
    stamp = FenceStamp("a", 1, "read")
    assert {stamp: 1} == {FenceStamp("a", 1, "read"): 1}
    with pytest.raises(AttributeError):
        stamp.fence = 2  # type: ignore[misc]  # what a caller may do wrong


@dataclass
class Message:
    """A message of a queue, with the lock and the fence of its sender."""

    name: str
    fence: int


async def test_anything_with_a_name_and_a_fence_can_be_claimed() -> None:
    """It need not have a part, as a lease has."""
    assert FenceStamp.of(Message("a", 7)) == FenceStamp("a", 7)
    store = MemoryFenceStore()
    await store.claim(Message("a", 7))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 6))


async def test_a_lease_on_several_names_is_named_with_what_to_do_instead() -> None:
    async with asynclock.connect("memory://whole") as locks, locks.multi_lock("a", "b") as lease:
        with pytest.raises(ConfigurationError) as caught:
            FenceStamp.of(lease)
        assert str(caught.value) == (
            f"{lease!r} has a fence for each of its parts: check each on its own, for example "
            "FenceStamp(name, lease.fences[name]) for a name of a multi_lock"
        )


# ---- the store in memory -------------------------------------------------------------------------


async def test_a_store_of_one_name_holds_it() -> None:
    store = MemoryFenceStore(max_names=1)
    await store.claim(FenceStamp("a", 9))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 8))


async def test_the_lowest_fence_is_one_for_any_name() -> None:
    """Fences of other origin, such as revisions, begin with 1."""
    store = MemoryFenceStore()
    for name in ("a", "a", "b"):
        for part in ("", "read", "write"):
            await store.claim(FenceStamp(name, 1, part))


@pytest.mark.parametrize("number", [0, -1])
def test_a_store_of_no_names_is_refused_with_the_number(number: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MemoryFenceStore(max_names=number)
    assert str(caught.value) == f"max_names must be at least 1, not {number}"


# ---- the store in Redis: what it asks for --------------------------------------------------------


async def test_each_write_asks_for_its_record_its_fence_and_its_words() -> None:
    wire = Wire()
    fenced, lease = on(wire), FenceStamp("a", 7)
    record, day = "asynclock:seen:a:#seen", 86_400_000
    await fenced.claim(lease)
    await fenced.set(lease, "key", b"value")
    await fenced.set(lease, "key", 1.5, ttl=60)
    await fenced.hset(lease, "hash", {"one": 1, "two": "2"})
    await fenced.delete(lease, "key", b"hash")
    assert wire.asked == [
        ([record, record], ["claim", 7, day, 1]),
        ([record, record, "key"], ["set", 7, day, 1, b"value"]),
        ([record, record, "key"], ["set", 7, day, 1, 1.5, 60_000]),
        ([record, record, "hash"], ["hset", 7, day, 1, "one", 1, "two", "2"]),
        ([record, record, "key", b"hash"], ["del", 7, day, 1]),
    ]


@pytest.mark.parametrize(
    ("part", "records"),
    [
        ("3", ["x:a:#3:#seen", "x:a:#3:#seen"]),
        ("read", ["x:a:#read:#seen", "x:a:#write:#seen"]),
        ("write", ["x:a:#write:#seen", "x:a:#write:#seen", "x:a:#read:#seen"]),
    ],
)
async def test_the_record_of_a_part_comes_first_and_then_those_of_its_rivals(
    part: str, records: list[str]
) -> None:
    wire = Wire()
    await on(wire, prefix="x:", retention=None).set(FenceStamp("a", 7, part), "key", "value")
    assert wire.asked == [([*records, "key"], ["set", 7, 0, len(records) - 1, "value"])]


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0.001, 1), (0.0014, 1), (0.29, 290), (1.001, 1001), (2.3, 2300)]
)
async def test_a_time_is_rounded_to_the_nearest_millisecond(
    seconds: float, milliseconds: int
) -> None:
    """1.001 * 1000 is less than 1001: cut off, a key would live a millisecond less."""
    wire = Wire()
    await on(wire, retention=seconds).set(FenceStamp("a", 7), "key", "value", ttl=seconds)
    ((_, words),) = wire.asked
    assert words == ["set", 7, milliseconds, 1, "value", milliseconds]


async def test_what_a_write_returned_is_returned() -> None:
    assert await on(Wire(1, 5)).hset(FenceStamp("a", 7), "hash", {"one": 1}) == 5
    assert await on(Wire(1, 5)).delete(FenceStamp("a", 7), "key") == 5


async def test_a_wrong_call_says_what_it_needs() -> None:
    wire = Wire()
    fenced, lease = on(wire), FenceStamp("a", 7)
    for call, words in (
        (fenced.hset(lease, "hash", {}), "hset needs at least one field"),
        (fenced.delete(lease), "delete needs at least one key"),
        (fenced.set(lease, "key", "value", ttl=0), "ttl must be positive seconds or None: 0"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await call
        assert str(caught.value) == words
    with pytest.raises(ConfigurationError) as caught:
        on(wire, retention=-1)
    assert str(caught.value) == "retention must be positive seconds or None: -1"
    assert wire.asked == []
