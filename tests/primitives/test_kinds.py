"""What primitives declare of themselves is all that tools know of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import asynclock
import asynclock._primitives
from asynclock._access import node_access
from asynclock._engine.spec import LockSpec
from asynclock._inspect.layout import PARTS, KeyRef
from asynclock._inspect.states import SharedState
from asynclock._inspect.survey import ask, survey
from asynclock._keys import lock_key
from asynclock._primitives.base import Lockable
from asynclock._primitives.kind import Held, Kind, State, StateView
from asynclock._primitives.kinds import KINDS, SCRIPTS
from asynclock._primitives.lock import SCRIPT
from asynclock.testing import LocalServer
from tests import patient


def test_no_two_parts_have_the_same_key() -> None:
    declared = [part.suffix for kind in KINDS for part in kind.parts]
    assert sorted(declared) == sorted(PARTS)


def test_every_script_of_a_primitive_is_declared() -> None:
    """Connections load the declared scripts, and an unknown script loses a wake-up."""
    folder = Path(asynclock._primitives.__file__).parent
    sources = {path.read_text("utf-8") for path in folder.glob("*.lua")}
    assert all(any(source in script.source for script in SCRIPTS) for source in sources)


def test_a_key_is_read_as_it_is_declared() -> None:
    for kind in KINDS:
        for part in kind.parts:
            key, *_ = part.keys(lock_key("app:", "a"))
            found = KeyRef.parse("app:", key.encode())
            assert found is not None
            assert (found.name, found.kind, found.part) == ("a", kind.name, part)
            if isinstance(part, Held):
                assert KeyRef.shown_as("a", found.kind, found.shown) == found


@pytest.mark.parametrize("value", ["?", "null", "[1]", '[3, {"a": "b"}]', "[" * 200_000])
@pytest.mark.parametrize("kind", ["event", "latch", "barrier"])
def test_a_state_that_something_else_wrote(kind: str, value: str) -> None:
    _, part = PARTS[kind]
    assert isinstance(part, State)
    view = StateView("a:1", number=1, value=value)
    found = SharedState("x", part, (view,), 1)
    assert found.state is None
    assert found.summary == "written by something else"


async def test_tools_need_only_the_declaration_of_a_primitive(
    monkeypatch: pytest.MonkeyPatch, asynclock_nodes: list[LocalServer]
) -> None:
    gate = Held(SCRIPT, "gate", "wide")
    monkeypatch.setitem(PARTS, "gate", (Kind("gatehouse", (SCRIPT,), (gate,)), gate))
    async with patient.connect(asynclock_nodes[0].url) as locks:
        access, options = node_access(locks), locks._defaults.usual
        key = lock_key(access.prefix, "a")
        spec = LockSpec("a", SCRIPT, gate.keys(key), queue=f"{key}:#gate-queue")
        lease = await Lockable(locks._engine, spec, options, None).acquire()
        (found,) = (await survey(node_access(locks))).held
        assert (found.kind, found.part, found.owner) == ("gatehouse", "wide", lease.owner)
        release = KeyRef.shown_as("a", found.kind, found.part).release(access.prefix, lease.owner)
        assert (await ask(access.nodes[0], release))[0] == 1
        assert not (await survey(node_access(locks))).held
