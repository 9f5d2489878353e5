"""The decorator: names from arguments, the signature kept, mistakes found when decorating."""

import asyncio
import functools
import inspect
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock import blocking
from asynclock.testing import LocalServer
from tests.primitives.conftest import Connect


@pytest.fixture
def locks(connecting: Callable[..., asynclock.LockManager]) -> asynclock.LockManager:
    return connecting("memory://synchronized")


async def test_names_come_from_arguments(locks: asynclock.LockManager) -> None:
    seen: list[str] = []

    @locks.synchronized("orders:{order_id}:{shop}", lease="lease", timeout=5)
    async def ship(
        order_id: int, shop: str = "main", *, lease: asynclock.Lease | None = None
    ) -> int:
        """Ship it."""
        assert lease is not None
        assert lease.held
        seen.append(lease.name)
        return order_id * 2

    assert await ship(21) == 42
    assert await ship(shop="b", order_id=1) == 2
    assert seen == ["orders:21:main", "orders:1:b"]
    assert ship.__doc__ == "Ship it."
    assert ship.__name__ == "ship"
    assert inspect.iscoroutinefunction(ship)


async def test_methods_and_attributes(locks: asynclock.LockManager) -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number
            self.busy = 0

        @locks.synchronized("account:{self.number}")
        async def book(self) -> None:
            self.busy += 1
            assert self.busy == 1
            await asyncio.sleep(0)
            self.busy -= 1

    one, other = Account(1), Account(2)
    await asyncio.gather(*(account.book() for account in [one, other] * 5))


async def test_items_of_an_argument_name_the_lock(locks: asynclock.LockManager) -> None:
    @locks.synchronized("order:{order[id]}:{shops[0].__name__}", lease="lease")
    async def ship(order: dict[str, int], shops: list[type], *, lease: asynclock.Lease) -> str:
        return lease.name

    assert await ship({"id": 7}, [str]) == "order:7:str"  # type: ignore[call-arg]  # it gets a lease


async def test_it_excludes_across_managers(
    asynclock_nodes: list[LocalServer], connect_to: Connect
) -> None:
    here, there = connect_to(asynclock_nodes), connect_to(asynclock_nodes)

    @there.synchronized("a", timeout=0.1)
    async def work() -> None:
        raise AssertionError("never runs")

    async with here.lock("a"):
        with pytest.raises(asynclock.AcquireTimeoutError):
            await work()


async def test_wrong_arguments_fail_as_without(locks: asynclock.LockManager) -> None:
    @locks.synchronized("a:{x}")
    async def work(x: int) -> None: ...

    with pytest.raises(TypeError):
        await work(1, 2)  # type: ignore[call-arg]  # that is the point
    with pytest.raises(TypeError):
        await work()  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize(
    ("template", "lease", "text"),
    [
        ("{order", None, "'{order' is not a valid template: .*'}'"),
        ("{}", None, "'{}' names '', which is not a parameter of"),
        ("{0}", None, "template|names"),
        ("{z}", None, "'{z}' names 'z', which is not a parameter of .*pay\\(id"),
        ("{user.id}", None, r"'\{user\.id\}' names 'user', which is not a parameter of .*pay"),
        ("{order}", "held", r"lease='held' must be a keyword-only parameter of .*pay\(id"),
        ("{order}", "order", "lease='order' must be a keyword-only parameter"),
        ("{order}", "id", "lease='id' must be a keyword-only parameter"),
    ],
)
def test_mistakes_are_found_when_decorating(template: str, lease: str | None, text: str) -> None:
    async def pay(id: int, /, order: int) -> None: ...  # noqa: A002

    with pytest.raises(asynclock.ConfigurationError, match=text):
        asynclock.connect("memory://").synchronized(template, lease=lease)(pay)


def test_what_is_no_template_and_no_async_function() -> None:
    locks: Any = asynclock.connect("memory://")
    with pytest.raises(asynclock.ConfigurationError) as caught:
        locks.synchronized(len)
    assert str(caught.value) == (
        'synchronized takes a template, as in @locks.synchronized("name"), '
        "not <built-in function len>"
    )
    with pytest.raises(asynclock.ConfigurationError, match="async"):
        locks.synchronized("a")(lambda: None)
    with pytest.raises(asynclock.ConfigurationError, match=r"needs an async function; .*partial"):
        locks.synchronized("a")(functools.partial(print))
    for wrong in ({"ttl": "x"}, {"at_least": -1}):
        with pytest.raises(asynclock.ConfigurationError, match=next(iter(wrong))):
            locks.synchronized("a", **wrong)


def test_a_decorated_function_shows_all_parameters_but_that_of_the_lease() -> None:
    @asynclock.connect("memory://").synchronized("{order}", lease="held")
    async def pay(order: int, *, note: str = "", held: asynclock.Lease, at: float) -> None: ...

    shown = inspect.signature(pay).parameters.values()
    assert [(one.name, one.kind, one.default) for one in shown] == [
        ("order", inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty),
        ("note", inspect.Parameter.KEYWORD_ONLY, ""),
        ("at", inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty),
    ]


class Order:
    """An object without a text of its own."""


UNSTABLE: dict[str, Any] = {
    "an object": Order(),
    "a function": test_names_come_from_arguments,
    "a method": [].append,
    "a list of objects": [Order()],
    "a set": {"a", "b"},
    "a set in a list": [frozenset({1, 2})],
    "a set in a dict": {"a": {"b", "c"}},
}


@pytest.mark.parametrize("value", UNSTABLE.values(), ids=UNSTABLE)
async def test_a_text_that_differs_between_processes_names_no_lock(
    locks: asynclock.LockManager, value: Any
) -> None:
    @locks.synchronized("ship:{shop}:{order!r}")
    async def ship(order: Any, shop: str = "{main} at 0x1234") -> None:
        pass

    with pytest.raises(asynclock.ConfigurationError, match=r"after 'order', .* \{order.id\}"):
        await ship(value)


@pytest.mark.parametrize("value", UNSTABLE.values(), ids=UNSTABLE)
def test_nor_in_blocking_code(value: Any) -> None:
    with blocking.connect("memory://unstable") as locks:
        ship = locks.synchronized("ship:{order}")(lambda order: order)
        with pytest.raises(asynclock.ConfigurationError, match="after 'order'"):
            ship(value)


@pytest.mark.parametrize(
    "value", [7, "an object at 0x7f00", {"a": [1, 2]}, {"one"}, ("a", None), uuid.UUID(int=3)]
)
async def test_a_text_equal_everywhere_names_a_lock(
    locks: asynclock.LockManager, value: Any
) -> None:
    @locks.synchronized("{{ship}}:{order}", lease="lease")
    async def ship(order: Any, *, lease: asynclock.Lease | None = None) -> str:
        assert lease is not None
        return lease.name

    assert await ship(value) == f"{{ship}}:{value}"
