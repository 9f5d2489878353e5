"""The trial of `asynclock doctor`: each primitive is used once, on one node, and leaves nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asynclock import _clock
from asynclock.cli import _sources
from asynclock.cli._sources import Settings
from asynclock.cli.doctor.trial import _cause, use_everything
from asynclock.errors import AsyncLockError, QuorumUnavailableError
from asynclock.testing import memory_node, run_virtual
from tests.waiting import in_virtual_time

URL = "memory://a"


def scripts_of(said: list[tuple[bytes, ...]]) -> list[tuple[str, str, bool]]:
    """Return of each script: its first name, its step, and whether it has a ttl of 5 s."""
    found = []
    for words in said:
        if words[0] == b"EVALSHA":
            name = words[3].decode().partition(":doctor-")[2].partition("-")[2]
            step = words[3 + int(words[2])].decode()
            found.append((name, step, b"5000" in words))
    return found


@in_virtual_time
async def test_each_primitive_is_used_and_its_keys_are_deleted() -> None:
    node, said = memory_node("a"), list[tuple[bytes, ...]]()
    answer = node.answer

    def noted(client: Any, words: Any) -> Any:
        said.append(words)
        return answer(client, words)

    node.answer = noted  # type: ignore[method-assign]
    assert await use_everything(Settings((URL,), {"prefix": "shop:"}), URL) == {}
    assert scripts_of(said) == [
        ("lock", "acquire", True),
        ("lock", "extend", True),
        ("lock", "release", False),
        ("multi_lock", "acquire", True),
        ("multi_lock", "release", False),
        ("semaphore:#0", "acquire", True),
        ("semaphore:#0", "release", False),
        ("rwlock:#readers", "acquire", True),
        ("rwlock:#readers", "release", False),
        ("rwlock:#write", "acquire", True),
        ("rwlock:#write", "release", False),
        ("fair_lock:#fair", "acquire", True),
        ("fair_lock:#fair", "release", False),
        ("election:#leader", "acquire", True),
        ("election:#leader", "publish", False),
        ("election:#leader", "release", False),
        ("event:#event", "prepare", True),
        ("event:#event", "accept", True),
        ("latch:#latch", "prepare", True),
        ("latch:#latch", "accept", True),
        ("barrier:#barrier", "prepare", True),
        ("barrier:#barrier", "accept", False),
    ]
    keys = {key.decode() for words in said if words[0] == b"EVALSHA" for key in words[3:5]}
    names = {key for key in keys if key.startswith("shop:")}
    assert all(re.match(r"shop:doctor-[0-9a-f]{16}-", key) for key in names)
    assert await node.command("KEYS", "*") == []


@pytest.mark.parametrize(
    ("options", "timeout", "longest"),
    [
        ({}, 1.0, 5.0),
        ({"node_timeout": 0.25, "ttl": 60.0, "max_ttl": 90.0}, 1.0, 90.0),
        ({"node_timeout": 3.0, "max_ttl": 4.0, "strict": True}, 3.0, 12.0),
        ({"restart_guard": "disk", "clock_guard": True, "set_guard": True}, 1.0, 5.0),
    ],
)
def test_a_trial_has_the_settings_of_the_services_without_their_guards(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], timeout: float, longest: float
) -> None:
    """A node without a vote has a finding of its own, and a slow one is not refused here."""
    given: list[Any] = []
    connect = _sources.connect

    def noted(*nodes: Any, **settings: Any) -> Any:
        given.append((nodes, settings))
        return connect(*nodes, **settings)

    monkeypatch.setattr(_sources, "connect", noted)
    kept = {"acks": 0, "prefix": "shop:", "label": "of the services"}
    settings = Settings(("redis://a", URL), {**kept, **options})
    assert run_virtual(use_everything(settings, URL)) == {}
    wanted = {
        **kept,
        "ttl": 5.0,
        "max_ttl": longest,
        "node_timeout": timeout,
        "strict": False,
        "restart_guard": False,
        "clock_guard": False,
        "set_guard": False,
    }
    assert given == [((URL,), wanted)]


@in_virtual_time
async def test_where_no_lock_can_be_taken_nothing_else_is_tried() -> None:
    """A node that is mute costs a trial seconds, and not the same for each primitive."""
    memory_node("a").freeze()
    began = _clock.now()
    assert await use_everything(Settings((URL,)), URL) == {
        "lock": "no answer to the login within 1 s"
    }
    assert _clock.now() - began < 5.0


def test_the_cause_is_that_of_the_node_or_the_error_itself() -> None:
    async def fails(error: Exception) -> None:
        raise error

    of_the_node = QuorumUnavailableError("no lock", nodes={"a:1": "it is full"})
    assert run_virtual(_cause(fails(of_the_node))) == "it is full"
    assert run_virtual(_cause(fails(AsyncLockError("it is odd")))) == "it is odd"
    assert run_virtual(_cause(fails(TimeoutError()))) == "no answer within 4 s"
    with pytest.raises(ZeroDivisionError):
        run_virtual(_cause(fails(ZeroDivisionError())))
