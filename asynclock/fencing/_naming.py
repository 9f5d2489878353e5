"""Makes the name of a route's lock from the route's variables."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Collection, Mapping

from .._primitives import synchronized
from ..errors import ConfigurationError


def check_name(name: object, others: str = "") -> None:
    """Raise ConfigurationError unless `name` is a template or a plain function of the request.

    `others` says what else the caller accepts.
    """
    if isinstance(name, str):
        fields_of(name)
    elif not callable(name) or any(map(inspect.iscoroutinefunction, (name, name.__call__))):
        raise ConfigurationError(
            "a lock name is a template or a function of the request (not async)"
            f"{others}, not {name!r}"
        )


def fill_in(template: str, variables: Mapping[str, object]) -> str:
    """Return a template such as `"orders:{order_id}"`, filled in with the variables of a route.

    Raises ConfigurationError if a variable is missing, or its text differs between processes.
    """
    try:
        return synchronized.fill_in(template, variables)
    except KeyError as missing:
        raise _missing(template, missing, variables) from None


def fields_of(template: str) -> frozenset[str]:
    """Return the variables that a template needs. Raises ConfigurationError if it is malformed."""
    try:
        found = [field for _, field, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        message = f"the lock name {template!r} is not a valid template: {error}"
        raise ConfigurationError(message) from None
    names = frozenset(
        re.split(r"[.\[]", field, maxsplit=1)[0] for field in found if field is not None
    )
    if wrong := sorted(name for name in names if not name.isidentifier()):
        raise ConfigurationError(f"the lock name {template!r} has a field without a name: {wrong}")
    return names


def check_template(template: str, variables: Collection[str], route: str, others: str = "") -> None:
    """Raise ConfigurationError if the path of `route` lacks a variable of the template.

    `others` says how else the lock can be named, beside a function of the request.
    """
    for missing in sorted(fields_of(template) - set(variables)):
        text = f"{route}: {_missing(template, repr(missing), variables)}{others}"
        raise ConfigurationError(text)


def _missing(template: str, name: object, variables: Collection[str]) -> ConfigurationError:
    known = f" ({', '.join(map(repr, sorted(variables)))})" if variables else ""
    return ConfigurationError(
        f"the lock name {template!r} needs {name}, which is no variable of the path{known}; a "
        "function of the request can also name the lock"
    )
