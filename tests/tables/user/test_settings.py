"""What each kind of setting may be, what is said of a wrong one, and what a manager goes by."""

import enum
import inspect
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import asynclock
from asynclock import ConfigurationError, _settings
from asynclock._engine.context import EngineSettings
from asynclock._engine.spec import LeaseOptions
from asynclock._keys import lock_key, split
from asynclock._nodes.handshake import RECORD_KEY
from asynclock._nodes.node import NodeSettings
from asynclock.fleet import fleet_record
from asynclock.manager import engine_of
from tests.engine.virtual_nodes import TTL, Nodes, virtual

URLS = ("redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3")


class Shop(str, enum.Enum):  # noqa: UP042 - a StrEnum formats as its value
    """Formats as `Shop.ORDERS`, and is equal to its value."""

    ORDERS = "orders"


def seconds(value: Any, *, zero: bool = False) -> float:
    return _settings.seconds(value, "a pause", zero=zero)


def zero_or_more(value: Any) -> float:
    return seconds(value, zero=True)


def optional(value: Any) -> float | None:
    return _settings.optional_seconds(value, "a pause", zero=True)


def count(value: Any) -> int:
    return _settings.count(value, "permits", 3)


def ttl(value: Any) -> float:
    return _settings.ttl(value, node_timeout=1.0, max_ttl=10.0)


@pytest.mark.parametrize(
    ("check", "value", "taken"),
    [
        (seconds, 3, 3.0),
        (seconds, _settings.MOST_SECONDS, _settings.MOST_SECONDS),
        (zero_or_more, 0, 0.0),
        *((optional, one, taken) for one, taken in ((None, None), (0, 0.0), (2, 2.0))),
        (_settings.name, Shop.ORDERS, "orders"),
        (_settings.name, "ä\0 {}", "ä\0 {}"),
        *((_settings.label, one, one) for one in (None, "", "orders 7", "x" * 200)),
        *((_settings.restart_guard, one, one) for one in (True, False, "disk")),
        (_settings.restart_guard, 1, True),
        *((_settings.handoff, one, one) for one in (True, "strict", False)),
        (_settings.handoff, "block", True),
        *((count, one, one) for one in (1, 2, 3)),
        *((ttl, one, one) for one in (1.001, 10, 10.0)),
    ],
)
def test_what_may_be_is_taken(check: Any, value: Any, taken: Any) -> None:
    found = check(value)
    assert found == taken
    assert type(found) is type(taken) or check is ttl, "a name that formats as text, a float"


FINITE = "a pause must be finite and {}, not {!r}"
LABEL = "label must be a str of at most 200 characters, not {!r}"
UNICODE = "{} can't be written as UTF-8…"
NO_SECONDS = (math.nan, math.inf, -math.inf, -0.001, True, "1", None)
GUARD = 'restart_guard must be True, False or "disk", not {!r}'
HANDOFF = 'handoff must be True (or "block"), "strict" or False, not {!r}'
COUNT = "permits must be a whole number from 1 to 3, not {!r}"
TOO_SHORT = (
    "ttl={} must be longer than node_timeout=1: a lease would end before the nodes have answered"
)
TOO_LONG = (
    "ttl=20 is longer than max_ttl=10: guards wait for max_ttl, so it must be the longest ttl of "
    "your whole fleet; ttl is in seconds (max_ttl=20, on the command line --max-ttl 20)"
)


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (seconds, 0, FINITE.format("above 0", 0)),
        (zero_or_more, -1, FINITE.format("at least 0", -1)),
        *((seconds, one, "a pause must be…") for one in NO_SECONDS),
        *((zero_or_more, one, "a pause must be…") for one in NO_SECONDS),
        (seconds, 2e10, "a pause must be at most 1e+10 seconds"),
        (_settings.name, 7, "a lock's name must be a str, not int"),
        (_settings.name, b"a", "a lock's name must be a str, not bytes"),
        (_settings.name, None, "a lock's name must be a str, not NoneType"),
        (_settings.name, "", "a lock's name must not be empty"),
        (_settings.name, "a\ud800", UNICODE.format("a lock's name")),
        *((_settings.label, one, LABEL.format(one)) for one in ("x" * 201, 7, b"a")),
        (_settings.label, "a\0b", "label…"),
        (_settings.label, "\ud800", UNICODE.format("label")),
        *((_settings.restart_guard, one, GUARD.format(one)) for one in ("disks", "False", "")),
        *((_settings.handoff, one, HANDOFF.format(one)) for one in (None, 1, 0, "", "never")),
        *((count, one, COUNT.format(one)) for one in (0, 4, -1, True, 1.0, "1", None)),
        (ttl, 1, TOO_SHORT.format(1)),
        (ttl, 20, TOO_LONG),
        (ttl, 10.001, "ttl=10.001 is longer than max_ttl=10…"),
    ],
    ids=lambda one: getattr(one, "__name__", None) or ascii(one)[:30],
)
def test_what_is_wrong_with_a_setting_is_said(check: Any, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(value)
    said = str(caught.value)
    assert said.startswith(words[:-1]) if words.endswith("…") else said == words


def test_a_timedelta_is_told_in_seconds() -> None:
    with pytest.raises(ConfigurationError, match=r"write 90$"):
        seconds(timedelta(minutes=1.5))


TTL_WORD = "ttl= (seconds that the lease lives without renewal)"
TIMEOUT_WORD = "timeout= (seconds to wait)"


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("blocking", "try_acquire() instead of blocking=False"),
        *((one, TIMEOUT_WORD) for one in ("blocking_timeout", "acquire_timeout", "retry_count")),
        *((one, TTL_WORD) for one in ("lock_timeout", "auto_release_time", "expire")),
        ("auto_renewal", "renew="),
        *((one, "nothing: waiting does not poll") for one in ("retry_delay", "sleep")),
        ("thread_local", "nothing: a lease is an object of its own"),
        ("ttll", "'ttl'?"),
        ("tiemout", "'timeout'?"),
        ("at_leats", "'at_least'?"),
        ("prefix", "this in connect(...)"),
        ("handoff", "this where the lock is made, such as lock(name, ttl=10)"),
        ("at_least", "it for lock, fair_lock, reentrant_lock or synchronized: only these take it"),
        ("retry_after", None),
    ],
)
def test_the_words_of_other_libraries_are_answered_with_ours(word: str, answer: str | None) -> None:
    said = "did you mean" if answer and answer.endswith("?") else "write"
    wanted = f": {said} {answer}" if answer else ""
    assert str(_settings.unknown([word])) == f"unexpected keyword argument {word!r}{wanted}"
    if word == "sleep":
        assert "'expire'" in str(_settings.unknown(["sleep", "expire"])), "the first is told"


def test_a_name_on_a_cluster_may_have_braces_but_not_begin_with_one_that_closes() -> None:
    assert lock_key("shop:{", "a}b") == "shop:{a}b}"
    assert split("shop:{", "shop:{a}}") == ("a}", ())
    with pytest.raises(ConfigurationError) as caught:
        lock_key("shop:{", "}a")
    assert str(caught.value) == "on a Cluster a name must not start with a brace: '}a'"
    for prefix, name, key in (("a:", "#b", "a:#b"), ("a:{", "b:#c", "a:{b:#c}")):
        with pytest.raises(ConfigurationError) as caught:
            lock_key(prefix, name)
        assert str(caught.value) == (
            "prefix and name together must not contain ':#', which marks keys that belong to a "
            f"lock: {key!r}"
        )


# ---- what a manager goes by ----------------------------------------------------------------------
def settings_of(locks: asynclock.LockManager) -> tuple[EngineSettings, NodeSettings]:
    """What the engine and each node of a manager go by; the witness has no setting."""
    (nodes,) = {node.settings for node in locks._engine.multiplexer.nodes}
    return locks._engine.settings, replace(nodes, witness_key="")


def test_what_a_manager_goes_by_if_nothing_is_said() -> None:
    """docs/tuning.md has these figures."""
    assert settings_of(asynclock.connect(*URLS)) == (
        EngineSettings(0.25, 10.0, pytest.approx(1070.102), 0.01, 2.0, None, "asynclock:"),
        NodeSettings(0.25, 10.0, True, True, True, False, "asynclock::#set"),
    )
    assert settings_of(asynclock.connect(URLS[0]))[1].guard_first is False
    slow = asynclock.connect(*URLS, node_timeout=2.5)
    assert settings_of(slow)[0].ticket_ttl == 5.0
    with pytest.raises(ConfigurationError, match=r"ticket_ttl=0.4 must be at least .* \(0.5\)"):
        asynclock.connect(*URLS, ticket_ttl=0.4)
    lock = asynclock.connect(URLS[0]).lock("a")
    assert lock._options == LeaseOptions(10.0, True, None, True, True)


def test_what_a_manager_goes_by_if_all_is_said() -> None:
    given: dict[str, Any] = {"ttl": 4, "max_ttl": 20, "node_timeout": 0.5, "turn": 0.2}
    given |= {"ticket_ttl": 7}
    given |= {"fence_retention": 3000, "prefix": "shop:", "label": "web", "restart_guard": "disk"}
    locks = asynclock.connect(*URLS, **given, clock_guard=False, set_guard=False)
    assert settings_of(locks) == (
        EngineSettings(0.5, 20.0, 3000.0, 0.2, 7.0, "web", "shop:"),
        NodeSettings(0.5, 20.0, True, True, False, True, ""),
    )
    assert locks.lock("a")._options.ttl == 4.0
    guards = settings_of(asynclock.connect(*URLS, restart_guard=False))[1]
    assert (guards.restart_guard, guards.disks_kept) == (False, False)


def test_on_a_cluster_each_name_has_a_slot_and_no_record_is_kept() -> None:
    locks = asynclock.connect("redis+cluster://127.0.0.1:1", prefix="shop:")
    assert locks.lock("a")._spec.keys[0] == "shop:{a}"
    assert settings_of(locks)[1].record_key == ""


@virtual
async def test_the_record_of_the_set_is_kept_under_the_managers_prefix_for_years(on: Nodes) -> None:
    async with on.connect(prefix="shop:") as shop:
        record = fleet_record(shop)
        assert engine_of(shop).settings.prefix == "shop:"
        assert record.key == "shop:" + RECORD_KEY
        assert record.name == "the set of nodes"
        assert record.keep / (365 * 24 * 3600) == 10


@virtual
async def test_a_barrier_whose_parties_crash_counts_them_for_its_own_ttl(on: Nodes) -> None:
    assert on.locks.barrier("b", 2, ttl=TTL / 2)._ttl == TTL / 2
    assert on.locks.barrier("b", 2)._ttl == TTL
    with pytest.raises(ConfigurationError, match="ttl"):
        on.locks.barrier("b", 2, ttl=TTL * 2)


def test_what_may_be_passed_on_is_what_connect_takes() -> None:
    parameters = inspect.signature(asynclock.connect).parameters.values()
    keywords = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert keywords == list(_settings.ConnectSettings.__annotations__)
