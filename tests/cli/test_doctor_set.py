"""What `asynclock doctor` says of a set of nodes: how many, how independent, of one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from asynclock._inspect.fleet_state import NAMED, digest
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.replies import Failure
from asynclock._rules.nodeset import Kept, NodeSet
from asynclock._rules.trust import Facts
from asynclock.cli.doctor import groups as grouping
from asynclock.cli.doctor.checkup import examine
from asynclock.cli.doctor.findings import Finding, Severity
from asynclock.cli.doctor.groups import resolve
from asynclock.cli.doctor.probe import Probe, Purpose

from .test_doctor_checks import ERROR, NOTE, ONE, THREE, WARNING, probed, shown

# ---- the set of nodes ----------------------------------------------------------------------------


def fleet(count: int, down: int = 0, **reported: Any) -> list[list[Probe]]:
    gone = Failure("connection refused")
    return [
        [
            probed(
                f"rediss://10.0.0.{at}",
                down=gone if at < down else None,
                facts=Facts(run_id=f"id{at}"),
                **reported,
            )
        ]
        for at in range(count)
    ]


OF_THE_SET = {
    "two-nodes",
    "even-number",
    "no-quorum",
    "duplicate",
    "one-machine",
    "versions-differ",
}


def of_the_set(groups: list[list[Probe]], purpose: Purpose = THREE) -> list[tuple[str, Severity]]:
    return [one for one in shown(examine(groups, purpose)) if one[0] in OF_THE_SET]


@pytest.mark.parametrize(
    ("count", "down", "wanted"),
    [
        (1, 0, []),
        (1, 1, [("no-quorum", ERROR)]),
        (2, 0, [("two-nodes", ERROR)]),
        (2, 1, [("two-nodes", ERROR)]),
        (3, 1, []),
        (3, 2, [("no-quorum", ERROR)]),
        (4, 0, [("even-number", NOTE)]),
        (4, 2, [("no-quorum", ERROR), ("even-number", NOTE)]),
        (5, 2, []),
        (5, 3, [("no-quorum", ERROR)]),
    ],
)
def test_how_many_nodes_there_are(
    count: int, down: int, wanted: list[tuple[str, Severity]]
) -> None:
    assert of_the_set(fleet(count, down)) == wanted


def test_four_nodes_survive_what_three_do() -> None:
    found = next(one for one in examine(fleet(4), THREE) if one.code == "even-number")
    assert "4 nodes survive the loss of 1, as 3 would" in found.why
    assert "3 or 5" in found.fix


def test_servers_that_are_one_or_run_on_one_machine() -> None:
    groups = fleet(3)
    groups[2][0].facts = Facts(run_id="id0")
    assert of_the_set(groups) == [("duplicate", ERROR)]
    nameless = [[replace(one, facts=Facts()) for one in group] for group in fleet(3)]
    assert of_the_set(nameless) == [], "without INFO nobody can tell"
    same = [[probed(f"rediss://10.0.0.1:{port}", facts=Facts(run_id=str(port)))] for port in (1, 2)]
    assert of_the_set([*same, *fleet(3)[2:]]) == [("one-machine", WARNING)]
    local = [
        [probed(f"rediss://localhost:{port}", facts=Facts(run_id=str(port)))] for port in (1, 2, 3)
    ]
    assert of_the_set(local) == [], "for trying things out"


def test_versions_that_differ_where_they_are_known() -> None:
    groups = fleet(3)
    for (one,), info in zip(
        groups, ({"redis_version": "7.0"}, {"redis_version": "7.2"}, {}), strict=True
    ):
        one.info = info
    assert of_the_set(groups) == [("versions-differ", NOTE)]
    groups[1][0].info = {"redis_version": "7.0"}
    assert of_the_set(groups) == []


def test_a_node_of_several_servers_is_reached_by_any_of_them() -> None:
    (one,), (other,), *_ = fleet(3, down=1)
    assert "no-quorum" not in [code for code, _ in shown(examine([[one, other]], ONE))]


def test_the_worst_comes_first() -> None:
    severities = [severity for _, severity in shown(examine(fleet(4, 2, login=False), THREE))]
    assert severities == sorted(severities, reverse=True)
    assert len(set(severities)) == 3


# ---- the record ----------------------------------------------------------------------------------

NAMES = tuple(f"10.0.0.{at}:6379" for at in range(3))
OTHER = (*NAMES, "10.0.0.9:6379")


def recorded(
    record: NodeSet | None, *numbers: int, uses: Sequence[tuple[str, str]] = ()
) -> dict[str, Finding]:
    """Return what is found, by code, where the nodes keep this record.

    `numbers` are those of the changes that the nodes know; 0 for a node without a record. `uses`
    are clients, and the digest of the nodes that each one uses.
    """
    found = fleet(3)
    lines = [f"id=1 name={NAMED}{used}:{label} age=3" for label, used in uses]
    for (server,), number, name in zip(found, numbers or (1, 1, 1), NAMES, strict=True):
        server.clients = "\n".join(lines).encode()
        if record is not None and number:
            server.kept = Kept(number, record.text(), name)
    return {one.code: one for one in examine(found, THREE) if one.code.startswith("set-")}


def test_a_record_that_all_keep_is_no_finding() -> None:
    record = NodeSet(3, NAMES)
    assert recorded(record, uses=[("web", digest(NAMES))]) == {}
    assert recorded(None).keys() == {"set-unrecorded"}
    assert "set-unrecorded" not in [code for code, _ in shown(examine(fleet(1), ONE))]
    assert "set-unrecorded" not in [code for code, _ in shown(examine(fleet(3, 3), THREE))]


def test_nodes_that_are_not_those_of_the_record() -> None:
    found = recorded(NodeSet(3, OTHER))
    assert found.keys() == {"set-differs"}
    assert found["set-differs"].severity is ERROR
    assert "(epoch 3)" in found["set-differs"].what
    # A node may be reached by another address than the one that the record has.
    groups = fleet(3)
    for (server,), name in zip(groups, ("a:1", "b:1", "c:1"), strict=True):
        server.kept = Kept(1, NodeSet(3, ("a:1", "b:1", "c:1")).text(), name)
    assert "set-differs" not in [code for code, _ in shown(examine(groups, THREE))]


@pytest.mark.parametrize(
    ("phase", "said"), [("open", "open: it leads to"), ("closing", "closing: it comes from")]
)
def test_a_step_that_is_under_way(phase: str, said: str) -> None:
    found = recorded(NodeSet(3, NAMES, OTHER, phase))
    assert found.keys() == {"set-step"}
    assert said in found["set-step"].what
    assert OTHER[-1] in found["set-step"].what


def test_a_node_that_lags_behind_the_newest_record() -> None:
    found = recorded(NodeSet(3, NAMES), 2, 1, 2)
    assert found.keys() == {"set-lags"}
    assert found["set-lags"].node == "10.0.0.1:6379"
    assert "it keeps epoch 3 of the record" in found["set-lags"].what
    assert (
        "it keeps no record; the newest is epoch 3"
        in recorded(NodeSet(3, NAMES), 2, 2, 0)["set-lags"].what
    )
    groups = fleet(3, down=1)
    for (server,), name in zip(groups[1:], NAMES[1:], strict=True):
        server.kept = Kept(1, NodeSet(3, NAMES).text(), name)
    assert "set-lags" not in [code for code, _ in shown(examine(groups, THREE))], "it is down"


def test_clients_that_must_be_started_anew_are_named() -> None:
    """Those of the old set of a step, and those of a set that the record does not have at all."""
    uses = [("old", digest(NAMES)), ("new", digest(OTHER)), ("wild", "0" * len(digest(NAMES)))]
    found = recorded(NodeSet(3, NAMES, OTHER, "open"), uses=uses)
    assert (
        "2 clients use the old nodes of a step, or nodes outside the record: old, wild"
        in found["set-clients"].what
    )
    closing = recorded(NodeSet(3, NAMES, OTHER, "closing"), uses=uses)
    assert ": new, wild" in closing["set-clients"].what
    many = [(f"w{number:02}", "0" * 8) for number in range(25)]
    said = recorded(NodeSet(3, NAMES), uses=many)["set-clients"].what
    assert "25 clients" in said
    assert said.endswith("w18, w19, …")


# ---- behind one URL ------------------------------------------------------------------------------


async def test_of_sentinels_that_disagree_the_majority_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one may be stale, and name the primary of before."""
    named = {"s1": b"old", "s2": b"new", "s3": b"new"}

    async def ask(endpoint: Endpoint, *_: Any) -> list[Any]:
        return [[named[endpoint.host], b"6379"], b"OK"]

    monkeypatch.setattr(grouping, "_ask", ask)
    found = await resolve("redis+sentinel://:secret@s1,s2,s3/main")
    assert [server.address for server, _ in found.servers] == ["new:6379"]
    assert [one.code for one in found.findings] == ["sentinels-disagree"]
    named["s1"] = b"new"
    assert not (await resolve("redis+sentinel://s1,s2,s3/main")).findings
    few = await resolve("redis+sentinel://:secret@s1,s2/main")
    assert [one.code for one in few.findings] == ["few-sentinels"]
    assert "secret" not in few.findings[0].what


async def test_primaries_of_a_cluster_that_failed_or_have_no_slots_are_no_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that was never told its own address is the one that answers."""
    nodes = (
        b"id1 :7001@17001 myself,master - 0 0 1 connected 0-5000\n"
        b"id2 10.0.0.2:7002@17002 master - 0 0 2 connected 5001-9000\n"
        b"id3 10.0.0.3:7003@17003 master,fail - 0 0 3 connected 9001-16383\n"
        b"id4 10.0.0.4:7004@17004 master - 0 0 4 connected\n"
        b"id5 10.0.0.5:7005@17005 slave id1 0 0 1 connected\n"
    )
    state = b"cluster_state:ok"

    async def ask(*_: Any) -> list[Any]:
        return [state, nodes]

    monkeypatch.setattr(grouping, "_ask", ask)
    found = await resolve("redis+cluster://seed:7001")
    assert [server.address for server, _ in found.servers] == ["seed:7001", "10.0.0.2:7002"]
    assert not found.findings
    state = b"cluster_state:fail"
    assert [one.code for one in (await resolve("redis+cluster://seed")).findings] == [
        "cluster-state"
    ]
