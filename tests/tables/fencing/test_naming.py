"""How a template names a lock: its fields, what it lacks, and what it makes of a request."""

from typing import Any

import pytest
from fastapi import Request

from asynclock._primitives.synchronized import check_route, name_of_route, variables_of
from asynclock.errors import ConfigurationError
from asynclock.fencing.fastapi import path_values

NAMELESS = "the lock name {!r} has a field without a name: [{!r}]"
LACKS = (
    "PUT /x: the lock name '{shop}:{order}' needs 'order', which is no variable of the path "
    "('shop', 'user'); a function of the request can also name the lock"
)


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("orders", set()),
        ("{shop}:{user.id}:{order[id]}:{size!r:>4}:{{x}}", {"shop", "user", "order", "size"}),
    ],
)
def test_the_fields_of_a_template(template: str, fields: set[str]) -> None:
    assert variables_of(template) == fields


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{}", NAMELESS.format("{}", "")),
        ("{0}:{a}", NAMELESS.format("{0}:{a}", "0")),
        ("{a-b}", NAMELESS.format("{a-b}", "a-b")),
        ("{.a}", NAMELESS.format("{.a}", "")),
        ("{c", "the lock name '{c' is not a valid template: expected '}'"),
    ],
)
def test_what_is_no_template(template: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        variables_of(template)
    assert str(caught.value).startswith(words)


def test_a_template_that_lacks_a_variable_says_what_else_can_name_the_lock() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_route("{shop}:{order}", {"user", "shop"}, "PUT /x")
    assert str(caught.value) == LACKS
    with pytest.raises(ConfigurationError, match=r"needs 'c', which .* of the path \('a', 'b'\);"):
        name_of_route("{c}", {"b": 1, "a": 2})


def test_a_template_may_take_a_part_of_a_variable() -> None:
    template = "orders:{order[id]}"
    check_route(template, {"order"}, "route /")
    assert name_of_route(template, {"order": {"id": 7}}) == "orders:7"


def test_a_variable_that_the_route_does_not_declare_stays_what_the_router_made_of_it() -> None:
    """With a converter in the path it is a number, which a template may format."""
    scope: dict[str, Any] = {"type": "http", "path_params": {"order_id": 42}, "headers": []}
    assert name_of_route("orders:{order_id:05d}", path_values(Request(scope))) == "orders:00042"
