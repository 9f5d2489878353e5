"""Makes the name of a route's lock from the route's variables."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping

from ..errors import ConfigurationError


def fill_in(template: str, variables: Mapping[str, object]) -> str:
    """Return a template such as `"orders:{order_id}"`, filled in with the variables of a route.

    Raises ConfigurationError if a variable is missing.
    """
    try:
        return template.format_map(variables)
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


def check_template(template: str, variables: Collection[str], route: str) -> None:
    """Raise ConfigurationError if the path of `route` lacks a variable of the template."""
    for missing in sorted(fields_of(template) - set(variables)):
        raise ConfigurationError(f"{route}: {_missing(template, repr(missing), variables)}")


def _missing(template: str, name: object, variables: Collection[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the lock name {template!r} needs {name}, but the route has {sorted(variables)}; "
        "a function of the request can also name the lock"
    )
