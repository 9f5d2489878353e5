"""What each refusal says: which name and which argument it is about, and what is allowed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from tests.engine.virtual_nodes import Nodes, virtual_single

# ---- shared state --------------------------------------------------------------------------------


@virtual_single
async def test_a_wrong_name_or_lifetime_is_called_what_it_is(on: Nodes) -> None:
    makers: dict[str, Any] = {
        "event": on.locks.event,
        "latch": lambda name, **more: on.locks.latch(name, 2, **more),
        "barrier": lambda name, **more: on.locks.barrier(name, 2, **more),
    }
    for kind, make in makers.items():
        with pytest.raises(ConfigurationError, match=f"^the name of a {kind} must not be empty"):
            make("")
        with pytest.raises(ConfigurationError, match=r"^keep must"):
            make("a", keep=0)


# ---- holds, sides, several names -----------------------------------------------------------------


@virtual_single
async def test_leaving_a_lock_that_was_not_entered_says_just_that(on: Nodes) -> None:
    with pytest.raises(RuntimeError, match=r"^this lock is not entered$"):
        await on.locks.lock("a").__aexit__(None, None, None)


def test_how_many_names_a_lock_may_have_and_which() -> None:
    locks = asynclock.connect("memory://")
    most = tuple(f"{number:02}" for number in range(64))
    for names in ((), (*most, "x")):
        with pytest.raises(ConfigurationError, match=f"from 1 to 64 names, not {len(names)}$"):
            locks.multi_lock(*names)
    assert locks.multi_lock(*most).names == most
    assert locks.multi_lock("b", "a", "b").name == "a, b"
    with pytest.raises(ConfigurationError, match="must not contain"):
        locks.multi_lock("a", "b:#fence")
    for several in (["a", "b"], ("a",), {"a", "b"}, frozenset("ab")):
        with pytest.raises(ConfigurationError, match="an argument of its own"):
            locks.multi_lock(several)  # type: ignore[arg-type]  # that is the point


def test_how_many_permits_there_may_be() -> None:
    locks = asynclock.connect("memory://")
    assert locks.semaphore("s", 256).permits == 256
    for wrong in (0, -1, 257, 1.5, True, "3"):
        with pytest.raises(ConfigurationError, match=r"^permits must.*256"):
            locks.semaphore("s", wrong)  # type: ignore[arg-type]  # that is the point
    for wrong in (0, 4, -1, True, 1.0, "2"):
        with pytest.raises(ConfigurationError, match=r"^several must.*3"):
            locks.semaphore("s", 3).several(wrong)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("template", "lease", "text"),
    [
        ("{order", None, "'{order' is not a valid template: .*'}'"),
        (
            "{user.id}",
            None,
            r"'\{user\.id\}' names 'user', which is not a parameter of .*pay\(order",
        ),
        ("{order}", "held", r"lease='held' must be a keyword-only parameter of .*pay\(order"),
    ],
)
def test_a_decorator_says_what_the_function_lacks(
    template: str, lease: str | None, text: str
) -> None:
    async def pay(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match=text):
        asynclock.connect("memory://").synchronized(template, lease=lease)(pay)


def test_a_decorator_without_a_name_shows_what_it_got_instead() -> None:
    with pytest.raises(ConfigurationError) as caught:
        asynclock.connect("memory://").synchronized(len)  # type: ignore[arg-type]  # the mistake
    assert str(caught.value) == (
        'synchronized takes a template, as in @locks.synchronized("name"), '
        "not <built-in function len>"
    )


def test_a_decorated_function_shows_all_parameters_but_that_of_the_lease() -> None:
    @asynclock.connect("memory://").synchronized("{order}", lease="held")
    async def pay(order: int, *, note: str = "", held: asynclock.Lease, at: float) -> None: ...

    shown = inspect.signature(pay).parameters.values()
    assert [(one.name, one.kind, one.default) for one in shown] == [
        ("order", inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty),
        ("note", inspect.Parameter.KEYWORD_ONLY, ""),
        ("at", inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty),
    ]


def test_a_managers_wrong_setting_is_named() -> None:
    for given, text in (
        ({"prefix": 1}, "^prefix must be a str"),
        ({"node_timeout": 2, "max_ttl": 7, "ttl": 7}, "^node_timeout=2 .* a quarter of max_ttl=7$"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            asynclock.connect("memory://", **given)  # type: ignore[arg-type]  # what a caller may do wrong
    with pytest.raises(ConfigurationError, match=r"^max_hold must"):
        asynclock.connect("memory://").lock("a", max_hold=-1)
    with pytest.raises(ConfigurationError, match=r"^handoff must"):
        asynclock.connect("memory://").lock("a", handoff="never")  # type: ignore[arg-type]  # as well
