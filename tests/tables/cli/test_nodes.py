"""`asynclock nodes` without nodes: what it asks of a Fleet, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

import pytest

from asynclock._access import fleet_record
from asynclock._inspect.fleet_state import Client, FleetState, NodeState
from asynclock._rules.nodeset import OPEN, Kept, NodeSet
from asynclock.cli import nodes
from asynclock.cli._sources import Settings
from asynclock.cli._status import Status
from asynclock.cli._text import say
from asynclock.cli.nodes import Action
from asynclock.errors import ConfigurationError
from asynclock.fleet import Fleet
from tests.cli.conftest import NODES
from tests.waiting import in_virtual_time

RECORD = NodeSet(4, ("a", "b", "c"))
NEWEST = NodeState("n0", "a", 4, 8, named=True, cause=None)
OLDER = NodeState("n1", "b", 3, 7, named=True, cause=None)
NOTHING = NodeState("n2", "n2", None, 0, named=False, cause=None)
SILENT = NodeState("n3", "n3", None, 0, named=False, cause="no answer")
CLIENTS = (Client("web-1:7", "old"),)


def state(
    *kept: NodeState,
    record: NodeSet | None = RECORD,
    clients: tuple[Client, ...] | None = (),
) -> FleetState:
    return FleetState(record, Kept(8 if record else 0, "", "a"), kept, clients, silent=False)


class Asked:
    """What a Fleet and `load` were asked for; the Fleet answers with `found`."""

    def __init__(self, found: FleetState, options: dict[str, Any]) -> None:
        self.found = found
        self.file = options
        self.options: dict[str, Any] = {}
        self.calls: list[Any] = []
        self.loaded: list[Any] = []
        self.logs = 0

    def load(self, *given: Any, **more: Any) -> Settings:
        self.loaded += [given, more]
        return Settings(("u1", "u2"), self.file)

    def log(self) -> None:
        self.logs += 1

    def fleet(self, *urls: str, **options: Any) -> Self:
        assert urls == ("u1", "u2")
        self.options = options
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def step(*given: str, **more: bool) -> FleetState:
            self.calls.append((name, given, more))
            return self.found

        return step


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    def ask(found: FleetState | None = None, **options: Any) -> Asked:
        one = Asked(found or state(NEWEST), options)
        monkeypatch.setattr(nodes, "load", one.load)
        monkeypatch.setattr(nodes, "log_to_stderr", one.log)
        monkeypatch.setattr(nodes, "Fleet", one.fleet)
        return one

    return ask


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("action", "given", "forced"),
    [
        ("show", [], False),
        ("record", [], True),
        ("finish", [], True),
        ("back", [], True),
        ("add", ["x"], False),
        ("remove", ["x"], False),
        ("replace", ["x", "y"], False),
    ],
)
def test_each_action_is_one_step_of_the_fleet(
    asked: Callable[..., Asked], action: str, given: list[str], forced: bool, force: bool
) -> None:
    one = asked()
    assert nodes.nodes(Action(action), given, force=force) == Status.OK
    assert one.calls == [(action, tuple(given), {"force": force} if forced else {})]
    assert one.options["progress"] is say
    assert one.logs == 1, "warnings of the library are for the operator"


@pytest.mark.parametrize(
    ("action", "given"),
    [("show", ["x"]), ("add", []), ("add", ["x", "y"]), ("replace", ["x"]), ("finish", ["x"])],
)
def test_a_wrong_number_of_nodes_asks_nothing(
    asked: Callable[..., Asked], action: str, given: list[str]
) -> None:
    one = asked()
    with pytest.raises(ConfigurationError, match=f"`nodes {action}` takes"):
        nodes.nodes(Action(action), given)
    assert not one.calls


@pytest.mark.parametrize(
    ("file", "max_ttl", "wanted"),
    [
        ({}, None, {"node_timeout": 1.0}),
        ({"node_timeout": 3.0, "ttl": 20.0}, None, {"node_timeout": 3.0, "ttl": 20.0}),
        ({}, 60.0, {"node_timeout": 1.0, "ttl": 10.0, "max_ttl": 60.0}),
        ({}, 2.0, {"node_timeout": 0.5, "ttl": 2.0, "max_ttl": 2.0}),
        (
            {"node_timeout": 0.2, "ttl": 1.0, "max_ttl": 9.0},
            4.0,
            {"node_timeout": 0.2, "ttl": 1.0, "max_ttl": 4.0},
        ),
    ],
)
def test_a_longest_ttl_bounds_what_the_file_says(
    asked: Callable[..., Asked],
    file: dict[str, float],
    max_ttl: float | None,
    wanted: dict[str, float],
) -> None:
    one = asked(**file)
    nodes.nodes(max_ttl=max_ttl)
    assert one.options == {**wanted, "progress": say}


def test_settings_are_read_from_all_that_was_given(asked: Callable[..., Asked]) -> None:
    one = asked()
    config: Any = "a file"
    nodes.nodes(node=["u"], config=config, prefix="p:", node_timeout=0.3)
    assert one.loaded == [(["u"], config), {"prefix": "p:", "node_timeout": 0.3}]


@pytest.mark.parametrize(
    ("found", "status", "begins"),
    [
        (state(NEWEST, OLDER, SILENT), Status.OK, "epoch 4: {a, b, c}"),
        (state(NEWEST, SILENT), Status.UNREACHABLE, "epoch 4: {a, b, c}"),
        (state(NOTHING, record=None), Status.OK, "no record: "),
        (state(NOTHING, SILENT, record=None), Status.UNREACHABLE, "the record is unknown: "),
    ],
    ids=["most answer", "half answers", "no record", "no record on half of them"],
)
def test_how_it_ends_and_begins(
    asked: Callable[..., Asked],
    found: FleetState,
    status: int,
    begins: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked(found)
    assert nodes.nodes() == status
    assert capsys.readouterr().out.startswith(begins)


def test_what_each_node_keeps_and_each_client_uses(
    asked: Callable[..., Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    asked(state(NEWEST, OLDER, NOTHING, SILENT, clients=CLIENTS))
    nodes.nodes()
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines == [
        ["n0", "a", "4", "the newest record"],
        ["n1", "b", "3", "an older record"],
        ["n2", "n2", "no", "record"],
        ["n3", "n3", "unknown:", "no answer"],
        ["client", "uses"],
        ["web-1:7", "old", "set"],
    ]


@pytest.mark.parametrize(
    ("clients", "last"), [(None, "clients: no node shows them (CLIENT LIST)"), ((), "n2    n2")]
)
def test_without_a_record_or_clients_nothing_is_said_of_them(
    asked: Callable[..., Asked],
    clients: tuple[()] | None,
    last: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked(state(NOTHING, record=None, clients=clients))
    nodes.nodes()
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.parametrize("clients", [None, CLIENTS])
def test_programs_see_who_lags(
    asked: Callable[..., Asked],
    clients: tuple[Client, ...] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = NodeSet(4, ("a",), ("a", "b"), OPEN)
    asked(state(NEWEST, OLDER, SILENT, record=step, clients=clients))
    nodes.nodes(json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [one["lags"] for one in shown["nodes"]] == [False, True, True]
    wanted = None if clients is None else [{"label": "web-1:7", "uses": "old"}]
    assert shown["clients"] == wanted
    assert (shown["record"]["phase"], shown["record"]["other"]) == ("open", ["a", "b"])


def test_a_settled_record_leaves_nothing_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    nodes.say_record(RECORD)
    assert capsys.readouterr().out == "epoch 4: {a, b, c}\n"


@in_virtual_time
async def test_a_record_of_a_later_version_is_left_alone() -> None:
    async with Fleet(*NODES, restart_guard=False, ttl=1.0, max_ttl=4.0) as one:
        await fleet_record(one._locks).change(lambda _: "a later form", None)
        with pytest.raises(ConfigurationError, match="not one of this version: 'a later form'"):
            await one.record()
        assert await fleet_record(one._locks).read(None) == "a later form"
