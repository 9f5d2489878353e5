"""A decorator that holds a lock, named after the call's arguments, while a function runs."""

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
    if not isinstance(template, str):
        raise ConfigurationError(
            f'synchronized takes a template, as in @locks.synchronized("name"), not {template!r}'
        )

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        signature = inspect.signature(function)
        _check(function, signature, template, lease)
        others = [p for p in signature.parameters.values() if p.name != lease]
        shown = signature.replace(parameters=others)

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = shown.bind(*args, **kwargs)
            bound.apply_defaults()
            async with lock(template.format_map(bound.arguments)) as held:
                if lease is not None:
                    kwargs[lease] = held
                return await function(*args, **kwargs)

        if lease is not None:
            # Whoever reads the signature, such as a web framework, must not ask users for it.
            wrapper.__signature__ = shown  # type: ignore[attr-defined]  # functions have it, their type doesn't say
        return wrapper

    return decorate


def _check(
    function: Callable[..., object],
    signature: inspect.Signature,
    template: str,
    lease: str | None,
) -> None:
    shown = getattr(function, "__qualname__", repr(function))
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"synchronized needs an async function; {shown} is none")
    for field in _fields(template):
        if field not in signature.parameters:
            raise ConfigurationError(
                f"{template!r} names {field!r}, which is no parameter of {shown}{signature}"
            )
    if lease is not None:
        parameter = signature.parameters.get(lease)
        if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise ConfigurationError(
                f"lease={lease!r} must be a keyword-only parameter of {shown}{signature}"
            )


def _fields(template: str) -> list[str]:
    # The parameters that a template names: "{order.id}" names order.
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigurationError(f"{template!r} is no template: {error}") from None
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in names]
