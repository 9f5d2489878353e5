"""A decorator that holds a lock while a function runs; the call's arguments name the lock."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from string import Formatter
from typing import Any, ParamSpec, TypeVar

from ..errors import ConfigurationError
from .lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


def synchronized(
    lock: Callable[[str], Lock], template: str, lease: str | None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Wrap a coroutine function: see `LockManager.synchronized`."""
    check_template(template)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"synchronized needs an async function; {_name(function)} is not one"
            )
        check_function(function, template, lease)
        shown = shown_signature(function, lease)

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = shown.bind(*args, **kwargs)
            bound.apply_defaults()
            async with lock(template.format_map(bound.arguments)) as held:
                if lease is not None:
                    kwargs[lease] = held
                return await function(*args, **kwargs)

        if lease is not None:
            # A web framework that reads the signature must not ask its users for a lease.
            wrapper.__signature__ = shown  # type: ignore[attr-defined]  # functions have it, their type doesn't say
        return wrapper

    return decorate


def check_template(template: object) -> None:
    """Raise ConfigurationError unless `template` is a str: the decorator was not called."""
    if not isinstance(template, str):
        raise ConfigurationError(
            f'synchronized takes a template, as in @locks.synchronized("name"), not {template!r}'
        )


def shown_signature(function: Callable[..., object], lease: str | None) -> inspect.Signature:
    """Return the signature that callers see: without the parameter that gets the lease."""
    signature = inspect.signature(function)
    others = [p for p in signature.parameters.values() if p.name != lease]
    return signature.replace(parameters=others)


def check_function(function: Callable[..., object], template: str, lease: str | None) -> None:
    """Raise ConfigurationError if the function lacks what the template or the lease needs."""
    signature = inspect.signature(function)
    shown = _name(function)
    for field in _fields(template):
        if field not in signature.parameters:
            raise ConfigurationError(
                f"{template!r} names {field!r}, which is not a parameter of {shown}{signature}"
            )
    if lease is not None:
        parameter = signature.parameters.get(lease)
        if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ConfigurationError(
                f"lease={lease!r} must be a keyword-only parameter of {shown}{signature}"
            )


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _fields(template: str) -> list[str]:
    # Returns the parameters that a template names: "{order.id}" names order.
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigurationError(f"{template!r} is not a valid template: {error}") from None
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in names]
