"""The keys of a name: the lock's own key, and the keys derived from it.

A lock's key is prefix + name, so that another `SET NX` lock on that key and ours exclude each
other. Every other key is a lock's key, the marker and a kind. No lock's key contains the marker, so
a derived key can be split in only one way. Two different things never share a key, whatever the
prefixes and names.
"""

from __future__ import annotations

from typing import Final

from .errors import ConfigurationError

MARKER: Final = ":#"
"""Separates a lock's key from the kind of a key derived from it."""
HASH_TAG: Final = "{"
"""Last character of a prefix on a Cluster, where all keys of a name must share a slot."""

FENCE: Final = "fence"
"""Kind of the key of a fence counter, of a lock or of one of its parts."""
MESSAGE: Final = "message"
"""Kind of the key of what the owner of a lock publishes."""
SEEN: Final = "seen"
"""Kind of the key of the highest fence that a store has seen."""
PRIMARY: Final = "primary"
"""Kind of the key of the mark that names the current primary; derived from the prefix alone."""
SET: Final = "set"
"""Kind of the key of the record of the fleet's set of nodes; derived from the prefix alone."""
WITNESS: Final = "witness"
"""Kind of the key that shows whether a node has kept its keys; derived from the prefix alone."""


def lock_key(prefix: str, name: str) -> str:
    """Return the key of the lock `name`; on a Cluster the name is the hash tag.

    Raises ConfigurationError if prefix and name together contain the marker.
    """
    if not prefix.endswith(HASH_TAG):
        key = prefix + name
    elif name.startswith("}"):
        raise ConfigurationError(f"on a Cluster a name must not start with a brace: {name!r}")
    else:
        key = f"{prefix}{name}}}"
    if MARKER in key:
        raise ConfigurationError(
            f"prefix and name together must not contain {MARKER!r}, which marks keys that belong "
            f"to a lock: {key!r}"
        )
    return key


def derived(key: str, kind: str) -> str:
    """Return the key of this kind that belongs to the lock (or to the part of a lock) at `key`."""
    return f"{key}{MARKER}{kind}"


def counter(key: str) -> str:
    """Return the key of the fence counter of the lock (or of the part of a lock) at `key`."""
    return derived(key, FENCE)


def split(prefix: str, key: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the kinds that make up `key`; None if it belongs to no name here."""
    whole, *kinds = key.split(MARKER)
    if not whole.startswith(prefix):
        return None
    name = whole[len(prefix) :]
    if prefix.endswith(HASH_TAG):
        if not name.endswith("}"):
            return None
        name = name[:-1]
    return (name, tuple(kinds)) if name else None
