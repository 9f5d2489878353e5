"""Checks the locks of FastAPI routes when a route is made, and describes them in OpenAPI."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from fastapi import FastAPI, routing
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount

from ..errors import ConfigurationError
from ..fencing._naming import check_template
from ._problems import Declared, schema_of

locks: WeakKeyDictionary[Callable[..., Any], Declared] = WeakKeyDictionary()
"""The lock of each dependency that `Locked` made."""

_with_lock: WeakKeyDictionary[Callable[..., Any], WeakSet[Callable[..., Any]]]
_with_lock = WeakKeyDictionary()
"""For each function that `locked` decorates, the functions with a lock that it made."""

BY_DEPENDENCY = ", and Depends(function) with a function that takes what an endpoint may take"
"""How to name a lock after values that the path doesn't have; the end of an error's sentence."""
ADDERS = ("add_api_route", "add_api_websocket_route", "include_router", "mount")
"""The methods of a router that every way to add a route ends up calling."""


def check_new_routes(app: FastAPI) -> None:
    """Check the routes that `app` has, and from now on each new one."""
    check_names(app.routes)
    for name in ADDERS:
        setattr(app.router, name, _checking(app, getattr(app.router, name)))


def _checking(app: FastAPI, add: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add)
    def add_and_check(*args: Any, **kwargs: Any) -> None:
        before = len(app.routes)
        add(*args, **kwargs)
        check_names(app.routes[before:])

    return add_and_check


def check_names(routes: Sequence[BaseRoute], around: Collection[str] = ()) -> None:
    """Raise ConfigurationError if a lock's name needs a variable that its path does not have.

    `around` has the variables of the path under which the routes are mounted.
    """
    for route in _flat(routes):
        variables = {*around, *getattr(route, "param_convertors", ())}
        if _is_mount(route):
            check_names(_below(route), variables - {"path"})  # Mount itself adds "path"
        elif getattr(route, "dependant", None) is not None:
            for lock in _locks_of(route.dependant):
                if isinstance(lock.name, str):
                    place = f"route {route.path_format}"
                    check_template(lock.name, variables, place, BY_DEPENDENCY)


def without_timeout(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """Yield the paths of the routes that wait for their locks without a timeout."""
    for dependant, path in _dependants(routes):
        if any(lock.timeout is None for lock in _locks_of(dependant)):
            yield path


def check_order(routes: Sequence[BaseRoute]) -> None:
    """Raise ConfigurationError if `locked` stands above a route, which then takes no lock.

    An application may serve a function both with a lock and without.
    """
    paths = {
        dependant.call: path
        for dependant, path in _dependants(routes)
        if inspect.isfunction(dependant.call)
    }
    served = {function for endpoint in paths for function in _layers(endpoint)}
    for endpoint, path in paths.items():
        if endpoint in _with_lock and served.isdisjoint(_with_lock[endpoint]):
            raise ConfigurationError(
                f"route {path} takes no lock: put @locked below the route's decorator, directly "
                f"above {endpoint.__name__}"
            )


def note_lock(function: Callable[..., Any], with_lock: Callable[..., Any]) -> None:
    """Note for `check_order` that `locked` made `with_lock` of `function`."""
    for layer in _layers(function):
        _with_lock.setdefault(layer, WeakSet()).add(with_lock)


def _layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield `function` and those that decorators have wrapped in it."""
    layer: Any = function
    while inspect.isfunction(layer):
        yield layer
        layer = getattr(layer, "__wrapped__", None)


def _dependants(routes: Sequence[BaseRoute]) -> Iterator[tuple[Any, str]]:
    for route in _flat(routes):
        if _is_mount(route):
            yield from _dependants(_below(route))
        elif getattr(route, "dependant", None) is not None:
            yield route.dependant, route.path_format


def mounted(routes: Sequence[BaseRoute]) -> Iterator[Starlette]:
    """Yield the applications that are mounted among `routes`, directly or inside others."""
    for route in _flat(routes):
        if _is_mount(route):
            if isinstance(route.app, Starlette):
                yield route.app
            yield from mounted(_below(route))


def _is_mount(route: Any) -> bool:
    return isinstance(getattr(route, "original_route", route), Mount)


def _below(mount: Any) -> Sequence[BaseRoute]:
    # In applications of other frameworks, `routes` may be something else.
    return mount.routes if isinstance(mount.routes, list) else ()


def describe(schema: dict[str, Any], routes: Sequence[BaseRoute], contended: int) -> None:
    """Add the answers of routes under a lock to an OpenAPI schema."""
    answers = {contended: "contended", 503: "unavailable"}
    for route in _flat(routes):
        dependant = getattr(route, "dependant", None)
        if dependant is None or not any(_locks_of(dependant)):
            continue
        for method in getattr(route, "methods", None) or ():
            operation = schema["paths"].get(route.path_format, {}).get(method.lower())
            if operation is None:  # not in the schema
                continue
            for status, kind in answers.items():
                text = f"{HTTPStatus(status).phrase}: urn:asynclock:{kind}"
                answer = {"description": text, **schema_of(status, kind)}
                operation.setdefault("responses", {}).setdefault(str(status), answer)


def _flat(routes: Iterable[BaseRoute]) -> Iterator[Any]:
    # Later versions keep included routers as objects and have a function that lists their routes.
    flatten: Callable[..., Iterator[Any]] = getattr(routing, "iter_route_contexts", iter)
    return flatten(routes)


def _locks_of(dependant: Any) -> Iterator[Declared]:
    if inspect.isfunction(dependant.call) and dependant.call in locks:
        yield locks[dependant.call]
    for inner in dependant.dependencies:
        yield from _locks_of(inner)


def wrap_openapi(app: FastAPI, contended: Callable[[], int]) -> None:
    """Make `app.openapi` describe the answers of locks as well."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        describe(schema, app.routes, contended())
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
