"""Checks of settings, and words for what is missing or written in another library's way.

The call that takes a setting checks it, including its relation to others.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias, TypedDict, TypeVar

from ._keys import MARKER
from ._process import of_one_process
from .errors import ConfigurationError
from .events import Observer

C = TypeVar("C", bound=type[Any])


def _each(names: str, write: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), write)


NAMED_HERE = {
    "blocking": "try_acquire() instead of blocking=False",
    **_each(
        "acquire_timeout blocking_timeout max_retries max_wait retry_count retry_times tries wait "
        "waitTime wait_time",
        "timeout= (seconds to wait)",
    ),
    **_each(
        "auto_release_time duration ex expire expires internal_lock_timeout leaseTime lease_time "
        "lock_timeout px",
        "ttl= (seconds that the lease lives without renewal)",
    ),
    **_each("auto_extend auto_renew auto_renewal watchdog", "renew="),
    **_each(
        "check_interval poll_interval retry_delay retry_delay_max retry_delay_min retry_interval "
        "retry_jitter sleep",
        "nothing: waiting does not poll",
    ),
    **_each(
        "additional_time new_ttl replace_ttl seconds",
        "lease.extend(ttl), which takes the seconds from now on",
    ),
    "thread_local": "nothing: a lease is an object of its own",
    "raise_on_release_error": "nothing: the block of a lease that was lost raises LeaseLostError",
    **_each("id identifier token", "nothing: each lease has a random owner"),
    **_each(
        "client db host masters password port redis redis_connections redis_url ssl "
        "unix_socket_path url urls username",
        'addresses: connect("redis://user:password@host:6379/0")',
    ),
    **_each(
        "handoff interrupt max_hold renew ttl",
        "this where the lock is made, such as lock(name, ttl=10)",
    ),
    "at_least": "it for lock, fair_lock, reentrant_lock or synchronized: only these take it",
    "timeout": "acquire(timeout=...) or lock(name, timeout=...)",
}
"""Arguments of other lock libraries, or of another call, and what to write instead."""
METHODS_HERE = {
    **_each(
        "do_release forceUnlock release release_lock unlock",
        "lease.release(), of the lease that acquire() returns",
    ),
    **_each(
        "isLocked is_locked locked",
        "locks.inspect(name) to see who has it, or lease.held for this lease",
    ),
    **_each("isHeldByCurrentThread is_acquired is_owned owned valid", "lease.held"),
    **_each("extend extend_lock prolong reacquire refresh renew", "lease.extend()"),
    **_each("force_release reset reset_all", "locks.release_held(name, owner=...)"),
    **_each("on_lost", "wait_lost(), awaited in a task of its own"),
    **_each("wait_lost", "on_lost(callback), look at `held`, or ask the lease of a run"),
    **_each("wanted", "on_wanted(callback)"),
    **_each("complete save set_result", "finish(value), of the run in the block of once(key)"),
    **_each("get_lock_ttl pttl remainTimeToLive time_left", "lease.remaining()"),
    **_each("fencing_token fence_token token", "lease.fence"),
    **_each("getHoldCount hold_count", "lease.depth, of a reentrant lock"),
    **_each("get_owner_id local", "lease.owner"),
    **_each(
        "acquire acquire_lock lock lockInterruptibly using",
        "lock(name).acquire(), or enter the lock with a `with` block; a read-write lock has the "
        "sides read() and write(), an election of asyncio campaign(), other kinds wait()",
    ),
    **_each(
        "acquire_nowait tryLock try_acquire try_lock",
        "try_acquire() of lock(name), or of read() or write() of rwlock(name)",
    ),
    **_each("createLock create_lock getLock get_lock mutex redlock", "lock(name)"),
    **_each("getFairLock get_fair_lock", "fair_lock(name)"),
    **_each("rlock reentrant", "reentrant_lock(name)"),
    **_each("getMultiLock getRedLock", "multi_lock(*names)"),
    **_each("getReadWriteLock read_write_lock reader_writer_lock rw_lock", "rwlock(name)"),
    **_each("acquire_read readLock read_lock reader_lock shared", "rwlock(name).read()"),
    **_each("acquire_write exclusive writeLock write_lock writer_lock", "rwlock(name).write()"),
    **_each("bounded_semaphore getSemaphore", "semaphore(name, permits)"),
    **_each("countdown_latch getCountDownLatch", "latch(name, count)"),
    **_each("countDown", "count_down()"),
    **_each("availablePermits available_permits getCount get_value", "inspect()"),
    **_each("get_active_locks held_locks", "leases()"),
    **_each(
        "aclose close destroy disconnect quit shutdown",
        "aclose() of the manager, or close() of one of asynclock.blocking",
    ),
}
"""Methods of other lock libraries, or of the other kind of leases (async, blocking), and what to
write instead. Where a class has a method of that name, Python finds it first."""
LONG_TTL = 3600.0
"""Seconds above which a ttl needs a `max_ttl` beside it, because it may be in milliseconds."""
MOST_SECONDS = 1e10
"""Maximum number of seconds of a setting; a server can still count them in milliseconds."""


RestartGuard: TypeAlias = bool | Literal["disk"]
"""Which nodes wait before they vote, because they may have forgotten leases."""


class ConnectSettings(TypedDict, total=False):
    """The keyword arguments of `connect`, for functions that pass them on."""

    ttl: float
    """Seconds that a lease lives without renewal (default: 10)."""
    max_ttl: float | None
    """Seconds of the longest ttl in the whole fleet (default: the larger of `ttl` and 10)."""
    node_timeout: float
    """Seconds in which each node must answer (default: 0.25)."""
    turn: float
    """Seconds that a process may keep a name while other processes wait (default: 0.01)."""
    ticket_ttl: float | None
    """Seconds that nodes keep the place of a waiter that doesn't ask again (default: the larger of
    2 and two node timeouts)."""
    fence_retention: float | None
    """Seconds that nodes keep the fence counter of an unused name (default: 1060 s + max_ttl)."""
    acks: int | Literal["majority", "all"]
    """Number of replicas that must have a grant before it counts (default: 0)."""
    durable: bool
    """Whether a grant counts only once it is on disk (Redis 7.2)."""
    prefix: str
    """What all keys begin with (default: "asynclock:")."""
    label: str | None
    """Name of this process for people (default: host:pid)."""
    restart_guard: RestartGuard
    """Whether nodes that may have forgotten leases wait before they vote (default: True). "disk":
    nodes that sync each write to a disk don't wait, because their disks are never lost."""
    clock_guard: bool
    """Whether nodes whose clock jumped wait before they vote (default: True)."""
    set_guard: bool
    """Whether other nodes than those of the fleet's record are an error (default: True)."""
    strict: bool
    """Whether a server that may evict keys is an error."""
    observers: Sequence[Observer]
    """Functions that are called with each event."""


def callback(value: object, what: str = "a callback") -> None:
    """Raise ConfigurationError unless `value` is a function that isn't `async def`."""
    if not callable(value) or any(map(inspect.iscoroutinefunction, (value, value.__call__))):
        raise ConfigurationError(f"{what} must be a function without async, not {value!r}")


def unknown(given: Iterable[str]) -> TypeError:
    """Return the error for unknown arguments; for those of other libraries it names ours."""
    name = min(given)
    hint = f": write {NAMED_HERE[name]}" if name in NAMED_HERE else ""
    made_with = "timeout", "renew", "max_hold", "interrupt", "handoff", "at_least"
    words = (*ConnectSettings.__annotations__, *made_with)
    if not hint and name in words:
        hint = ": write this in connect(...)"
    elif not hint and (near := difflib.get_close_matches(name, words, 1, 0.65)):
        hint = f": did you mean {near[0]!r}?"
    return TypeError(f"unexpected keyword argument {name!r}{hint}")


class Hint:
    """An attribute that an object doesn't have: its AttributeError says what to write instead."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        """What the message ends with; {} stands for the class."""

    def __get__(self, one: object, kind: type) -> Never:
        raise AttributeError(self._text.format(kind.__name__), name=self._name, obj=one or kind)


class _Hidden(type):
    """The class of classes with hints, which `dir` and so all tools leave out."""

    def __dir__(cls) -> list[str]:
        every = super().__dir__()
        return [one for one in every if type(inspect.getattr_static(cls, one, None)) is not Hint]


class Answering(metaclass=_Hidden):
    """An object whose AttributeError says what to write instead of another library's method."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __dir__(self) -> list[str]:
            return [*dir(type(self)), *getattr(self, "__dict__", ())]


# Not __getattr__, which would make each access to an attribute slower.
for _name, _write in METHODS_HERE.items():
    setattr(Answering, _name, Hint(_name, f"{{}} has no {_name!r}: write {_write}"))


def instead(write: str) -> Callable[..., Never]:
    """Return a special method that only says what to write instead of the code that called it."""

    def refuse(self: object, *_: object) -> Never:
        raise TypeError(f"{type(self).__name__}: write {write}")

    return refuse


enter_async = instead("`async with`; code without asyncio uses asynclock.blocking")
enter_plain = instead("`with`; asyncio code uses asynclock.connect() and `async with`")


def made_by(call: str) -> Callable[[C], C]:
    """Decorate a class so that the TypeError of wrong arguments tells which `call` makes it.

    Python begins the message with the qualified name of `__init__`, so the hint costs nothing. An
    object of the class can't be copied, because it refers to its manager.
    """

    def decorate(cls: C) -> C:
        init = cls.__init__
        code, names = init.__code__, init.__globals__
        own = FunctionType(code, names, None, init.__defaults__, init.__closure__)
        functools.update_wrapper(own, init)
        own.__qualname__ = f"{cls.__name__} is made by {call}: {cls.__name__}.__init__"
        cls.__init__ = own  # another class may inherit the original
        return of_one_process(cls)

    return decorate


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


def seconds(value: object, what: str, *, zero: bool = False) -> float:
    """Return `value` as a finite number of seconds above zero, or at least zero with `zero`.

    This and all other checks raise ConfigurationError.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = f": write {value.total_seconds():g}" if isinstance(value, timedelta) else ""
        raise ConfigurationError(f"{what} must be a number of seconds, not {value!r}{hint}")
    # Not `math.isfinite`, which fails on a very large int.
    if value != value or value in (math.inf, -math.inf) or value < 0 or (value == 0 and not zero):  # noqa: PLR0124
        least = "at least 0" if zero else "above 0"
        raise ConfigurationError(f"{what} must be finite and {least}, not {value!r}")
    if value > MOST_SECONDS:
        raise ConfigurationError(f"{what} must be at most {MOST_SECONDS:g} seconds")
    return float(value)


def optional_seconds(value: object, what: str, *, zero: bool = False) -> float | None:
    """Return `value` as a number of seconds, as `seconds` does, or None."""
    return None if value is None else seconds(value, what, zero=zero)


def name(value: object, what: str = "a lock's name") -> str:
    """Return `value` as the name of a lock: text that can be written as UTF-8."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise ConfigurationError(f"{what} must be a str, not {type(value).__name__}")
        value = str.__str__(value)  # a member of an enum may format as another text
    if not value:
        raise ConfigurationError(f"{what} must not be empty")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{what} can't be written as UTF-8: {error}") from None
    return value


def prefix(value: object) -> str:
    """Return `value` as the prefix of a manager, which may be empty."""
    checked = "" if value == "" else name(value, "prefix")
    if MARKER in checked:
        raise ConfigurationError(f"prefix must not contain {MARKER!r}: {checked!r}")
    return checked


def label(value: object) -> str | None:
    """Return `value` as the label of a manager: a short name for people, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 200:
        raise ConfigurationError(f"label must be a str of at most 200 characters, not {value!r}")
    if "\0" in value:  # no environment variable can hold it, and `asynclock run` sets the owner
        raise ConfigurationError(f"label must not contain the character NUL: {value!r}")
    return name(value, "label") if value else ""


def ticket_ttl(value: object, node_timeout: float) -> float:
    """Return the checked seconds that a ticket lives; None stands for the default."""
    least = 2 * node_timeout
    checked = optional_seconds(value, "ticket_ttl")
    if checked is not None and checked < least:
        raise ConfigurationError(
            f"ticket_ttl={checked:g} must be at least two node timeouts ({least:g}): a waiter that "
            "asks again must be able to do so in time"
        )
    return max(2.0, least) if checked is None else checked


def restart_guard(value: object) -> RestartGuard:
    """Return `value` as a setting of the restart guard."""
    if value == "disk":
        return "disk"
    if isinstance(value, str):
        raise ConfigurationError(f'restart_guard must be True, False or "disk", not {value!r}')
    return bool(value)


def flag(value: object, what: str) -> bool:
    """Return `value` as a bool."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be True or False, not {value!r}")
    return value


def handoff(value: object) -> bool | Literal["strict"]:
    """Return `value` as a way to hand over; "block" is another word for True."""
    if value is True or value == "block":
        return True
    if value is False:
        return False
    if value == "strict":
        return "strict"
    raise ConfigurationError(f'handoff must be True (or "block"), "strict" or False, not {value!r}')


def count(value: object, what: str, most: int) -> int:
    """Return `value` as a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {most}, not {value!r}")
    return value


def ttl(value: object, *, node_timeout: float, max_ttl: float) -> float:
    """Return `value` as a ttl above the node timeout and at most the fleet's `max_ttl`."""
    checked = seconds(value, "ttl")
    if checked <= node_timeout:
        raise ConfigurationError(
            f"ttl={checked:g} must be longer than node_timeout={node_timeout:g}: "
            "a lease would end before the nodes have answered"
        )
    if checked > max_ttl:
        raise ConfigurationError(
            f"ttl={checked:g} is longer than max_ttl={max_ttl:g}: guards wait for max_ttl, so it "
            f"must be the longest ttl of your whole fleet; ttl is in seconds (max_ttl={checked:g}, "
            f"on the command line --max-ttl {checked:g})"
        )
    return checked


def max_ttl(value: object, usual: object, node_timeout: float) -> float:
    """Return `value`, the longest ttl of the fleet, in seconds; `usual` is the default ttl.

    None stands for 10 s, or for the default ttl if that is longer.
    """
    longest = optional_seconds(value, "max_ttl")
    checked = seconds(usual, "ttl")
    if longest is None and checked > LONG_TTL:
        raise ConfigurationError(
            f"ttl={checked:g} is {checked / 3600:.1f} hours: if a holder died, nobody would get "
            "its lock for that long. ttl is in seconds, and leases are renewed, so 10 to 60 are "
            f"enough. For a longer ttl give max_ttl={checked:g} as well"
        )
    longest = max(checked, 10.0) if longest is None else longest
    ttl(checked, node_timeout=node_timeout, max_ttl=longest)
    if node_timeout > longest / 4:
        # An attempt takes up to two node timeouts and must end well before every quarantine.
        raise ConfigurationError(
            f"node_timeout={node_timeout:g} must be at most a quarter of max_ttl={longest:g}"
        )
    return longest
