"""Arguments of other libraries get an error with our argument; what may be passed on is known."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

import asynclock
from asynclock.errors import ConfigurationError

CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda locks: locks.lock("a", blocking_timeout=2), "write timeout="),
    (lambda locks: locks.lock("a", expire=2), "write ttl="),
    (lambda locks: locks.semaphore("a", 2, sleep=0.1), "does not poll"),
    (lambda locks: locks.lock("a").acquire(blocking=False), r"write try_acquire\(\)"),
    (lambda locks: locks.lock("a", ttll=2), "'ttll': did you mean 'ttl'\\?$"),
    *(
        (lambda locks, kind=kind: getattr(locks, kind)("a", blocking_timeout=1), "timeout=")
        for kind in ("reentrant_lock", "rwlock", "fair_lock", "election")
    ),
]


@pytest.mark.parametrize(("call", "answer"), CALLS)
def test_an_argument_of_another_library(call: Callable[[Any], Any], answer: str) -> None:
    with pytest.raises(TypeError, match=answer):
        call(asynclock.connect("redis://localhost"))


def test_a_timedelta() -> None:
    with pytest.raises(ConfigurationError, match=r"write 90$"):
        asynclock.connect("redis://localhost").lock("a", timeout=timedelta(minutes=1.5))  # type: ignore[arg-type]


def test_a_synchronous_client() -> None:
    with pytest.raises(ConfigurationError, match=r"synchronous client.*asynclock\.blocking"):
        asynclock.connect(redis.Redis())  # type: ignore[arg-type]
