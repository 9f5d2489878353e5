"""What an extra of the package brings: a missing one is reported in the same words everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def needs(what: str, *extras: str) -> str:
    """Return the words that tell which extras `what` needs, and how to install them."""
    return f"{what} needs an extra; install it with pip install 'asynclock[{','.join(extras)}]'"


@contextmanager
def imports(what: str, *extras: str) -> Iterator[None]:
    """Let a module that is missing in the block be reported in the words of `needs`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs(what, *extras), name=error.name) from error
