"""What each refusal says: which name and which argument it is about, and what is allowed."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._primitives import register
from asynclock.errors import ConfigurationError
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single

# ---- shared state --------------------------------------------------------------------------------


@virtual_single
async def test_a_barrier_names_itself_in_whatever_ends_a_wait(on: Nodes) -> None:
    barrier = on.locks.barrier("b", 2)
    with pytest.raises(TimeoutError, match="not all 2 parties arrived at barrier 'b'"):
        await barrier.wait(timeout=1)
    for end, text in (
        (barrier.reset, "'b' was reset while this party waited"),
        (barrier.abort, "'b' is broken until it is reset"),
    ):
        waiting = start(barrier.wait(timeout=30))
        await asyncio.sleep(0.1)
        await end()
        with pytest.raises(asynclock.BrokenBarrierError, match=text) as sent_away:
            await waiting
        assert sent_away.value.name == "b"
    with pytest.raises(ConfigurationError, match="'b' is for 2 parties, not 3") as caught:
        await on.locks.barrier("b", 3).waiting()
    assert caught.value.name == "b"


@virtual_single
async def test_a_party_that_gives_up_in_vain_is_gone_within_two_node_timeouts(on: Nodes) -> None:
    """And says that the nodes did not answer: it can't know whether the others have passed."""
    giving_up = start(on.locks.barrier("b", 2).wait(timeout=3))
    await asyncio.sleep(2.9)
    on.nodes[0].freeze()
    began = _clock.now()
    with pytest.raises((TimeoutError, asynclock.QuorumUnavailableError)):
        await giving_up
    assert _clock.now() - began < 0.1 + 2.0 + 0.1


@virtual_single
async def test_a_latch_names_itself_and_both_counts(on: Nodes) -> None:
    await on.locks.latch("l", 3).count_down()
    with pytest.raises(ConfigurationError, match="'l' counts from 3, not from 4") as caught:
        await on.locks.latch("l", 4).count_down()
    assert caught.value.name == "l"
    with pytest.raises(ConfigurationError, match=r"^by must"):
        await on.locks.latch("l", 3).count_down(0)
    with pytest.raises(ConfigurationError, match=r"^count must"):
        on.locks.latch("l", 0)


@virtual_single
async def test_a_wrong_name_or_lifetime_is_called_what_it_is(on: Nodes) -> None:
    makers: dict[str, Any] = {
        "event": on.locks.event,
        "latch": lambda name, **more: on.locks.latch(name, 2, **more),
        "barrier": lambda name, **more: on.locks.barrier(name, 2, **more),
    }
    for kind, make in makers.items():
        with pytest.raises(ConfigurationError, match=f"^the name of a {kind} must not be empty"):
            make("")
        with pytest.raises(ConfigurationError, match=r"^keep must"):
            make("a", keep=0)


@virtual
async def test_too_few_answers_about_a_state_say_so(on: Nodes) -> None:
    """And not that something was to be locked."""
    for node in on.nodes[1:]:
        node.kill()
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await on.locks.event("e").is_set(timeout=3)
    assert str(caught.value).startswith("too few nodes answered to know the state of 'e': ")
    assert caught.value.name == "e"


@virtual_single
async def test_a_change_that_others_overtake_names_what_was_to_be_changed(on: Nodes) -> None:
    patience = register._Patience(on.locks._engine, "e", _clock.now())
    with pytest.raises(asynclock.QuorumUnavailableError, match="other changes of 'e'") as caught:
        await patience.step_aside(60)
    assert caught.value.name == "e"


@virtual_single
async def test_a_look_at_a_state_tells_its_age_its_number_and_what_is_wrong(on: Nodes) -> None:
    event = on.locks.event("e", keep=60)
    await event.set()
    await asyncio.sleep(10)
    (view,) = (await event.inspect()).nodes
    assert (view.value, view.error) == ("set", None)
    assert view.remaining == pytest.approx(50, abs=0.1)
    (number,) = await on.nodes[0].command("HMGET", "asynclock:e:#event", "accepted")
    assert view.fence == int(number)
    on.nodes[0].kill()
    (view,) = (await event.inspect()).nodes
    assert view.error == "connection lost: reset by the node"
    assert (view.value, view.remaining) == (None, None)


# ---- holds, sides, several names -----------------------------------------------------------------


@virtual_single
async def test_a_hold_is_entered_once_and_adopted_while_it_is_entered(on: Nodes) -> None:
    for lock in (on.locks.multi_lock("a", "b"), on.locks.reentrant_lock("r")):
        hold: Any = await lock.acquire()
        with pytest.raises(RuntimeError, match="this lease is not entered"):
            hold.adopt()
        async with hold:
            hold.adopt()
            with pytest.raises(RuntimeError, match="has been entered already"):
                await hold.__aenter__()
            assert hold.held
        assert not hold.held


@virtual_single
async def test_leaving_a_lock_that_was_not_entered_says_just_that(on: Nodes) -> None:
    with pytest.raises(RuntimeError, match=r"^this lock is not entered$"):
        await on.locks.lock("a").__aexit__(None, None, None)


@virtual_single
async def test_a_lease_that_is_not_of_this_side_of_this_lock_is_refused(on: Nodes) -> None:
    lock, other = on.locks.rwlock("a"), on.locks.rwlock("b")
    reading, writing = await lock.read().acquire(), await other.write().acquire()
    async with on.connect() as others:
        foreign = await others.rwlock("a").read().acquire()
        for wrong in (foreign, writing, await other.read().try_acquire(), object()):
            with pytest.raises(ConfigurationError, match="is no lease to read 'a' here"):
                lock.upgrade(wrong)  # type: ignore[arg-type]  # what a caller may do wrong
        for wrong in (reading, foreign, writing):
            with pytest.raises(ConfigurationError, match="is no lease to write 'a' here"):
                await lock.downgrade(wrong)
    assert reading.held
    assert writing.held


def test_how_many_names_a_lock_may_have() -> None:
    locks = asynclock.connect("memory://")
    for names in ((), tuple(map(str, range(65)))):
        with pytest.raises(ConfigurationError, match=f"from 1 to 64 names, not {len(names)}$"):
            locks.multi_lock(*names)
    assert len(locks.multi_lock(*map(str, range(64))).names) == 64
    assert locks.multi_lock("b", "a", "b").name == "a, b"


def test_how_many_permits_there_may_be() -> None:
    locks = asynclock.connect("memory://")
    assert locks.semaphore("s", 256).permits == 256
    for wrong in (0, 257):
        with pytest.raises(ConfigurationError, match=r"^permits must.*256"):
            locks.semaphore("s", wrong)
    for wrong in (0, 4):
        with pytest.raises(ConfigurationError, match=r"^several must.*3"):
            locks.semaphore("s", 3).several(wrong)


@pytest.mark.parametrize(
    ("template", "lease", "text"),
    [
        ("{order", None, "'{order' is not a valid template: .*'}'"),
        (
            "{user.id}",
            None,
            r"'\{user\.id\}' names 'user', which is not a parameter of .*pay\(order",
        ),
        ("{order}", "held", r"lease='held' must be a keyword-only parameter of .*pay\(order"),
    ],
)
def test_a_decorator_says_what_the_function_lacks(
    template: str, lease: str | None, text: str
) -> None:
    async def pay(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match=text):
        asynclock.connect("memory://").synchronized(template, lease=lease)(pay)


def test_a_decorator_without_a_name_shows_what_it_got_instead() -> None:
    with pytest.raises(ConfigurationError) as caught:
        asynclock.connect("memory://").synchronized(len)  # type: ignore[arg-type]  # the mistake
    assert str(caught.value) == (
        'synchronized takes a template, as in @locks.synchronized("name"), '
        "not <built-in function len>"
    )


def test_a_decorated_function_shows_all_parameters_but_that_of_the_lease() -> None:
    @asynclock.connect("memory://").synchronized("{order}", lease="held")
    async def pay(order: int, *, note: str = "", held: asynclock.Lease, at: float) -> None: ...

    shown = inspect.signature(pay).parameters.values()
    assert [(one.name, one.kind, one.default) for one in shown] == [
        ("order", inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty),
        ("note", inspect.Parameter.KEYWORD_ONLY, ""),
        ("at", inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty),
    ]


def test_a_managers_wrong_setting_is_named() -> None:
    for given, text in (
        ({"prefix": 1}, "^prefix must be a str"),
        ({"node_timeout": 2, "max_ttl": 7, "ttl": 7}, "^node_timeout=2 .* a quarter of max_ttl=7$"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            asynclock.connect("memory://", **given)  # type: ignore[arg-type]  # what a caller may do wrong
    with pytest.raises(ConfigurationError, match=r"^max_hold must"):
        asynclock.connect("memory://").lock("a", max_hold=-1)
    with pytest.raises(ConfigurationError, match=r"^handoff must"):
        asynclock.connect("memory://").lock("a", handoff="never")  # type: ignore[arg-type]  # as well
