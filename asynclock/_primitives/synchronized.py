"""A decorator that holds a lock while a function runs; the call's arguments name the lock."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from string import Formatter
from typing import Any, ParamSpec, TypeVar

from ..errors import ConfigurationError
from .lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


def synchronized(
    lock: Callable[[str], Lock], template: str, lease: str | None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an async function: see `LockManager.synchronized`."""

    async def run(name: str, call: Callable[[Any], Awaitable[R]]) -> R:
        async with lock(name) as held:
            return await call(held)

    return decorator(run, "synchronized", template, lease)


def decorator(
    run: Callable[[str, Callable[[Any], Any]], Any], what: str, template: str, lease: str | None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for functions that are async if `run` is; `what` is its name in errors.

    A call of the decorated function is `run(name, call)`: `name` is the filled-in template, and
    `call(lease)` calls the function. The signature that callers see lacks `lease`.
    """
    if not isinstance(template, str):  # the decorator was not called
        raise ConfigurationError(
            f'synchronized takes a template, as in @locks.synchronized("name"), not {template!r}'
        )
    is_async = inspect.iscoroutinefunction(run)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            def call(held: object) -> Any:
                if lease is not None:
                    kwargs[lease] = held
                return function(*args, **kwargs)

            bound = shown.bind(*args, **kwargs)
            bound.apply_defaults()
            return run(fill_in(template, bound.arguments), call)

        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            return await wrapper(*args, **kwargs)

        _check_async(function, what, wanted=is_async)
        signature = inspect.signature(function)
        _check_parameters(_name(function), signature, template, lease)
        others = [p for p in signature.parameters.values() if p.name != lease]
        shown = signature.replace(parameters=others)
        made: Any = async_wrapper if is_async else wrapper
        functools.update_wrapper(made, function)
        if lease is not None:
            # A web framework that reads the signature must not ask its users for a lease.
            made.__signature__ = shown
        found: Callable[..., Any] = made
        return found

    return decorate


def _check_async(function: Callable[..., object], what: str, *, wanted: bool) -> None:
    ways = function, getattr(function, "__call__", None)  # noqa: B004  # it may be `async def`
    if wanted:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"{what} needs an async function; {_name(function)} is not one: use "
                "asynclock.blocking"
            )
    elif any(map(inspect.iscoroutinefunction, ways)):
        raise ConfigurationError(
            f"{function!r} is async: decorate it with asynclock.LockManager.{what}"
        )
    elif any(map(inspect.isgeneratorfunction, ways)) or any(map(inspect.isasyncgenfunction, ways)):
        raise ConfigurationError(
            f"{function!r} is a generator, which would run after the lock was released; take the "
            "lock inside it"
        )


def fill_in(template: str, values: Mapping[str, object]) -> str:
    """Return `template`, filled in with `values`.

    Raises ConfigurationError if the text of a value differs from process to process.
    """
    name = template.format_map(values)
    if _ADDRESS.search(name) or "{" in name:
        _Check(template).vformat(template, (), values)
    return name


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{4,}")
"""Part of the text of objects of classes without `__str__` and `__repr__`, and of functions."""


class _Check(Formatter):
    def __init__(self, template: str) -> None:
        self._template = template
        self._field: tuple[str, object] = "", ""

    def get_field(
        self, field_name: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Any:
        found = super().get_field(field_name, args, kwargs)
        self._field = field_name, found[0]
        return found

    def format_field(self, value: object, format_spec: str) -> Any:
        text = super().format_field(value, format_spec)
        name, field = self._field
        if not isinstance(field, str) and (_ADDRESS.search(text) or _unordered(field)):
            raise ConfigurationError(
                f"{self._template!r} names the lock after {name!r}, whose text differs from "
                f"process to process: {text:.80}. Name it after something that all processes "
                f"know, such as {{{name}.id}}"
            )
        return text


def _unordered(value: object) -> bool:
    """Return whether the text of `value` has the elements of a set."""
    if isinstance(value, set | frozenset):
        return len(value) > 1
    if isinstance(value, dict):
        return any(map(_unordered, (*value, *value.values())))
    return isinstance(value, list | tuple) and any(map(_unordered, value))


def _check_parameters(
    function: str, signature: inspect.Signature, template: str, lease: str | None
) -> None:
    """Raise ConfigurationError if the function lacks what the template or the lease needs."""
    for field in _fields(template, repr(template)):
        if field not in signature.parameters:
            raise ConfigurationError(
                f"{template!r} names {field!r}, which is not a parameter of {function}{signature}"
            )
    if lease is not None:
        parameter = signature.parameters.get(lease)
        if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ConfigurationError(
                f"lease={lease!r} must be a keyword-only parameter of {function}{signature}"
            )


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _fields(template: str, shown: str) -> list[str]:
    # Returns the parameters that a template names: "{order.id}" names order.
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigurationError(f"{shown} is not a valid template: {error}") from None
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in names]


# ---- The name of a route's lock, made of the route's variables -----------------------------------


def check_name(name: object, others: str = "") -> None:
    """Raise ConfigurationError unless `name` is a template or a plain function of the request.

    `others` says what else the caller accepts.
    """
    if isinstance(name, str):
        variables_of(name)
    elif not callable(name) or any(map(inspect.iscoroutinefunction, (name, name.__call__))):
        raise ConfigurationError(
            "a lock name is a template or a function of the request (not async)"
            f"{others}, not {name!r}"
        )


def name_of_route(template: str, variables: Mapping[str, object]) -> str:
    """Return a template, filled in with the variables of a route.

    Raises ConfigurationError if a variable is missing, or its text differs between processes.
    """
    try:
        return fill_in(template, variables)
    except KeyError as missing:
        raise _missing(template, missing, variables) from None


def variables_of(template: str) -> frozenset[str]:
    """Return the variables that a template needs. Raises ConfigurationError if it is malformed."""
    names = frozenset(_fields(template, f"the lock name {template!r}"))
    if wrong := sorted(name for name in names if not name.isidentifier()):
        raise ConfigurationError(f"the lock name {template!r} has a field without a name: {wrong}")
    return names


def check_route(template: str, variables: Collection[str], route: str, others: str = "") -> None:
    """Raise ConfigurationError if the path of `route` lacks a variable of the template.

    `others` says how else the lock can be named, beside a function of the request.
    """
    for missing in sorted(variables_of(template) - set(variables)):
        text = f"{route}: {_missing(template, repr(missing), variables)}{others}"
        raise ConfigurationError(text)


def _missing(template: str, name: object, variables: Collection[str]) -> ConfigurationError:
    known = f" ({', '.join(map(repr, sorted(variables)))})" if variables else ""
    return ConfigurationError(
        f"the lock name {template!r} needs {name}, which is no variable of the path{known}; a "
        "function of the request can also name the lock"
    )
