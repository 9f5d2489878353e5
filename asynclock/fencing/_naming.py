"""From a route's variables to the name of the lock that guards it."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError


def fill_in(template: str, variables: Mapping[str, object]) -> str:
    """`"orders:{order_id}"` and the variables of a route → the name of the lock."""
    try:
        return template.format_map(variables)
    except KeyError as missing:
        raise ConfigurationError(
            f"the lock name {template!r} needs {missing}, but the route has {sorted(variables)}"
        ) from None
