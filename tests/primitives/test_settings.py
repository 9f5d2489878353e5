"""Settings and arguments: each has its effect, and a wrong one is refused in words that name it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from tests.engine.virtual_nodes import TTL, Nodes, virtual_single
from tests.tables.inside import now

LOCKS = asynclock.connect("memory://a", ttl=5, max_ttl=20)
MAKES: dict[str, Callable[..., Any]] = {
    "lock": LOCKS.lock,
    "fair_lock": LOCKS.fair_lock,
    "reentrant_lock": LOCKS.reentrant_lock,
    "multi_lock": LOCKS.multi_lock,
    "rwlock": lambda name, **more: LOCKS.rwlock(name, **more).read(),
    "semaphore": lambda name, **more: LOCKS.semaphore(name, 2, **more),
    "election": LOCKS.election,
    "event": LOCKS.event,
    "latch": lambda name, **more: LOCKS.latch(name, 2, **more),
    "barrier": lambda name, **more: LOCKS.barrier(name, 2, **more),
}
STATES = ("event", "latch", "barrier")


# ---- of locks ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "ttl", "ends"),
    [
        ({}, TTL, None),
        ({"renew": False}, TTL, TTL),
        ({"ttl": 8.0, "max_hold": 60.0, "interrupt": False, "handoff": "strict"}, 8.0, 60.0),
        ({"ttl": 8.0, "renew": False, "max_hold": 60.0, "handoff": False}, 8.0, 8.0),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
@virtual_single
async def test_each_setting_counts(
    on: Nodes, given: dict[str, Any], ttl: float, ends: float | None
) -> None:
    for lock in (
        on.locks.lock("a", **given),
        on.locks.semaphore("s", 2, **given),
        on.locks.multi_lock("b", "c", **given),
    ):
        began, lease = now(), await lock.acquire()
        assert lease.ttl == ttl
        if ends is None:
            await asyncio.sleep(100)
            assert lease.held
        else:
            await lease.wait_lost()
            assert ends - 1 < now() - began <= ends + 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"ttl": 21.0}, ConfigurationError),
        ({"ttl": 0}, ConfigurationError),
        ({"max_hold": -1}, ConfigurationError),
        ({"max_hold": "long"}, ConfigurationError),
        ({"timeout": -1}, ConfigurationError),
        ({"timeout": "long"}, ConfigurationError),
        ({"handoff": "never"}, ConfigurationError),
        ({"time_out": 1}, TypeError),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(given: dict[str, Any], error: type[Exception]) -> None:
    for kind in ("lock", "rwlock", "reentrant_lock", "fair_lock"):
        with pytest.raises(error, match=next(iter(given))):
            MAKES[kind]("a", **given)


@pytest.mark.parametrize("wrong", ["", 7, None, "a:#b", "a\udc80"], ids=repr)
def test_a_wrong_name_is_refused_by_every_primitive(wrong: Any) -> None:
    for kind, make in MAKES.items():
        with pytest.raises(ConfigurationError) as caught:
            make(wrong)
        assert kind.rpartition("_")[2].removeprefix("rw") in str(caught.value) or wrong == "a:#b"
        if kind in STATES and wrong == "":
            assert str(caught.value).startswith(f"the name of a {kind} must not be empty")


@pytest.mark.parametrize("wrong", [0, -1, "long", None], ids=repr)
def test_a_wrong_time_to_keep_is_refused(wrong: Any) -> None:
    for kind in STATES:
        with pytest.raises(ConfigurationError, match=r"^keep must"):
            MAKES[kind]("a", keep=wrong)


def test_how_many_names_permits_counts_and_parties_there_may_be() -> None:
    most = tuple(f"{number:02}" for number in range(64))
    for names in ((), (*most, "x")):
        with pytest.raises(ConfigurationError, match=f"from 1 to 64 names, not {len(names)}$"):
            LOCKS.multi_lock(*names)
    assert LOCKS.multi_lock(*most).names == most
    assert LOCKS.multi_lock("b", "a", "b").name == "a, b"
    with pytest.raises(ConfigurationError, match="must not contain"):
        LOCKS.multi_lock("a", "b:#fence")
    for several in (["a", "b"], ("a",), {"a", "b"}, frozenset("ab")):
        with pytest.raises(ConfigurationError, match="an argument of its own"):
            LOCKS.multi_lock(several)  # type: ignore[arg-type]  # that is the point
    assert LOCKS.semaphore("s", 256).permits == 256
    assert LOCKS.barrier("b", 256).parties == 256
    wrongs: list[Any] = [0, -1, 257, 1.5, True, "3"]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match=r"^permits must.*256"):
            LOCKS.semaphore("s", wrong)
        with pytest.raises(ConfigurationError, match=r"^parties must.*256"):
            LOCKS.barrier("b", wrong)
        with pytest.raises(ConfigurationError, match=r"^several must.*from 1 to 3"):
            LOCKS.semaphore("s", 3).several(4 if wrong == 257 else wrong)


# ---- of managers ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "longest"),
    [({}, 10.0), ({"ttl": 5}, 10.0), ({"ttl": 30}, 30.0), ({"ttl": 5, "max_ttl": 6}, 6.0)],
    ids=str,
)
def test_the_longest_ttl_of_the_fleet(given: dict[str, Any], longest: float) -> None:
    locks = asynclock.connect("memory://a", **given)
    locks.lock("a", ttl=longest)
    with pytest.raises(ConfigurationError, match="ttl"):
        locks.lock("a", ttl=longest + 0.1)


# ---- timeouts ------------------------------------------------------------------------------------
